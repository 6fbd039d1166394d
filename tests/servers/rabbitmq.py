"""A private RabbitMQ node with its own port mapper. Used by tests, fault injection and the benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from tests.servers.base import Server, free_port

_STATE_FILE = "environment.json"


class RabbitMQ(Server):
    """A single node; queues live in virtual hosts, of which each test run and xdist worker gets its own."""

    program = "rabbitmq-server"
    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        super().__init__()
        self.dist_port = free_port()
        self.epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.vhost_url("/")

    def vhost_url(self, vhost: str) -> str:
        """The URL of one virtual host of this server."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def data_folders(self) -> Sequence[Path]:
        return [self.home / "mnesia"]

    def environment(self) -> Mapping[str, str]:
        home = self.home
        # The server's own folder first: the `rabbitmqctl` of /usr/sbin insists on the system's data folder.
        folders = (str(self.executable.parent), _folder_of("erl"), *os.defpath.split(os.pathsep))
        return {
            "HOME": str(home),  # the Erlang cookie is made there
            "PATH": os.pathsep.join(dict.fromkeys(folders)),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
            "RABBITMQ_SCHEMA_DIR": str(home / "schema"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RUNNING_UNDER_SYSTEMD": "1",  # the start script then becomes the server: one process id
        }

    def prepare(self) -> None:
        files = {
            "rabbitmq.conf": (
                f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
                "log.console = false\n"
                "vm_memory_high_watermark.absolute = 512MB\n"
                "disk_free_limit.absolute = 100MB\n"
            ),
            "advanced.config": "[{kernel, [{inet_dist_use_interface, {127,0,0,1}}]}].\n",
            "enabled_plugins": "[].\n",
            _STATE_FILE: json.dumps(dict(self.environment())),
        }
        for name, content in files.items():
            path = self.home / name
            path.write_text(content)
            self.give(path)
        if self._epmd is None or self._epmd.poll() is not None:
            # Without one of our own the node starts a port mapper that outlives it.
            epmd = ["epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"]
            self._epmd = self.spawn([shutil.which(epmd[0], path=self.environment()["PATH"]) or epmd[0], *epmd[1:]],
                                    log=self.home / "epmd.log")  # fmt: skip

    def command(self) -> Sequence[str | Path]:
        return [self.executable]

    def answers(self) -> bool:
        """Opens the AMQP handshake: a node that serves clients answers with connection.start."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as client:
                client.sendall(b"AMQP\x00\x00\x09\x01")
                return client.recv(1) == b"\x01"
        except OSError:
            return False

    def close(self) -> None:
        self.stop()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        super().close()

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` against this node and return its output."""
        return control(self.home, *arguments)

    def close_connections(self) -> None:
        """Cut every client's connection from the server's side."""
        self.control("close_all_connections", "cut by a test")


def control(home: Path, *arguments: str) -> str:
    """Run `rabbitmqctl` against the private node that lives in `home`; any process may, not only the node's parent."""
    environment = json.loads((home / _STATE_FILE).read_text())
    program = shutil.which("rabbitmqctl", path=environment["PATH"])
    done = subprocess.run(
        [program or "rabbitmqctl", "-q", *arguments],
        env=environment, cwd=home, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def create_vhosts(home: Path, *names: str) -> None:
    """Make virtual hosts on the private node that lives in `home`, and let its clients use them.

    All in one call: each starts a second Erlang machine, which takes a second of the processor. They go with the node.
    """
    everything = '<<".*">>'
    control(
        home, "eval", ", ".join(
            f'rabbit_vhost:add(<<"{name}">>, <<"test">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, '
            f'{everything}, {everything}, {everything}, <<"test">>)'
            for name in names
        ) + ".",
    )  # fmt: skip


def _folder_of(program: str) -> str:
    return str(Path(shutil.which(program) or f"/usr/bin/{program}").parent)
