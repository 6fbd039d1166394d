"""Tests that this machine cannot run: skipped, said loudly at the end of the run, and a failure in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from tests.servers.environment import NO_SERVERS

MARK = "left out: "


def leave_out(reason: str) -> NoReturn:
    """End this test because the machine lacks something: a loud skip, or a failure in CI."""
    if os.environ.get("CI") == "true" and not os.environ.get(NO_SERVERS):
        pytest.fail(f"{reason} (CI=true: nothing may be left out)", pytrace=False)
    pytest.skip(MARK + reason)


def summarise(reporter: pytest.TerminalReporter) -> None:
    """Say which tests did not run for want of something, so that a green run is not taken for a full one."""
    reasons: dict[str, int] = {}
    for report in reporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MARK in text:
            reason = text.split(MARK, 1)[1]
            reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        reporter.section("LEFT OUT: this run did not test everything", sep="!", red=True, bold=True)
        for reason, count in sorted(reasons.items()):
            reporter.line(f"{count} tests: {reason}", red=True)
