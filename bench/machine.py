"""What the figures were measured on: cores, memory, kernel and versions; never a host's name or a path."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from bench.environments import packages
from tests.servers import packages as programs

_TELLING = (
    *("Python", "Django", "celery", "django_celery_results", "kombu", "oban"),
    *("psycopg", "pika", "msgspec", "uvloop"),
)


def machine() -> str:
    """Cores, memory, system and servers, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GB, "
        f"{platform.system()} {platform.release().split('-')[0]}, PostgreSQL {_postgres()}, RabbitMQ {_rabbitmq()}"
    )


def versions(python: Path) -> str:
    """The packages of an environment that matter for its speed."""
    found = packages(python)
    return ", ".join(f"{name} {found[name]}" for name in _TELLING if name in found)


def _postgres() -> str:
    program = programs.find("postgres")
    if program is None:
        return "(none)"
    return subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout.split()[2]


def _rabbitmq() -> str:
    program = programs.find("rabbitmq-server")
    found = program and next(program.parent.parent.glob("lib/rabbitmq_server-*"), None)
    return found.name.partition("-")[2] if found else "(none)"
