"""Every message that travels between the scheduler and the workers, with its encoding.

Three directions, three families:

    scheduler ──Dispatch──▶ worker        "run this attempt"       exchange tickwork.jobs
    worker ──EventBatch(events)──▶ scheduler  "this happened"      exchange tickwork.events
    scheduler ──Command──▶ worker         "cancel", "verdict"      exchange tickwork.control

Bodies are JSON (RFC 8259), encoded by msgspec. A reader ignores fields that it does not know and refuses
a version that it does not know, so a new field needs no new version. Times are RFC 3339 with an offset.
Nothing here imports a broker, Django or user code.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from tickwork.errors import ContractError

VERSION = 1

# Headers of a job message (design: visible to people who look into the broker).
HEADER_RETRY_COUNT = "x-retry-count"
HEADER_MAX_RETRIES = "x-max-retries"
HEADER_CORRELATION_ID = "x-original-correlation-id"
HEADER_ATTEMPT = "x-attempt"
HEADER_QUEUED_AT = "x-queued-at"
# Set when the relay publishes a message again and cannot know whether the first copy arrived: the worker
# asks the scheduler before it runs it, exactly as for a redelivery.
HEADER_MAYBE_DUPLICATE = "x-maybe-duplicate"

Outcome = Literal["completed", "failed", "cancelled", "timed_out", "interrupted"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every body: `v` is the contract's version."""

    v: int = VERSION


class Dispatch(Message, frozen=True, kw_only=True):
    """Run one attempt of one occurrence. `id` is the occurrence's id and the correlation id of everything about it."""

    id: str
    job_id: str
    job_name: str
    worker: str
    job_type: str
    attempt: int
    max_attempts: int
    data: dict[str, Any] = {}
    timeout_seconds: float | None = None
    scheduled_for: datetime | None = None
    trace: dict[str, str] = {}


class DispatchOut(Dispatch, frozen=True, kw_only=True):
    """A Dispatch as the scheduler writes it: the data are JSON text already and are copied, not parsed."""

    data: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong in an attempt. `retryable` None means that the job had no opinion."""

    type: str
    message: str = ""
    traceback: str = ""
    retryable: bool | None = None
    retry_after: float | None = None


# ── events: worker to scheduler ────────────────────────────────────────────────────────────────────


class AttemptEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of what a worker reports about one attempt; `at` is the worker's clock."""

    id: str
    attempt: int
    at: datetime


class Started(AttemptEvent, frozen=True, kw_only=True, tag="started"):
    """The attempt began to run on the sending instance."""


class Progress(AttemptEvent, frozen=True, kw_only=True, tag="progress"):
    """The job's own report of how far it is: `fraction` from 0 to 1."""

    fraction: float
    message: str = ""


class Log(AttemptEvent, frozen=True, kw_only=True, tag="log"):
    """One log line of an attempt; `seq` counts from 1 within the attempt."""

    seq: int
    level: str
    message: str
    fields: dict[str, Any] = {}


class Finished(AttemptEvent, frozen=True, kw_only=True, tag="finished"):
    """The attempt ended. `interrupted` means that the worker gave it back unfinished (shutdown): no attempt is used up.

    It repeats `started_at`, so that a quick attempt is told in this one event.
    """

    outcome: Outcome
    started_at: datetime | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None


class Inquiry(AttemptEvent, frozen=True, kw_only=True, tag="inquiry"):
    """The worker holds a delivery and asks before it goes on; answered by a `Verdict` to the instance's own key.

    `redelivered`: "may I run this attempt, or has somebody else?".
    `lease`: "I run this attempt; is it recorded as mine, so that I may acknowledge the delivery?"
    """

    question: Literal["redelivered", "lease"]


class JobTypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance says about one job function: JSON Schemas (draft 2020-12) and the author's defaults."""

    name: str
    description: str = ""
    data_schema: dict[str, Any] = {}
    result_schema: dict[str, Any] = {}
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    retry_preset: str | None = None
    isolation: str = "thread"


class Registered(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="registered"):
    """An instance has started: who it is and what it can run."""

    at: datetime
    host: str
    pid: int
    version: str
    concurrency: int
    job_types: list[JobTypeInfo]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="heartbeat"):
    """The instance lives; `running` lists (occurrence id, attempt) of every attempt that it holds or runs."""

    at: datetime
    running: list[tuple[str, int]] = []
    pending_events: int = 0


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="stopped"):
    """The instance has drained and leaves; everything it held was finished or given back."""

    at: datetime


Event = Started | Progress | Log | Finished | Inquiry | Registered | Heartbeat | Stopped


class EventBatch(Message, frozen=True, kw_only=True):
    """Events of one instance in the order in which they happened."""

    worker: str
    instance: str
    events: list[Event]


# ── commands: scheduler to worker ──────────────────────────────────────────────────────────────────


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cancel"):
    """Stop this attempt if you run it, and report `cancelled`.

    `for_good`: nobody is to run it, so do not begin it either when its message comes after this one.
    """

    id: str
    attempt: int
    reason: str = ""
    for_good: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="verdict"):
    """Answer to an `Inquiry`.

    `run`: the attempt is yours. `drop`: acknowledge and forget it. `wait`: somebody may still run it, hold
    the delivery and ask again after `ask_again_seconds`.
    """

    id: str
    attempt: int
    action: Literal["run", "drop", "wait"]
    ask_again_seconds: float = 2.0
    reason: str = ""


class Granted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="granted"):
    """Told to every instance of a worker: this attempt was given to `instance`. Whoever else has a message of it, now
    or later, asks before it begins: the relay may have published it twice, and only the second copy says so.
    """

    id: str
    attempt: int
    instance: str


Command = Cancel | Verdict | Granted


class CommandMessage(Message, frozen=True, kw_only=True):
    """Envelope of one command."""

    command: Command


# ── encoding ───────────────────────────────────────────────────────────────────────────────────────

_encoder = msgspec.json.Encoder()
M = TypeVar("M", bound=Message)
_decoders: dict[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Dispatch, EventBatch, CommandMessage)
}


def encode(message: msgspec.Struct) -> bytes:
    """The message as UTF-8 JSON."""
    return _encoder.encode(message)


def encode_json(value: Any) -> bytes:
    """Plain values (dict, list, str, int, float, bool, None, datetime, UUID) as UTF-8 JSON."""
    return _encoder.encode(value)


def raw(json_text: str | bytes) -> msgspec.Raw:
    """JSON text as a value that is copied into a message without being parsed."""
    return msgspec.Raw(json_text if isinstance(json_text, bytes) else json_text.encode())


def decode(kind: type[M], body: bytes | memoryview) -> M:
    """Read a body of the given kind (Dispatch, EventBatch or CommandMessage).

    Raises ContractError when the body is not JSON, misses or mistypes a field, or has an unknown version.
    """
    try:
        message: M = _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ContractError(f"not a {kind.__name__} message: {error}") from error
    if message.v != VERSION:
        raise ContractError(f"{kind.__name__} message of version {message.v}; this program knows version {VERSION}")
    return message
