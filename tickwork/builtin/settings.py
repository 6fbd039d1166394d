"""The settings of the shipped job types, read from the worker's environment when a job runs.

Read at run time, not at import, so that one missing setting fails the jobs that need it and nothing else.
A missing or wrong value raises PermanentError with the setting's name and the remedy; values, which may
hold passwords, are never repeated in a message.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from tickwork.errors import PermanentError


class Setting(NamedTuple):
    """One row of the settings reference; `default` is text as one would write it, "" for not set."""

    name: str
    meaning: str
    default: str


HTTP_ALLOW_PRIVATE = "TICKWORK_HTTP_ALLOW_PRIVATE"
HTTP_ALLOWED_HOSTS = "TICKWORK_HTTP_ALLOWED_HOSTS"
SHELL_ENABLED = "TICKWORK_SHELL_ENABLED"
SMTP_URL = "TICKWORK_SMTP_URL"
EMAIL_FROM = "TICKWORK_EMAIL_FROM"
SQL_DATABASES = "TICKWORK_SQL_DATABASES"
SQL_WRITABLE = "TICKWORK_SQL_WRITABLE"

SETTINGS = (
    Setting(
        HTTP_ALLOW_PRIVATE,
        "Whether http_request may connect to private, loopback, link-local and other non-public addresses.",
        "false",
    ),
    Setting(
        HTTP_ALLOWED_HOSTS,
        "Comma list of host:port that http_request may reach whatever address they resolve to.",
        "",
    ),
    Setting(SHELL_ENABLED, "Whether shell_command runs at all on this worker.", "false"),
    Setting(
        SMTP_URL,
        "The mail server of send_email: smtp://user:password@host:port?tls=starttls; or ssl, or none.",
        "",
    ),
    Setting(EMAIL_FROM, "The sender of every mail, as an address or as Name <address>.", ""),
    Setting(
        SQL_DATABASES,
        "Comma list of name=URL that sql_query may use; sqlite:///file.db or postgresql://user:password@host/name.",
        "",
    ),
    Setting(SQL_WRITABLE, "Comma list of the database names that sql_query may also change.", ""),
)

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


def flag(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """The boolean setting `name`; not set is False."""
    value = environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise PermanentError(f"the worker's setting {name} must be true or false")


def names(name: str, environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The comma list `name`, in lower case and without blanks."""
    return frozenset(part.strip().lower() for part in environ.get(name, "").split(",") if part.strip())


def required(name: str, example: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text setting `name`, which the job cannot do without."""
    value = environ.get(name, "").strip()
    if not value:
        raise PermanentError(f"set {name} on the worker, for example {name}={example}")
    return value
