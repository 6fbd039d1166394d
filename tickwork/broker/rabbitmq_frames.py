"""Encodes a message to publish as AMQP 0-9-1 frames, byte for byte as pika would, at a fraction of the cost.

Called by the publisher for every message, which is why it does not build pika's objects. Pure.
"""

from __future__ import annotations

import struct
from typing import Any

from pika.data import encode_value

from tickwork.broker.base import Message

PERSISTENT = b"\x02"
BASIC_PUBLISH = 60 << 16 | 40
BASIC = 60
METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
FRAME_OVERHEAD = 8
SMALL = 1 << 31
HEADERS, DELIVERY_MODE, CORRELATION_ID, EXPIRATION, MESSAGE_ID, TYPE = (1 << bit for bit in (13, 12, 10, 8, 7, 5))

_frame = struct.Struct(">BHI").pack
_method = struct.Struct(">IH").pack
_content = struct.Struct(">HHQH").pack
_unsigned = struct.Struct(">I").pack
_signed = struct.Struct(">i").pack


def publish_frames(channel: int, message: Message, frame_max: int) -> bytes:
    """The frames of one basic.publish with its content.

    Raises ValueError, or pika's error for an unsupported header value, when the message cannot be encoded.
    """
    flags = DELIVERY_MODE
    properties = b""
    if message.headers:
        flags |= HEADERS
        properties = _table(message.headers)
    properties += PERSISTENT
    if message.correlation_id:
        flags |= CORRELATION_ID
        properties += _short(message.correlation_id)
    if message.expiration_seconds is not None:
        flags |= EXPIRATION
        properties += _short(str(max(0, int(message.expiration_seconds * 1000))))
    if message.message_id:
        flags |= MESSAGE_ID
        properties += _short(message.message_id)
    if message.type:
        flags |= TYPE
        properties += _short(message.type)
    body = message.body
    method = (
        _method(BASIC_PUBLISH, 0)
        + _short(message.exchange)
        + _short(message.routing_key)
        + (b"\x01" if message.mandatory else b"\x00")
    )
    content = _content(BASIC, 0, len(body), flags) + properties
    if FRAME_OVERHEAD + len(content) > frame_max:
        raise ValueError(f"the headers take {len(content)} bytes, more than a frame of {frame_max} holds")
    pieces = [_frame(METHOD, channel, len(method)), method, END, _frame(HEADER, channel, len(content)), content, END]
    room = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), room):
        part = body if len(body) <= room else body[start : start + room]
        pieces += (_frame(BODY, channel, len(part)), part, END)
    return b"".join(pieces)


def _short(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 255:
        raise ValueError(f"{text[:40]!r}… is longer than 255 bytes")
    return bytes((len(raw),)) + raw


def _table(values: Any) -> bytes:
    """A field table; text and small numbers, which are what our headers hold, without a detour."""
    pieces: list[bytes] = []
    for name, value in values.items():
        pieces.append(_short(name))
        if type(value) is str:
            raw = value.encode()
            pieces += (b"S", _unsigned(len(raw)), raw)
        elif type(value) is int and -SMALL <= value < SMALL:
            pieces += (b"I", _signed(value))
        else:
            encode_value(pieces, value)
    table = b"".join(pieces)
    return _unsigned(len(table)) + table
