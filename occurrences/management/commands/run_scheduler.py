"""Everything in one command: web server, all loops, one worker. The start of somebody new, and of a small installation.

The web server has the main thread, each loop a thread, the worker a process of its own (a heavy job cannot stall the
pages, and a job can be killed). With DATABASE_URL, BROKER_URL and REDIS_URL set it is one node of a distributed one.

Stop order: the worker drains while its reports are still heard, then the loops, then the web server.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, connection

from occurrences.management.role_loop import ROLES, RoleLoop
from occurrences.samples import create_samples, follow_address
from tickwork.config import WorkerSettings, refuse_unknown_names
from tickwork.logs import get_logger
from tickwork.loop import Backoff, Stop, stop_on_signals

log = get_logger("tickwork.scheduler")
SQL_DATABASE = "main"
WORKER_STOP_SECONDS = 40.0
LOOP_STOP_SECONDS = 15.0
WRONG_SETTINGS = 2  # exit status of `tickwork worker`


class Command(BaseCommand):
    """Migrate, make the operator's account and the samples, then run everything until Ctrl-C."""

    help = "Run the web server, every loop and one worker in one go."

    def add_arguments(self, parser: CommandParser) -> None:
        """Where to listen, and what to leave out."""
        parser.add_argument("--port", type=_port, default=8000, help="port of the web server (default 8000)")
        parser.add_argument("--host", default="127.0.0.1", help="address of the web server (default 127.0.0.1)")
        parser.add_argument("--no-worker", action="store_true", help="start no worker here")
        parser.add_argument("--no-samples", action="store_true", help="make no sample jobs at the first start")
        parser.add_argument(
            "--concurrency",
            type=int,
            metavar="N",
            help="attempts at a time of the worker (TICKWORK_WORKER_CONCURRENCY)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until told to stop."""
        host, port = options["host"], options["port"]
        _refuse_taken_port(host, port)
        name = _reachable_name(host)
        settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, name]
        stop, loops_stop = Stop(), Stop()
        worker = None
        if not options["no_worker"]:
            worker = WorkerProcess(stop, web_server=f"{name}:{port}", concurrency=options["concurrency"])
        _migrate()
        self._operator()
        address = f"http://{name}:{port}"
        sql_database = SQL_DATABASE if _own_database() else None
        if not options["no_samples"] and create_samples(address=address, sql_database=sql_database):
            log.info("scheduler.samples_created")
        follow_address(address)
        connection.close()

        loops = [threading.Thread(target=_run_role, args=(name, loops_stop), name=name) for name in ROLES]
        for thread in loops:
            thread.start()
        if worker is not None:
            worker.start()
        stop_on_signals(stop)
        threading.Thread(target=_stop_in_order, args=(stop, loops_stop, loops, worker), name="stop-in-order").start()
        self.stdout.write(f"\n  Tickwork is running at {address}  (Ctrl-C stops it)\n")
        self.stdout.flush()
        _serve(host, port, loops_stop)
        stop.set("web server ended")
        if worker is not None and worker.refused:
            raise CommandError("the worker did not start: one of its settings is not allowed, see above")

    def _operator(self) -> None:
        users = get_user_model()
        if users.objects.exists():
            return
        password = secrets.token_urlsafe(12)
        users.objects.create_superuser("operator", password=password)
        self.stdout.write("\n  An account was made for you. This is the only time its password is shown.")
        self.stdout.write(f"    user      operator\n    password  {password}")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port; allowed is 1 to 65535")
    return int(text)


