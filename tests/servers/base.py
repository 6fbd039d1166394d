"""What the private servers have in common: a folder, ports, one supervised process, ready when it answers.

Called by the three server classes only. Never touches a process that it did not start itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.servers import packages

SERVER_USER = "nobody"
_PR_SET_PDEATHSIG = 1


class ServerMissing(RuntimeError):
    """The program of this server is not installed here; the text names it and the package."""


class Server(ABC):
    """One private server. `start` may be called again after `stop` or `kill`: data and ports stay the same.

    `home`: the folder, with data, configuration and logs; made when not given, removed by `close`.
    Raises ServerMissing when the program is not installed.
    """

    program: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    start_timeout_seconds: ClassVar[float] = 180.0

    def __init__(self) -> None:
        executable = packages.find(self.program)
        if executable is None:
            raise ServerMissing(f"{self.program} is not installed (Debian: {packages.package_of(self.program)})")
        self.executable = executable
        self.home = Path(tempfile.mkdtemp(prefix=f"tickwork-{self.program}-", dir=_reachable_temp()))
        self.user = SERVER_USER if os.geteuid() == 0 else None
        self.group = pwd.getpwnam(SERVER_USER).pw_gid if self.user else None
        self.give(self.home)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    # ── what a server class tells ──────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what the first start needs (data folder, configuration); called before each start."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The command line of the server, which stays in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether a client would be served now."""

    @abstractmethod
    def data_folders(self) -> Sequence[Path]:
        """What `wipe` removes."""

    def environment(self) -> Mapping[str, str]:
        """The whole environment of the server; nothing else is inherited."""
        return {"HOME": str(self.home), "PATH": os.defpath, "LANG": "C.UTF-8"}

    # ── what callers do ────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.program} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting, so that several servers can boot side by side."""
        if self.running:
            return
        self.prepare()
        self._process = self.spawn(self.command(), log=self.home / "server.log")

    def wait_until_ready(self) -> None:
        """Return when clients are served; raises RuntimeError with the end of the log when that does not happen."""
        deadline = time.monotonic() + self.start_timeout_seconds
        while not self.answers():
            if not self.running:
                raise RuntimeError(f"{self.program} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.program} is not ready after {self.start_timeout_seconds} s:\n{self.log_tail()}"
                )
            time.sleep(0.02)

    def start(self) -> Self:
        """Start (again) and wait until clients are served."""
        self.launch()
        self.wait_until_ready()
        return self

    def stop(self) -> None:
        """End the server in good order; its data stay."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL); its data stay as they are on the disk."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server and its children: connections stay open and nobody answers."""
        signal_tree(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a `pause`."""
        signal_tree(self.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Lose all data; a running server is started again, empty."""
        was_running = self.running
        self.kill()
        for folder in self.data_folders():
            shutil.rmtree(folder, ignore_errors=True)
        if was_running:
            self.start()

    def close(self) -> None:
        """Stop the server and remove its folder; safe to call twice."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the server's log."""
        with contextlib.suppress(OSError):
            return "\n".join((self.home / "server.log").read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    # ── tools for the server classes ───────────────────────────────────────────────────────────────

    def spawn(self, command: Sequence[str | Path], *, log: Path) -> subprocess.Popen[bytes]:
        """A process of this server: own user when we are root, own session, gone when this program is gone."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self.home,
                env=dict(self.environment()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=ends_with_parent(self.stop_signal),
                user=self.user,
                group=self.group,
                extra_groups=[] if self.user else None,
            )

    def run(self, command: Sequence[str | Path], *, timeout: float = 180.0) -> str:
        """Run a helper program of the server to its end and return its output; raises RuntimeError with that output."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.home,
            env=dict(self.environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            user=self.user,
            group=self.group,
            extra_groups=[] if self.user else None,
        )
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            raise RuntimeError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{output}")
        return output

    def give(self, path: Path) -> None:
        """Hand a file or folder to the user that the server runs as."""
        if self.user:
            account = pwd.getpwnam(self.user)
            os.chown(path, account.pw_uid, account.pw_gid)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        signal_tree(process.pid, signal.SIGCONT)
        if how is signal.SIGKILL:
            signal_tree(process.pid, how)
        else:
            process.send_signal(how)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            signal_tree(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A loopback port that nobody listens on.

    Below the range from which systems choose local ports: a client that keeps reconnecting to a stopped server
    on a port of that range may end up connected to itself, and the server can then not come back.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that live now, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    tree = [pid]
    for member in tree:
        tree.extend(children.get(member, ()))
    return tree


def is_running(pid: int) -> bool:
    """Whether the process runs; one that has ended, and that its parent has not collected yet, does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.parent.parent.is_dir() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send the signal to the process and to all its descendants."""
    for member in process_tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)


def _parents() -> Iterator[tuple[int, int]]:
    """(process, its parent) of every process, from /proc where there is one: slim images have no `ps`."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            child, parent = line.split()
            yield int(child), int(parent)
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def ends_with_parent(how: signal.Signals) -> Callable[[], None] | None:
    # Linux sends the signal when the *thread* that started the child ends, so only the main thread may ask for it.
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(how))


def _reachable_temp() -> str | None:
    """A temporary folder that the server's user can enter: root's own TMPDIR often is not."""
    if os.geteuid() != 0:
        return None
    folder = Path(tempfile.gettempdir()).resolve()
    if all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents)):
        return None
    return "/tmp"
