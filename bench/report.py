"""From measurements to the tables that are printed and kept in `bench/results/latest.md`. Pure: returns Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.measure import Measurement
from bench.systems import ONE_CALL, SHAPES, TICKWORK, Shape, System

Rounds = Sequence[Sequence[Measurement]]
"""All measurements, by round."""


def throughput(rounds: Rounds, systems: Sequence[System]) -> str:
    """For each shape: runs per second, the ratios round by round, and CPU seconds per 1,000 runs."""
    head = [*(f"round {n + 1}" for n in range(len(rounds))), "median"]
    parts = []
    for shape in SHAPES:
        titles = {s: s.title if s.batches or shape is ONE_CALL else f"{s.title} (one call each)" for s in systems}
        series = {s: _series(rounds, s, shape) for s in systems}
        rates = {s: [m.runs_per_second if m else None for m in series[s]] for s in systems}
        bills = {s: [m.cpu_seconds_per_1000 if m else None for m in series[s]] for s in systems}
        parts.append(f"## Tracked runs, enqueued {shape.name}")
        parts.append(_table(["runs per second", *head], [_row(titles[s], rates[s], ",.0f") for s in systems]))
        if TICKWORK in systems and len(systems) > 1:
            peers = [s for s in systems if s is not TICKWORK]
            rows = [_row(f"Tickwork ÷ {titles[s]}", _divided(rates[TICKWORK], rates[s]), ".2f") for s in peers]
            parts.append(_table(["ratio in the same round", *head], rows))
        parts.append(_table(["CPU seconds per 1,000 runs", *head], [_row(titles[s], bills[s], ".3f") for s in systems]))
    return "\n\n".join(parts)


def costs(rounds: Rounds, systems: Sequence[System]) -> str:
    """Microseconds of CPU per run, by process: the median of the rounds."""
    parts = [
        "## Where the CPU goes",
        "Microseconds of CPU per run, median of the rounds; copies of a process are added up.",
    ]
    for system in systems:
        own = [m for round_ in rounds for m in round_ if m.system is system]
        found = {shape: [m for m in own if m.shape == shape] for shape in SHAPES}
        shapes = [shape for shape in SHAPES if found[shape]]
        if not shapes:
            continue
        rows = [
            [name, *(f"{median(m.cpu[name] / m.runs * 1e6 for m in found[shape]):,.0f}" for shape in shapes)]
            for name in found[shapes[0]][0].cpu
        ]
        sums = (median(m.cpu_seconds_per_1000 * 1e3 for m in found[shape]) for shape in shapes)
        rows.append(["**all**", *(f"**{value:,.0f}**" for value in sums)])
        parts.append(_table([system.title, *(shape.name for shape in shapes)], rows))
    return "\n\n".join(parts)


def _series(rounds: Rounds, system: System, shape: Shape) -> list[Measurement | None]:
    """One measurement a round, None where it failed; the one-call ones of a system that cannot enqueue batches."""
    wanted = shape if system.batches else ONE_CALL
    return [next((m for m in round_ if (m.system, m.shape) == (system, wanted)), None) for round_ in rounds]


def _divided(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    return [a / b if a and b else None for a, b in zip(ours, theirs, strict=True)]


def _row(title: str, values: Sequence[float | None], form: str) -> list[str]:
    known = [value for value in values if value is not None]
    middle = f"**{median(known):{form}}**" if known else "-"
    return [title, *("failed" if value is None else format(value, form) for value in values), middle]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
