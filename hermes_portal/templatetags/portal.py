"""Template tags for what every page shows: hostile text as marked spans, instants, deadlines and digests.

Text of the provider reaches a page through `shown` only (rule 10): it is escaped, its masked secrets and hidden
characters become spans, and nothing of it is ever a tag, an attribute name, a link or a title of ours.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from hermes_portal import canonical, redaction

register = template.Library()

SOON_SECONDS = 60
# Why a deadline is the earliest one (rule 7); `runs` narrows with the codes below, anything else is named plainly.
DEADLINES = {
    "approval_lifetime": ("to decide and to send", "The approval lasts 15 minutes."),
    "provider_wait": ("until Hermes stops waiting", "Hermes' own wait ends first."),
    "run_ended": ("the run has ended", "The run ended."),
}
TONES = {
    "pending": "warn",
    "approved": "go",
    "consumed": "go",
    "applied": "go",
    "completed": "go",
    "answered": "go",
    "ok": "go",
    "denied": "stop",
    "failed": "stop",
    "refused": "stop",
    "not_applied": "stop",
    "not_started": "stop",
    "unreachable": "stop",
    "credential_refused": "stop",
    "unknown": "warn",
    "start_unknown": "warn",
    "in_doubt": "warn",
    "waiting_for_approval": "warn",
    "open": "warn",
    "lost": "warn",
    "interrupted": "warn",
    "stopping": "warn",
    "draining": "warn",
    "high": "stop",
    "medium": "warn",
}


@register.filter
def shown(text: object) -> SafeString:
    """Stored, redacted text as escaped spans; masked secrets and hidden characters stand out."""
    classes = {"masked": "masked", "mark": "mark"}
    parts = (
        format_html('<span class="{}">{}</span>', classes[kind], part)
        if kind in classes
        else format_html("{}", part)
        for kind, part in redaction.segments("" if text is None else str(text))
    )
    return format_html(
        '<span class="shown">{}</span>', format_html_join("", "{}", ((part,) for part in parts))
    )


@register.filter
def kinds(text: str) -> set[str]:
    """Which kinds of part a stored, redacted text has: text, masked, mark."""
    return {kind for kind, _ in redaction.segments(text)}


@register.filter
def shown_json(value: object) -> SafeString:
    """A stored, redacted JSON value, indented, as escaped spans."""
    return shown(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True))


@register.filter
def turn(text: str) -> str:
    """Text of a turn without the blank lines that Hermes puts before it (contract 0.19 (b))."""
    return text.lstrip("\n")


@register.filter
def excerpt(text: str, limit: int) -> str:
    """The beginning of a stored, redacted text; never cut inside a mark."""
    return redaction.excerpt(" ".join(text.split()), limit)


@register.filter
def canonical_json(value: Any) -> SafeString:
    """A document of ours in its canonical form, as escaped spans."""
    return shown(canonical.dumps(value).decode())


@register.filter
def moment(instant: datetime | None) -> SafeString:
    """The time of day in UTC; the whole instant is in the tooltip and for machines."""
    return _time(instant, "%H:%M:%S")


@register.filter
def instant(instant: datetime | None) -> SafeString:
    """Date and time in UTC."""
    return _time(instant, "%Y-%m-%d %H:%M:%S UTC")


def _time(instant: datetime | None, form: str) -> SafeString:
    if instant is None:
        return format_html("{}", "–")
    at = instant.astimezone(UTC)
    whole = at.strftime("%Y-%m-%d %H:%M:%S.%f UTC")
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), whole, at.strftime(form))


@register.filter
def short(digest: str) -> SafeString:
    """The two ends of a digest; the whole of it in the tooltip."""
    if len(digest) <= 12:
        return format_html('<span class="code">{}</span>', digest)
    return format_html('<span class="code" title="{}">{}…{}</span>', digest, digest[:4], digest[-4:])


@register.filter
def tone(state: object) -> str:
    """The tag colour of a status or a risk: go, stop, warn or none."""
    return TONES.get(str(state), "")


@register.filter
def lookup(mapping: dict[str, Any], key: str) -> Any:
    """mapping[key], or an empty text."""
    return mapping.get(key, "")


@register.filter
def for_people(code: str) -> str:
    """A code as words: `provider_wait` is "provider wait"."""
    return code.replace("_", " ")


def spoken(span: timedelta) -> str:
    """A span as people say it: 22 s, 3 min, 2 h, 5 d."""
    seconds = max(0, int(span.total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


@register.simple_tag
def ago(then: datetime | None, now: datetime) -> SafeString:
    """How long before `now` something was, with the instant in the tooltip."""
    if then is None:
        return format_html("{}", "–")
    at = then.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}">{} ago</time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S} UTC",
        spoken(now - at),
    )


@register.simple_tag
def seconds(number: float | str | None) -> str:
    """A duration of a tool as the provider gave it."""
    try:
        return f"{float(number or 0):.1f} s"
    except ValueError:
        return ""


@register.inclusion_tag("_clock.html")
def clock(start: datetime, until: datetime, why: str, now: datetime, size: str = "") -> dict[str, Any]:
    """A running deadline. The server's clock counts: portal.js only draws it from the offset of `now`."""
    left = max(0, int((until - now).total_seconds()))
    whole = max(1, int((until - start).total_seconds()))
    word, sentence = DEADLINES.get(why, ("until its deadline", for_people(why)))
    return {
        "left": f"{left // 60}:{left % 60:02d}",
        "soon": left < SOON_SECONDS,
        "over": left == 0,
        "until": until.astimezone(UTC),
        "start": start.astimezone(UTC),
        "spent": min(whole, whole - left),
        "whole": whole,
        "word": word,
        "sentence": sentence,
        "size": size,
    }
