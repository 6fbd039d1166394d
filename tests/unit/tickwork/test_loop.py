"""Loops: they step, rest, back off after errors and recover; the stop switch ends every wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.loop import Backoff, Loop, Stop


def test_a_loop_steps_again_at_once_while_there_is_work_and_rests_when_there_is_none() -> None:
    counts = iter([3, 1, 0])
    loop = Loop("work", lambda: next(counts), stop=Stop(), idle_seconds=7.0)
    assert [loop.step() for _ in range(3)] == [0.0, 0.0, 7.0]


def test_an_error_makes_growing_pauses_and_a_success_resets_them() -> None:
    answers: list[int | Exception] = [ValueError("a"), ValueError("b"), 1, ValueError("c")]
    passes: list[int] = []
    errors: list[str] = []

    def tick() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop = Loop("work", tick, stop=Stop(), on_pass=passes.append, on_error=lambda error: errors.append(str(error)))
    first, second, third, fourth = (loop.step() for _ in range(4))
    assert first == 0.2
    assert 0.2 <= second <= 0.4
    assert (third, fourth) == (0.0, 0.2)
    assert (passes, errors) == ([1], ["a", "b", "c"])


def test_pauses_never_grow_beyond_ten_seconds() -> None:
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(100)]
    assert max(pauses) <= 10.0
    assert min(pauses[10:]) >= 5.0


def test_the_switch_ends_a_loop_that_rests() -> None:
    stop = Stop()
    stepped = threading.Event()

    def tick() -> int:
        stepped.set()
        return 0

    thread = threading.Thread(target=Loop("work", tick, stop=stop, idle_seconds=3600).run)
    thread.start()
    assert stepped.wait(PATIENCE_SECONDS)
    stop.set("test")
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_wake_up_ends_a_rest() -> None:
    stop = Stop()
    steps: list[int] = []

    def tick() -> int:
        steps.append(1)
        return 0

    loop = Loop("work", tick, stop=stop, idle_seconds=3600)
    thread = threading.Thread(target=loop.run)
    thread.start()
    eventually(lambda: len(steps) == 1)
    loop.wake()
    eventually(lambda: len(steps) == 2)
    stop.set("test")
    thread.join(PATIENCE_SECONDS)


def test_the_first_reason_to_stop_stays_and_late_listeners_are_called_at_once() -> None:
    stop, called = Stop(), []
    stop.set("first")
    stop.set("second")
    stop.on_set(lambda: called.append(True))
    assert (stop.reason, called) == ("first", [True])


STUBBORN = """
import sys, time
from tickwork.loop import Stop, stop_on_signals
stop = Stop()
stop_on_signals(stop)
print("ready", flush=True)
stop.wait()
print(stop.reason, flush=True)
while "stubborn" in sys.argv:
    time.sleep(60)
"""


def test_the_first_signal_stops_and_the_second_ends_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN, "stubborn"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 1


PARENT = """
from tickwork.loop import Stop, stop_with_parent
stop = Stop()
stop_with_parent(stop)
stop.wait()
print(stop.reason)
"""


def test_a_process_stops_when_its_standard_input_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT], input=b"x" * 10, capture_output=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout.decode().strip() == f"parent gone{os.linesep}".strip()
