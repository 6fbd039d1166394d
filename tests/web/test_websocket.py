"""The websocket of the live pages: who may listen, to what, and what ends a connection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from jobs import announcer
from jobs.conf import SchedulerSettings
from jobs.models import Job
from occurrences import live
from occurrences.states import Status
from scheduler_project.asgi import application
from tests import factories
from tests.db.api_client import Api
from tests.waiting import PATIENCE_SECONDS
from tests.web.conftest import browser_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_connections", "own_announcer")]

JOB, OCCURRENCE = str(uuid4()), str(uuid4())
FINISHED = live.Change(OCCURRENCE, JOB, Status.COMPLETED, "status")


@pytest.fixture
async def own_connections() -> AsyncIterator[None]:
    """The thread that asks the database for the consumers leaves no connection open."""
    yield
    await sync_to_async(connections.close_all)()


class Socket(WebsocketCommunicator):
    """Waits as long as a busy machine takes."""

    async def receive_output(self, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next message of the server."""
        message: dict[str, Any] = await super().receive_output(max(timeout, PATIENCE_SECONDS))
        code = message.get("code", 1000)
        assert code == 1000 or 3000 <= code <= 4999, "the web server refuses to send another code, and closes nothing"
        return message

    async def wait(self, timeout: float = PATIENCE_SECONDS) -> None:
        """Until the server's side has ended."""
        await super().wait(max(timeout, PATIENCE_SECONDS))


def socket_of(client: Client | None, *, origin: str = "http://localhost", path: str = "/ws/live/") -> Socket:
    """A browser's websocket, with its cookies and its origin."""
    headers = [(b"origin", origin.encode()), (b"host", b"localhost")]
    if client:
        headers.append((b"cookie", f"sessionid={client.cookies['sessionid'].value}".encode()))
    return Socket(application, path, headers=headers)


async def watching(socket: Socket, *topics: str) -> list[str]:
    """Ask for these topics; returns those that were granted."""
    await socket.send_json_to({"watch": list(topics)})
    answer: list[str] = (await socket.receive_json_from())["watching"]
    return answer


async def announced(*changes: live.Change) -> None:
    """Announce, and have it sent by another thread, as in real life."""
    announcer._announcer._thread = threading.current_thread()
    live.announce(changes)
    await asyncio.to_thread(announcer.flush)


def make_viewer() -> Client:
    """A viewer's browser."""
    return browser_of(factories.make_viewer())


async def test_a_page_hears_of_what_it_watches_and_of_nothing_else() -> None:
    socket = socket_of(await sync_to_async(make_viewer)())
    assert (await socket.connect())[0]
    assert await watching(socket, f"occurrence:{OCCURRENCE}", "jobs") == ["jobs", f"occurrence:{OCCURRENCE}"]
    await announced(FINISHED)
    assert await socket.receive_json_from() == {"changed": ["jobs", f"occurrence:{OCCURRENCE}"]}
    await announced(live.Change(str(uuid4()), JOB, Status.RUNNING, "detail"))
    assert await socket.receive_nothing()
    await watching(socket, "workers")
    await announced(FINISHED)
    assert await socket.receive_nothing()
    await socket.disconnect()


async def test_a_definition_changed_anywhere_reaches_the_pages_of_others() -> None:
    def prepare() -> tuple[Job, Api, Client, Client]:
        administrator = factories.make_user("ada", may=("view", *factories.OPERATOR_MAY), is_staff=True)
        return factories.make_job(), Api(administrator), browser_of(administrator), make_viewer()

    announcer._announcer._thread = threading.current_thread()  # nobody sends but `flush`
    job, api, administration, viewer = await sync_to_async(prepare)()
    await asyncio.to_thread(announcer.flush)
    socket = socket_of(viewer)
    await socket.connect()
    await watching(socket, "jobs", f"job:{job.pk}")

    async def heard(deed: Callable[[], Any]) -> list[str]:
        assert (await sync_to_async(deed)()).status_code < 400
        await asyncio.to_thread(announcer.flush)
        changed: list[str] = (await socket.receive_json_from())["changed"]
        return changed

    both = [f"job:{job.pk}", "jobs"]
    in_list = {"_selected_action": str(job.pk), "action": "enable"}
    assert await heard(lambda: api.post("/jobs", {"name": "new", "worker": "w", "job_type": "t"})) == ["jobs"]
    assert await heard(lambda: api.patch(f"/jobs/{job.pk}", {"name": "other"})) == both
    assert await heard(lambda: api.post(f"/jobs/{job.pk}/pause")) == both
    assert await heard(lambda: administration.post("/admin/jobs/job/", in_list)) == both
    assert await heard(lambda: api.delete(f"/jobs/{job.pk}")) == both
    refused = await sync_to_async(lambda: api.patch(f"/jobs/{job.pk}", {"name": "late"}))()
    assert refused.status_code == 409
    await asyncio.to_thread(announcer.flush)
    assert await socket.receive_nothing()
    await socket.disconnect()


async def test_when_too_much_changed_a_page_asks_for_everything_it_shows() -> None:
    socket = socket_of(await sync_to_async(make_viewer)())
    await socket.connect()
    await watching(socket, "overview", "workers")
    await announced(*[FINISHED._replace(occurrence_id=str(number)) for number in range(400)])
    assert await socket.receive_json_from() == {"changed": ["overview", "workers"]}
    await socket.disconnect()


