"""A TCP proxy in front of a server that can be cut, frozen, closed and opened again: a network with bad days."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

from tests.servers.base import free_port

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards a loopback port to `host:port`. Starts closed: connections are refused until `open`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = free_port()
        self.held_back = 0  # bytes that came while the network was frozen
        self._listener: socket.socket | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._forgotten: list[socket.socket] = []
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()
        self.thaw()
        self.cut()
        for server in self._forgotten:
            _reset(server)

    def open(self) -> Proxy:
        """Accept connections from now on."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def shut(self) -> None:
        """Refuse new connections; present ones go on."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def cut(self, *, tell_server: bool = True) -> None:
        """Reset every present connection; with `tell_server` False the server goes on believing in it."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for client, server in pairs:
            if not tell_server:
                self._forgotten.append(server)
            _reset(client)
            if tell_server:
                _reset(server)

    def freeze(self) -> None:
        """Let nothing through any more, without closing anything."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything through again."""
        self._flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:  # the server is away: so is the way to it
                _reset(client)
                continue
            with self._lock:
                self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self._flowing.is_set():
                    self.held_back += len(data)
                    self._flowing.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one end was reset: the other one hears of it, unless it is to go on believing
            if not any(server in (source, sink) for server in self._forgotten):
                _reset(source)
                _reset(sink)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        end.shutdown(socket.SHUT_RDWR)
    end.close()
