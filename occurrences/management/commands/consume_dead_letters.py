"""Broken: what the broker could not deliver becomes a failure, or another try."""

from occurrences.management.loop_command import LoopCommand


class Command(LoopCommand):
    """The role `consume_dead_letters`; see `occurrences.lifecycle`."""

    help = "Broken: what the broker could not deliver becomes a failure, or another try."
    role = "consume_dead_letters"
