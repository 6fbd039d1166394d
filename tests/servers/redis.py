"""A private Redis that keeps nothing on disk: Tickwork must live with the loss of all of it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.servers.base import Server


class Redis(Server):
    """A single instance without persistence; `wipe` and `kill` both lose everything."""

    program = "redis-server"
    stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def data_folders(self) -> Sequence[Path]:
        return []

    def prepare(self) -> None:
        pass

    def command(self) -> Sequence[str | Path]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "databases": "128",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [self.executable, *arguments, "--dir", self.home]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as client:
                client.sendall(b"PING\r\n")
                return client.recv(5) == b"+PONG"
        except OSError:
            return False
