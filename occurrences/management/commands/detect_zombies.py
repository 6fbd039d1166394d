"""Lost: what fell silent is found."""

from occurrences.management.loop_command import LoopCommand


class Command(LoopCommand):
    """The role `detect_zombies`; see `occurrences.lifecycle`."""

    help = "Lost: what fell silent is found."
    role = "detect_zombies"
