"""Makes text from outside fit for a result: decoded, free of control characters, bounded in size.

Used by the shipped job types on bodies, output and cells. The bound counts the bytes of the JSON that
carries the text, because that is what the result's own limit counts.
"""

import re
from typing import Literal

import msgspec

LIMIT = 64 * 1024

# Tells a form that the value usually has several lines.
MULTILINE = {"format": "textarea"}

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def clean(text: str) -> str:
    """The text without terminal colours; other control characters, which databases refuse, become U+FFFD."""
    return _CONTROL.sub("\ufffd", _ANSI.sub("", text))


def has_control_characters(text: str) -> bool:
    """Whether the text holds characters that make it data rather than text (tab and line ends are fine)."""
    return _CONTROL.search(text) is not None


def fit(text: str, *, keep: Literal["head", "tail"], limit: int = LIMIT) -> tuple[str, bool]:
    """The text cut to `limit` bytes of JSON at one end, and whether something was cut."""
    cut = False
    while (excess := len(msgspec.json.encode(text)) - limit) > 0:
        # One character takes at most six bytes of JSON: this never cuts too much and soon arrives.
        drop = -(-excess // 6)
        text = text[:-drop] if keep == "head" else text[drop:]
        cut = True
    return text, cut
