"""Template words of every page: icons, times, durations, JSON, live parts, links that keep the filters."""

from __future__ import annotations

import json
import zoneinfo
from datetime import datetime
from typing import Any

from django import template
from django.template.context import RequestContext
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from jobs.pages import COUNT_CAP

register = template.Library()

# Paths of a 24 by 24 grid, drawn with the text's colour; the word beside an icon says the same.
_ICONS = {
    "alert": '<path d="M12 3 2 20h20z"/><path d="M12 10v4M12 17.5v.5"/>',
    "arrow-left": '<path d="M19 12H5m6-6-6 6 6 6"/>',
    "arrow-right": '<path d="M5 12h14m-6-6 6 6-6 6"/>',
    "check": '<path d="m5 12.5 5 5 9-11"/>',
    "clock": '<circle cx="12" cy="12" r="9"/><path d="M12 7v5l3.5 2"/>',
    "cross": '<path d="M6 6l12 12M18 6 6 18"/>',
    "dots": '<path stroke-width="4" d="M5 12h.01M12 12h.01M19 12h.01"/>',
    "failures": '<path d="M4 4h16v9l-4 7H8l-4-7z"/><path d="M4 13h5l1 3h4l1-3h5"/>',
    "gauge": '<path d="M4 18a9 9 0 1 1 16 0"/><path d="m12 14 4-5"/>',
    "jobs": '<rect x="3" y="5" width="18" height="16" rx="2"/><path d="M3 10h18M8 3v4M16 3v4"/>',
    "moon": '<path d="M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z"/>',
    "pause": '<path d="M8 5v14M16 5v14"/>',
    "pencil": '<path d="m4 20 1-5L16 4l4 4L9 19z"/>',
    "play": '<path d="M7 4v16l13-8z"/>',
    "plus": '<path d="M12 5v14M5 12h14"/>',
    "question": '<path d="M8 8.5a4 4 0 1 1 5.5 3.7c-1 .4-1.5 1.1-1.5 2.3M12 18v.5"/>',
    "retry": '<path d="M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7"/>',
    "runs": '<path d="M4 6h16M4 12h10M4 18h13"/>',
    "skip": '<path d="m5 5 9 7-9 7zM18 5v14"/>',
    "slash": '<circle cx="12" cy="12" r="9"/><path d="m6 6 12 12"/>',
    "trash": '<path d="M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13"/>',
    "workers": '<path d="M3 4h18v7H3zM3 13h18v7H3zM7 7.5h.01M7 16.5h.01"/>',
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """A small drawing; hidden from screen readers, since its word stands beside it."""
    return mark_safe(f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">{_ICONS[name]}</svg>')


@register.simple_tag
def when(at: datetime | None, style: str = "") -> SafeString:
    """An instant as "3 min ago" or "in 12 s", kept current by the page; hovering shows it in full.

    `style`: `countdown` counts the seconds too, `age` says how long ago without the words around it.
    """
    if at is None:
        return format_html('<span class="muted">{}</span>', "–")
    return format_html(
        '<time datetime="{}" data-when="{}" title="{}">{}</time>',
        at.isoformat(timespec="milliseconds"),
        style,
        f"{at:%Y-%m-%d %H:%M:%S} UTC",
        relative(at, timezone.now(), style),
    )


def relative(at: datetime, now: datetime, style: str = "") -> str:
    """ "in 12 s", "3 min ago"; `times.js` has the same rule and must agree with it."""
    seconds = round((at - now).total_seconds())
    with_seconds = style in ("countdown", "age")
    if style == "age":
        return span(max(-seconds, 0), with_seconds=with_seconds)
    if abs(seconds) < 1:
        return "now"
    if abs(seconds) >= 30 * 86_400:
        return f"{at:%Y-%m-%d}"
    text = span(abs(seconds), with_seconds=with_seconds)
    return f"in {text}" if seconds > 0 else f"{text} ago"


def span(seconds: int, *, with_seconds: bool = False) -> str:
    """A length of time in at most two units."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min" + (f" {seconds % 60} s" if with_seconds else "")
    if seconds < 86_400:
        minutes = seconds % 3600 // 60
        return f"{seconds // 3600} h" + (f" {minutes} min" if minutes else "")
    hours = seconds % 86_400 // 3600
    return f"{seconds // 86_400} d" + (f" {hours} h" if hours else "")


@register.filter
def duration(seconds: float | None) -> str:
    """A measured length: "12 ms", "3.4 s", "4 min 5 s"."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return span(round(seconds), with_seconds=True)


@register.filter
def seconds(value: float | None) -> str:
    """A configured length: "300 s" with a friendlier form beside it where that helps."""
    if value is None:
        return "–"
    if value < 120:
        return f"{value:g} s"
    return f"{value:g} s ({span(round(value), with_seconds=value % 60 != 0)})"


@register.simple_tag
def between(start: datetime | None, end: datetime | None) -> str:
    """How long from one instant to another."""
    return duration((end - start).total_seconds()) if start and end else "–"


@register.simple_tag
def in_zone(at: datetime, name: str) -> str:
    """Wall-clock time in a zone: "Mon 23 Nov 2026, 02:30:00 CET"."""
    try:
        local = at.astimezone(zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        local = at
    return f"{local:%a} {local.day} {local:%b %Y, %H:%M:%S %Z}"


@register.filter
def pretty_json(value: Any) -> str:
    """JSON for people: indented, in its own order."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def sentence(text: str) -> str:
    """A reason, written by people or by code, as a sentence of its own."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")


@register.filter
def last_name(name: str) -> str:
    """The class alone of a dotted name: where there is little room, its module would push out the message."""
    return name.rpartition(".")[2]


@register.filter
def capped(count: int) -> str:
    """A count that stopped at the cap: "10,000+"."""
    return f"{COUNT_CAP:,}+" if count > COUNT_CAP else f"{count:,}"


@register.simple_tag(takes_context=True)
def part_url(context: RequestContext, name: str) -> str:
    """The address of one part of this very page, filters and all."""
    return query(context, part=name)


@register.simple_tag(takes_context=True)
def query(context: RequestContext, **changes: Any) -> str:
    """This page's address with these query values changed; an empty value leaves the name out.

    `part` and the paging keys are left out unless given, the keys kept for a part: it shows the page that one is on.
    """
    request = context["request"]
    values = request.GET.copy()
    for name in ("part", "before", "after"):
        if name not in changes and (name == "part" or "part" not in changes):
            values.pop(name, None)
    for name, value in changes.items():
        if value in ("", None):
            values.pop(name, None)
        else:
            values[name] = str(value)
    return f"{request.path}?{values.urlencode()}" if values else str(request.path)
