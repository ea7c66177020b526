"""Actions: the list of what was asked, and the case file of one of them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from approvals import access, execution
from approvals.errors import Invalid
from approvals.forms import ReasonForm
from approvals.keyset import older
from approvals.models import Action, Approval, EvidenceEntry, Execution, Kind, Role
from approvals.views.evidence import told
from approvals.views.frame import HTMX, is_other_viewer, other_viewer, person, unchanged, viewer_token
from hermes_portal import canonical, clock
from hermes_portal.transitions import Conflict

PAGE = 50
TRAIL = 200
ABOUT_RUN = (Kind.RUN_STARTED, Kind.RUN_GAP, Kind.RUN_ENDED, Kind.RUN_LOST)
FOLLOWED = 600.0  # seconds after the last step for which the page asks for news

# What the record cannot show, by operation; rule 9 in the words of each.
LIMITS = {
    "run_start": "A receipt says that Hermes created the run, not that a model or a tool did anything. What the run "
    "did is in its events; effects on other systems are not seen from here.",
    "run_approval": "Hermes said how many waiting requests it resolved. Where its requests have no names, a swap of "
    "the waiting command within the last round trip cannot be excluded; the entry of the intent says when the head of "
    "the line was checked and when the answer was sent.",
    "run_stop": "A stop that was accepted is a request. A run that then ended as cancelled may have finished a tool "
    "call after it; effects that reached other systems are not rolled back.",
}
OTHERWISE = "That Hermes accepted it does not show that its effects took place."
UNSENT = "Nothing was sent for this, so it had no effect through this portal. Others may have done the same elsewhere."
IN_DOUBT = "Whether it had an effect is not known. It was not sent a second time; look at Hermes before you ask again."


@require_safe
def requests(request: HttpRequest) -> HttpResponse:
    """What was asked in one's tenants, newest first, by keyset (created_at, id)."""
    rows = access.scoped(Action.objects.all(), person(request))
    if tenant := request.GET.get("tenant"):
        rows = rows.filter(tenant__slug=tenant)
    if request.GET.get("outcome") == "unknown":
        rows = rows.filter(execution__status=Execution.Status.UNKNOWN)
    found = list(
        older(rows, request.GET.get("before", ""))
        .select_related("endpoint", "tenant", "requester", "approval", "execution")
        .defer("input", "wire", "snapshot", "input_shown", "snapshot_shown", "verdict")
        .order_by("-created_at", "-id")[: PAGE + 1]
    )
    now = clock.now()
    context = {
        "section": "requests",
        "rows": [{"action": action, **state(action, now)} for action in found[:PAGE]],
        "last": found[PAGE - 1] if len(found) > PAGE else None,
        "now": now,
        "narrowed": request.GET.get("tenant", ""),
        "outcome": request.GET.get("outcome", ""),
    }
    return render(request, "approvals/requests.html", context)


def attempt_of(action: Action) -> Execution | None:
    found = getattr(action, "execution", None)
    return found if isinstance(found, Execution) else None


def approval_of(action: Action) -> Approval | None:
    found = getattr(action, "approval", None)
    return found if isinstance(found, Approval) else None


def state(action: Action, now: datetime) -> dict[str, str]:
    """One word for where an action stands, with the code of its colour. Time counts, swept or not (case 8)."""
    attempt, approval = attempt_of(action), approval_of(action)
    if attempt:
        words = str(attempt.get_status_display())
        if attempt.status == Execution.Status.APPLIED and action.operation == "run_stop":
            words = "Stop requested"
        if attempt.status == Execution.Status.APPLIED and action.linked_to_id:
            words = "Denial delivered"
        return {"code": attempt.status, "words": words}
    if approval:
        live = approval.status in (Approval.Status.PENDING, Approval.Status.APPROVED)
        if live and approval.effective_at <= now:
            return {"code": "expired", "words": "Expired"}
        if live and action.linked_to_id:
            return {"code": "pending", "words": "Denial on its way"}
        return {"code": approval.status, "words": str(approval.get_status_display())}
    if action.send_before <= now:
        return {"code": "expired", "words": "Expired before it was sent"}
    return {"code": "pending", "words": "Waiting to be sent"}


