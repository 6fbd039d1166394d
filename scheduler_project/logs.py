"""The server's processes log as the workers do: an event and fields, readable or JSON."""

from __future__ import annotations

import logging
from typing import Any

from tickwork.logs import configure as configure_logs


def configure(options: dict[str, Any]) -> None:
    """Called by Django at start with `settings.LOGGING`: {"format": "console" | "json", "level": …}."""
    configure_logs(options["format"], options["level"])
    logging.getLogger("django").handlers.clear()
    for noisy in ("daphne", "twisted", "asyncio", "django.channels.server", "django.server"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It logs a traceback each second while Redis is away; `occurrences.consumers` says so in one line.
    logging.getLogger("channels_redis").setLevel(logging.CRITICAL)
