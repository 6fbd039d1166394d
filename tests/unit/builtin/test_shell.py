"""shell_command with real processes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tests.servers.base import is_running
from tests.unit.builtin.running import OCCURRENCE, Context, run
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.builtin.output import MAX_LOGGED_LINES
from tickwork.builtin.shell import shell_command
from tickwork.errors import JobCancelled, JobError, PermanentError


@pytest.fixture(autouse=True)
def _enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKWORK_SHELL_ENABLED", "true")


async def test_it_is_off_until_the_owner_turns_it_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TICKWORK_SHELL_ENABLED")
    with pytest.raises(PermanentError, match="TICKWORK_SHELL_ENABLED=true"):
        await run(shell_command, command=f"touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()


async def test_a_text_is_run_by_the_shell_and_a_list_is_not() -> None:
    assert (await run(shell_command, command="echo $((40 + 2)) | cat"))["stdout"] == "42\n"
    assert (await run(shell_command, command=["echo", "$((40 + 2)) | cat"]))["stdout"] == "$((40 + 2)) | cat\n"


async def test_folder_variables_and_input_reach_the_command(tmp_path: Path) -> None:
    result = await run(
        shell_command, command='pwd; echo "$COLOUR"; cat', cwd=str(tmp_path), env={"COLOUR": "blue"}, stdin="a\nb\n"
    )
    assert result["stdout"] == f"{tmp_path.resolve()}\nblue\na\nb\n"


async def test_the_worker_s_own_environment_stays_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hidden@h/db")
    monkeypatch.setenv("TICKWORK_SMTP_URL", "smtp://u:hidden@h")
    result = await run(shell_command, command="env")
    assert "hidden" not in result["stdout"]
    assert f"TICKWORK_OCCURRENCE_ID={OCCURRENCE}\n" in result["stdout"]
    assert "PATH=" in result["stdout"]


async def test_an_unexpected_exit_code_is_a_failure_that_quotes_the_end_of_the_errors() -> None:
    with pytest.raises(JobError, match="exit code 3: no such table") as caught:
        await run(shell_command, command="echo fine; echo 'no such table' >&2; exit 3")
    assert caught.value.retryable is None


async def test_expected_exit_codes_replace_zero() -> None:
    result = await run(shell_command, command="exit 3", expected_exit_codes=[0, 3])
    assert result["exit_code"] == 3
    with pytest.raises(JobError, match="exit code 0"):
        await run(shell_command, command="exit 0", expected_exit_codes=[3])


async def test_a_command_ended_by_a_signal_says_which() -> None:
    with pytest.raises(JobError, match="was ended by SIGKILL"):
        await run(shell_command, command="kill -9 $$")


@pytest.mark.parametrize("command", [["/no/such/program"], ["/etc/hostname"], [], "", ["echo", "a\0b"]])
async def test_a_command_that_cannot_start_is_permanent(command: str | list[str]) -> None:
    with pytest.raises(PermanentError):
        await run(shell_command, command=command)


async def test_a_folder_that_is_not_there_is_permanent_and_named() -> None:
    with pytest.raises(PermanentError, match="/no/such/folder"):
        await run(shell_command, command="true", cwd="/no/such/folder")


async def test_lines_are_logged_as_they_come_with_their_stream() -> None:
    ctx = Context()
    await run(shell_command, ctx=ctx, command="printf 'one\\ntwo'; printf 'warn\\n' >&2")
    assert {(line.message, line.fields["stream"]) for line in ctx.said.lines} == {
        ("one", "stdout"),
        ("two", "stdout"),
        ("warn", "stderr"),
    }


async def test_a_line_is_logged_while_the_command_still_runs() -> None:
    ctx = Context()
    thread = threading.Thread(target=_ignore_cancel, args=(ctx, "echo begun; exec sleep 60"))
    thread.start()
    eventually(lambda: "begun" in ctx.said.messages)
    assert thread.is_alive()
    ctx.cancel("by a person")
    thread.join()


async def test_output_beyond_the_limit_keeps_its_end_and_the_log_says_that_it_stopped() -> None:
    ctx = Context()
    program = "import sys\nfor n in range(20000): print('line', n)\nprint('x' * 5_000_000)\nprint('the end')"
    result = await run(shell_command, ctx=ctx, command=[sys.executable, "-c", program])
    assert result["stdout"].endswith("x\nthe end\n")
    assert result["stdout_truncated"] is True
    assert result["stderr_truncated"] is False
    assert len(result["stdout"]) <= 65_536
    assert len(ctx.said.lines) == MAX_LOGGED_LINES + 1
    assert ctx.said.messages[:2] == ["line 0", "line 1"]
    assert "the rest is not logged" in ctx.said.messages[-1]


async def test_colours_and_bytes_that_are_no_text_are_made_harmless() -> None:
    result = await run(shell_command, command=r"printf '\033[31mred\033[0m \000 \377\n'")
    assert result["stdout"] == "red \ufffd \ufffd\n"


async def test_a_command_that_closes_its_output_is_still_awaited(tmp_path: Path) -> None:
    result = await run(shell_command, command=f"exec >&- 2>&-; sleep 0.3; touch {tmp_path}/done")
    assert result["exit_code"] == 0
    assert (tmp_path / "done").exists()


async def test_cancelling_ends_the_command_and_its_children(tmp_path: Path) -> None:
    ctx = Context()
    script = f"sleep 600 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/leader; echo ready; wait"
    thread = threading.Thread(target=_ignore_cancel, args=(ctx, script))
    thread.start()
    eventually(lambda: "ready" in ctx.said.messages)
    ctx.cancel("by a person")
    thread.join()
    for name in ("leader", "child"):
        _await_end(int((tmp_path / name).read_text()))


async def test_a_command_that_ignores_the_request_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwork.builtin.shell.TERMINATE_GRACE_SECONDS", 0.2)
    ctx = Context()
    thread = threading.Thread(
        target=_ignore_cancel, args=(ctx, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    )
    thread.start()
    eventually(lambda: "ready" in ctx.said.messages)
    ctx.cancel("by a person")
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


async def test_a_cancelled_command_raises_what_the_worker_expects() -> None:
    ctx = Context()
    ctx.cancel("by a person")
    with pytest.raises(JobCancelled):
        await run(shell_command, ctx=ctx, command="sleep 600")


async def test_children_left_in_the_background_do_not_outlive_the_attempt(tmp_path: Path) -> None:
    result = await run(shell_command, command=f"sleep 600 & echo $! > {tmp_path}/child")
    assert result["exit_code"] == 0
    _await_end(int((tmp_path / "child").read_text()))


def _ignore_cancel(ctx: Context, command: str) -> None:
    try:
        shell_command(ctx, command)
    except JobCancelled:
        ctx.log.info("cancelled")


def _await_end(pid: int) -> None:
    eventually(lambda: not is_running(pid), what=f"process {pid} has ended")
