"""The documentation stays true: links lead somewhere, every setting is described, every named file exists."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from django.core.management import get_commands

from jobs.conf import PREFIX, SchedulerSettings
from tests.architecture.tree import CODE, ROOT, files, name_of
from tickwork.config import WorkerSettings

PAGES = [path for path in files() if path.suffix == ".md"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(rf"`((?:{'|'.join((*CODE, 'tests', 'docs', 'bench', 'templates', 'static'))})/[\w./-]+)`")


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings offer, as GitHub makes them."""
    headings = re.findall(r"^#+\s+(.+?)\s*$", without_code(page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def without_code(text: str) -> str:
    """The page without fenced blocks, whose brackets are no links and whose comments are no headings."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for first, second in LINK.findall(without_code(page.read_text())):
        target = first or second
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        place = (page.parent / unquote(path)).resolve() if path else page
        if not place.exists() or (fragment and place.suffix == ".md" and fragment not in anchors(place)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", [page for page in PAGES if "decisions" not in page.parts], ids=name_of)
def test_files_named_in_the_documentation_exist(page: Path) -> None:
    named = NAMED_FILE.findall(without_code(page.read_text()))
    assert [name for name in named if not (ROOT / name.rstrip("/")).exists()] == []


def test_every_setting_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/settings.md").read_text()
    names = [PREFIX + field.name.upper() for field in dataclasses.fields(SchedulerSettings)]
    names += [field.metadata["env"] for field in dataclasses.fields(WorkerSettings)]
    assert [name for name in names if f"`{name}`" not in reference] == []


def test_every_variable_that_the_server_reads_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/settings.md").read_text()
    source = (ROOT / "scheduler_project/settings.py").read_text()
    names = set(re.findall(r"env\.\w+\(\s*\"(\w+)\"", source))
    assert names
    assert sorted(name for name in names if f"`{name}`" not in reference) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_named_in_the_documentation_exist(page: Path) -> None:
    text = page.read_text()
    commands = re.findall(r"(?:manage\.py|run\.py manage) ([a-z]\w+)", text)
    assert [name for name in commands if name not in get_commands()] == []
    tasks = re.findall(r"python3 run\.py ([a-z]\w+)", text)
    source = (ROOT / "run.py").read_text()
    assert [name for name in tasks if f'"{name}": {name},' not in source] == []
