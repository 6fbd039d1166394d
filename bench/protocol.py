"""How the harness talks to a producer: one line in, one line out. Standard library only: every environment loads it.

The producer connects, prints `ready`, and then for each line `<runs> <batch>` enqueues that many runs in calls
of `batch` and answers with the two monotonic instants (system-wide on Linux) between which it did so.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable


def serve(enqueue: Callable[[int, int], None]) -> None:
    """Answer orders from standard input until it closes; `enqueue(runs, batch)` does the work."""
    print("ready", flush=True)
    for line in sys.stdin:
        runs, batch = (int(word) for word in line.split())
        began = time.monotonic()
        enqueue(runs, batch)
        print(json.dumps({"began": began, "ended": time.monotonic()}), flush=True)
