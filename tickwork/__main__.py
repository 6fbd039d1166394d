"""The command line of a worker machine: `tickwork worker module:worker` and `tickwork health FILE`.

Arguments win over the environment, whose variables `tickwork.config` lists. Exit status: 0 when all went well, 1 when
not, 2 for arguments or settings that are not allowed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tickwork
from tickwork.config import LogSettings, WorkerSettings, refuse_unknown_names
from tickwork.errors import ConfigurationError, StoreFull
from tickwork.logs import configure, redact


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except (ConfigurationError, StoreFull) as error:
        print(f"tickwork: {redact(str(error))}", file=sys.stderr)
        return 2


def run_worker(options: argparse.Namespace) -> int:
    """Run an instance of a worker until a signal stops it."""
    from tickwork.worker.jobs import load_worker
    from tickwork.worker.runtime import run_until_signal

    log_settings = LogSettings.from_environment(format=options.log_format, level=options.log_level)
    configure(log_settings.format, log_settings.level)
    refuse_unknown_names(os.environ)
    settings = WorkerSettings.from_environment(
        broker_url=options.broker,
        concurrency=options.concurrency,
        store_directory=options.store,
        health_file=options.health_file,
    )
    sys.path.insert(0, str(Path(options.app_dir).resolve()))
    worker = load_worker(options.target)
    return run_until_signal(worker, settings, log_settings=log_settings, exit_with_parent=options.exit_with_parent)


def check_health(options: argparse.Namespace) -> int:
    """Say whether the worker that writes this file is well."""
    from tickwork.worker.heartbeat import read_health

    health = read_health(Path(options.file))
    problem = health.problem(max_age=options.max_age, now=time.time())
    print(f"{health.instance}: {problem}" if problem else f"{health.instance}: well, running {health.running}")
    return 1 if problem else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tickwork", description="Runs Tickwork workers.")
    parser.add_argument("--version", action="version", version=f"tickwork {tickwork.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    worker = commands.add_parser("worker", help="run an instance of a worker", description=run_worker.__doc__)
    worker.add_argument("target", help="module:name of the Worker, for example report_jobs:worker")
    worker.add_argument("--broker", metavar="URL", help="broker address (BROKER_URL)")
    worker.add_argument("--concurrency", type=int, metavar="N", help="attempts at a time (TICKWORK_WORKER_CONCURRENCY)")
    worker.add_argument("--store", metavar="FOLDER", help="folder of the local store (TICKWORK_WORKER_STORE)")
    worker.add_argument("--health-file", metavar="FILE", help="written at each heartbeat (TICKWORK_WORKER_HEALTH_FILE)")
    worker.add_argument("--log-format", choices=("console", "json"), help="TICKWORK_LOG_FORMAT")
    worker.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="TICKWORK_LOG_LEVEL")
    worker.add_argument("--app-dir", metavar="FOLDER", default=".", help="where the module is found (here)")
    worker.add_argument("--exit-with-parent", action="store_true", help="stop when standard input ends")
    worker.set_defaults(run=run_worker)

    health = commands.add_parser("health", help="check a worker by its health file", description=check_health.__doc__)
    health.add_argument("file", help="what TICKWORK_WORKER_HEALTH_FILE names for the worker")
    health.add_argument("--max-age", type=float, default=30.0, metavar="SECONDS", help="of the last sign of life (30)")
    health.set_defaults(run=check_health)
    return parser


if __name__ == "__main__":
    sys.exit(main())
