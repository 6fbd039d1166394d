"""What the tests of the lifecycle share: settings to vary, a broker in a file, and the roles that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from jobs import job_types
from jobs.conf import SchedulerSettings
from occurrences.lifecycle.dead_letters import DeadLetters
from occurrences.lifecycle.intake import Intake
from occurrences.lifecycle.relay import Relay
from tickwork.broker.base import Broker
from tickwork.broker.connect import connect

SetConf = Callable[..., None]


@pytest.fixture(autouse=True)
def _job_types_read_anew() -> None:
    job_types.forget()


@pytest.fixture
def set_conf() -> Iterator[SetConf]:
    """Replace single `SCHEDULER_*` settings for this test; the others have their defaults."""
    with ExitStack() as stack:

        def replace(**values: Any) -> None:
            stack.enter_context(override_settings(SCHEDULER=SchedulerSettings(**values)))

        yield replace


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker of this test's own, that notices at once what expired."""
    monkeypatch.setattr("tickwork.broker.embedded_consumer.SWEEP_SECONDS", 0.01)
    return connect(f"sqlite:///{tmp_path}/broker.sqlite3")


@pytest.fixture
def relay(broker: Broker) -> Iterator[Relay]:
    relay = Relay(broker)
    yield relay
    relay.close()


@pytest.fixture
def intake(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    """The event consumer, which says nothing to itself and does not go deaf however long a test takes."""
    monkeypatch.setattr("occurrences.hearing.PULSE_SECONDS", 3600.0)
    monkeypatch.setattr("occurrences.hearing.DEAF_AFTER_SECONDS", 3600.0)
    monkeypatch.setattr("occurrences.lifecycle.intake.TAKE_WAIT_SECONDS", 0.02)
    intake = Intake(broker)
    yield intake
    intake.close()


@pytest.fixture
def dead_letters(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadLetters]:
    """The dead-letter consumer, which waits until an event consumer `listens`."""
    monkeypatch.setattr("occurrences.lifecycle.dead_letters.TAKE_WAIT_SECONDS", 0.02)
    dead_letters = DeadLetters(broker)
    yield dead_letters
    dead_letters.close()
