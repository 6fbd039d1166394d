"""The tables of the benchmark: ratios compare the same round, and a failed measurement is never left out in silence."""

from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.__main__ import turned
from bench.measure import Measurement
from bench.systems import BATCHES, CELERY, OBAN, ONE_CALL, TICKWORK, Shape, System


def measured(system: System, shape: Shape, *, seconds: float) -> Measurement:
    """1,000 runs in that time, at 2 CPU seconds in two processes."""
    return Measurement(
        system=system,
        shape=shape,
        runs=1000,
        elapsed_seconds=seconds,
        enqueue_seconds=seconds / 2,
        cpu={"PostgreSQL": 0.5, "worker": 1.5},
    )


def lines(text: str, start: str) -> list[str]:
    """The table rows that begin so."""
    return [line for line in text.splitlines() if line.startswith(f"| {start} |")]


def rounds_of(*seconds: tuple[float, float]) -> Sequence[Sequence[Measurement]]:
    """One round for each pair: Tickwork's and Celery's time for single calls."""
    return [
        [measured(TICKWORK, ONE_CALL, seconds=ours), measured(CELERY, ONE_CALL, seconds=theirs)]
        for ours, theirs in seconds
    ]


def test_a_ratio_compares_two_figures_of_the_same_round_and_the_median_is_of_the_ratios() -> None:
    text = report.throughput(rounds_of((1.0, 2.0), (2.0, 6.0), (1.0, 10.0)), [TICKWORK, CELERY])
    assert lines(text, f"Tickwork ÷ {CELERY.title}") == [
        f"| Tickwork ÷ {CELERY.title} | 2.00 | 3.00 | 10.00 | **3.00** |"
    ]


def test_the_figure_of_a_system_without_batches_stands_in_both_shapes_and_says_so() -> None:
    rounds = [[measured(TICKWORK, BATCHES, seconds=1.0), *rounds_of((2.0, 4.0))[0]]]
    text = report.throughput(rounds, [TICKWORK, CELERY])
    named = f"{CELERY.title} (one call each)"
    assert lines(text, named)[0] == f"| {named} | 250 | **250** |"
    assert lines(text, f"Tickwork ÷ {named}") == [f"| Tickwork ÷ {named} | 4.00 | **4.00** |"]


def test_a_failed_measurement_is_shown_as_failed_and_takes_no_part_in_the_median() -> None:
    rounds = [*rounds_of((1.0, 2.0)), [measured(CELERY, ONE_CALL, seconds=4.0)]]
    text = report.throughput(rounds, [TICKWORK, CELERY])
    assert lines(text, TICKWORK.title)[0] == "| Tickwork | 1,000 | failed | **1,000** |"
    assert lines(text, f"Tickwork ÷ {CELERY.title}")[0].endswith("| 2.00 | failed | **2.00** |")


def test_the_cost_table_has_microseconds_by_process_and_their_sum() -> None:
    text = report.costs([[measured(OBAN, ONE_CALL, seconds=1.0)]], [OBAN])
    assert lines(text, "PostgreSQL") == ["| PostgreSQL | 500 |"]
    assert lines(text, "worker") == ["| worker | 1,500 |"]
    assert lines(text, "**all**") == ["| **all** | **2,000** |"]


def test_another_system_goes_first_in_each_round() -> None:
    here = Path("python")
    systems = [(TICKWORK, here), (CELERY, here), (OBAN, here)]
    firsts = [turned(systems, number)[0][0] for number in (1, 2, 3, 4)]
    assert firsts == [TICKWORK, CELERY, OBAN, TICKWORK]
    assert all(sorted(s.name for s, _ in turned(systems, n)) == ["celery", "oban", "tickwork"] for n in (1, 2, 3))
