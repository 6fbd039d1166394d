"""Which JSON values every database, broker and reader of ours hands back as they were given; pure.

Called by whoever takes JSON from outside: `job_types.check_data` and the API's parser.
"""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
# PostgreSQL keeps 1e20 as an integer of 21 digits, which the codec of the messages cannot write.
SMALLEST, LARGEST = -(2**63), 2**64 - 1


def fault(value: Any) -> tuple[str, str] | None:
    """What cannot be kept in a value of dicts, lists, texts and numbers: (place, message), None when all can.

    The place reads `items.3.name`, and is empty for the value itself. Refused are NUL characters, numbers outside
    64 bits (and those that are none), and nesting deeper than MAX_DEPTH levels.
    """
    rest: list[tuple[Any, str, int]] = [(value, "", 0)]
    while rest:
        item, place, depth = rest.pop()
        if isinstance(item, str):
            if "\0" in item:
                return place, "A NUL character (\\u0000) cannot be stored."
        elif isinstance(item, dict | list | tuple):
            if depth == MAX_DEPTH:
                return place, f"It is nested deeper than {MAX_DEPTH} levels."
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            for name, inner in pairs:
                if isinstance(name, str) and "\0" in name:
                    return place, "A field's name holds a NUL character (\\u0000), which cannot be stored."
                rest.append((inner, f"{place}.{name}" if place else str(name), depth + 1))
        elif isinstance(item, int | float) and not SMALLEST <= item <= LARGEST:
            return place, "The number does not fit into 64 bits."
    return None