async def test_changes_in_quick_succession_come_together(settings: Any) -> None:
    settings.SCHEDULER = SchedulerSettings(live_interval_seconds=1.0)
    socket = socket_of(await sync_to_async(make_viewer)())
    await socket.connect()
    await watching(socket, "overview", f"job:{JOB}")
    layer = get_channel_layer()
    for topic in ("overview", f"job:{JOB}", "overview", "overview"):
        await layer.group_send(announcer.GROUP, {"type": "changes", "topics": [topic], "many": False})
    messages = [await socket.receive_json_from()]
    heard = set(messages[0]["changed"])
    while len(heard) < 2:
        messages.append(await socket.receive_json_from())
        heard |= set(messages[-1]["changed"])
    assert len(messages) <= 2
    assert await socket.receive_nothing()
    await socket.disconnect()


async def test_a_person_watches_only_what_they_may_see_and_rights_count_at_each_message() -> None:
    def narrow() -> tuple[User, Client]:
        user = factories.make_user("narrow", may=("view_job",))
        return user, browser_of(user)

    user, client = await sync_to_async(narrow)()
    socket = socket_of(client)
    await socket.connect()
    wanted = ("overview", "jobs", f"job:{JOB}", f"occurrence:{OCCURRENCE}", "occurrences", "failures", "workers")
    assert await watching(socket, *wanted) == [f"job:{JOB}", "jobs"]
    await sync_to_async(user.user_permissions.clear)()
    assert await watching(socket, *wanted) == []
    await socket.disconnect()


async def test_nobody_and_who_has_logged_out_are_sent_away() -> None:
    socket = socket_of(None)
    assert (await socket.connect())[0]
    assert await socket.receive_output() == {"type": "websocket.close", "code": 4401}
    client = await sync_to_async(make_viewer)()
    socket = socket_of(client)
    await socket.connect()
    await sync_to_async(client.logout)()
    await socket.send_json_to({"watch": ["overview"]})
    assert (await socket.receive_output())["code"] == 4401


async def test_another_sites_page_gets_no_socket_and_an_unknown_address_neither() -> None:
    client = await sync_to_async(make_viewer)()
    assert not (await socket_of(client, origin="https://evil.example").connect())[0]
    assert not (await socket_of(client, path="/ws/other/").connect())[0]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"watch": "jobs"}',
        '{"watch": [1]}',
        '{"watch": ["odd"]}',
        '{"watch": ["job"]}',
        '{"watch": ["jobs:1"]}',
        '{"watch": ["job:1"]}',
        '{"watch": ["jobs"], "more": 1}',
        '{"watch": ["\\ud800"]}',
        json.dumps({"watch": [f"job:{uuid4()}" for _ in range(201)]}),
        '{"watch": ["' + "x" * 20_000 + '"]}',
        "[" * 10_000,
    ],
)
async def test_a_message_that_no_page_of_ours_sends_ends_the_connection(text: str) -> None:
    socket = socket_of(await sync_to_async(make_viewer)())
    await socket.connect()
    await socket.send_to(text_data=text)
    assert await socket.receive_output() == {"type": "websocket.close", "code": 4400}


async def test_bytes_and_floods_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("occurrences.consumers.MAX_MESSAGES_SECONDS", PATIENCE_SECONDS)
    client = await sync_to_async(make_viewer)()
    socket = socket_of(client)
    await socket.connect()
    await socket.send_to(bytes_data=b"\x00")
    assert (await socket.receive_output())["code"] == 4400
    socket = socket_of(client)
    await socket.connect()
    for _ in range(20):
        assert await watching(socket, "overview") == ["overview"]
    await socket.send_json_to({"watch": ["overview"]})
    assert (await socket.receive_output())["code"] == 4429


async def test_without_its_layer_a_socket_ends_in_good_order(settings: Any) -> None:
    client = await sync_to_async(make_viewer)()
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": ["redis://127.0.0.1:1"]},
        }
    }
    socket = socket_of(client)
    await socket.send_input({"type": "websocket.connect"})
    assert await socket.receive_output() == {"type": "websocket.close", "code": 4503}
    await socket.wait()


async def test_a_page_whose_layer_went_away_unnoticed_is_sent_away_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await sync_to_async(make_viewer)()
    monkeypatch.setattr("occurrences.consumers.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("occurrences.consumers._told_at", float("-inf"))
    sockets = [socket_of(client), socket_of(client)]
    for socket in sockets:
        await socket.connect()
        await watching(socket, "overview")
    await asyncio.sleep(0.3)  # longer than it takes to give up
    await announced(FINISHED)
    for socket in sockets:
        assert await socket.receive_json_from() == {"changed": ["overview"]}

    async def lose(channel: str, message: dict[str, Any]) -> None:
        """As the client of Redis does while it tries to connect again: no error, no delivery."""

    monkeypatch.setattr(get_channel_layer(), "send", lose)
    for socket in sockets:
        assert await socket.receive_output() == {"type": "websocket.close", "code": 4503}
    assert len([record for record in caplog.records if record.name == "occurrences.consumers"]) == 1


async def test_pages_hear_through_redis_what_another_process_announces(redis_url: str, settings: Any) -> None:
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": redis_url, "socket_timeout": None, "max_connections": 200}]},
        }
    }
    socket = socket_of(await sync_to_async(make_viewer)())
    assert (await socket.connect())[0]
    await watching(socket, "overview")
    await announced(FINISHED)
    assert await socket.receive_json_from() == {"changed": ["overview"]}
    await socket.disconnect()
