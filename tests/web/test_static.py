"""What browsers load: nothing from elsewhere, nothing inline, and third-party files exactly as they were published."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client

from jobs.templatetags.pages import duration, relative, seconds

TEMPLATES = sorted((settings.BASE_DIR / "templates").rglob("*.html"))
STATIC = settings.BASE_DIR / "static"


def vendored() -> list[list[str]]:
    """The rows of the manifest: file, package, version, licence, sha256."""
    lines = (STATIC / "vendor" / "VERSIONS.txt").read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def test_third_party_files_are_what_the_manifest_says_each_with_its_licence() -> None:
    files = {path.name for path in (STATIC / "vendor").iterdir()} - {"VERSIONS.txt"}
    listed = {row[0] for row in vendored()}
    assert files == listed | {f"{row[1]}.LICENSE" for row in vendored()}
    for name, _, _, _, checksum in vendored():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == checksum


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_nothing_inline_and_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:|https?://", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    for name in re.findall(r"{% static '([^']+)' %}", text):
        assert finders.find(name), name


def test_every_page_forbids_what_is_inline_or_from_elsewhere() -> None:
    policy = Client().get("/health/live")["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy


NOW = datetime(2030, 1, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offset", "style", "text"),
    [
        (0, "", "now"),
        (12, "", "in 12 s"),
        (-12, "", "12 s ago"),
        (-200, "", "3 min ago"),
        (200, "countdown", "in 3 min 20 s"),
        (-3600, "", "1 h ago"),
        (-5000, "", "1 h 23 min ago"),
        (-86400 * 2 - 7200, "", "2 d 2 h ago"),
        (-86400 * 40, "", "2029-12-06"),
        (-75, "age", "1 min 15 s"),
        (5, "age", "0 s"),
    ],
)
def test_times_read_well(offset: int, style: str, text: str) -> None:
    assert relative(NOW + timedelta(seconds=offset), NOW, style) == text


def test_lengths_read_well() -> None:
    measured = [duration(value) for value in (None, 0.0123, 3.42, 65, 7200)]
    assert measured == ["–", "12 ms", "3.4 s", "1 min 5 s", "2 h"]
    assert [seconds(value) for value in (None, 10.0, 300.0, 21600.0, 90_000.0)] == [
        "–",
        "10 s",
        "300 s (5 min)",
        "21600 s (6 h)",
        "90000 s (1 d 1 h)",
    ]
