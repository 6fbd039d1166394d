"""Where the benchmark finds a Python for a peer, and what it says when there is none."""

import stat
import sys
from pathlib import Path

import pytest

from bench.environments import LeftOut, find_python


def program(path: Path, script: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH and pyenv are empty; returns the folder of its pyenv."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path / "pyenv"


def test_this_python_serves_when_it_is_new_enough(nothing_else: Path) -> None:
    assert find_python((3, 11)) == sys.executable


def test_a_peer_is_left_out_with_the_version_it_needs_when_no_python_is_new_enough(nothing_else: Path) -> None:
    with pytest.raises(LeftOut, match=r"needs Python 3\.99 or newer"):
        find_python((3, 99))


def test_a_program_on_path_that_does_not_run_is_passed_over_for_one_of_pyenv(
    nothing_else: Path, tmp_path: Path
) -> None:
    program(tmp_path / "path" / "python3.99", "echo 'python3.99: command not found' >&2; exit 127")
    good = program(nothing_else / "versions" / "3.99.1" / "bin" / "python3.99", "echo 3 99")
    assert find_python((3, 99)) == str(good)


def test_a_program_with_the_right_name_and_an_older_version_is_passed_over(nothing_else: Path, tmp_path: Path) -> None:
    program(tmp_path / "path" / "python3.99", "echo 3 10")
    with pytest.raises(LeftOut):
        find_python((3, 99))