@require_safe
def action(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The case file and its own poll: `v` is the number of entries shown; 204 when there are no more."""
    return _case_file(request, _load(request, pk))


def _load(request: HttpRequest, pk: UUID) -> Action:
    rows = Action.objects.select_related(
        "tenant", "endpoint", "requester", "policy", "linked_to", "execution", "approval__policy"
    )
    return access.get_or_404(rows, person(request), pk=pk)


def _case_file(
    request: HttpRequest,
    found: Action,
    errors: dict[str, str] | None = None,
    notice: str = "",
    status: int = 200,
) -> HttpResponse:
    entries = _entries(found)
    attempt, approval, now = attempt_of(found), approval_of(found), clock.now()
    version = f"{len(entries)}.{attempt.status if attempt else ''}.{approval.status if approval else ''}"
    polled = request.headers.get(HTMX) == "true"
    if polled and request.GET.get("v") == version:
        return unchanged(now)
    context: dict[str, Any] = {
        "section": "requests",
        "action": found,
        "approval": approval,
        "attempt": attempt,
        "state": state(found, now),
        "trail": [told(entry) for entry in entries],
        "proof": _proof(entries),
        "limit": _limit(found, attempt),
        "may_close": bool(attempt)
        and attempt is not None
        and attempt.status == Execution.Status.UNKNOWN
        and access.has_role(person(request), found.tenant, Role.REVIEWER, Role.ADMIN),
        "version": version,
        "follow": not entries or (now - entries[-1].at).total_seconds() < FOLLOWED,
        "runs": _runs(found, entries),
        "now": now,
        "viewer": viewer_token(person(request)),
        "errors": errors or {},
        "notice": notice,
        "reason": request.POST.get("reason", "")[:4000] if errors else "",
    }
    return render(
        request, "approvals/_action.html" if polled else "approvals/action.html", context, status=status
    )


def _entries(found: Action) -> Sequence[EvidenceEntry]:
    """Every entry about the action, about the approvals that led to it, and how its run began and ended."""
    approvals = [key for key in (found.linked_to_id, getattr(approval_of(found), "pk", None)) if key]
    about = EvidenceEntry.objects.filter(tenant=found.tenant_id)
    runs = about.filter(Q(action_id=found.pk) | Q(approval_id__in=approvals), run_id__isnull=False).values(
        "run_id"
    )
    rows = about.filter(
        Q(action_id=found.pk) | Q(approval_id__in=approvals) | Q(run_id__in=runs, kind__in=ABOUT_RUN)
    )
    return list(rows.select_related("payload").order_by("seq")[:TRAIL])


def _runs(found: Action, entries: Sequence[EvidenceEntry]) -> list[str]:
    """The runs that it is about: those of its entries, and the one that it names as its subject (a stop)."""
    kind, _, named = found.subject.partition(":")
    runs = {str(entry.run_id) for entry in entries if entry.run_id}
    return sorted(runs | ({named} if kind == "run" else set()))


def _proof(entries: Sequence[EvidenceEntry]) -> dict[str, Any]:
    """What can be checked while the page is drawn: that each stored entry still has its digest."""
    if not entries:
        return {}
    return {
        "first": entries[0].seq,
        "last": entries[-1].seq,
        "count": len(entries),
        "broken": [entry.seq for entry in entries if canonical.sha256(bytes(entry.body)) != entry.digest],
    }


def _limit(found: Action, attempt: Execution | None) -> str:
    """What the record does not prove."""
    if attempt is None or attempt.status in (Execution.Status.CLAIMED, Execution.Status.REFUSED):
        return UNSENT
    if attempt.status in (Execution.Status.UNKNOWN, Execution.Status.CLOSED, Execution.Status.SENT):
        return IN_DOUBT
    return LIMITS.get(found.operation, OTHERWISE)


@require_POST
def close(request: HttpRequest, pk: UUID) -> HttpResponse:
    """A person ends an unknown outcome with a reason. It sends nothing."""
    found = _load(request, pk)
    if is_other_viewer(request):
        return other_viewer(request)
    form = ReasonForm(request.POST)
    if not form.is_valid():
        return _case_file(
            request, found, {name: str(said[0]) for name, said in form.errors.items()}, status=422
        )
    if attempt_of(found) is None:
        return _case_file(
            request, found, notice="Nothing was sent for this, so there is nothing to close.", status=409
        )
    try:
        execution.close_unknown(action=found, user=person(request), reason=form.cleaned_data["reason"])
    except Invalid as invalid:
        return _case_file(request, found, invalid.errors, status=422)
    except Conflict as conflict:
        return _case_file(request, _load(request, pk), notice=conflict.sentence, status=409)
    messages.success(request, "Closed, with your reason. Nothing was sent.")
    return redirect("action", pk=found.pk)
