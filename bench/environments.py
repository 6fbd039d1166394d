"""Each peer's own Python environment, made once by pip from its pinned `requirements.txt`.

Environments live under `.data/bench/environments/`, named after what they were made from, so that a changed
pin makes a new one. A peer whose Python cannot be found is reported (`LeftOut`), never skipped in silence.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Version = tuple[int, int]


class LeftOut(Exception):
    """This peer cannot be measured here; the text says why."""


def _candidates(least: Version) -> Iterator[str]:
    yield sys.executable
    newest_last = [f"python3.{minor}" for minor in range(least[1], least[1] + 6)]
    for name in newest_last:
        if path := shutil.which(name):
            yield path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in newest_last:
        yield from map(str, sorted(pyenv.glob(f"*/bin/{name}")))


def find_python(least: Version) -> str:
    """An interpreter of at least this version: this one, one on PATH, or one of pyenv's. Raises LeftOut."""
    for candidate in _candidates(least):
        # A pyenv shim may be on PATH for a version that is not enabled: only one that runs counts.
        answer = subprocess.run(
            [candidate, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            major, minor = map(int, answer.stdout.split())
            if (major, minor) >= least:
                return candidate
    raise LeftOut(f"needs Python {least[0]}.{least[1]} or newer, and none is on PATH or under pyenv")


def prepare(name: str, requirements: Path, least: Version, cache: Path) -> Path:
    """The `python` of the peer's environment, made now if it is not there yet. Raises LeftOut."""
    base = find_python(least)
    seed = f"{base}\n{requirements.read_text()}"
    folder = cache / "environments" / f"{name}-{hashlib.sha256(seed.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{name}: making its environment", flush=True)
    for command in (
        [base, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)],
    ):
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            last = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-1:]
            raise LeftOut(f"its environment could not be made: {' '.join(last)}")
    complete.touch()
    return python


def packages(python: Path) -> dict[str, str]:
    """Name to version of what is installed in this environment, plus `Python` itself."""
    code = (
        "import sys, importlib.metadata as m\n"
        "print('Python', sys.version.split()[0])\n"
        "for d in m.distributions(): print(d.name, d.version)"
    )
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines())