def _reachable_name(host: str) -> str:
    """How this machine itself reaches a server that listens at `host`, as URLs have it."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{name}]" if ":" in name else name


def _migrate() -> None:
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except OperationalError as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"the database cannot be used: {reason} (DATABASE_URL says where it is)") from None


def _run_role(name: str, stop: Stop) -> None:
    RoleLoop(name, stop=stop).run()


def _refuse_taken_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CommandError(
                f"{host}:{port} cannot be used ({error.strerror}); choose another one with --port"
            ) from None


def _serve(host: str, port: int, stop: Stop) -> None:
    """Daphne in this thread until `stop`."""
    from channels.routing import get_default_application
    from daphne.server import Server  # importing it installs the event loop that it needs
    from twisted.internet import reactor

    main_loop: Any = reactor

    where = f"tcp:port={port}:interface={host.replace(':', chr(92) + ':')}"
    server = Server(
        get_default_application(), endpoints=[where], signal_handlers=False, verbosity=0, server_name="tickwork"
    )

    def leave() -> None:
        stop.wait()
        if main_loop.running:
            main_loop.callFromThread(main_loop.stop)

    threading.Thread(target=leave, name="web-stop", daemon=True).start()
    server.run()


def _stop_in_order(stop: Stop, loops_stop: Stop, loops: list[threading.Thread], worker: WorkerProcess | None) -> None:
    stop.wait()
    if worker is not None:
        worker.join()
    loops_stop.set(stop.reason)
    for thread in loops:
        thread.join(LOOP_STOP_SECONDS)
    log.info("scheduler.stopped", reason=stop.reason)


class WorkerProcess:
    """The builtin worker as a child process: started again when it dies, stopped first. It leaves by itself when this
    process is gone.
    """

    def __init__(self, stop: Stop, *, web_server: str, concurrency: int | None) -> None:
        self._stop = stop
        self.refused = False
        self._command = [sys.executable, "-m", "tickwork", "worker", "tickwork.builtin:worker", "--exit-with-parent"]
        if concurrency is not None:
            self._command += ["--concurrency", str(concurrency)]
        databases = filter(None, [os.environ.get("TICKWORK_SQL_DATABASES"), _own_database()])
        hosts = filter(None, [os.environ.get("TICKWORK_HTTP_ALLOWED_HOSTS"), web_server])
        self._environment = {
            **os.environ,
            "BROKER_URL": settings.BROKER_URL,
            "TICKWORK_SQL_DATABASES": ",".join(databases),
            "TICKWORK_HTTP_ALLOWED_HOSTS": ",".join(hosts),
            "TICKWORK_WORKER_STORE": os.environ.get("TICKWORK_WORKER_STORE", str(settings.DATA_DIR / "worker-store")),
        }
        # Refused here, before anything has begun; the worker itself checks what its job types need.
        refuse_unknown_names(self._environment)
        WorkerSettings.from_environment(self._environment, concurrency=concurrency)
        self._thread = threading.Thread(target=self._supervise, name="worker-process")

    def start(self) -> None:
        """Begin to supervise."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the worker has left."""
        self._thread.join()

    def _supervise(self) -> None:
        backoff = Backoff(first=1.0)
        while not self._stop.is_set():
            # A session of its own: Ctrl-C in the terminal must not reach it twice.
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
                cwd=Path(settings.BASE_DIR),
            )
            while process.poll() is None and not self._stop.wait(0.2):
                pass
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(WORKER_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
            elif process.returncode == WRONG_SETTINGS:
                self.refused = True
                self._stop.set("the worker's settings")
            elif not self._stop.is_set():
                log.warning("scheduler.worker_died", status=process.returncode)
                self._stop.wait(backoff.next())


def _own_database() -> str:
    """Tickwork's own database as an entry of TICKWORK_SQL_DATABASES, for the SQL samples; empty when it has no place.

    Only the tables that the samples read: whoever may define jobs must not read tokens and sessions. PostgreSQL can do
    this only by a user of its own, which the owner has to name.
    """
    if connection.vendor != "sqlite" or re.search(rf"\b{SQL_DATABASE}=", os.environ.get("TICKWORK_SQL_DATABASES", "")):
        return ""
    file = quote(str(settings.DATABASES["default"]["NAME"]))
    return f"{SQL_DATABASE}=sqlite:///{file}?tables=jobs_job,occurrences_occurrence"
