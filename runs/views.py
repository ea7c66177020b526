"""Pages of runs: the list, the start form, one run with its transcript, and asking for a stop."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from approvals import access, services
from approvals.errors import Forbidden, Invalid
from approvals.keyset import older
from approvals.models import Action, Approval, Endpoint, Role, User
from approvals.views.frame import HTMX, is_other_viewer, other_viewer, person, unchanged, viewer_token
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from runs import practice as practice_runs
from runs.forms import StartForm, StopForm, field_of, fresh_key
from runs.models import Prompt, Run, RunEvent
from runs.operations import start_again_at
from runs.states import BUSY, BUSY_CODES, STREAMS, meaning_of

PAGE = 50
ROWS = 200  # of a transcript in one answer; the page stays bounded however long the run is
SLOW_POLL_SECONDS = 10.0
NO_RECEIPT = "There is no receipt yet, so there is nothing to stop yet."


# --- list ----------------------------------------------------------------------------------------------------------


@require_safe
def runs(request: HttpRequest) -> HttpResponse:
    """The newest runs of one's tenants, by keyset (created_at, id)."""
    rows = access.scoped(Run.objects.all(), person(request))
    if tenant := request.GET.get("tenant"):
        rows = rows.filter(tenant__slug=tenant)
    found = list(
        older(rows, request.GET.get("before", ""))
        .select_related("endpoint", "tenant", "requester")
        .defer("output", "error")
        .order_by("-created_at", "-id")[: PAGE + 1]
    )
    context = {
        "section": "runs",
        "runs": found[:PAGE],
        "last": found[PAGE - 1] if len(found) > PAGE else None,
        "now": clock.now(),
        "narrowed": request.GET.get("tenant", ""),
    }
    return render(request, "runs/runs.html", context)


# --- start ---------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest) -> HttpResponse:
    """The form, and the request that it makes. A repeated key leads to the run that it made first."""
    endpoints = _endpoints(person(request))
    if request.method != "POST":
        return _start_page(request, endpoints, {"idempotency_key": fresh_key()})
    if is_other_viewer(request):
        return other_viewer(request)
    form = StartForm(request.POST)
    form.fields["endpoint"].queryset = endpoints  # type: ignore[attr-defined]
    if not form.is_valid():
        errors = {name: str(said[0]) for name, said in form.errors.items()}
        return _start_page(request, endpoints, request.POST.dict(), errors)
    try:
        requested = services.request(
            user=person(request),
            endpoint=form.cleaned_data["endpoint"],
            operation="run_start",
            raw=form.raw(),
            reason=form.cleaned_data["reason"],
            key=form.cleaned_data["idempotency_key"] or fresh_key(),
        )
    except Invalid as invalid:
        errors = {field_of(member): sentence for member, sentence in invalid.errors.items()}
        return _start_page(request, endpoints, request.POST.dict(), errors)
    except Forbidden as forbidden:
        return _start_page(request, endpoints, request.POST.dict(), {"": forbidden.sentence})
    except Conflict as conflict:
        return _start_page(request, endpoints, request.POST.dict(), {"": conflict.sentence}, status=409)
    _say_replay(request, requested)
    return redirect("run", pk=_run_of(requested.action, person(request)).pk)


def _endpoints(user: User) -> QuerySet[Endpoint]:
    """Where this person may ask for runs. A disabled one is listed: the service says what is wrong with it."""
    return (
        access.scoped(Endpoint.objects.all(), user, Role.REQUESTER)
        .select_related("tenant")
        .order_by("endpoint_id")
    )


def _start_page(
    request: HttpRequest,
    endpoints: QuerySet[Endpoint],
    values: dict[str, Any],
    errors: dict[str, str] | None = None,
    status: int = 422,
) -> HttpResponse:
    context = {
        "section": "runs",
        "endpoints": list(endpoints),
        "values": values,
        "errors": errors or {},
        "general": (errors or {}).get("", ""),
        "viewer": viewer_token(person(request)),
        "limit": f"{settings.INPUT_LIMIT_BYTES:,}",
    }
    return render(request, "runs/start.html", context, status=status if errors else 200)


