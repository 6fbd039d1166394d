"""What the scheduler says to this instance, carried out: cancellations, answers to questions, and who else got what.

Called by the runtime with what the control queue delivers. Decides nothing: `holding` knows what a command means for
what is at hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from tickwork import contracts
from tickwork.broker.base import Consumer, Delivery
from tickwork.contracts import Cancel, Command, CommandMessage, ErrorInfo, Finished, Granted, Verdict
from tickwork.errors import ContractError
from tickwork.logs import get_logger
from tickwork.worker.execution import Executor
from tickwork.worker.journey import Journey
from tickwork.worker.outcome import StopKind
from tickwork.worker.reporting import Reporter

log = get_logger("tickwork.worker")


class Commands:
    """Carries out commands; `jobs` is where the deliveries came from that they are about."""

    def __init__(
        self, journey: Journey, *, instance: str, executor: Executor, reporter: Reporter, jobs: Consumer
    ) -> None:
        self._journey = journey
        self._holding = journey.holding
        self._instance = instance
        self._executor = executor
        self._reporter = reporter
        self._jobs = jobs

    def arrived(self, deliveries: Sequence[Delivery]) -> None:
        """Carry out the commands in these deliveries, in order."""
        for delivery in deliveries:
            try:
                command = contracts.decode(CommandMessage, delivery.body).command
            except ContractError as error:
                log.error("command.unreadable", reason=str(error))
            else:
                self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Cancel):
            self._cancel(command)
        elif isinstance(command, Granted):
            self._granted(command)
        else:
            self._verdict(command)

    def _cancel(self, command: Cancel) -> None:
        attempt, unbegun = self._holding.cancel((command.id, command.attempt), for_good=command.for_good)
        if attempt is not None:
            self._executor.stop(attempt, StopKind.CANCEL, command.reason or "cancelled")
        if unbegun is not None:
            error = ErrorInfo(type="Cancelled", message=command.reason)
            self._reporter.event(
                Finished(id=command.id, attempt=command.attempt, at=datetime.now(UTC), outcome="cancelled", error=error)
            )

    def _granted(self, command: Granted) -> None:
        if command.instance == self._instance:
            return
        taken_away = self._holding.granted_elsewhere((command.id, command.attempt), now=time.monotonic())
        if taken_away is not None:
            self._executor.stop(taken_away, StopKind.CANCEL, f"taken over by {command.instance}")

    def _verdict(self, command: Verdict) -> None:
        heeded = self._holding.verdict(command, now=time.monotonic())
        self._jobs.ack(heeded.ack)
        if heeded.stop is not None:
            self._executor.stop(heeded.stop, StopKind.CANCEL, f"no longer held: {command.reason}")
        if heeded.tell_again is not None:
            self._journey.tell_again(heeded.tell_again)
        self._journey.begin()
