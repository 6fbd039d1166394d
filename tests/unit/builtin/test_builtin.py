"""The worker of the shipped job types, and its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.builtin.running import run
from tickwork.builtin import settings, worker
from tickwork.builtin.checks import refuse_wrong_settings
from tickwork.builtin.http import http_request
from tickwork.errors import ConfigurationError, PermanentError

ROOT = Path(__file__).parents[3]


def test_the_four_job_types_are_registered_under_their_names() -> None:
    assert (worker.name, sorted(worker.jobs)) == (
        "builtin",
        ["http_request", "send_email", "shell_command", "sql_query"],
    )


@pytest.mark.parametrize("name", sorted(worker.jobs))
def test_every_field_of_a_form_explains_itself(name: str) -> None:
    info = worker.jobs[name].info()
    assert info.description
    fields = info.data_schema["properties"]
    assert [field for field, schema in fields.items() if not schema.get("description")] == []
    assert json.loads(json.dumps(info.data_schema)) == info.data_schema


def test_the_guide_names_every_job_type_field_and_setting() -> None:
    guide = (ROOT / "docs" / "guides" / "builtin-jobs.md").read_text()
    fields = {field for job in worker.jobs.values() for field in job.signature.fields}
    wanted = set(worker.jobs) | fields | {setting.name for setting in settings.SETTINGS}
    assert sorted(name for name in wanted if f"`{name}`" not in guide) == []


async def test_data_that_do_not_fit_name_the_field() -> None:
    with pytest.raises(PermanentError, match="timeout_seconds"):
        await run(http_request, url="http://example.org", timeout_seconds=0)
    with pytest.raises(PermanentError, match="verify"):
        await run(http_request, url="https://example.org", verify=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TICKWORK_HTTP_ALLOW_PRIVATE", "perhaps"),
        ("TICKWORK_SHELL_ENABLED", "perhaps"),
        ("TICKWORK_SHELL_ENABLE", "true"),
        ("TICKWORK_SMTP_URL", "http://user:hush@host"),
        ("TICKWORK_SMTP_URL", "smtp://user:hush@host?tls=never"),
        ("TICKWORK_EMAIL_FROM", "nobody"),
        ("TICKWORK_SQL_DATABASES", "main=mysql://user:hush@host/db"),
        ("TICKWORK_SQL_WRITABLE", "main"),
    ],
)
def test_a_setting_that_is_not_allowed_stops_the_start_by_name_and_without_secrets(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as refused:
        refuse_wrong_settings({name: value, "PATH": "/bin"})
    assert "hush" not in str(refused.value)


def test_settings_that_are_allowed_or_missing_do_not_stop_the_start() -> None:
    refuse_wrong_settings({})
    refuse_wrong_settings(
        {
            "TICKWORK_HTTP_ALLOW_PRIVATE": "false",
            "TICKWORK_SHELL_ENABLED": "true",
            "TICKWORK_SMTP_URL": "smtp://user:hush@host:25?tls=none",
            "TICKWORK_EMAIL_FROM": "Tickwork <jobs@example.org>",
            "TICKWORK_SQL_DATABASES": "main=sqlite:////srv/app.db, Reports=postgresql://reader:hush@db/app",
            "TICKWORK_SQL_WRITABLE": "reports",
        }
    )
