"""One approval: what will run, the decision, and the rest; and the commands on it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from approvals import access, operations, services
from approvals.errors import Invalid
from approvals.forms import DecideForm, ReasonForm
from approvals.models import Action, Approval, Decision, Execution, Role, User
from approvals.views.frame import (
    HTMX,
    is_other_viewer,
    other_viewer,
    person,
    problem,
    unchanged,
    viewer_token,
    waiting,
)
from approvals.views.queue import ASIDE, need_words
from hermes_portal import clock, sealing
from hermes_portal.hermes.events import CHOICES
from hermes_portal.transitions import Conflict

Status = Approval.Status
ASIDE_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Standing:
    """What this person may do here now. One reading draws the buttons; the services judge again."""

    decide: bool
    withdraw: bool
    revoke: bool
    why_not: str


def _load(request: HttpRequest, pk: UUID) -> Approval:
    rows = Approval.objects.select_related(
        "tenant", "endpoint__tenant", "endpoint__seen", "requester", "action__execution", "policy"
    )
    return access.get_or_404(rows, person(request), pk=pk)


@require_safe
def approval(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The page and its own poll: `v` is the version that the page shows; 204 when nothing changed."""
    found = _load(request, pk)
    context = _context(request, found)
    if request.headers.get(HTMX) == "true" and request.GET.get("v") == context["version"]:
        return unchanged(context["now"])
    return _drawn(request, context)


