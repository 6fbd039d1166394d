"""A private PostgreSQL cluster. Used by tests (nothing flushed to the disk) and by the benchmarks (everything)."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.base import Server

# synchronous_commit stays on: a commit that was confirmed must survive a kill of the server, in fault tests too.
_FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


class Postgres(Server):
    """`fsync` False: commits survive a kill of the server, not of the machine. `settings`: more of the server's own."""

    program = "postgres"
    stop_signal = signal.SIGINT  # "fast" shutdown: ends open sessions

    def __init__(self, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.data = self.home / "data"
        self.settings = ({} if fsync else _FAST_SETTINGS) | dict(settings or {})

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        """The URL of one database of this server."""
        return f"postgresql://test@127.0.0.1:{self.port}/{name}"

    def data_folders(self) -> Sequence[Path]:
        return [self.data]

    def prepare(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            options = ["-U", "test", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C.UTF-8"]
            self.run([self.executable.parent / "initdb", "-D", self.data, *options])

    def command(self) -> Sequence[str | Path]:
        fixed = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        options = [part for name, value in (fixed | self.settings).items() for part in ("-c", f"{name}={value}")]
        return [self.executable, "-D", self.data, *options]

    def answers(self) -> bool:
        """Asks for a session by the wire protocol: 'R' is the offer to log in, 'E' means still starting."""
        parameters = b"user\0test\0database\0postgres\0\0"
        request = (len(parameters) + 8).to_bytes(4) + (196608).to_bytes(4) + parameters
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as client:
                client.sendall(request)
                return client.recv(1) == b"R"
        except OSError:
            return False
