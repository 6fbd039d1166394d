"""Boundaries that imports alone do not show: foreign keys, dotted paths, signals, the weight of the worker's half."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from django.apps import apps
from django.db.models import Model

from tests.architecture.tree import CODE, DJANGO_APPS, ROOT, name_of, python_files, syntax

ORDER = {label: position for position, label in enumerate(DJANGO_APPS)}


def model_of(field: object) -> type[Model] | None:
    """The model that a relation points to; None for a plain field."""
    target = getattr(field, "related_model", None)
    return target if isinstance(target, type) and issubclass(target, Model) else None


def test_foreign_keys_point_down_the_order_of_the_apps() -> None:
    ours = [model for model in apps.get_models() if model._meta.app_label in ORDER]
    assert {model._meta.app_label for model in ours} == set(DJANGO_APPS)
    upward = [
        f"{model._meta.label}.{field.name} -> {target._meta.label}"
        for model in ours
        for field in model._meta.get_fields()
        if not field.auto_created and (target := model_of(field)) is not None
        if ORDER.get(target._meta.app_label, -1) > ORDER[model._meta.app_label]
    ]
    assert upward == []


def test_migrations_depend_down_the_order_of_the_apps_and_have_words_for_names() -> None:
    found = sorted(path for label in DJANGO_APPS for path in (ROOT / label / "migrations").glob("[0-9]*.py"))
    assert found
    for path in found:
        label = path.parent.parent.name
        assert "auto" not in path.stem.split("_"), f"{name_of(path)}: a migration is named after what it does"
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Tuple(elts=[ast.Constant(value=str(needed)), ast.Constant(value=str())]) if needed in ORDER:
                    assert ORDER[needed] <= ORDER[label], f"{name_of(path)} depends on {needed}"


def test_dotted_paths_to_our_code_stand_only_in_the_wiring() -> None:
    dotted = [
        f"{name_of(path)}:{node.lineno} {node.value}"
        for path in python_files(*CODE)
        if path.parent.name != "scheduler_project"
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module_path(node.value)
    ]
    assert dotted == []


def is_module_path(text: str) -> bool:
    """Whether the text names a module of the server by its dotted path, as import_string wants it."""
    parts = text.split(".")
    if len(parts) < 2 or parts[0] not in (*DJANGO_APPS, "scheduler_project") or not all(map(str.isidentifier, parts)):
        return False
    place = ROOT.joinpath(*parts[:2])
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_no_signals_tie_the_apps_together() -> None:
    used = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files(*DJANGO_APPS)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ImportFrom) and node.module in ("django.dispatch", "django.db.models.signals")
    ]
    assert used == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("tickwork.contracts", {"django", "pika", "sqlite3", "asyncio"}),
        ("tickwork", {"django", "pika"}),
        ("tickwork.__main__", {"django"}),
        ("tickwork.worker.runtime", {"django", "pika", "httpx", "psycopg"}),
        ("tickwork.broker.connect", {"django", "pika"}),
        ("tickwork.builtin", {"django", "pika"}),
    ],
)
def test_the_worker_half_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    program = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert heavy.isdisjoint(loaded.splitlines())
