"""UUID version 7 (RFC 9562 section 5.7): ids that sort by the time they were made.

`uuid.uuid7` of Python 3.14 is used when it is there.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime


def _uuid7() -> uuid.UUID:
    """48 bits of Unix milliseconds, then 74 random bits around the version and variant marks."""
    milliseconds = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | random_bits
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


uuid7 = getattr(uuid, "uuid7", _uuid7)


def made_at(identifier: uuid.UUID) -> datetime:
    """The instant at which a version 7 id was made, in UTC, to the millisecond."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1000, tz=UTC)


def first_at(instant: datetime) -> uuid.UUID:
    """The smallest version 7 id of an instant: ids made earlier sort before it."""
    return uuid.UUID(int=int(instant.timestamp() * 1000) << 80 | 0x7 << 76 | 0x2 << 62)
