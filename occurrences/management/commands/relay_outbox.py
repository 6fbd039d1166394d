"""Sent: outbox messages reach the broker."""

from occurrences.management.loop_command import LoopCommand


class Command(LoopCommand):
    """The role `relay_outbox`; see `occurrences.lifecycle`."""

    help = "Sent: outbox messages reach the broker."
    role = "relay_outbox"
