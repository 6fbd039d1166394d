"""`python3 run.py faults --seconds N --seed S [--jobs-per-second R] [--every SECONDS] [--keep]`

Prints what was done and what became of it; exit status 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults.run import Outcome, run
from tests.servers import ServerMissing

SHOWN = 10
STATUSES = ("Queued", "Running", "Completed", "Failed", "Cancelled", "Timed out", "Unknown", "Skipped")


def main(arguments: list[str]) -> int:
    """Run, print, judge. 2 when a server is missing here."""
    parser = argparse.ArgumentParser(prog="run.py faults", description="Fault injection for the distributed mode.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are injected (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults and of the load (1)")
    parser.add_argument("--jobs-per-second", type=float, default=20.0, help="calls; schedules come on top (20)")
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds between two faults (3)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and effects, and say where")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="tickwork-faults-"))
    outcome = None
    try:
        outcome = run(
            seconds=options.seconds,
            seed=options.seed,
            jobs_per_second=options.jobs_per_second,
            every_seconds=options.every,
            folder=folder,
        )
    except ServerMissing as error:
        print(f"faults: {error}", file=sys.stderr)
        return 2
    finally:
        if options.keep:
            print(f"logs and effects: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(report(outcome))
    return 1 if outcome.broken else 0


def report(outcome: Outcome) -> str:
    """The table, and the first sentences about each broken promise."""
    runs = outcome.evidence.runs
    statuses = Counter(STATUSES[run.status] for run in runs.values())
    attempts = sum(run.attempt for run in runs.values())
    kinds = Counter(injury.kind for injury in outcome.injuries)
    gap, (recovery, after) = outcome.gaps
    broken = {promise: len(sentences) for promise, sentences in outcome.broken.items()}
    lines = [
        ("seed, seconds of faults", f"{outcome.seed}, {outcome.seconds:g}"),
        ("occurrences", f"{len(runs)}: " + ", ".join(f"{count} {name}" for name, count in statuses.most_common())),
        ("attempts", f"{attempts}"),
        ("faults injected", f"{len(outcome.injuries)}, {outcome.restarts} processes started again"),
        *((f"  {kind}", str(count)) for kind, count in sorted(kinds.items())),
        ("calls refused", f"{outcome.refused} (database away)"),
        ("not completed", _counted(outcome.not_completed_because)),
        ("lost", str(broken.get("lost", 0))),
        ("repeated after its end was recorded, or unexplained", str(broken.get("repeated", 0))),
        ("repeated before its end was known, explained by", _counted(outcome.repeated_because)),
        ("longest time without a completion", f"{gap:.1f} s"),
        ("longest from a fault to the next completion", f"{recovery:.1f} s ({after})"),
        ("from the end of the load to rest", f"{outcome.rest_seconds:.1f} s"),
        ("promises broken", _counted(broken)),
    ]
    width = max(len(name) for name, _ in lines)
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
    for promise, sentences in outcome.broken.items():
        text += f"\n\n{promise.upper()}\n" + "\n".join(f"  {sentence}" for sentence in sentences[:SHOWN])
        if len(sentences) > SHOWN:
            text += f"\n  … and {len(sentences) - SHOWN} more"
    return text


def _counted(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{count} {name}" for name, count in ordered) or "none"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
