"""System checks: settings that are each allowed but make no sense together, seen at every start."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from tickwork.broker.connect import connect
from tickwork.errors import ConfigurationError


@register()
def broker_url(**_: Any) -> list[CheckMessage]:
    """The broker's address can be read."""
    try:
        connect(settings.BROKER_URL)
    except ConfigurationError as error:
        return [Error(str(error), hint="sqlite:////path/to/file or amqp://user:password@host:5672/", id="jobs.E001")]
    return []


@register()
def utc_inside(**_: Any) -> list[CheckMessage]:
    """Times are UTC inside; zones belong to jobs."""
    if settings.TIME_ZONE != "UTC" or not settings.USE_TZ:
        return [Error("TIME_ZONE must be UTC and USE_TZ true", hint="Give each job its own time zone.", id="jobs.E002")]
    return []
