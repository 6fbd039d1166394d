"""UUID version 7 (RFC 9562 section 5.7): ids that sort by the time they were made.

`uuid.uuid7` of Python 3.14 is used when it is there.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from datetime import UTC, datetime

_lock = threading.Lock()
_last_milliseconds = 0
_counter = 0


def _uuid7() -> uuid.UUID:
    """48 bits of Unix milliseconds, a 42-bit counter that starts anew at random each millisecond (RFC 9562 section 6.2,
    method 1), 32 random bits: ids of one process sort in the order in which they were made.
    """
    global _last_milliseconds, _counter
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    with _lock:
        if milliseconds > _last_milliseconds:
            _last_milliseconds, _counter = milliseconds, random >> 39  # the top bit is left for counting
        else:
            milliseconds, _counter = _last_milliseconds, _counter + 1
        counter = _counter
    high, low = counter >> 30 & 0xFFF, counter & 0x3FFF_FFFF
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | high << 64 | 0x2 << 62 | low << 32 | random & 0xFFFF_FFFF)


uuid7 = getattr(uuid, "uuid7", _uuid7)


def made_at(identifier: uuid.UUID) -> datetime:
    """The instant at which a version 7 id was made, in UTC, to the millisecond."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1000, tz=UTC)


def first_at(instant: datetime) -> uuid.UUID:
    """The smallest version 7 id of an instant: ids made earlier sort before it."""
    return uuid.UUID(int=int(instant.timestamp() * 1000) << 80 | 0x7 << 76 | 0x2 << 62)
