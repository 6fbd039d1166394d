"""The records of what happened. `transitions` is the only module that changes an occurrence's status."""

from occurrences.models.attempt import Attempt
from occurrences.models.failure import FailedOccurrence
from occurrences.models.log import OccurrenceLog
from occurrences.models.loop import LoopPass
from occurrences.models.occurrence import Occurrence, StatusChange
from occurrences.models.outbox import OutboxMessage

__all__ = ["Attempt", "FailedOccurrence", "LoopPass", "Occurrence", "OccurrenceLog", "OutboxMessage", "StatusChange"]