def _say_replay(request: HttpRequest, requested: services.Requested) -> None:
    if not requested.replayed:
        return
    if requested.input_matches:
        messages.info(
            request, "This key was used before: here is the run that it made then. Nothing new was asked."
        )
    else:
        messages.warning(
            request,
            "This key was used before with another input: here is what it made then. What you wrote now was not sent; "
            "open the form again for a new key.",
        )


def _run_of(action: Action, user: User) -> Run:
    """The run of a start that this person may see; a replayed key may belong to nobody else (rule 12)."""
    return access.get_or_404(Run.objects.all(), user, action=action)


@require_POST
def practice(request: HttpRequest) -> HttpResponse:
    """Another practice run of the demo. Elsewhere this address does not exist.

    Whoever is in the demo's tenant may press it; the run is asked for by the demo's own account.
    """
    if not settings.PORTAL_DEMO:
        raise Http404
    endpoint = (
        access.scoped(Endpoint.objects.filter(enabled=True), person(request))
        .select_related("tenant")
        .order_by("pk")
        .first()
    )
    if endpoint is None:
        raise Http404
    try:
        requested = practice_runs.start(endpoint, by=person(request).get_username())
    except Conflict as conflict:
        messages.error(request, conflict.sentence)
        return redirect("queue")
    messages.info(request, "A practice run was asked for. Its request comes into the queue in a few seconds.")
    return redirect("run", pk=requested.action.run.pk)


# --- one run -------------------------------------------------------------------------------------------------------


