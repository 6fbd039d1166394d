"""Looks at the settings of the shipped job types when their worker starts.

Called by the package as it is loaded. A value that is not allowed stops the start; a setting that is missing does
not, it fails only the jobs that need it.
"""

import difflib
import os
from collections.abc import Mapping

from tickwork.builtin import settings
from tickwork.builtin.mail import parse_sender, parse_server
from tickwork.builtin.sql_databases import parse_databases
from tickwork.errors import ConfigurationError, PermanentError

_PREFIXES = ("TICKWORK_HTTP_", "TICKWORK_SHELL_", "TICKWORK_SMTP_", "TICKWORK_EMAIL_", "TICKWORK_SQL_")


def refuse_wrong_settings(environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigurationError that names the setting, without its value, which may hold a password."""
    known = [setting.name for setting in settings.SETTINGS]
    for name in sorted(environ):
        if name.startswith(_PREFIXES) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigurationError(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        settings.flag(settings.HTTP_ALLOW_PRIVATE, environ)
        settings.flag(settings.SHELL_ENABLED, environ)
        if url := environ.get(settings.SMTP_URL, "").strip():
            parse_server(url)
        if sender := environ.get(settings.EMAIL_FROM, "").strip():
            parse_sender(sender)
        databases = parse_databases(text) if (text := environ.get(settings.SQL_DATABASES, "").strip()) else {}
    except PermanentError as error:
        raise ConfigurationError(str(error)) from None
    for name in sorted(settings.names(settings.SQL_WRITABLE, environ) - databases.keys()):
        raise ConfigurationError(f"{settings.SQL_WRITABLE} names {name!r}, which {settings.SQL_DATABASES} does not")
