"""The shape of every role's command: `manage.py dispatch`, `relay_outbox`, `consume_events`, …"""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from occurrences.management.role_loop import RoleLoop
from tickwork.logs import get_logger
from tickwork.loop import Stop, stop_on_signals

log = get_logger("tickwork.scheduler")


class LoopCommand(BaseCommand):
    """Runs one role until SIGTERM or SIGINT; a second signal ends the process at once. Any number of copies may run."""

    role: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:
        """`--once` for one pass, for example from a cron of one's own or to look at what a pass does."""
        parser.add_argument("--once", action="store_true", help="do one pass and leave")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the loop in this thread."""
        stop = Stop()
        loop = RoleLoop(self.role, stop=stop)
        if options["once"]:
            self.stdout.write(f"{self.role}: {loop.once()}")
            return
        stop_on_signals(stop)
        log.info("role.started", role=self.role)
        loop.run()
        log.info("role.stopped", role=self.role)