@require_safe
def run(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The page and its own poll: `after` and `v` are what the page has; 204 when there is nothing new."""
    found = _load(request, pk)
    after = _ordinal(request.GET.get("after"))
    if request.headers.get(HTMX) == "true" and after is not None:
        return _news(request, found, after)
    before = _ordinal(request.GET.get("before"))
    events = _last(found, before)
    context = _state(request, found) | {
        "events": events,
        "earlier": events[0].ordinal if events and events[0].ordinal > 0 else None,
        "live": before is None,
        "last_ordinal": events[-1].ordinal if events else -1,
        "state_version": _state_version(found),
    }
    return render(request, "runs/run.html", context)


def _load(request: HttpRequest, pk: UUID) -> Run:
    rows = Run.objects.select_related(
        "tenant", "endpoint__tenant", "endpoint__seen", "requester", "action__execution", "action__approval"
    )
    return access.get_or_404(rows, person(request), pk=pk)


def _ordinal(text: str | None) -> int | None:
    """A position in the transcript, -1 before its first row; None when it is none."""
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if -1 <= value < 2**62 else None


def _last(found: Run, before: int | None) -> list[RunEvent]:
    rows = found.events.all() if before is None else found.events.filter(ordinal__lt=before)
    return list(rows.order_by("-ordinal")[:ROWS])[::-1]


def _news(request: HttpRequest, found: Run, after: int) -> HttpResponse:
    """New rows and, when it moved, the state. Rows are appended; nothing that was read is replaced."""
    events = list(found.events.filter(ordinal__gt=after).order_by("ordinal")[:ROWS])
    version = _state_version(found)
    moved = request.GET.get("v") != version
    if not events and not moved:
        return unchanged(clock.now())
    context = {
        "run": found,
        "events": events,
        "last_ordinal": events[-1].ordinal if events else after,
        "moved": moved,
        "state_version": version,
        "now": clock.now(),
        "poll": _poll(found),
    }
    if moved:
        context |= _state(request, found)
    return render(request, "runs/_news.html", context)


def _state_version(found: Run) -> str:
    """The run's own counter, and what else its state box shows."""
    attempt = getattr(found.action, "execution", None)
    approval = getattr(found.action, "approval", None)
    return f"{found.version}.{attempt.status if attempt else ''}.{approval.status if approval else ''}"


def _poll(found: Run) -> float:
    over = found.status in Run.TERMINAL and found.stream in (Run.Stream.ENDED, Run.Stream.BROKEN)
    return max(SLOW_POLL_SECONDS, settings.PAGE_POLL_SECONDS) if over else settings.PAGE_POLL_SECONDS


def _state(request: HttpRequest, found: Run) -> dict[str, Any]:
    """What is known of the run beside its transcript."""
    now = clock.now()
    attempt = getattr(found.action, "execution", None)
    stops = list(
        Action.objects.filter(subject=f"run:{found.pk}", operation="run_stop", tenant=found.tenant_id)
        .select_related("approval", "execution", "requester")
        .order_by("-created_at")[:5]
    )
    return {
        "section": "runs",
        "run": found,
        "now": now,
        "meaning": meaning_of(found),
        "stream": STREAMS[found.stream],
        "attempt": attempt,
        "busy": BUSY if attempt and attempt.code in BUSY_CODES else "",
        "again": start_again_at(attempt),
        "approval": getattr(found.action, "approval", None),
        "prompts": _prompts(found),
        "stops": stops,
        "stop": _may_stop(found, person(request), stops, now),
        "stop_key": fresh_key(),
        "viewer": viewer_token(person(request)),
        "ended": found.status in Run.TERMINAL,
        "poll": _poll(found),
    }


def _prompts(found: Run) -> Sequence[dict[str, Any]]:
    """The newest requests of the run, each with its latest approval."""
    rows = list(Prompt.objects.filter(run=found).order_by("-ordinal")[:20])[::-1]
    cards = {
        row.subject: row
        for row in Approval.objects.filter(
            tenant=found.tenant_id, subject__in=[row.subject for row in rows], operation="run_approval"
        ).order_by("created_at")
    }
    return [{"prompt": row, "approval": cards.get(row.subject)} for row in rows]


def _may_stop(found: Run, user: User, stops: Sequence[Action], now: datetime) -> dict[str, str]:
    """`offer` is set when the form is drawn; otherwise `why_not` says what stands in the way."""
    if found.status in Run.BEFORE or not found.provider_run_id:
        return (
            {"why_not": "There is no receipt yet, so there is nothing to stop yet."}
            if found.status in Run.BEFORE
            else {}
        )
    if found.status not in Run.LIVE:
        return {}
    if found.stop_asked_at:
        return {
            "why_not": f"A stop was sent at {found.stop_asked_at:%H:%M:%S} UTC. It is a request, not an end."
        }
    if any(_waits(stop, now) for stop in stops):
        return {"why_not": "A stop waits for its approval."}
    if not access.has_role(user, found.tenant, Role.REQUESTER):
        return {"why_not": f"Asking for a stop needs the role requester in {found.tenant.name}."}
    return {"offer": "yes"}


def _waits(stop: Action, now: datetime) -> bool:
    approval = getattr(stop, "approval", None)
    live = (Approval.Status.PENDING, Approval.Status.APPROVED)
    return approval is not None and approval.status in live and approval.effective_at > now


@require_POST
def stop(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Asks for a stop. It is sent after its approval, and what Hermes then accepts is a request (rule 9)."""
    found = _load(request, pk)
    if is_other_viewer(request):
        return other_viewer(request)
    form = StopForm(request.POST)
    if not form.is_valid():
        return _run_page(request, found, {name: str(said[0]) for name, said in form.errors.items()})
    try:
        requested = services.request(
            user=person(request),
            endpoint=found.endpoint,
            operation="run_stop",
            raw={"run_id": found.provider_run_id},
            reason=form.cleaned_data["reason"],
            key=form.cleaned_data["idempotency_key"] or fresh_key(),
        )
    except Invalid as invalid:
        errors = dict(invalid.errors)
        if "run_id" in errors:
            return _run_page(request, found, {"": NO_RECEIPT}, 409)
        return _run_page(request, found, errors)
    except Forbidden as forbidden:
        return _run_page(request, found, {"": forbidden.sentence})
    except Conflict as conflict:
        return _run_page(request, found, {"": conflict.sentence}, 409)
    if requested.replayed:
        messages.info(request, "This was asked already; here it is.")
    else:
        messages.success(request, "Asked for. A stop is sent after its approval.")
    return redirect("action", pk=requested.action.pk)


def _run_page(request: HttpRequest, found: Run, errors: dict[str, str], status: int = 422) -> HttpResponse:
    """The run's page with what is wrong beside the stop form."""
    events = _last(found, None)
    context = _state(request, found) | {
        "events": events,
        "earlier": events[0].ordinal if events and events[0].ordinal > 0 else None,
        "live": True,
        "last_ordinal": events[-1].ordinal if events else -1,
        "state_version": _state_version(found),
        "errors": errors,
        "general": errors.get("", ""),
        "reason": request.POST.get("reason", "")[:4000],
    }
    return render(request, "runs/run.html", context, status=status)
