"""The job types that come with Tickwork, so that the first jobs need no code.

Start them with `tickwork worker tickwork.builtin:worker`. What each may do is decided by settings of the
worker, see `settings.py`; nothing here is needed by, or imports, anything else of Tickwork but the public API.
"""

from importlib.util import find_spec

from tickwork import Worker
from tickwork.errors import ConfigurationError

if find_spec("httpx") is None:
    raise ConfigurationError("the shipped job types need further packages: install tickwork with its extra [builtin]")

from tickwork.builtin import checks
from tickwork.builtin.http import http_request
from tickwork.builtin.mail import send_email
from tickwork.builtin.shell import shell_command
from tickwork.builtin.sql import sql_query

__all__ = ["worker"]

checks.refuse_wrong_settings()

worker = Worker("builtin")

worker.job(name="http_request", timeout=330, max_attempts=3)(http_request)
worker.job(name="shell_command", timeout=1800, max_attempts=1)(shell_command)
worker.job(name="send_email", timeout=300, max_attempts=5)(send_email)
worker.job(name="sql_query", timeout=3660, max_attempts=3)(sql_query)
