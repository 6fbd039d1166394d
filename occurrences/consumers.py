"""The websocket of the live pages: says which of the parts that a page watches have changed, never what is in them.

Browser: {"watch": ["overview", "job:<id>", …]}, again whenever its parts change. Server: {"changed": ["overview", …]}.
Each `watch` is checked anew against what its sender may see. Close codes: 4400 not understood, 4401 not (or no longer)
logged in, 4429 too many messages, 4503 live updates are not to be had now. (Of the standard codes the server may send
1000 only.)
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from importlib import import_module
from typing import Any

import msgspec
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from redis.exceptions import RedisError

from jobs.announcer import GROUP
from jobs.conf import conf

MAX_WATCHED = 200
MAX_MESSAGE_CHARS = 16_384
MAX_MESSAGES = 20
MAX_MESSAGES_SECONDS = 10.0
CHECK_SECONDS = 4.0
MAX_UNHEARD = 3
TOLD_EVERY_SECONDS = 60.0

# What may be watched, and the permission for it. The second column: whether the topic names one row.
TOPICS: dict[str, tuple[str, bool]] = {
    "overview": ("occurrences.view_occurrence", False),
    "occurrences": ("occurrences.view_occurrence", False),
    "occurrence": ("occurrences.view_occurrence", True),
    "jobs": ("jobs.view_job", False),
    "job": ("jobs.view_job", True),
    "failures": ("occurrences.view_failedoccurrence", False),
    "workers": ("workers_app.view_worker", False),
}


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """The only message that a browser may send."""

    watch: list[str]


logger = logging.getLogger(__name__)
SessionStore = import_module(settings.SESSION_ENGINE).SessionStore
_decoder = msgspec.json.Decoder(Watch)


class LiveConsumer(AsyncWebsocketConsumer):
    """One browser page."""

    groups = (GROUP,)
    watched: frozenset[str] = frozenset()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection; a channel layer that is away ends it in good order, and the page polls."""
        try:
            await super().__call__(scope, receive, send)
        except RedisError as error:
            _tell_once(type(error).__name__)
            await send({"type": "websocket.close", "code": 4503})

    async def connect(self) -> None:
        """Let in who is logged in. Accepted first, since a browser learns the close code of an open socket only."""
        self._changed: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._checker: asyncio.Task[None] | None = None
        self._received_at: deque[float] = deque(maxlen=MAX_MESSAGES)
        await self.accept()
        if not self.scope["user"].is_authenticated:
            await self.close(code=4401)
            return
        self._checker = asyncio.create_task(self._check())

    async def disconnect(self, code: int) -> None:
        """The browser left."""
        for task in (self._sender, self._checker):
            if task:
                task.cancel()

    async def _check(self) -> None:
        """Send a word to this very page through the channel layer, again and again; when several do not come back, no
        news would either. The layer's client says nothing of that: it tries to connect for ever, and the page would
        look live.
        """
        reason = "no answer"
        self._unheard = 0
        try:
            while self._unheard < MAX_UNHEARD:
                self._unheard += 1
                await self.channel_layer.send(self.channel_name, {"type": "heard"})
                await asyncio.sleep(CHECK_SECONDS)
        except Exception as error:  # whatever the layer's client raises
            reason = type(error).__name__
        _tell_once(reason)
        await self.close(code=4503)

    async def heard(self, event: dict[str, Any]) -> None:
        """The word came back."""
        self._unheard = 0

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Watch these topics from now on, as far as the user may see them."""
        now = time.monotonic()
        if len(self._received_at) == MAX_MESSAGES and now - self._received_at[0] < MAX_MESSAGES_SECONDS:
            await self.close(code=4429)
            return
        self._received_at.append(now)
        topics = _read(text_data)
        if topics is None:
            await self.close(code=4400)
            return
        allowed = await self._allowed(topics)
        if allowed is None:
            await self.close(code=4401)
            return
        self.watched = allowed
        await self._send({"watching": sorted(allowed)})

    async def _allowed(self, topics: list[str]) -> frozenset[str] | None:
        """What of this the user may see, None when the session has ended. Asks the database each time: roles change."""
        # The connection's own session object remembers what it read when the page was opened.
        session = SessionStore(self.scope["session"].session_key)
        user = await get_user({**self.scope, "session": session})
        if not (user.is_authenticated and user.is_active):
            return None
        permissions = await database_sync_to_async(user.get_all_permissions)()
        return frozenset(topic for topic in topics if TOPICS[topic.partition(":")[0]][0] in permissions)

    async def changes(self, event: dict[str, Any]) -> None:
        """A message of `jobs.announcer`: pass on what this page watches, gathered over one interval."""
        self._changed |= self.watched if event["many"] else self.watched.intersection(event["topics"])
        if self._changed and self._sender is None:
            self._sender = asyncio.create_task(self._send_changed())

    async def _send_changed(self) -> None:
        try:
            while self._changed:
                changed, self._changed = self._changed, set()
                await self._send({"changed": sorted(changed)})
                await asyncio.sleep(conf().live_interval_seconds)
        finally:
            self._sender = None

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self.send(text_data=msgspec.json.encode(message).decode())
        except Exception as error:  # the server's own exception for a browser that has just left
            if type(error).__name__ != "Disconnected":
                raise


_told_at = float("-inf")


def _tell_once(reason: str) -> None:
    """Say that pages are sent away, once a minute and not once for each of them."""
    global _told_at
    now = time.monotonic()
    if now - _told_at > TOLD_EVERY_SECONDS:
        _told_at = now
        logger.warning("live pages are sent away: the channel layer cannot be reached (%s)", reason)


def _read(text: str | None) -> list[str] | None:
    """The topics of a message, None when it is not one that a page of ours would send."""
    if text is None or len(text) > MAX_MESSAGE_CHARS:
        return None
    try:
        topics = _decoder.decode(text).watch
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    return topics if len(topics) <= MAX_WATCHED and all(map(_is_topic, topics)) else None


def _is_topic(topic: str) -> bool:
    name, separator, identifier = topic.partition(":")
    known = TOPICS.get(name)
    if known is None or known[1] is not bool(separator):
        return False
    if not separator:
        return True
    try:
        return str(uuid.UUID(identifier)) == identifier
    except ValueError:
        return False