def _drawn(request: HttpRequest, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """The page whole, or for htmx the part of it that changes."""
    if request.headers.get(HTMX) != "true":
        return render(request, "approvals/approval.html", context, status=status)
    context |= {"polled": True, "waiting": waiting(person(request))}
    return render(request, "approvals/_approval.html", context, status=status)


def _context(request: HttpRequest, found: Approval, **more: Any) -> dict[str, Any]:
    now = clock.now()
    decisions = list(found.decisions.select_related("by").order_by("created_at"))
    card = operations.get(found.operation).card(found, person(request))
    blocked = _sentence(card.context.get("blocked"))
    standing = _standing(found, person(request), decisions, now, blocked)
    context: dict[str, Any] = {
        "section": "queue",
        "card_template": card.template,
        "approval": found,
        "over": found.status == Status.PENDING and found.effective_at <= now,
        "now": now,
        "decisions": decisions,
        "standing": standing,
        "seen": services.seen_digest(found),
        "denials": list(services.earlier_denials(found)),
        "policies": _policies(found),
        "almost": _almost(found),
        "need": need_words(found, sum(vote.verdict == Decision.Verdict.APPROVE for vote in decisions)),
        "aside": str(found.pk) in request.session.get(ASIDE, []),
        "viewer": viewer_token(person(request)),
        "execution": _execution(found),
        "linked": found.linked_actions.select_related("execution").first()
        if found.status == Status.DENIED and found.offered
        else None,
        "errors": {},
        "notice": "",
        "reason": "",
    }
    context |= card.context | {"blocked": blocked}
    context["version"] = _version(context)
    return context | more


def _sentence(blocked: object) -> str:
    """Why a request cannot be answered now; empty when it can."""
    return str(getattr(blocked, "sentence", blocked or ""))


def _version(context: dict[str, Any]) -> str:
    """Changes with all that is material on the page; never with the clock."""
    found, execution = context["approval"], context["execution"]
    prompt = context.get("prompt")
    parts = (
        context["seen"],
        found.status,
        found.effective_at.isoformat(),
        context["over"],
        len(context["decisions"]),
        context.get("blocked"),
        context["standing"],
        execution and (execution.status, execution.code),
        prompt and prompt.status,
        _delivery(context["linked"]),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _delivery(linked: Action | None) -> str:
    """How far the denial got on its way to Hermes."""
    attempt = getattr(linked, "execution", None)
    return attempt.status if isinstance(attempt, Execution) else ""


def _execution(found: Approval) -> Execution | None:
    attempt = getattr(found.action, "execution", None) if found.action else None
    return attempt if isinstance(attempt, Execution) else None


def _standing(
    found: Approval, user: User, decisions: list[Decision], now: datetime, blocked: str
) -> Standing:
    """Who may do what. The order of the sentences is that of their use to the reader."""
    live = found.effective_at > now
    reviewer = access.has_role(user, found.tenant, Role.REVIEWER)
    own = found.requester_id == user.pk
    voted = any(vote.by_id == user.pk for vote in decisions)
    why_not = ""
    if found.status != Status.PENDING or not live:
        why_not = ""  # the state of the card says it
    elif own and found.offered:
        why_not = (
            "You started this run, so somebody else answers its requests. You may ask for a stop of the run."
        )
    elif own:
        why_not = "You asked for this, so somebody else decides."
    elif not reviewer:
        why_not = f"You may read this. Deciding needs the role reviewer in {found.tenant.name}."
    elif voted:
        why_not = "You have voted. It waits for somebody else."
    elif blocked:
        why_not = blocked
    pending = found.status == Status.PENDING and live
    return Standing(
        decide=pending and not why_not,
        withdraw=pending
        and own
        and not found.offered
        and access.has_role(user, found.tenant, Role.REQUESTER),
        revoke=found.status == Status.APPROVED and live and reviewer,
        why_not=why_not,
    )


def _rank(item: tuple[str, Any]) -> int:
    """The order in which people read the choices; a database keeps none."""
    return CHOICES.index(item[0]) if item[0] in CHOICES else 0


def _policies(found: Approval) -> list[dict[str, Any]]:
    """What policy says, once for all choices of which it says the same."""
    said: list[dict[str, Any]] = []
    for choice, verdict in sorted(found.needs.items(), key=_rank):
        words = {name: verdict.get(name) for name in ("forbidden", "approvers", "sentences")}
        same = next((item for item in said if item["verdict"] == words), None)
        if same:
            same["choices"].append(choice)
        else:
            said.append({"choices": [choice] if choice else [], "verdict": words})
    return said


def _almost(found: Approval) -> list[dict[str, Any]]:
    """Rules that nearly matched, whatever is chosen: a condition on the choice alone is no near miss."""
    misses = {
        miss["number"]: miss
        for verdict in found.needs.values()
        for miss in verdict.get("near", [])
        if miss["field"] != "prompt.choice"
    }
    matched = {match["number"] for verdict in found.needs.values() for match in verdict.get("matched", [])}
    return [miss for number, miss in sorted(misses.items()) if number not in matched]


# --- commands ------------------------------------------------------------------------------------------------------


@require_POST
def decide(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One vote. 422 for a form to correct, 409 when somebody or something was first."""
    found = _load(request, pk)
    if is_other_viewer(request):
        return other_viewer(request)
    form = DecideForm(request.POST)
    if not form.is_valid():
        errors = {name: str(said[0]) for name, said in form.errors.items()}
        return _corrected(request, found, errors)
    vote = {name: form.cleaned_data[name] for name in ("verdict", "choice", "reason", "seen")}
    return _command(
        request, found, lambda: services.decide(approval=found, user=person(request), **vote), "Recorded."
    )


@require_POST
def withdraw(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The requester takes the request back."""
    found = _load(request, pk)
    if is_other_viewer(request):
        return other_viewer(request)
    return _command(
        request,
        found,
        lambda: services.withdraw(approval=found, user=person(request)),
        "Withdrawn. Nothing was sent.",
    )


@require_POST
def revoke(request: HttpRequest, pk: UUID) -> HttpResponse:
    """A reviewer takes an approval back before it is sent."""
    found = _load(request, pk)
    if is_other_viewer(request):
        return other_viewer(request)
    form = ReasonForm(request.POST)
    reason = form.cleaned_data["reason"] if form.is_valid() else request.POST.get("reason", "")
    return _command(
        request,
        found,
        lambda: services.revoke(approval=found, user=person(request), reason=reason),
        "Revoked. Nothing was sent.",
    )


def _command(request: HttpRequest, found: Approval, act: Callable[[], object], said: str) -> HttpResponse:
    """Calls the service and shows the card as it is afterwards."""
    try:
        act()
    except Invalid as invalid:
        return _corrected(request, found, invalid.errors)
    except Conflict as conflict:
        found = _load(request, found.pk)
        return _drawn(request, _context(request, found, notice=conflict.sentence), status=409)
    if request.headers.get(HTMX) == "true":
        return _drawn(request, _context(request, _load(request, found.pk), done=said))
    messages.success(request, said)
    return redirect("approval", pk=found.pk)


def _corrected(request: HttpRequest, found: Approval, errors: dict[str, str]) -> HttpResponse:
    """422: the same card with a sentence beside each field; what was written stays."""
    context = _context(request, found, errors=errors, reason=request.POST.get("reason", "")[:4000])
    return _drawn(request, context, status=422)


@require_POST
def aside(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Hides the card from this person's queue, or shows it again. Sends nothing and decides nothing (case 10)."""
    found = _load(request, pk)
    hidden = [key for key in request.session.get(ASIDE, []) if key != str(found.pk)]
    if request.POST.get("back") == "1":
        messages.info(request, "It is in your queue again.")
    else:
        hidden.append(str(found.pk))
        messages.info(request, "Set aside for you only. Nothing was sent; others still see it.")
    request.session[ASIDE] = hidden[-ASIDE_LIMIT:]
    return HttpResponseRedirect(reverse("queue"))


@require_http_methods(["GET", "HEAD", "POST"])
def exact(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The exact bytes behind a card: a form first, and the bytes only after a reason that is evidence by then."""
    found = _load(request, pk)
    context: dict[str, Any] = {
        "section": "queue",
        "approval": found,
        "may": services.may_look(found, person(request)),
        "viewer": viewer_token(person(request)),
    }
    if request.method != "POST":
        return render(request, "approvals/exact.html", context)
    if is_other_viewer(request):
        return other_viewer(request)
    form = ReasonForm(request.POST)
    reason = form.cleaned_data["reason"] if form.is_valid() else ""
    try:
        context["exact"] = _readable(services.look(approval=found, user=person(request), reason=reason))
    except Invalid as invalid:
        context["errors"] = invalid.errors
        return render(request, "approvals/exact.html", context, status=422)
    except sealing.CannotOpen as locked:
        return problem(
            request, 409, "Cannot be opened", f"{locked} Ask whoever keeps the keys of the portal."
        )
    return render(request, "approvals/exact.html", context)


def _readable(exact: bytes) -> str:
    """JSON with everything but ASCII as escapes, so that no character can hide; other bytes as Python writes them."""
    try:
        return json.dumps(json.loads(exact), ensure_ascii=True, indent=2)
    except (ValueError, RecursionError):
        return ascii(exact.decode("utf-8", "backslashreplace"))
