"""One open connection to RabbitMQ, and the thread that it lives on.

`IoThread` owns an event loop; `Link` is one connection on it, with pika's callbacks turned into awaitables and
pika's exceptions into ours. The publisher and the consumer build on both. It never reconnects by itself and
never shows a password.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from tickwork.errors import BrokerError, BrokerUnavailable, ConfigurationError

__all__ = ["ChannelClosed", "IoThread", "Link", "address", "parameters", "readable"]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
HEARTBEAT_SECONDS = 20

# pika tells each lost connection up to seven times, as errors with tracebacks; we tell it once. The loggers are
# those beneath "pika", so that a level set on that one does not bring the noise back; set theirs to debug pika.
for _name in ("pika.adapters", "pika.channel", "pika.connection", "pika.heartbeat"):
    if (_noisy := logging.getLogger(_name)).level == logging.NOTSET:
        _noisy.setLevel(logging.CRITICAL + 1)


class ChannelClosed(BrokerError):
    """The broker closed a channel; `code` is AMQP's (404 not found, 406 other arguments …)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


def parameters(url: str) -> pika.URLParameters:
    """Connection parameters of `amqp[s]://user:password@host:port/vhost`.

    Raises ConfigurationError, whose text does not hold the password.
    """
    try:
        found = pika.URLParameters(url)
    except Exception:
        # pika's own text may hold the whole address.
        raise ConfigurationError("BROKER_URL is not of the form amqp[s]://user:password@host:port/vhost") from None
    if "heartbeat=" not in url:
        found.heartbeat = HEARTBEAT_SECONDS
    found.connection_attempts = 1
    found.socket_timeout = found.stack_timeout = CONNECT_SECONDS
    return found


def address(known: pika.connection.Parameters) -> str:
    """The broker's address for logs: host, port and virtual host."""
    return f"{known.host}:{known.port}/{known.virtual_host.lstrip('/')}"


def readable(error: BaseException | None) -> str:
    """One line that says why, from pika's nested exceptions."""
    if isinstance(error, (pika.exceptions.ConnectionClosed, pika.exceptions.ChannelClosed)):
        return f"{error.reply_code} {error.reply_text}"
    inner = getattr(error, "exceptions", None) or getattr(error, "exception", None)
    if isinstance(inner, (list, tuple)) and inner:
        inner = inner[-1]
    if not inner and error is not None and error.args and isinstance(error.args[0], BaseException):
        inner = error.args[0]
    if isinstance(inner, BaseException):
        return readable(inner)
    text = str(error) if error is not None else "connection lost"
    return text or type(error).__name__


class IoThread:
    """A thread that runs an event loop and nothing else, so that heartbeats never wait for user code."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Run `function` on the loop soon, from any thread. False when the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def stop(self, timeout: float) -> None:
        """End the loop and wait for the thread; tasks that still run are cancelled."""
        if self.call(self.loop.stop) and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self.loop.close()


class _Connection(AsyncioConnection):
    """pika's connection, with what its public face lacks: writing ready-made frames, and ending without farewell."""

    def write(self, frames: bytes) -> None:
        """Send encoded frames in one piece, where pika would send three small packets for each message."""
        self._output_marshaled_frames([frames])

    @property
    def frame_max(self) -> int:
        """The largest frame that both sides agreed on, in bytes."""
        return int(self.params.frame_max)

    def cut(self, reason: str) -> None:
        """End the TCP connection now, without the farewell that a frozen peer would never answer."""
        self._terminate_stream(pika.exceptions.StreamLostError(reason))


