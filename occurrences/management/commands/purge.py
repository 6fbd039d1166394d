"""Forgotten: what is old is deleted."""

from occurrences.management.loop_command import LoopCommand


class Command(LoopCommand):
    """The role `purge`; see `occurrences.lifecycle`."""

    help = "Forgotten: what is old is deleted."
    role = "purge"
