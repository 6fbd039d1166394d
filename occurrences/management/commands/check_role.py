"""Health check of a role's process, for a process manager: does its loop make progress?"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from occurrences.management.role_loop import ROLES
from occurrences.models import LoopPass


class Command(BaseCommand):
    """Succeeds when a loop of the role on this host finished a pass lately."""

    help = "Exit 0 when the role's loop on this host made a pass within --max-age seconds, else 1."

    def add_arguments(self, parser: CommandParser) -> None:
        """The role and the longest silence."""
        parser.add_argument("role", choices=sorted(ROLES))
        parser.add_argument("--max-age", type=float, default=60.0, help="seconds (default 60)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Look at the newest pass."""
        here = f"{socket.gethostname()}-"
        newest = (
            LoopPass.objects.filter(role=options["role"], process__startswith=here).order_by("-last_pass_at").first()
        )
        if newest is None:
            raise CommandError(f"no loop of {options['role']} has run on this host")
        age = timezone.now() - newest.last_pass_at
        if age > timedelta(seconds=options["max_age"]):
            raise CommandError(
                f"last pass of {options['role']} was {age.total_seconds():.0f} s ago: {newest.last_error}"
            )
        self.stdout.write(f"{options['role']}: last pass {age.total_seconds():.1f} s ago")
