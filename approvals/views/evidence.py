"""Evidence pages for auditors: the chain of each tenant, newest first, and its export."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from approvals import access
from approvals import export as exports
from approvals.evidence import Actor
from approvals.forms import EvidenceFilter, ExportForm
from approvals.models import ChainHead, EvidenceEntry, Kind, Role, Tenant
from approvals.views.frame import is_other_viewer, other_viewer, person, viewer_token
from hermes_portal import clock, redaction

PAGE = 50
BAD = frozenset(
    {
        Kind.APPROVAL_DENIED,
        Kind.APPROVAL_STALE,
        Kind.EXECUTION_REFUSED,
        Kind.EXECUTION_NOT_APPLIED,
        Kind.EXECUTION_UNKNOWN,
        Kind.RUN_LOST,
    }
)
GOOD = frozenset(
    {
        Kind.APPROVAL_VOTED,
        Kind.APPROVAL_APPROVED,
        Kind.EXECUTION_APPLIED,
        Kind.RUN_STARTED,
        Kind.PROMPT_RESPONDED,
    }
)
# Members of an entry's data that say it in one line, in this order.
TELLING = ("choice", "reason", "sentence", "why", "command", "status")
FACT_LIMIT = 400


@dataclass(frozen=True, slots=True)
class Told:
    """An entry in words: what happened, by whom, and the telling members of its data (redacted text)."""

    entry: EvidenceEntry
    what: str
    who: str
    facts: list[tuple[str, str]]
    data: dict[str, Any] | None
    tone: str


def told(entry: EvidenceEntry) -> Told:
    """Needs `payload` loaded; an erased one leaves the entry and its digest."""
    payload = getattr(entry, "payload", None)
    data: dict[str, Any] | None = json.loads(bytes(payload.body))["data"] if payload else None
    facts = [
        (name, str(redaction.excerpt(str(data[name]), FACT_LIMIT)))
        for name in TELLING
        if data and data.get(name)
    ]
    tone = "bad" if entry.kind in BAD else "ok" if entry.kind in GOOD else ""
    what = str(Kind(entry.kind).label)
    if entry.kind == Kind.APPROVAL_APPROVED and data and data.get("choice") == "deny":
        what, tone = "Approved, to deny", ""
    return Told(entry, what, entry.actor.partition(":")[2] or entry.actor, facts, data, tone)


@require_safe
def evidence(request: HttpRequest) -> HttpResponse:
    """One page of entries by keyset (id); only tenants in which one is an auditor."""
    return _page(request, {})


def _page(request: HttpRequest, errors: dict[str, str], status: int = 200) -> HttpResponse:
    audited = list(access.tenants(person(request), Role.AUDITOR).order_by("name"))
    form = EvidenceFilter(request.GET)
    form.is_valid()
    wanted = form.cleaned_data
    rows = EvidenceEntry.objects.filter(tenant__in=audited)
    if wanted.get("tenant"):
        rows = rows.filter(tenant__slug=wanted["tenant"])
    if wanted.get("kind"):
        rows = rows.filter(kind=wanted["kind"])
    if wanted.get("before"):
        rows = rows.filter(pk__lt=wanted["before"])
    found = list(rows.select_related("payload", "tenant").order_by("-pk")[: PAGE + 1])
    context = {
        "section": "evidence",
        "audited": audited,
        "heads": list(ChainHead.objects.filter(tenant__in=audited).select_related("tenant").order_by("name")),
        "rows": [told(entry) for entry in found[:PAGE]],
        "last": found[PAGE - 1] if len(found) > PAGE else None,
        "kinds": Kind.choices,
        "wanted": wanted,
        "now": clock.now(),
        "viewer": viewer_token(person(request)),
        "errors": errors,
    }
    return render(request, "approvals/evidence.html", context, status=status)


@require_POST
def export(request: HttpRequest) -> HttpResponseBase:
    """Streams the stored bytes of one chain and a signed manifest. The export is an entry itself (rule 4)."""
    if is_other_viewer(request):
        return other_viewer(request)
    form = ExportForm(request.POST)
    form.fields["tenant"].queryset = access.tenants(person(request), Role.AUDITOR)  # type: ignore[attr-defined]
    if not form.is_valid():
        return _page(request, {name: str(said[0]) for name, said in form.errors.items()}, 422)
    tenant: Tenant = form.cleaned_data["tenant"]
    lines = exports.start_export(
        tenant=tenant,
        actor=Actor.user(person(request)),
        since=form.cleaned_data["since"],
        until=form.cleaned_data["until"],
    )
    name = f"evidence-{tenant.slug}-{clock.now():%Y%m%dT%H%M%SZ}.jsonl"
    return StreamingHttpResponse(
        _bytes(lines),
        content_type="application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Accel-Buffering": "no"},
    )


def _bytes(lines: exports.Export) -> Iterator[bytes]:
    yield from lines
