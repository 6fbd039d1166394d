"""The deliveries at hand: what runs, what is asked about, what is dropped, what is given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.unit.tickwork.parts import Notes, delivery, dispatch
from tickwork import JobContext
from tickwork.broker.base import Delivery
from tickwork.contracts import HEADER_QUEUED_AT, Dispatch, Verdict
from tickwork.worker.attempt import Attempt
from tickwork.worker.held import Heeded, Held
from tickwork.worker.holding import ANSWER_SECONDS, STALE_SECONDS, Holding
from tickwork.worker.jobs import make_job
from tickwork.worker.store import Key

LEASE = 900.0


def work() -> None: ...


class Stage:
    """A table with two slots, and the attempts that it remembers as finished."""

    def __init__(self) -> None:
        self.ends: dict[Key, bytes] = {}
        self.untold: set[Key] = set()
        self.holding = Holding(
            {"work": make_job(work)},
            slots=2,
            lease_after_seconds=LEASE,
            make_attempt=self.attempt,
            ends_of=self.ends_of,
            untold=lambda: self.untold,
        )

    def attempt(self, held: Held) -> Attempt:
        context = JobContext(held.dispatch, Notes())
        return Attempt(held.job, context, {}, timeout_seconds=None, on_start=lambda _: None, on_end=lambda _, __: None)

    def ends_of(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        return {key: self.ends[key] for key in keys if key in self.ends}

    def end(self, order: Dispatch, *, for_good: bool = True) -> None:
        """Its job is over and its report on its way."""
        self.holding.ended((order.id, order.attempt), for_good=for_good)
        self.holding.slot_is_free()

    def run(self, order: Dispatch, first: Delivery | None = None, now: float = 0.0) -> Delivery:
        """Take it in and have it running."""
        one = first or delivery(order)
        self.holding.arrive([one], now=now)
        assert [attempt.context.id for attempt in self.holding.next_to_run()] == [order.id]
        return one


@pytest.fixture
def stage() -> Stage:
    """An empty table."""
    return Stage()


def verdict(order: Dispatch, action: str, ask_again: float = 2.0) -> Verdict:
    return Verdict(id=order.id, attempt=order.attempt, action=action, ask_again_seconds=ask_again)  # type: ignore[arg-type]


def test_fresh_deliveries_run_at_once_as_far_as_there_are_slots(stage: Stage) -> None:
    orders = [dispatch() for _ in range(3)]
    stage.holding.arrive([delivery(order) for order in orders], now=0)
    assert [attempt.context.id for attempt in stage.holding.next_to_run()] == [orders[0].id, orders[1].id]
    assert stage.holding.next_to_run() == []
    stage.end(orders[0])
    assert [attempt.context.id for attempt in stage.holding.next_to_run()] == [orders[2].id]


def test_what_cannot_be_read_or_is_no_job_here_is_refused(stage: Stage) -> None:
    bad = [delivery(b"{"), delivery(b'{"v":1}'), delivery(dispatch("other"))]
    assert stage.holding.arrive(bad, now=0).refuse == bad
    assert stage.holding.keys() == []


def test_a_delivery_is_acknowledged_only_when_the_end_is_settled(stage: Stage) -> None:
    order = dispatch()
    one = stage.run(order)
    key = (order.id, 1)
    assert stage.holding.settled([key]) == [], "still running"
    stage.end(order)
    assert stage.holding.keys() == [key], "held until its report is confirmed"
    assert stage.holding.settled([key]) == [one]
    assert stage.holding.keys() == []


def test_a_fresh_duplicate_of_what_runs_or_ran_here_is_dropped(stage: Stage) -> None:
    order = dispatch()
    stage.run(order)
    again = delivery(order)
    assert stage.holding.arrive([again], now=1).ack == [again]
    stage.end(order)
    stage.holding.settled([(order.id, 1)])
    third = delivery(order)
    assert stage.holding.arrive([third], now=2).ack == [third]


@pytest.mark.parametrize("how", ["redelivered", "maybe_duplicate"])
def test_a_redelivery_of_what_runs_here_is_attached_to_it(stage: Stage, how: str) -> None:
    order = dispatch()
    one = stage.run(order)
    again = delivery(order, **{how: True})
    arrived = stage.holding.arrive([again], now=1)
    assert (arrived.ack, arrived.must_ask) == ([], False)
    stage.end(order)
    assert stage.holding.settled([(order.id, 1)]) == [one, again]


def test_an_interrupted_attempt_may_be_sent_again_and_runs(stage: Stage) -> None:
    order = dispatch()
    stage.run(order)
    stage.end(order, for_good=False)
    stage.holding.settled([(order.id, 1)])
    stage.run(order)


def test_a_redelivery_of_what_ended_here_waits_for_its_report_and_does_not_run(stage: Stage) -> None:
    order = dispatch()
    stage.ends[order.id, 1] = b"its report"
    again = delivery(order, redelivered=True)
    assert stage.holding.arrive([again], now=0).ended_before
    assert stage.holding.next_to_run() == []
    assert stage.holding.ended_before() == [(order.id, 1)]
    assert stage.holding.settled([(order.id, 1)]) == [again]


@pytest.mark.parametrize("is_untold", [True, False])
def test_a_copy_of_what_ended_here_is_asked_about_unless_its_report_is_still_on_its_way(
    stage: Stage, is_untold: bool
) -> None:
    order = dispatch()
    stage.ends[order.id, 1] = b"its report"
    stage.untold = {(order.id, 1)} if is_untold else set()
    arrived = stage.holding.arrive([delivery(order, maybe_duplicate=True)], now=0)
    assert (arrived.must_ask, arrived.ended_before) == (not is_untold, is_untold)


def test_what_may_run_here_and_did_so_before_is_told_again_and_does_not_run(stage: Stage) -> None:
    order = dispatch()
    stage.ends[order.id, 1] = b"its report"
    copy = delivery(order, maybe_duplicate=True)
    stage.holding.arrive([copy], now=0)
    assert stage.holding.verdict(verdict(order, "run"), now=1) == Heeded(tell_again=b"its report")
    assert stage.holding.next_to_run() == []
    assert stage.holding.ended_before() == [], "it is acknowledged when the report is confirmed, not before"
    assert stage.holding.settled([(order.id, 1)]) == [copy]
    fresh = delivery(order)
    assert stage.holding.arrive([fresh], now=2).ack == [fresh]


def test_what_was_taken_before_the_connection_was_lost_goes_back(stage: Stage) -> None:
    losses = stage.holding.losses
    stage.holding.connection_lost()
    stale = [delivery(dispatch())]
    assert stage.holding.arrive(stale, now=0, losses=losses).give_back == stale
    assert stage.holding.keys() == []


def test_what_was_cancelled_before_it_began_is_acknowledged_only_when_that_is_told(stage: Stage) -> None:
    order = dispatch()
    one = delivery(order)
    stage.holding.arrive([one], now=0)
    stage.holding.cancel((order.id, 1), for_good=True)
    assert stage.holding.ended_before() == []
    assert stage.holding.settled([(order.id, 1)]) == [one]


def test_a_worker_is_idle_only_when_the_last_end_is_on_its_way(stage: Stage) -> None:
    order = dispatch()
    stage.run(order)
    stage.holding.close()
    stage.holding.ended((order.id, 1), for_good=True)
    assert not stage.holding.wait_idle(0)
    stage.holding.slot_is_free()
    assert stage.holding.wait_idle(0)


@pytest.mark.parametrize("how", ["redelivered", "maybe_duplicate"])
def test_a_doubtful_delivery_is_asked_about_until_there_is_an_answer(stage: Stage, how: str) -> None:
    order = dispatch()
    assert stage.holding.arrive([delivery(order, **{how: True})], now=0).must_ask
    assert stage.holding.next_to_run() == []
    asks = [bool(stage.holding.due(now=now).ask) for now in (0, 1, ANSWER_SECONDS, ANSWER_SECONDS + 1)]
    assert asks == [True, False, True, False]


def test_the_verdict_run_runs_it(stage: Stage) -> None:
    order = dispatch()
    stage.holding.arrive([delivery(order, redelivered=True)], now=0)
    stage.holding.due(now=0)
    assert stage.holding.verdict(verdict(order, "run"), now=1) == Heeded()
    assert [attempt.context.id for attempt in stage.holding.next_to_run()] == [order.id]
    assert stage.holding.due(now=100).ask == []
    assert stage.holding.verdict(verdict(order, "run"), now=2) == Heeded(), "a late second answer changes nothing"


def test_the_verdict_drop_acknowledges_and_forgets_it(stage: Stage) -> None:
    order = dispatch()
    one = delivery(order, redelivered=True)
    stage.holding.arrive([one], now=0)
    assert stage.holding.verdict(verdict(order, "drop"), now=1) == Heeded([one])
    assert stage.holding.keys() == []


def test_the_verdict_wait_asks_again_later(stage: Stage) -> None:
    order = dispatch()
    stage.holding.arrive([delivery(order, redelivered=True)], now=0)
    stage.holding.due(now=0)
    stage.holding.verdict(verdict(order, "wait", ask_again=20), now=1)
    assert stage.holding.due(now=20.9).ask == []
    assert stage.holding.due(now=21).ask == [((order.id, 1), "redelivered")]


def test_an_old_delivery_of_a_running_attempt_becomes_a_lease(stage: Stage) -> None:
    order = dispatch()
    one = stage.run(order)
    assert stage.holding.due(now=LEASE - 1).ask == []
    assert stage.holding.due(now=LEASE).ask == [((order.id, 1), "lease")]
    assert stage.holding.verdict(verdict(order, "run"), now=LEASE + 1) == Heeded([one])
    assert stage.holding.due(now=2 * LEASE).ask == []
    again = delivery(order, redelivered=True)
    assert stage.holding.arrive([again], now=LEASE + 2).ack == [again], "the lease guards it, not the delivery"
    assert stage.holding.keys() == [(order.id, 1)]


def test_a_lease_that_is_refused_stops_the_attempt(stage: Stage) -> None:
    order = dispatch()
    one = stage.run(order)
    stage.holding.due(now=LEASE)
    heeded = stage.holding.verdict(verdict(order, "drop"), now=LEASE + 1)
    assert heeded.ack == [one]
    assert heeded.stop is not None
    assert heeded.stop.context.id == order.id


def test_deliveries_that_got_old_without_a_slot_or_an_answer_are_given_back(stage: Stage) -> None:
    orders = [dispatch() for _ in range(4)]
    deliveries = [delivery(order, redelivered=order is orders[3]) for order in orders]
    stage.holding.arrive(deliveries, now=0)
    stage.holding.next_to_run()
    assert stage.holding.due(now=LEASE).give_back == deliveries[2:]
    stage.end(orders[0])
    assert stage.holding.next_to_run() == []


def test_cancelling_stops_what_runs_and_ends_what_has_not_begun(stage: Stage) -> None:
    orders = [dispatch() for _ in range(4)]
    deliveries = [delivery(order, redelivered=order is orders[3]) for order in orders]
    stage.holding.arrive(deliveries, now=0)
    stage.holding.next_to_run()
    attempt, unbegun = stage.holding.cancel((orders[0].id, 1), for_good=True)
    assert attempt is not None
    assert unbegun is None
    for order, one in zip(orders[2:], deliveries[2:], strict=True):
        attempt, unbegun = stage.holding.cancel((order.id, 1), for_good=True)
        assert attempt is None
        assert unbegun is not None
        assert stage.holding.settled([(order.id, 1)]) == [one]
    stage.end(orders[0], for_good=False)
    assert stage.holding.next_to_run() == []
    assert stage.holding.cancel(("unknown", 1), for_good=False) == (None, None)


@pytest.mark.parametrize("for_good", [True, False])
def test_what_was_cancelled_for_good_before_its_message_came_is_not_begun(stage: Stage, for_good: bool) -> None:
    order = dispatch()
    stage.holding.cancel((order.id, 1), for_good=for_good)
    one = delivery(order)
    assert stage.holding.arrive([one], now=0).ack == ([one] if for_good else [])
    assert [attempt.context.id for attempt in stage.holding.next_to_run()] == ([] if for_good else [order.id])


def test_after_closing_nothing_begins_and_what_was_not_begun_goes_back(stage: Stage) -> None:
    orders = [dispatch() for _ in range(4)]
    deliveries = [delivery(order, redelivered=order is orders[3]) for order in orders]
    stage.holding.arrive(deliveries, now=0)
    stage.holding.next_to_run()
    stage.holding.close()
    assert stage.holding.give_back() == deliveries[2:]
    assert not stage.holding.wait_idle(0)
    for order in orders[:2]:
        stage.end(order)
    assert stage.holding.wait_idle(0)


def test_a_lost_connection_takes_away_what_was_not_begun_but_nothing_that_was_granted(stage: Stage) -> None:
    running, granted, asking, ready = orders = [dispatch() for _ in range(4)]
    stage.run(running)
    stage.holding.arrive([delivery(granted, redelivered=True), delivery(asking, redelivered=True)], now=0)
    stage.holding.arrive([delivery(ready)], now=0)
    stage.holding.verdict(verdict(granted, "run"), now=1)
    stage.holding.connection_lost()
    assert stage.holding.keys() == [(order.id, 1) for order in orders[:2]]
    assert [attempt.context.id for attempt in stage.holding.next_to_run()] == [granted.id]


def test_after_a_gap_what_was_not_begun_is_asked_about_and_begun_when_granted(stage: Stage) -> None:
    order = dispatch()
    stage.holding.arrive([delivery(order)], now=10.0)
    assert stage.holding.next_to_run(gap_at=20.0) == []
    assert stage.holding.due(now=20.0).ask == [((order.id, order.attempt), "redelivered")]
    stage.holding.verdict(verdict(order, "run"), now=20.1)
    assert [attempt.context.id for attempt in stage.holding.next_to_run(gap_at=20.0)] == [order.id]


def test_what_was_granted_before_a_gap_is_asked_about_again_and_dropped_when_somebody_else_got_it(stage: Stage) -> None:
    order = dispatch()
    again = delivery(order, redelivered=True)
    stage.holding.arrive([again], now=10.0)
    stage.holding.due(now=10.0)
    stage.holding.verdict(verdict(order, "run"), now=10.1)
    assert stage.holding.next_to_run(gap_at=20.0) == []
    assert stage.holding.due(now=20.5).ask == [((order.id, order.attempt), "redelivered")]
    assert stage.holding.verdict(verdict(order, "drop"), now=20.6) == Heeded([again])
    assert stage.holding.keys() == []


@pytest.mark.parametrize(("arrived_at", "begins"), [(20.0 + STALE_SECONDS - 0.1, False), (20.0 + STALE_SECONDS, True)])
def test_what_arrives_right_after_a_gap_may_be_old(stage: Stage, arrived_at: float, begins: bool) -> None:
    stage.holding.arrive([delivery(dispatch())], now=arrived_at)
    assert bool(stage.holding.next_to_run(gap_at=20.0)) is begins


@pytest.mark.parametrize(("queued_at", "begins"), [(-1.0, False), (1.0, True), (None, True)])
def test_what_was_queued_before_commands_were_heard_may_be_cancelled_and_is_asked_about(
    stage: Stage, queued_at: float | None, begins: bool
) -> None:
    heard_since = 1_800_000_000.0
    said = None if queued_at is None else datetime.fromtimestamp(heard_since + queued_at, UTC).isoformat()
    one = replace(delivery(dispatch()), headers={HEADER_QUEUED_AT: said} if said else {})
    assert stage.holding.arrive([one], now=0.0, heard_since=heard_since).must_ask is not begins
    assert bool(stage.holding.next_to_run()) is begins


def test_what_was_granted_to_another_instance_is_asked_about_before_it_begins_here(stage: Stage) -> None:
    here, later = dispatch(), dispatch()
    stage.holding.arrive([delivery(here)], now=0.0)
    for order in (here, later):
        assert stage.holding.granted_elsewhere((order.id, 1), now=1.0) is None
    assert stage.holding.arrive([delivery(later)], now=2.0).must_ask
    assert stage.holding.next_to_run() == []
    assert stage.holding.due(now=2.0).ask == [((here.id, 1), "redelivered"), ((later.id, 1), "redelivered")]


def test_what_runs_although_another_instance_got_it_is_to_be_stopped(stage: Stage) -> None:
    order = dispatch()
    stage.run(order)
    attempt = stage.holding.granted_elsewhere((order.id, 1), now=1.0)
    assert attempt is not None
    assert attempt.context.id == order.id
