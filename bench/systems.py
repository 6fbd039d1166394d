"""What is measured: for each system its environment, its processes, and how PostgreSQL tells that a run is on record.

Every system has one producer process with one thread, fresh servers with the same settings, and the configuration
and number of worker processes that served it best on two cores; the choices are explained beside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.environments import Version

ROOT = Path(__file__).resolve().parent.parent
BATCH = 500

WORKERS = "{workers}"
"""In a command: replaced by the number of worker processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How runs are enqueued: in calls of `batch` runs."""

    name: str
    batch: int


ONE_CALL = Shape(name="one call each", batch=1)
BATCHES = Shape(name=f"in batches of {BATCH}", batch=BATCH)
SHAPES = (ONE_CALL, BATCHES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """A process kept running during the measurement; `command` are the arguments of the system's own `python`."""

    name: str
    command: tuple[str, ...]
    per_worker: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class System:
    """A system to measure; compared by identity.

    requirements: pins of its own environment; None for Tickwork, which runs in this one.
    prepare: commands that make the tables. produce: command of the producer (see `bench.protocol`).
    recorded: SQL for how many runs have their outcome on record. proven: SQL for four numbers: runs with a successful
    outcome, those of them with a start and an end in that order, distinct runs, and rows in all.
    batches: whether one call can enqueue many runs.
    folders: variables that name a folder; each measurement gets a fresh one.
    workers: processes that execute jobs, by shape: what served it best here of one, two and four.
    """

    name: str
    title: str
    folder: Path
    prepare: tuple[tuple[str, ...], ...]
    roles: tuple[Role, ...]
    produce: tuple[str, ...]
    recorded: str
    proven: str
    requirements: Path | None = None
    python: Version = (3, 11)
    broker: bool = True
    redis: bool = False
    batches: bool = True
    workers: Mapping[Shape, int] = field(default_factory=lambda: {ONE_CALL: 2, BATCHES: 2})
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    notes: str = ""


TICKWORK = System(
    name="tickwork",
    title="Tickwork",
    folder=ROOT,
    prepare=(("manage.py", "migrate", "--verbosity", "0"),),
    roles=(
        Role(name="relay", command=("manage.py", "relay_outbox")),
        Role(name="event consumer", command=("manage.py", "consume_events")),
        Role(name="worker", command=("-m", "tickwork", "worker", "bench.job:worker"), per_worker=True),
    ),
    produce=("-m", "bench.produce"),
    recorded="SELECT count(*) FROM occurrences_occurrence WHERE status = 2",
    proven="""SELECT count(*) FILTER (WHERE status = 2),
                     count(*) FILTER (WHERE status = 2 AND started_at <= ended_at),
                     count(DISTINCT id), count(*)
              FROM occurrences_occurrence""",
    redis=True,
    environment={
        "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
        "DJANGO_SECRET_KEY": "only for measurements, on private servers that are gone afterwards",
        "TICKWORK_WORKER_CONCURRENCY": "100",
        "TICKWORK_WORKER_PREFETCH_EXTRA": "400",
    },
    folders=("TICKWORK_DATA_DIR", "TICKWORK_WORKER_STORE"),
    workers={ONE_CALL: 1, BATCHES: 1},
    notes=(
        "One relay, one event consumer, one worker process (an async job, as Oban's; 100 slots and 400 "
        "messages held in advance); everything else as it comes. `operations.trigger` per run, or "
        "`operations.trigger_many` per batch of 500. The dispatcher, the zombie detector and the other roles that "
        "would only sleep here are not started."
    ),
)

_CELERY = ROOT / "bench" / "peers" / "celery"
CELERY = System(
    name="celery",
    title="Celery + RabbitMQ + django-celery-results",
    folder=_CELERY,
    requirements=_CELERY / "requirements.txt",
    prepare=(("-m", "django", "migrate", "--verbosity", "0"),),
    roles=(
        Role(
            name="worker",
            command=(
                *("-m", "celery", "-A", "bench_app", "worker", "--pool", "prefork", "--concurrency", WORKERS),
                *("--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair", "--loglevel", "WARNING"),
            ),
        ),
    ),
    produce=("produce.py",),
    recorded="SELECT count(*) FROM django_celery_results_taskresult WHERE status = 'SUCCESS'",
    proven="""SELECT count(*) FILTER (WHERE status = 'SUCCESS'),
                     count(*) FILTER (WHERE status = 'SUCCESS' AND date_started <= date_done),
                     count(DISTINCT task_id), count(*)
              FROM django_celery_results_taskresult""",
    batches=False,
    workers={ONE_CALL: 4},
    environment={"DJANGO_SETTINGS_MODULE": "bench_settings"},
    notes=(
        "Prefork, four children. Tracked and safe: `task_track_started`, `task_acks_late`, "
        "`task_reject_on_worker_lost`, durable queue, results in PostgreSQL over one kept-open connection "
        "per process (`CELERY_DB_REUSE_MAX`; without it Celery reconnects around every task, at less than "
        "half the speed). In its favour: prefetch 100 per process; rate limits, events, remote control, "
        "gossip, mingle and heartbeats off; publisher confirms left off (its default: a weaker promise "
        "than Tickwork's). It has no call that enqueues many: its one-call figure stands in both shapes."
    ),
)

_OBAN = ROOT / "bench" / "peers" / "oban"
OBAN = System(
    name="oban",
    title="Oban for Python",
    folder=_OBAN,
    requirements=_OBAN / "requirements.txt",
    python=(3, 12),
    prepare=(("install.py",),),
    roles=(Role(name="worker", command=("work.py",), per_worker=True),),
    produce=("produce.py",),
    recorded="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
    proven="""SELECT count(*) FILTER (WHERE state = 'completed'),
                     count(*) FILTER (WHERE state = 'completed' AND attempted_at <= completed_at),
                     count(DISTINCT id), count(*)
              FROM oban_jobs""",
    broker=False,
    workers={ONE_CALL: 1, BATCHES: 2},
    notes=(
        "uvloop, orjson, queue limit 100 per process, no log line per job; one worker process for single calls (faster "
        "than two, which wake each other's queries), two for batches. Needs no broker. "
        "`enqueue` per run, or `enqueue_many` per batch of 500."
    ),
)

SYSTEMS = (TICKWORK, CELERY, OBAN)
