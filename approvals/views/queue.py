"""The queue: what waits for a decision, the most urgent first, live."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from approvals import access
from approvals.keyset import position
from approvals.models import Approval, Decision, Execution, User
from approvals.views.frame import HTMX, person, unchanged, viewer_token
from hermes_portal import clock

PAGE = 50
ASIDE = "aside"  # in the session: cards that this person hid for themselves; nothing is sent for it (case 10)


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    """The page and its own poll: `v` is the version that the page shows; 204 when nothing changed."""
    now = clock.now()
    hidden = request.session.get(ASIDE, [])
    show_aside = request.GET.get("aside") == "1"
    rows = _page(request, now, hidden, show_aside)
    version = _version(rows)
    if request.headers.get(HTMX) == "true" and request.GET.get("v") == version:
        return unchanged(now)
    polled = request.headers.get(HTMX) == "true"
    context: dict[str, Any] = {
        "section": "queue",
        "rows": [_described(row, person(request)) for row in rows[:PAGE]],
        "last": rows[PAGE - 1] if len(rows) > PAGE else None,
        "version": version,
        "now": now,
        "aside": _aside_count(person(request), now, hidden),
        "show_aside": show_aside,
        "viewer": viewer_token(person(request)),
        "narrowed": request.GET.get("tenant", ""),
        "address": _address(request, version),
        "polled": polled,
    }
    if polled:
        context["waiting"] = access.scoped(Approval.objects.pending(now), person(request)).count()
    else:
        context["unknown"] = _unknown(person(request))
    return render(request, "approvals/_queue.html" if polled else "approvals/queue.html", context)


def _page(request: HttpRequest, now: datetime, hidden: list[str], show_aside: bool) -> Sequence[Approval]:
    """One page by keyset (effective_at, id), one row more to know whether another follows."""
    rows = access.scoped(Approval.objects.pending(now), person(request))
    rows = rows.filter(pk__in=hidden) if show_aside else rows.exclude(pk__in=hidden)
    if tenant := request.GET.get("tenant"):
        rows = rows.filter(tenant__slug=tenant)
    rows = _after(rows, request.GET.get("after", ""))
    return list(
        rows.select_related("endpoint", "tenant", "requester")
        .annotate(votes=Count("decisions", filter=Q(decisions__verdict=Decision.Verdict.APPROVE)))
        .order_by("effective_at", "id")[: PAGE + 1]
    )


def _after(rows: QuerySet[Approval], cursor: str) -> QuerySet[Approval]:
    """Rows behind `<instant>,<id>`; a cursor that cannot be read is the beginning."""
    if (begins := position(cursor)) is None:
        return rows
    instant, identity = begins
    return rows.filter(Q(effective_at__gt=instant) | Q(effective_at=instant, id__gt=identity))


def _version(rows: Sequence[Any]) -> str:
    """Changes with everything that a row shows, but not with the clock."""
    text = "|".join(f"{row.pk}:{row.effective_at.isoformat()}:{row.fixed_choice}:{row.votes}" for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _address(request: HttpRequest, version: str) -> str:
    """The page's own address with its present version."""
    query = request.GET.copy()
    query["v"] = version
    return f"{request.path}?{query.urlencode()}"


def _described(row: Any, viewer: User) -> dict[str, Any]:
    """A row with the words of its need."""
    return {"approval": row, "need": need_words(row, row.votes), "own": row.requester_id == viewer.pk}


def need_words(approval: Approval, votes: int) -> str:
    """How many reviewers are needed and how many agreed: "1 reviewer", "1 of 2 reviewers", "1 to 2 reviewers"."""
    counted = [
        verdict["approvers"]
        for choice, verdict in approval.needs.items()
        if not verdict["forbidden"] and choice != "deny" and choice in (approval.fixed_choice or choice, "")
    ]
    least, most = (min(counted), max(counted)) if counted else (1, 1)
    words = f"{least} to {most}" if least != most else str(most)
    return f"{votes} of {words} reviewers" if votes else f"{words} reviewer{'' if most == 1 else 's'}"


def _aside_count(user: User, now: datetime, hidden: list[str]) -> int:
    if not hidden:
        return 0
    return access.scoped(Approval.objects.pending(now), user).filter(pk__in=hidden).count()


def _unknown(user: User) -> list[Execution]:
    """Outcomes that a person should look at, oldest first."""
    rows = access.scoped(Execution.objects.filter(status=Execution.Status.UNKNOWN), user)
    return list(rows.select_related("action").order_by("claimed_at")[:5])
