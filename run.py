#!/usr/bin/env python3
"""Tickwork in one command. Needs Python 3.11 or newer and nothing else; keeps its packages in .venv.

python3 run.py [start] [--port N] ...   start everything and print where to look (options of `manage.py run_scheduler`)
python3 run.py test [pytest arguments]  all tests, beside private servers; --fast: the quick ones, without servers
python3 run.py lint                     style, types, the import rule, migrations, deployment settings
python3 run.py faults [arguments]       fault injection: kill every part at every boundary and count the runs
python3 run.py bench [arguments]        measure throughput and cost beside other schedulers
python3 run.py manage COMMAND ...       a Django command, for example `changepassword operator`
python3 run.py docs                     write the settings reference and check the documentation's links
python3 run.py lock                     renew requirements.lock and requirements-dev.lock from pyproject.toml
"""

# Read by whatever Python is there, also one that is too old: no syntax newer than Python 3.8, no other package.

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import NoReturn

OLDEST = (3, 11)
ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "tickwork-installed")
RUN_LOCK = os.path.join(ROOT, "requirements.lock")
DEV_LOCK = os.path.join(ROOT, "requirements-dev.lock")


def main(arguments: list[str]) -> int:
    """Run one task and return its exit status; raises SystemExit with a message where something is missing."""
    if sys.version_info < OLDEST:
        found = "{}.{}".format(*sys.version_info[:2])
        raise SystemExit(f"Tickwork needs Python 3.11 or newer; this is Python {found} ({sys.executable}).")
    if os.name != "posix":
        raise SystemExit("Tickwork runs on Linux and macOS; on Windows use WSL.")
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        print(__doc__)
        return 0
    task = "start"
    if arguments and not arguments[0].startswith("-"):
        task, arguments = arguments[0], arguments[1:]
    tasks: dict[str, Callable[[list[str]], int]] = {
        "start": start,
        "manage": manage,
        "test": test,
        "lint": lint,
        "faults": faults,
        "bench": bench,
        "docs": docs,
        "lock": lock,
    }
    if task not in tasks:
        raise SystemExit(f"run.py knows no task {task!r}; it knows {', '.join(tasks)} (python3 run.py --help)")
    os.chdir(ROOT)
    return tasks[task](arguments)


# ── the tasks ──────────────────────────────────────────────────────────────────────────────────────


def start(arguments: list[str]) -> NoReturn:
    """Become the program: signals and the terminal then belong to it."""
    prepare()
    become("manage.py", "run_scheduler", *arguments)


def manage(arguments: list[str]) -> NoReturn:
    prepare()
    become("manage.py", *arguments)


def test(arguments: list[str]) -> NoReturn:
    prepare(dev=True)
    become("-m", "tests", *arguments)


def faults(arguments: list[str]) -> NoReturn:
    prepare(dev=True)
    become("-m", "tests.faults", *arguments)


def bench(arguments: list[str]) -> NoReturn:
    prepare(dev=True)
    become("-m", "bench", *arguments)


def docs(arguments: list[str]) -> int:
    prepare(dev=True)
    return check(
        "docs", [["manage.py", "settings_reference"], ["-m", "pytest", "-q", "tests/architecture/test_docs.py"]]
    )


