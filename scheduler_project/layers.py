"""Live updates without a server: Channels' in-memory layer, made safe to call from other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from channels.layers import InMemoryChannelLayer


class LoopBoundChannelLayer(InMemoryChannelLayer):
    """The in-memory layer, all of whose work happens on the loop that receives (the web server's).

    The stock layer's queues belong to one event loop but are filled from whichever thread sends, without waking
    the receiver: a message then waits for the next timer, up to a second. Here a send from another loop hops over.
    """

    _home: asyncio.AbstractEventLoop | None = None

    async def _at_home(self, work: Coroutine[Any, Any, Any]) -> Any:
        home = self._home
        if home is None or home is asyncio.get_running_loop() or home.is_closed():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))

    async def receive(self, channel: str) -> dict[str, Any]:
        """Wait for a message; the first receiver's loop becomes home."""
        self._home = asyncio.get_running_loop()
        message: dict[str, Any] = await super().receive(channel)
        return message

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        """Send to one channel."""
        await self._at_home(super().send(channel, message))

    async def group_add(self, group: str, channel: str) -> None:
        """Subscribe a channel to a group."""
        await self._at_home(super().group_add(group, channel))

    async def group_discard(self, group: str, channel: str) -> None:
        """End a subscription."""
        await self._at_home(super().group_discard(group, channel))

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send to every channel of a group."""
        await self._at_home(super().group_send(group, message))
