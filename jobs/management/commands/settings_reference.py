"""Writes `docs/reference/settings.md` from the places where settings are defined. `python3 run.py docs` calls it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from jobs.bounds import plain
from jobs.conf import PREFIX, SchedulerSettings
from tickwork.builtin import settings as builtin
from tickwork.config import WorkerSettings

SERVER = {
    "DATABASE_URL": ("`postgres://user:password@host:5432/name` or `sqlite:///path`", "SQLite in the data folder", ""),
    "BROKER_URL": ("`amqp://user:password@host:5672/` or `sqlite:////path`", "a SQLite file in the data folder", ""),
    "REDIS_URL": ("`redis://host:6379/0`, for live updates over several processes", "in memory, one process", ""),
    "TICKWORK_DATA_DIR": ("The one folder for everything that is kept without servers", "`.data`", ""),
    "DJANGO_SECRET_KEY": (
        "Signs sessions; the same for all processes, and needed with DATABASE_URL",
        "embedded: made once, kept in the data folder",
        "",
    ),
    "DJANGO_ALLOWED_HOSTS": (
        "Host names under which the pages may be asked for, with commas",
        "`127.0.0.1,localhost,[::1]`",
        "",
    ),
    "DJANGO_CSRF_TRUSTED_ORIGINS": (
        "Origins of forms behind a proxy, for example `https://jobs.example.org`, with commas",
        "none",
        "",
    ),
    "TICKWORK_BEHIND_TLS": (
        "Secure cookies, HSTS, redirect to https; for a proxy with TLS that sets X-Forwarded-Proto",
        "`false`",
        "`true`, `false`",
    ),
    "DJANGO_DEBUG": ("Error pages for developers; never in production", "`false`", "`true`, `false`"),
    "TICKWORK_LOG_FORMAT": (
        "How a process writes its log; of workers too",
        "`console`",
        "`console`, `json`",
    ),
    "TICKWORK_LOG_LEVEL": (
        "The least important level that is written; of workers too",
        "`INFO`",
        "`DEBUG`, `INFO`, `WARNING`, `ERROR`",
    ),
}


class Command(BaseCommand):
    """Generate the reference; the tests compare its names with the code."""

    help = "Write docs/reference/settings.md."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the page."""
        path = Path(settings.BASE_DIR) / "docs/reference/settings.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page())
        self.stdout.write(f"written: {path.relative_to(settings.BASE_DIR)}")


def page() -> str:
    """The whole page as Markdown."""
    server = [(name, *row) for name, row in SERVER.items()]
    scheduler = [_row(PREFIX + field.name.upper(), field) for field in dataclasses.fields(SchedulerSettings)]
    worker = [_row(field.metadata["env"], field) for field in dataclasses.fields(WorkerSettings)]
    shipped = [(name, text, f"`{default}`" if default else "none", "") for name, text, default in builtin.SETTINGS]
    return "\n".join(
        [
            "# Settings",
            "",
            "All settings are environment variables. A value that is not allowed stops the start with the "
            "setting's name.",
            "This page is made by `python3 run.py docs`.",
            *_table("Server", server),
            *_table("Scheduler", scheduler),
            *_table("Worker", worker),
            *_table("Shipped job types (in the worker's environment)", shipped),
            "",
        ]
    )


def _row(name: str, field: dataclasses.Field[Any]) -> tuple[str, str, str, str]:
    meta = field.metadata
    among = meta.get("among") or meta.get("choices")
    if among:
        allowed = ", ".join(f"`{choice}`" for choice in among)
    elif meta.get("low") is not None:
        allowed = f"{plain(meta['low'])} to {plain(meta['high'])}"
    else:
        allowed = "`true`, `false`" if isinstance(field.default, bool) else ""
    missing = field.default is dataclasses.MISSING
    default = (
        "needed" if missing else f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
    )
    return name, meta["help"], default, allowed


def _table(title: str, rows: list[tuple[str, str, str, str]]) -> list[str]:
    lines = [f"| `{name}` | {text} | {default} | {allowed} |" for name, text, default, allowed in rows]
    return ["", f"## {title}", "", "| name | meaning | default | allowed |", "|---|---|---|---|", *lines]
