"""What no file of the project may hold: addresses of package registries, paths of one machine, endless modules."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.architecture.tree import CODE, ROOT, files, name_of, python_files
from tickwork import __version__

LOCKS = ("requirements.lock", "requirements-dev.lock")
# Written in pieces, so that this file does not contain what it looks for.
REGISTRY = re.compile(
    r"https?://[^\s/'\"]*(?:py" + r"pi|reg" + r"istry|artif" + r"actory|nex" + r"us)[^\s/'\"]*[./]"
    r"|--(?:extra-)?" + r"index-url\b|--find" + r"-links\b"
)  # fmt: skip
MACHINE = re.compile(
    r"(?<![\w.~-])/(?:ro" + r"ot|wo" + r"rk|Us" + r"ers|ho" + r"me/(?!tickwork\b)\w+)/[\w.]" + r"|\.py" + r"env/"
)


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_pins_every_package_by_hash_and_names_no_place(lock: str) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    assert lines[0].startswith("# Made by")
    pins = [line for line in lines[1:] if not line.startswith("    --hash=sha256:")]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+!]+( ; [^:/]+)? \\", pin), pin
    hashed = [line for line in lines[1:] if line.startswith("    --hash=")]
    for line in hashed:
        assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


def test_the_development_lock_contains_the_other_one() -> None:
    run, dev = (set(re.findall(r"^(\S+==\S+)", (ROOT / lock).read_text(), re.MULTILINE)) for lock in LOCKS)
    assert run < dev


def test_every_dependency_of_the_project_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[\[><=~!; ]", text)[0].lower() for text in project["dependencies"]}
    extras = project["optional-dependencies"]
    for extra in ("builtin", "server"):
        named |= {re.split(r"[\[><=~!; ]", text)[0].lower() for text in extras[extra]}
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert named <= locked


def test_no_file_holds_the_address_of_a_package_registry() -> None:
    assert matches(REGISTRY) == []


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    assert matches(MACHINE) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRY, "https://" + "py" + "pi.org/simple/"),
        (REGISTRY, "pip install --extra-" + "index-url=x"),
        (MACHINE, "open('/" + "root/x')"),
        (MACHINE, "/" + "home/alice/x"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


def test_no_module_is_longer_than_500_lines() -> None:
    own = python_files(*CODE, "tests", "bench")
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in own}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name_of(path)
        for path in python_files(*CODE)
        if (text := path.read_text().strip()) and not text.startswith(('"""', 'r"""', "#!"))
    ]
    assert silent == []


def test_the_changelog_speaks_of_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ in headings[:2], "the first heading is this version, or Unreleased with this version below"


def matches(pattern: re.Pattern[str]) -> list[str]:
    """`file:line text` of each line of the project that the pattern finds, locks' hashes aside."""
    return [
        f"{name_of(path)}:{number} {found.group()}"
        for path in files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if "--hash=" not in line and (found := pattern.search(line))
    ]
