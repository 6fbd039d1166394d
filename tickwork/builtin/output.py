"""Reads what a running command prints: every line to the job's log, the last part kept for the result.

Used by `shell.py`. Bounded everywhere: a command that prints for hours costs a fixed amount of memory and a
fixed number of log lines. Reads with non-blocking pipes, so that whoever waits can look at other things too.
"""

import os
import selectors
import subprocess
import time
from typing import IO, Any, NamedTuple

from tickwork.builtin.text import LIMIT, clean, fit

MAX_LOGGED_LINES = 1000
MAX_LINE_LENGTH = 2000
_CHUNK = 64 * 1024


class Kept(NamedTuple):
    """The end of one stream, and whether its beginning was dropped."""

    text: str
    truncated: bool


class Capture:
    """Both output streams of one process. `log` is the job's log: `log.info(message, **fields)`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Any) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        budget = _LineBudget(log)
        self._selector = selectors.DefaultSelector()
        self._streams = [_Stream("stdout", process.stdout, budget), _Stream("stderr", process.stderr, budget)]
        for stream in self._streams:
            os.set_blocking(stream.pipe.fileno(), False)
            self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for stream in self._streams:
            stream.pipe.close()

    def read(self, *, wait_seconds: float) -> None:
        """Read what is there, waiting at most so long for the first of it."""
        if not self._selector.get_map():
            # Both pipes are closed and the process still runs: nothing to read, but the caller's pace stays.
            time.sleep(wait_seconds)
            return
        for key, _ in self._selector.select(wait_seconds):
            stream: _Stream = key.data
            data = os.read(stream.pipe.fileno(), _CHUNK)
            if data:
                stream.add(data)
            else:
                self._selector.unregister(stream.pipe)

    def read_rest(self, *, within_seconds: float) -> None:
        """Read to the end of both streams. A process that escaped its group may hold them open: then not forever."""
        deadline = time.monotonic() + within_seconds
        while self._selector.get_map() and (left := deadline - time.monotonic()) > 0:
            self.read(wait_seconds=left)

    def finish(self) -> tuple[Kept, Kept]:
        """The kept ends of stdout and stderr; a last line without a line end is logged now."""
        stdout, stderr = (stream.finish() for stream in self._streams)
        return stdout, stderr


class _LineBudget:
    """Lets a bounded number of lines into the job's log, then says once that it stops."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._left = MAX_LOGGED_LINES

    def write(self, stream: str, line: bytes) -> None:
        if self._left < 0:
            return
        self._left -= 1
        if self._left < 0:
            self._log.warning(f"more than {MAX_LOGGED_LINES} lines of output; the rest is not logged")
            return
        text = clean(line.decode(errors="replace")).rstrip("\r")
        if len(text) > MAX_LINE_LENGTH:
            text = text[:MAX_LINE_LENGTH] + "…"
        self._log.info(text, stream=stream)


class _Stream:
    def __init__(self, name: str, pipe: IO[bytes], budget: _LineBudget) -> None:
        self.pipe = pipe
        self._name = name
        self._budget = budget
        self._tail = bytearray()
        self._dropped = False
        self._line = bytearray()

    def add(self, data: bytes) -> None:
        self._tail += data
        if (excess := len(self._tail) - LIMIT) > 0:
            del self._tail[:excess]
            self._dropped = True
        *lines, rest = (bytes(self._line) + data).split(b"\n")
        for line in lines:
            self._budget.write(self._name, line)
        # Of an endless line only so much is held as can be logged (a character takes up to four bytes).
        self._line = bytearray(rest[: 4 * MAX_LINE_LENGTH + 4])

    def finish(self) -> Kept:
        if self._line:
            self._budget.write(self._name, bytes(self._line))
            self._line.clear()
        text, cut = fit(clean(self._tail.decode(errors="replace")), keep="tail")
        return Kept(text, self._dropped or cut)
