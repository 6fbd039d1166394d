"""What RabbitMQ delivered, and its translation into a `Delivery`. Used by the consumer; pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from tickwork.broker.base import Death, Delivery

DELIVERY_COUNT = "x-delivery-count"
DEATHS = "x-death"
BROKERS_OWN = (DELIVERY_COUNT, DEATHS)
BROKERS_OWN_PREFIXES = ("x-first-death-", "x-last-death-")


class Received(NamedTuple):
    """A message in the consumer's buffer: pika's method and properties, and when it came (monotonic seconds)."""

    queue: str
    tag: int
    method: Any
    properties: Any
    body: bytes
    at: float


def delivery(received: Received, epoch: int) -> Delivery:
    """The delivery of a message received on the channel of this epoch.

    The headers are those that were published; what the broker added is in `deaths` and `delivery_count`.
    """
    method, properties = received.method, received.properties
    headers: dict[str, Any] = properties.headers or {}
    redelivered: bool = method.redelivered
    count = int(redelivered)
    deaths: tuple[Death, ...] = ()
    if DELIVERY_COUNT in headers or DEATHS in headers:
        count = int(headers.get(DELIVERY_COUNT, count))
        deaths = _deaths(headers.get(DEATHS))
        headers = {
            name: value
            for name, value in headers.items()
            if name not in BROKERS_OWN and not name.startswith(BROKERS_OWN_PREFIXES)
        }
    return Delivery(
        queue=received.queue,
        routing_key=method.routing_key,
        body=received.body,
        headers=headers,
        correlation_id=properties.correlation_id or "",
        message_id=properties.message_id or "",
        type=properties.type or "",
        redelivered=redelivered or count > 0,
        delivery_count=count,
        deaths=deaths,
        tag=(epoch, received.tag),
    )


def _deaths(header: Any) -> tuple[Death, ...]:
    """The entries of an `x-death` header, newest first; entries of an unknown form are left out."""
    if not isinstance(header, list):
        return ()
    return tuple(
        Death(queue=str(entry.get("queue", "")), reason=str(entry.get("reason", "")), count=int(entry.get("count", 1)))
        for entry in header
        if isinstance(entry, dict)
    )
