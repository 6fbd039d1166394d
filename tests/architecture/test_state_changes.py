"""An occurrence's status changes in exactly one file. The linter of imports cannot see this; syntax trees can."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import name_of, python_files, syntax

THE_FILE = "occurrences/transitions.py"
THE_WRITER = "occurrences/run.py"
THE_STATEMENTS = "occurrences/sql.py"
SERVER = ("jobs", "workers_app", "occurrences", "scheduler_project")


def changes_of_status(tree: ast.AST) -> Iterator[str]:
    """A sentence for each place where the code sets a `status` on something that exists."""
    for node in ast.walk(tree):
        written: list[ast.expr]
        match node:
            case ast.Assign(targets=targets):
                written = targets
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
                written = [target]
            case _:
                written = []
        for place in written:
            for part in ast.walk(place):
                if isinstance(part, ast.Attribute) and part.attr == "status":
                    yield f"line {part.lineno}: assigns {ast.unparse(part)}"
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {keyword.arg for keyword in node.keywords}
        texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        if called in ("update", "aupdate", "update_or_create") and "status" in named:
            yield f"line {node.lineno}: calls {called}(status=…)"
        if called in ("setattr", "bulk_update", "abulk_update") and "status" in texts:
            yield f"line {node.lineno}: calls {called}(… 'status' …)"
        if called in ("save", "asave") and "update_fields" in named and "status" in texts:
            yield f"line {node.lineno}: calls {called}(update_fields=[… 'status' …])"
        if called == "guarded_update":
            yield f"line {node.lineno}: calls guarded_update"


def updates_of_occurrences(tree: ast.AST) -> Iterator[str]:
    """A sentence for each SQL text that updates the table of occurrences."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant):
            text = ast.unparse(node)
            if re.search(r"UPDATE\s+(ONLY\s+)?\W*(occurrences_occurrence\b|\{_TABLE\})", text, re.IGNORECASE):
                yield f"line {node.lineno}: {text[:60]}"


def server_files() -> list[Path]:
    return python_files(*SERVER)


def test_only_transitions_changes_a_status() -> None:
    found = {name_of(path): list(changes_of_status(syntax(path))) for path in server_files()}
    found = {name: places for name, places in found.items() if places}
    written = found.pop(THE_WRITER, [])
    assert set(found) == {THE_FILE}, found
    assert [place.partition(": ")[2] for place in written] == ["calls guarded_update"], written


def test_only_the_set_based_statements_update_the_table_of_occurrences() -> None:
    found = {name_of(path): list(updates_of_occurrences(syntax(path))) for path in server_files()}
    found = {name: places for name, places in found.items() if places}
    assert set(found) == {THE_STATEMENTS}, found


@pytest.mark.parametrize(
    "code",
    [
        "occurrence.status = 3",
        "occurrence.status: int = 3",
        "a, run.state.status = 1, 2",
        "occurrence.status |= 1",
        "Occurrence.objects.filter(pk=1).update(status=3)",
        "Occurrence.objects.bulk_update(rows, ['status'])",
        "setattr(occurrence, 'status', 3)",
        "occurrence.save(update_fields=['ended_at', 'status'])",
        "sql.guarded_update(rows)",
    ],
)
def test_the_scan_sees_each_way_to_change_a_status(code: str) -> None:
    assert list(changes_of_status(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["'UPDATE occurrences_occurrence SET status = 3'", "f'update {_TABLE} AS o SET x = 1'"]
)
def test_the_scan_sees_each_way_to_update_the_table(code: str) -> None:
    assert list(updates_of_occurrences(ast.parse(code)))
