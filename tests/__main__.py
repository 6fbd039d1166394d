"""`python3 run.py test`: every test beside private servers, then the database tests once more on SQLite.

With `--fast` the quick tests only, on SQLite and without servers. With other arguments one pytest run with exactly
these; servers then start when a test asks for one. Ends with a loud list of what was left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers import packages
from tests.servers.environment import DATABASE, NO_SERVERS, started

FAST = ["tests/unit", "tests/db", "tests/architecture", "-m", "not slow and not browser"]
ON_SQLITE = "tests/db"
# What would lead tests to a developer's own data and servers.
FOREIGN = ("DATABASE_URL", "BROKER_URL", "REDIS_URL", "SCHEDULER_", "TICKWORK_", "DJANGO_")


def main(arguments: list[str]) -> int:
    """Exit status 0 when everything that ran passed, and in CI only when nothing was left out."""
    with tempfile.TemporaryDirectory(prefix="tickwork-tests-") as data:
        own = {"TICKWORK_DATA_DIR": data, "DJANGO_SECRET_KEY": "only-for-tests"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)} | own
        if "--fast" in arguments:
            rest = [argument for argument in arguments if argument != "--fast"]
            status = pytest([*FAST, "-n", "auto", *rest], environment | {NO_SERVERS: "1"})
            leave_a_note(
                ["slow and browser tests, all servers, PostgreSQL (--fast): run without --fast before you push"]
            )
            return status
        if arguments:
            return pytest(arguments, environment)
        return everything(environment)


def everything(environment: dict[str, str]) -> int:
    """Install what can be installed, start the servers once for all test processes, run both rounds."""
    packages.install_missing()
    with started() as servers:
        environment = environment | servers.variables
        database = environment.get(DATABASE)
        first = environment | ({"DATABASE_URL": f"{database.rpartition('/')[0]}/tickwork"} if database else {})
        statuses = [pytest(["-n", "auto", "--dist", "worksteal"], first)]
        if database:
            print("\nThe database tests once more, on SQLite", flush=True)
            statuses.append(pytest([ON_SQLITE, "-n", "auto"], environment))
        missing = [f"everything that needs it: {sentence}" for sentence in servers.missing]
        if packages.find("chromium") is None:
            missing.append("browser tests: chromium is not installed")
        leave_a_note(missing)
    if missing and environment.get("CI") == "true":
        return 1
    return max(statuses)


def pytest(arguments: list[str], environment: dict[str, str]) -> int:
    """One pytest run in a process of its own."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def leave_a_note(left_out: list[str]) -> None:
    """Say at the very end what this run did not test."""
    for sentence in left_out:
        print(f"!!! LEFT OUT: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    sys.exit(main(sys.argv[1:]))
