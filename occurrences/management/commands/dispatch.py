"""Born: due jobs become occurrences."""

from occurrences.management.loop_command import LoopCommand


class Command(LoopCommand):
    """The role `dispatch`; see `occurrences.lifecycle`."""

    help = "Born: due jobs become occurrences."
    role = "dispatch"