class Link:
    """One open connection. `lost` is done, with the reason, as soon as the connection has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._unanswered: dict[asyncio.Future[Any], Channel | None] = {}
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.blocked = False
        self._connection: _Connection | None = None

    @classmethod
    async def open(cls, known: pika.URLParameters) -> Link:
        """Connect. Raises BrokerUnavailable with the reason."""
        link = cls()
        try:
            link._connection = connection = _Connection(
                known,
                on_open_callback=lambda _: link._on_open(),
                on_open_error_callback=lambda _, error: link._on_lost(error),
                on_close_callback=lambda _, error: link._on_lost(error),
                custom_ioloop=link._loop,
            )
            connection.add_on_connection_blocked_callback(lambda *_: setattr(link, "blocked", True))
            connection.add_on_connection_unblocked_callback(lambda *_: setattr(link, "blocked", False))
            await asyncio.wait_for(link._opened, CONNECT_SECONDS + 1)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"cannot reach the broker at {address(known)}: {error}") from None
        except (TimeoutError, OSError, pika.exceptions.AMQPError) as error:
            link.cut("not connected in time")
            text = readable(error) if str(error) else f"no answer within {CONNECT_SECONDS:g} s"
            raise BrokerUnavailable(f"cannot reach the broker at {address(known)}: {text}") from None
        return link

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used."""
        return not self.lost.done() and self._connection is not None and bool(self._connection.is_open)

    @property
    def frame_max(self) -> int:
        """The largest frame that both sides agreed on, in bytes."""
        assert self._connection is not None
        return self._connection.frame_max

    def write(self, frames: bytes) -> None:
        """Send encoded frames of an open channel."""
        assert self._connection is not None
        self._connection.write(frames)

    async def channel(self) -> Channel:
        """A new channel."""
        assert self._connection is not None
        connection = self._connection
        (channel,) = await self._answer(None, lambda answer: connection.channel(on_open_callback=answer))
        opened: Channel = channel
        opened.add_on_close_callback(self._on_channel_closed)
        return opened

    def depend_on(self, channel: Channel) -> None:
        """End the connection when the broker closes this channel, so that one way of recovery serves both."""

        def closed(_: Channel, error: Exception) -> None:
            if isinstance(error, pika.exceptions.ChannelClosedByBroker):
                self.cut(f"the broker closed the channel: {readable(error)}")

        channel.add_on_close_callback(closed)

    async def ask(self, channel: Channel, method: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a method of the channel and wait for the broker's answer, a method frame.

        Raises ChannelClosed when the broker refuses it, BrokerUnavailable when the connection is lost meanwhile.
        """
        (frame,) = await self._answer(channel, lambda answer: method(callback=answer, **arguments))
        return frame

    async def close(self) -> None:
        """Say farewell and wait for the answer, at most a few seconds."""
        connection = self._connection
        if connection is None or self.lost.done():
            return
        try:
            if not (connection.is_closing or connection.is_closed):
                connection.close()
            await asyncio.wait_for(asyncio.shield(self.lost), CONNECT_SECONDS)
        except (TimeoutError, pika.exceptions.AMQPError):
            self.cut("closed")

    def cut(self, reason: str) -> None:
        """End the connection without farewell; `lost` is done at once."""
        connection = self._connection
        self._on_lost(BrokerUnavailable(reason))
        if connection is not None and not connection.is_closed:
            try:
                connection.cut(reason)
            except (AssertionError, AttributeError, OSError, pika.exceptions.AMQPError):
                # There was no stream yet: pika's own connection attempt ends at its time limit.
                logging.getLogger(__name__).debug("broker.cut_without_stream reason=%s", reason)

    async def _answer(self, channel: Channel | None, start: Callable[[Callable[..., None]], Any]) -> tuple[Any, ...]:
        if self.lost.done():
            raise BrokerUnavailable(self.lost.result())
        answer: asyncio.Future[tuple[Any, ...]] = self._loop.create_future()
        self._unanswered[answer] = channel

        def deliver(*values: Any) -> None:
            if not answer.done():
                answer.set_result(values)

        try:
            start(deliver)
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError:
            raise BrokerUnavailable(f"the broker did not answer within {ANSWER_SECONDS:g} s") from None
        except pika.exceptions.AMQPError as error:
            raise BrokerUnavailable(readable(error)) from None
        finally:
            self._unanswered.pop(answer, None)

    def _on_open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)
        elif self._connection is not None:
            # Too late: whoever wanted it has given up.
            self._connection.close()

    def _on_lost(self, error: BaseException) -> None:
        if self.lost.done():
            return
        reason = readable(error)
        self.lost.set_result(reason)
        if not self._opened.done():
            self._opened.set_exception(BrokerUnavailable(reason))
        for answer in list(self._unanswered):
            if not answer.done():
                answer.set_exception(BrokerUnavailable(reason))

    def _on_channel_closed(self, channel: Channel, error: Exception) -> None:
        for answer, asked in list(self._unanswered.items()):
            if asked is channel and not answer.done():
                if isinstance(error, pika.exceptions.ChannelClosedByBroker):
                    answer.set_exception(ChannelClosed(error.reply_code, error.reply_text))
                else:
                    answer.set_exception(BrokerUnavailable(readable(error)))
