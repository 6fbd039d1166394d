"""The project's own files, for tests that read them. Never lists what is installed, generated or kept as data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("tickwork", "jobs", "workers_app", "occurrences", "scheduler_project")
DJANGO_APPS = ("jobs", "workers_app", "occurrences")

_NOT_OURS = {"__pycache__", "build", "dist", "node_modules", "staticfiles"}
_OWN_HIDDEN = {".ci", ".dockerignore", ".env.example", ".gitignore"}
_BINARY = {".png", ".ico", ".jpg", ".gif", ".woff2", ".pyc", ".sqlite3"}


@cache
def files() -> tuple[Path, ...]:
    """Every text file of the project."""
    return tuple(sorted(path for path in _walk(ROOT) if path.suffix not in _BINARY))


def python_files(*folders: str) -> list[Path]:
    """The Python files below these top-level folders, without migrations."""
    return [
        path
        for path in files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders and "migrations" not in path.parts
    ]


@cache
def syntax(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(), filename=str(path))


def name_of(path: Path) -> str:
    """The path as a reader of the repository writes it."""
    return path.relative_to(ROOT).as_posix()


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _NOT_OURS or (path.name.startswith(".") and path.name not in _OWN_HIDDEN):
            continue
        if path.name.endswith(".egg-info") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path
