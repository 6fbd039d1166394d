"""`python -m bench`: measure in rounds (A B C, B C A, …) and print the tables.

A whole measurement, of all systems in at least three rounds, is kept in `bench/results/latest.md`. A peer that cannot
be measured here is named with the reason; a system that fails is reported, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench import report
from bench.environments import LeftOut, prepare
from bench.machine import machine, versions
from bench.measure import Measurement, measure
from bench.processes import MeasurementFailed
from bench.systems import ROOT, SHAPES, SYSTEMS, System
from tests.servers import ServerMissing

CACHE = ROOT / ".data" / "bench"
BUSY = 0.5
"""A load average above this before the start means that other programs take part in the measurement."""
WHOLE_ROUNDS = 3
RESULTS = Path(__file__).parent / "results" / "latest.md"


def arguments(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run.py bench", description="Tracked throughput beside the Python peers.")
    parser.add_argument("--quick", action="store_true", help="one round of 2,000 runs; the figures are rough")
    parser.add_argument("--rounds", type=int, help="rounds (3)")
    parser.add_argument("--runs", type=int, help="runs per measurement (10,000)")
    parser.add_argument("--only", default="", help=f"some of {','.join(s.name for s in SYSTEMS)}")
    chosen = parser.parse_args(words)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else WHOLE_ROUNDS)
    chosen.runs = chosen.runs or (2_000 if chosen.quick else 10_000)
    names = [name for name in chosen.only.split(",") if name] or [s.name for s in SYSTEMS]
    if unknown := set(names) - {s.name for s in SYSTEMS}:
        parser.error(f"--only: no system is called {', '.join(sorted(unknown))}")
    chosen.systems = [s for s in SYSTEMS if s.name in names]
    return chosen


def main(words: list[str]) -> int:
    """Run and report; 0 when every chosen system could be measured and recorded every run."""
    chosen = arguments(words)
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"The machine is busy (load {load:.1f}): the figures will be too low, ratios are rough.", file=sys.stderr)
    pythons, left_out = _environments(chosen.systems)
    failures: list[str] = []
    rounds: list[list[Measurement]] = []
    for number in range(1, chosen.rounds + 1):
        rounds.append([])
        for shape in SHAPES:
            for system, python in turned(list(pythons.items()), number):
                if shape.batch > 1 and not system.batches:
                    continue
                try:
                    found = measure(system, shape, python, runs=chosen.runs)
                except ServerMissing as error:
                    print(f"bench: {error}", file=sys.stderr)
                    return 2
                except MeasurementFailed as error:
                    failures.append(f"{system.title}, {shape.name}, round {number}: {str(error).splitlines()[0]}")
                    print(f"FAILED: {failures[-1]}\n{error}", file=sys.stderr, flush=True)
                    continue
                rounds[-1].append(found)
                print(
                    f"round {number}  {shape.name:18}  {found.runs_per_second:7,.0f} runs/s  "
                    f"{found.cpu_seconds_per_1000:6.3f} CPU s/1,000  {system.title}",
                    flush=True,
                )
    tables = f"{report.throughput(rounds, list(pythons))}\n\n{report.costs(rounds, list(pythons))}"
    print(f"\n{tables}\n")
    notes = [f"- **{title}** was left out: {reason}." for title, reason in left_out.items()]
    notes += [f"- FAILED: {failure}" for failure in failures]
    print("\n".join(notes))
    if chosen.systems == list(SYSTEMS) and chosen.rounds >= WHOLE_ROUNDS:
        RESULTS.write_text(_document(chosen, pythons, tables, notes, load))
    else:
        print(f"Not kept: that needs all systems and at least {WHOLE_ROUNDS} rounds.")
    return 1 if failures else 0


def turned(systems: list[tuple[System, Path]], number: int) -> list[tuple[System, Path]]:
    """Another one goes first in each round: nobody always has the machine as the same other one left it."""
    first = (number - 1) % len(systems) if systems else 0
    return systems[first:] + systems[:first]


def _environments(systems: list[System]) -> tuple[dict[System, Path], dict[str, str]]:
    """The `python` of each system that can be measured, and why the others cannot."""
    pythons: dict[System, Path] = {}
    left_out: dict[str, str] = {}
    for system in systems:
        try:
            pythons[system] = (
                prepare(system.name, system.requirements, system.python, CACHE)
                if system.requirements
                else Path(sys.executable)
            )
        except LeftOut as reason:
            left_out[system.title] = str(reason)
            print(f"{system.title} is left out: {reason}", file=sys.stderr, flush=True)
    return pythons, left_out


def _document(
    chosen: argparse.Namespace, pythons: dict[System, Path], tables: str, notes: list[str], load: float
) -> str:
    command = f"python3 run.py bench --rounds {chosen.rounds} --runs {chosen.runs}"
    if chosen.only:
        command += f" --only {chosen.only}"
    how = (
        "Each run is a job that does nothing; its start, end and outcome are on record in PostgreSQL with "
        "`fsync` and `synchronous_commit` on, and every record is checked afterwards. Timed from the first "
        "enqueue by one producer until the last outcome is on record. Every measurement has fresh private "
        "servers with the same settings; the systems take turns, another one first in each round. CPU seconds "
        "are those of all processes of the system and of its servers."
    )
    setup = [f"- **{s.title}**: {s.notes} {versions(pythons[s])}." for s in pythons]
    parts = [
        "# Tracked throughput, latest run",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {machine()}; load before the start {load:.1f}.",
        how,
        tables,
        "## Set-up",
        "\n".join([*setup, *notes]),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
