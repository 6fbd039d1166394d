"""Template words about occurrences: status badges, the row of recent runs, charts drawn as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log10

from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from jobs.templatetags.pages import duration, icon
from occurrences.models import Occurrence, OccurrenceLog
from occurrences.states import Status

register = template.Library()

# A status has a word, a shape and a colour: each alone is enough.
LOOKS = {
    Status.QUEUED: ("queued", "dots"),
    Status.RUNNING: ("running", "play"),
    Status.COMPLETED: ("completed", "check"),
    Status.FAILED: ("failed", "cross"),
    Status.CANCELLED: ("cancelled", "slash"),
    Status.TIMED_OUT: ("timedout", "clock"),
    Status.UNKNOWN: ("unknown", "question"),
    Status.SKIPPED: ("skipped", "skip"),
}


@register.filter
def badge(status: int) -> SafeString:
    """A status as word, shape and colour."""
    known = Status(status)
    name, drawing = LOOKS[known]
    return format_html('<span class="badge is-{}">{}{}</span>', name, icon(drawing), known.label)


@register.filter
def status_class(status: int) -> str:
    """The status' colour."""
    return f"is-{LOOKS[Status(status)][0]}"


@register.simple_tag
def log_lines(lines: Iterable[OccurrenceLog]) -> SafeString:
    """Log lines below the number of their attempt. Made here and not in the template, since there are hundreds."""
    pieces = []
    attempt = None
    for line in lines:
        if line.attempt != attempt:
            attempt = line.attempt
            pieces.append(format_html('<p class="log-attempt">Attempt {}</p>', attempt))
        pieces.append(
            format_html(
                '<p class="log is-{}" id="log-{}-{}"><time datetime="{}" title="{} UTC">{}</time> <b>{}</b> '
                "<span>{}</span>{}</p>",
                line.level.lower(),
                line.attempt,
                line.sequence,
                line.logged_at.isoformat(),
                f"{line.logged_at:%Y-%m-%d %H:%M:%S}",
                f"{line.logged_at:%H:%M:%S.%f}"[:12],
                line.level.upper(),
                line.message,
                format_html_join("", ' <span class="log-field">{}=<i>{}</i></span>', line.fields.items()),
            )
        )
    return mark_safe("".join(pieces))


@register.simple_tag
def recent_bars(occurrences: Sequence[Occurrence], slots: int = 30) -> SafeString:
    """Recent runs, the newest at the right: colour is the outcome, height the duration (log scale, so that both a
    millisecond and an hour can be seen)."""
    runs = list(reversed(occurrences[:slots]))
    empty = format_html_join(
        "",
        '<rect class="bar is-none" x="{}" y="34" width="7" height="2" rx="1"/>',
        ((slot * 9,) for slot in range(slots - len(runs))),
    )
    bars = empty + format_html_join(
        "",
        '<a href="{}"><title>{}</title><rect class="{}" x="{}" y="{}" width="7" height="{}" rx="1.5"/></a>',
        (
            (
                reverse("occurrence_detail", args=[run.pk]),
                f"{run.status_enum.label}, {duration(run.duration_seconds)}",
                f"bar {status_class(run.status)}",
                (slots - len(runs) + position) * 9,
                36 - height,
                height,
            )
            for position, run in enumerate(runs)
            for height in [_height(run.duration_seconds)]
        ),
    )
    return format_html(
        '<svg class="bars" viewBox="0 0 {} 36" role="group" aria-label="Last {} runs, newest at the right">{}</svg>',
        slots * 9 - 2,
        len(runs),
        bars,
    )


def _height(seconds: float | None) -> int:
    if seconds is None:
        return 6
    return min(36, max(6, round(6 + 6 * (log10(max(seconds, 0.001)) + 3))))


@register.simple_tag
def minute_chart(minutes: Sequence[tuple[str, int, int, int]]) -> SafeString:
    """Runs per minute as stacked bars: (label, ended well, ended badly, other), the newest at the right."""
    top = max([sum(minute[1:]) for minute in minutes] + [1])
    stacks = format_html_join(
        "",
        "<g><title>{}</title>{}</g>",
        ((_minute_text(minute), _stack(minute[1:], position, top)) for position, minute in enumerate(minutes)),
    )
    return format_html(
        '<svg class="chart" viewBox="0 0 600 100" preserveAspectRatio="none" role="img" '
        'aria-label="Runs per minute in the last hour, at most {} in one minute">{}</svg>',
        top,
        stacks,
    )


def _minute_text(minute: tuple[str, int, int, int]) -> str:
    label, good, bad, other = minute
    return f"{label} UTC: {good} completed, {bad} failed, {other} other"


def _stack(counts: Sequence[int], position: int, top: int) -> SafeString:
    pieces = []
    bottom = 100.0
    for count, name in zip(counts, ("is-completed", "is-failed", "is-queued"), strict=True):
        height = 98 * count / top
        bottom -= height
        if count:
            pieces.append((name, position * 10 + 1, f"{bottom:.1f}", f"{max(height, 1):.1f}"))
    empty = format_html('<rect class="bar is-none" x="{}" y="99" width="10" height="1"/>', position * 10)
    return empty + format_html_join("", '<rect class="bar {}" x="{}" y="{}" width="8" height="{}"/>', pieces)
