"""The distributed mode's description holds together: images, commands that exist, health checks, no secrets."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.architecture.tree import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "tickwork"}
SECRETS = ("POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "DJANGO_SECRET_KEY")


def test_every_role_has_a_service() -> None:
    commands = {service["command"][2] for service in OURS.values() if service["command"][:2] == ["python", "manage.py"]}
    roles = {"dispatch", "relay_outbox", "consume_events", "consume_dead_letters", "detect_zombies", "purge"}
    assert commands == roles | {"migrate"}
    assert {"postgres", "rabbitmq", "redis", "web", "worker"} <= set(SERVICES)


@pytest.mark.parametrize("name", [name for name, service in OURS.items() if service["command"][1] == "manage.py"])
def test_commands_of_services_exist(name: str) -> None:
    from django.core.management import get_commands

    service = OURS[name]
    assert service["command"][2] in get_commands()
    if not service["healthcheck"].get("disable"):
        *_, check, role = service["healthcheck"]["test"]
        assert check in get_commands()
        assert role == service["command"][2]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_watched_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] in ("unless-stopped", "on-failure")
    once = service["restart"] == "on-failure"
    assert once or service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", SERVICES)
def test_services_wait_only_for_services_that_exist(name: str) -> None:
    needs = SERVICES[name].get("depends_on", {})
    assert set(needs) <= set(SERVICES)
    for needed, how in needs.items():
        done = SERVICES[needed]["restart"] == "on-failure"
        assert how["condition"] == ("service_completed_successfully" if done else "service_healthy")


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if service["image"] != "tickwork"])
def test_images_are_pinned_to_a_release_line(name: str) -> None:
    assert re.fullmatch(r"[a-z]+:\d+(\.\d+)?", SERVICES[name]["image"])


def test_secrets_come_from_outside_and_are_asked_for() -> None:
    text = (ROOT / "compose.yaml").read_text()
    for name in SECRETS:
        used = re.findall(r"\$\{" + name + r"[^}]*\}", text)
        assert used, name
        assert all(":?" in place for place in used), f"{name} must be refused when it is not set"
        assert re.search(rf"^{name}=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search("PASS|SECRET|KEY", key):
                assert value.startswith("${"), f"{key} is written down"


def test_only_the_pages_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"web"}
    assert all(port.startswith("127.0.0.1:") for port in published["web"])


def test_a_worker_gets_the_broker_and_no_database() -> None:
    environment = SERVICES["worker"]["environment"]
    assert environment["BROKER_URL"] == SERVICES["web"]["environment"]["BROKER_URL"]
    assert "DATABASE_URL" not in environment
    assert "DJANGO_SECRET_KEY" not in environment


def test_the_image_holds_every_code_folder() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text()
    for folder in ("scheduler_project", "jobs", "workers_app", "occurrences", "tickwork", "templates", "static"):
        assert f"COPY {folder} {folder}" in dockerfile
        assert f"!{folder}" in ignored.splitlines()
