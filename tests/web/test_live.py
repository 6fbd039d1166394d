"""Live updates: what gathers, and how it is sent. (Who hears it: `test_websocket`.)"""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest

from jobs import announcer
from occurrences import live
from occurrences.states import Status
from tests.waiting import eventually

JOB, OCCURRENCE = str(uuid4()), str(uuid4())
FINISHED = live.Change(OCCURRENCE, JOB, Status.COMPLETED, "status")

pytestmark = pytest.mark.usefixtures("own_announcer")


class RecordingLayer:
    """A channel layer that keeps what was sent, or fails."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.error: Exception | None = None

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Keep it."""
        if self.error:
            raise self.error
        assert group == announcer.GROUP
        self.sent.append(message)


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> RecordingLayer:
    """The layer that the announcer sends to."""
    recording = RecordingLayer()
    monkeypatch.setattr(announcer, "get_channel_layer", lambda: recording)
    return recording


def test_a_status_touches_its_occurrence_its_job_and_the_lists_a_log_line_only_its_occurrence() -> None:
    lists = {"overview", "jobs", "occurrences"}
    assert announcer.topics_of([FINISHED]) == {f"occurrence:{OCCURRENCE}", f"job:{JOB}"} | lists
    assert announcer.topics_of([FINISHED._replace(kind="detail")]) == {f"occurrence:{OCCURRENCE}"}
    assert "failures" in announcer.topics_of([FINISHED._replace(status=Status.FAILED)])


def test_many_changes_become_one_message(layer: RecordingLayer) -> None:
    announcer._announcer._thread = threading.current_thread()  # nobody sends but `flush`
    for _ in range(1000):
        live.announce([FINISHED])
    live.announce_worker("steady")
    live.announce_failures()
    announcer.flush()
    assert len(layer.sent) == 1
    assert not layer.sent[0]["many"]
    assert {"workers", "failures", f"occurrence:{OCCURRENCE}"} <= set(layer.sent[0]["topics"])
    announcer.flush()
    assert len(layer.sent) == 1


@pytest.mark.parametrize("count", [400, announcer.MAX_GATHERED + 10])
def test_too_many_changes_are_told_as_many(count: int, layer: RecordingLayer) -> None:
    announcer._announcer._thread = threading.current_thread()
    live.announce([FINISHED._replace(occurrence_id=str(number)) for number in range(count)])
    announcer.flush()
    assert layer.sent == [{"type": "changes", "topics": [], "many": True}]


def test_what_is_announced_leaves_by_itself_and_not_once_per_change(layer: RecordingLayer) -> None:
    for _ in range(50):
        live.announce([FINISHED])
    assert eventually(lambda: layer.sent)
    announcer.announce_job(JOB)
    eventually(lambda: any(f"job:{JOB}" in message["topics"] for message in layer.sent[1:]), what="a second message")
    assert len(layer.sent) < 10


def test_a_layer_that_is_away_is_logged_once_counted_and_never_felt(
    layer: RecordingLayer, caplog: pytest.LogCaptureFixture
) -> None:
    announcer._announcer._thread = threading.current_thread()
    layer.error = ConnectionError("away")
    for _ in range(3):
        live.announce([FINISHED])
        announcer.flush()
    assert announcer.dropped_count() == 3
    assert [record.levelname for record in caplog.records if record.name == announcer.__name__] == ["WARNING"]
    layer.error = None
    live.announce([FINISHED])
    announcer.flush()
    assert len(layer.sent) == 1


def test_many_threads_announce_at_once(layer: RecordingLayer) -> None:
    announcer._announcer._thread = threading.current_thread()
    threads = [threading.Thread(target=announcer.announce_job, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    announcer.flush()
    assert {f"job:{number}" for number in range(50)} <= set(layer.sent[0]["topics"])
