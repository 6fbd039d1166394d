"""Where the servers' programs are, and how Debian's packages for them are installed.

Called by the server classes (`find`) and by `python -m tests.servers` (`install_missing`). Starts no server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_PACKAGES = {
    "postgres": "postgresql",
    "rabbitmq-server": "rabbitmq-server",
    "redis-server": "redis-server",
    "chromium": "chromium",
}
# Debian keeps two of the three off PATH; its own /usr/sbin/rabbitmq-server insists on the system's data folder.
_FOLDERS = {
    "postgres": ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"),
    "rabbitmq-server": ("/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin"),
}
_OTHER_NAMES = {
    "redis-server": ("valkey-server",),
    "chromium": ("chromium-browser", "google-chrome", "google-chrome-stable"),
}


def package_of(program: str) -> str:
    """Name of the Debian package that brings the program."""
    return _PACKAGES[program]


def find(program: str) -> Path | None:
    """The program's executable, of the newest version where there are several; None when it is not installed."""
    for pattern in _FOLDERS.get(program, ()):
        if found := sorted(Path("/").glob(f"{pattern[1:]}/{program}"), key=_version):
            return found[-1]
    if program == "rabbitmq-server":
        return None
    paths = (shutil.which(name) for name in (program, *_OTHER_NAMES.get(program, ())))
    return next((Path(path) for path in paths if path), None)


def missing() -> list[str]:
    """The programs that full tests want and that are not installed here."""
    return [program for program in _PACKAGES if find(program) is None]


def install_missing() -> list[str]:
    """Install what is missing through apt where that is possible without asking; returns what is missing afterwards."""
    wanted = missing()
    apt = shutil.which("apt-get")
    if not wanted or apt is None:
        return wanted
    prefix: list[str] = []
    if os.geteuid() != 0:
        sudo = shutil.which("sudo")
        if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode:
            return wanted
        prefix = [sudo, "-n", "DEBIAN_FRONTEND=noninteractive"]
    names = [package_of(program) for program in wanted]
    print(f"Installing for the tests: {' '.join(names)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*prefix, apt, "update", "-q"], check=False, env=environment, stdout=subprocess.DEVNULL)
    for name in names:
        # One by one: a package that this release does not have must not keep the others away.
        subprocess.run(
            [*prefix, apt, "install", "-y", "-q", "--no-install-recommends", name],
            check=False, env=environment, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return missing()


def _version(path: Path) -> tuple[int, ...]:
    digits = "".join(char if char.isdigit() else " " for char in str(path)).split()
    return tuple(map(int, digits))
