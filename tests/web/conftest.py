"""Browsers of the cast, without a browser: the operator, the viewer, the stranger, and nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from channels.layers import channel_layers
from django.contrib.auth.models import User
from django.test import Client

from jobs import announcer, job_types
from scheduler_project import health
from tests import factories


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """What a process remembers for a while belongs to one test."""
    job_types.forget()
    health.forget()
    channel_layers.backends = {}
    yield
    job_types.forget()


@pytest.fixture
def own_announcer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announcements of this test only: what another one left is sent before, to nobody."""
    announcer.flush()
    monkeypatch.setattr(announcer, "_announcer", announcer.Announcer())


def browser_of(user: User) -> Client:
    """A client that is logged in."""
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator(db: None) -> Client:
    """May look and act."""
    return browser_of(factories.make_operator())


@pytest.fixture
def viewer(db: None) -> Client:
    """May look."""
    return browser_of(factories.make_viewer())


@pytest.fixture
def stranger(db: None) -> Client:
    """Has an account, and nothing else."""
    return browser_of(factories.make_stranger())
