"""Heard: what workers report moves occurrences on."""

from occurrences.management.loop_command import LoopCommand


class Command(LoopCommand):
    """The role `consume_events`; see `occurrences.lifecycle`."""

    help = "Heard: what workers report moves occurrences on."
    role = "consume_events"
