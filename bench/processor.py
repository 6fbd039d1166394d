"""CPU time of process trees, from /proc. Reads only; Linux only.

A tree's time is the sum over its living processes of their own time and that of the children they have
waited for: a PostgreSQL backend that came and went during a measurement is counted by its parent.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _read_all() -> dict[int, tuple[int, float]]:
    """Every process: pid to (parent's pid, CPU seconds including waited-for children)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        fields = text.rpartition(")")[2].split()
        found[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_SECOND)
    return found


def cpu_seconds(roots: Collection[int], *, without: Collection[int] = ()) -> float:
    """CPU seconds used so far by the trees under `roots`, leaving out the processes `without`."""
    processes = _read_all()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    total, todo = 0.0, [pid for pid in roots if pid in processes]
    while todo:
        pid = todo.pop()
        todo.extend(children.get(pid, ()))
        if pid not in without:
            total += processes[pid][1]
    return total