def lint(arguments: list[str]) -> int:
    prepare(dev=True)
    # The checks read settings, never the developer's data; a deployment's switches are on for Django's own checks.
    with tempfile.TemporaryDirectory() as data:
        deployed = {"TICKWORK_DATA_DIR": data, "DJANGO_SECRET_KEY": "x7" * 40 + "-Q_r5", "TICKWORK_BEHIND_TLS": "true"}
        commands = [
            ["-m", "ruff", "check", "."],
            ["-m", "ruff", "format", "--check", "."],
            ["-m", "mypy", "."],
            ["-c", "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-logo'])"],
            ["manage.py", "makemigrations", "--check", "--dry-run"],
            ["manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        ]
        return check("lint", commands, deployed)


def lock(arguments: list[str]) -> int:
    """Resolve pyproject.toml for every supported Python and system, with hashes and without any address."""
    with tempfile.TemporaryDirectory() as folder:
        uv = shutil.which("uv")
        if uv is None:
            subprocess.check_call([sys.executable, "-m", "venv", folder])
            subprocess.check_call([os.path.join(folder, "bin", "python"), "-m", "pip", "install", "-q", "uv"])
            uv = os.path.join(folder, "bin", "uv")
        options = [
            "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url",
            "--no-emit-find-links", "--no-annotate", "--no-header", "--quiet", *arguments,
        ]  # fmt: skip
        server = ["--extra", "builtin", "--extra", "server"]
        for path, extras in ((RUN_LOCK, server), (DEV_LOCK, [*server, "--extra", "dev", "-c", RUN_LOCK])):
            subprocess.check_call([uv, "pip", "compile", *options, "pyproject.toml", *extras, "-o", path])
            with open(path) as file:
                content = file.read()
            with open(path, "w") as file:
                file.write("# Made by `python3 run.py lock` from pyproject.toml. Do not edit.\n" + content)
    return 0


# ── how a task runs ────────────────────────────────────────────────────────────────────────────────


def become(*command: str) -> NoReturn:
    """Replace this process by the project's Python with these arguments."""
    sys.stdout.flush()
    os.execv(PYTHON, [PYTHON, *command])


def check(task: str, commands: list[list[str]], extra: dict[str, str] | None = None) -> int:
    """Run all commands, also after one failed; 1 when any did."""
    failed = []
    for command in commands:
        name = " ".join(command[1:] if command[0] == "-m" else command) if command[0] != "-c" else "lint-imports"
        print(f"── {name}", flush=True)
        if subprocess.call([PYTHON, *command], env=dict(os.environ, **(extra or {}))):
            failed.append(name)
    print(f"{task}: " + (f"FAILED: {'; '.join(failed)}" if failed else "all good"))
    return 1 if failed else 0


# ── the packages ───────────────────────────────────────────────────────────────────────────────────


def prepare(*, dev: bool = False) -> None:
    """Make .venv hold exactly what the lock says: made anew when the lock or the Python changed."""
    with only_one_at_a_time():
        run_state, dev_state = state_of(RUN_LOCK), state_of(DEV_LOCK)
        installed = read(STAMP).split()
        complete = dev_state in installed if dev else run_state in installed
        if complete and os.path.exists(PYTHON):
            return
        if not (run_state in installed and os.path.exists(PYTHON)):
            print("Preparing .venv (once; about a minute) ...", flush=True)
            make_venv()
        install(DEV_LOCK if dev else RUN_LOCK)
        with open(STAMP, "w") as stamp:
            # The development lock contains the other one, package by package.
            stamp.write("\n".join([run_state, dev_state] if dev else [run_state]))


def state_of(lock_file: str) -> str:
    """A short text that differs whenever .venv has to be made anew."""
    source = f"{read(lock_file)} {sys.version} {sys.base_prefix} {VENV}"
    return hashlib.sha256(source.encode()).hexdigest()


def make_venv() -> None:
    shutil.rmtree(VENV, ignore_errors=True)
    uv = shutil.which("uv")
    # Started from inside .venv, that Python is gone now: the one behind it makes the new one.
    base = getattr(sys, "_base_executable", sys.executable) or sys.executable
    if uv:
        run([uv, "venv", "-q", "--python", base, VENV])
        return
    if subprocess.call([base, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL):
        install_debian_venv()
    run([base, "-m", "venv", VENV])


def install(lock_file: str) -> None:
    uv = shutil.which("uv")
    installer = [uv, "pip", "install", "-q", "--python", PYTHON] if uv else [PYTHON, "-m", "pip", "install", "-q"]
    options = [] if uv else ["--disable-pip-version-check", "--no-input"]
    run([*installer, *options, "--require-hashes", "-r", lock_file])


def install_debian_venv() -> None:
    """Debian and Ubuntu keep the venv module in a package of its own."""
    package = "python{}.{}-venv".format(*sys.version_info[:2])
    apt = shutil.which("apt-get")
    message = f"This Python cannot make virtual environments. Install its venv module first: apt install {package}"
    if apt is None or os.geteuid() != 0:
        raise SystemExit(message)
    print(f"Installing {package} ...", flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.call([apt, "update", "-qq"], env=environment)
    if subprocess.call([apt, "install", "-y", "-qq", "--no-install-recommends", package], env=environment):
        raise SystemExit(message)


def run(command: list[str]) -> None:
    """Run a step of the installation; its failure ends the program with what to do."""
    status = subprocess.call(command)
    if status:
        name = " ".join(map(os.path.basename, command[:4]))
        raise SystemExit(
            f"The installation failed at `{name} ...` (status {status}, see above). Run it again to retry."
        )


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Two starts in one checkout must not build .venv at the same time."""
    import fcntl  # not on Windows, which has got its message by now

    with open(os.path.abspath(__file__)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
