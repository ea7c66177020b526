"""The ledger: claim, intent, send, settle. The only place from which a mutation reaches a provider (rule 1).

Claim is a lease with a fencing number. The intent is committed, with its evidence, before the first byte; after it the
action is never sent again. An outcome that is not proven is `unknown` and is settled by reading or by a person.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from approvals import access, evidence, operations
from approvals.errors import Denied
from approvals.evidence import CLOCK, WORKER, Actor, Chain
from approvals.models import (
    Action,
    Approval,
    Decision,
    Endpoint,
    EndpointStatus,
    Execution,
    Kind,
    PolicyRevision,
    Role,
    User,
)
from approvals.nudges import nudge, publish
from approvals.operations import NotYet, Outcome, Stale
from approvals.services.actions import checked_reason, weigh
from approvals.services.approvals import close_approval
from approvals.services.decisions import refuse_changed_endpoint, refuse_stricter, votes
from approvals.sweeps import each
from hermes_portal import clock, redaction, sealing
from hermes_portal.hermes.capabilities import CONTRACTS
from hermes_portal.hermes.client import Call, Client, WireRequest
from hermes_portal.hermes.errors import (
    ConnectFailed,
    CredentialRefused,
    HermesError,
    NotSent,
    OutcomeUnknown,
    Refused,
)
from hermes_portal.transitions import Conflict

log = logging.getLogger(__name__)
Status = Execution.Status
RESULTS = {
    Status.REFUSED: Kind.EXECUTION_REFUSED,
    Status.APPLIED: Kind.EXECUTION_APPLIED,
    Status.NOT_APPLIED: Kind.EXECUTION_NOT_APPLIED,
    Status.UNKNOWN: Kind.EXECUTION_UNKNOWN,
}
SWEEP_SIZE = 200
PAUSE_SECONDS = 0.1
READ_FOR = timedelta(hours=24)  # after that an unknown outcome is left to people
ISSUER = "hermes-portal"


def reached(point: str) -> None:
    """Called at each named point of the ledger. Does nothing; the kill tests stop the process here."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to try an action once, as long as the lease holds and nobody has a higher fence."""

    action_id: UUID
    fence: int


@dataclass(frozen=True, slots=True)
class Intent:
    """A committed intent: what will be sent, on whose behalf, and until when its first byte may leave."""

    action: Action
    fence: int
    request: WireRequest
    call: Call
    sent_at: datetime
    send_until: float


# --- what can be tried -----------------------------------------------------------------------------------------------


def sendable(now: datetime) -> QuerySet[Action]:
    """Actions that may be tried at this instant: in time, approved where that is needed, not taken by anyone."""
    approved = Q(approval__status=Approval.Status.APPROVED, approval__effective_at__gt=now)
    free = Q(execution__isnull=True) | Q(execution__status=Status.CLAIMED, execution__lease_until__lt=now)
    return Action.objects.filter(approved | Q(needs_approval=False), free, send_before__gt=now)


def dispatch() -> int:
    """The sweep behind the nudges. Returns how many actions it woke a worker for."""
    now = clock.now()
    waiting = list(sendable(now).order_by("created_at").values_list("pk", flat=True)[:SWEEP_SIZE])
    for identity in waiting:
        publish("approvals.tasks.execute", str(identity))
    return len(waiting)


# --- one attempt ---------------------------------------------------------------------------------------------------


def execute(action_id: UUID) -> None:
    """Tries one action. Safe to call any number of times, from any number of workers."""
    claim = _claim(action_id)
    if claim is None:
        return
    reached("claimed")
    intent = _intend_soon(claim)
    if intent is None:
        return
    reached("intended")
    outcome = _send(intent)
    reached("answered")
    settle(intent.action.pk, intent.fence, outcome, by="reply")
    reached("settled")


def _claim(action_id: UUID) -> Claim | None:
    """Takes the lease: a new ledger row, or one whose lease has run out. None when it is not ours to try."""
    with transaction.atomic(durable=True):
        now = clock.now()
        action = sendable(now).filter(pk=action_id).select_related("execution").first()
        if action is None:
            return None
        lease = now + timedelta(seconds=settings.LEASE_SECONDS)
        held = getattr(action, "execution", None)
        if held is None:
            return _first_claim(action, now, lease)
        won = Execution.objects.filter(
            pk=action.pk, status=Status.CLAIMED, fence=held.fence, lease_until__lt=now
        ).update(fence=held.fence + 1, lease_until=lease, worker=worker_name())
        return Claim(action.pk, held.fence + 1) if won else None


def _first_claim(action: Action, now: datetime, lease: datetime) -> Claim | None:
    """The insert is the race: one row per action, one open row per lane."""
    try:
        with transaction.atomic():
            Execution.objects.create(
                action=action,
                tenant_id=action.tenant_id,
                lane=action.lane,
                claimed_at=now,
                lease_until=lease,
                worker=worker_name(),
            )
    except IntegrityError:
        return None
    return Claim(action.pk, 1)


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _intend_soon(claim: Claim) -> Intent | None:
    """Tries the intent again for a moment while what stands in its way may pass by itself."""
    patience = time.monotonic() + settings.PATIENCE_SECONDS
    while True:
        try:
            return _intend(claim, last=time.monotonic() >= patience)
        except NotYet:
            time.sleep(PAUSE_SECONDS)


def _intend(claim: Claim, *, last: bool = True) -> Intent | None:
    """Re-checks everything and commits the intent; from here on the action counts as sent.

    Raises NotYet, with nothing written, when another try is wanted.
    """
    started = time.monotonic()
    tenant = Action.objects.select_related("tenant").get(pk=claim.action_id).tenant
    with evidence.chain(tenant, durable=True) as chain:
        action = loaded(claim.action_id)
        mine = Q(fence=claim.fence, lease_until__gt=chain.now)
        if not Execution.objects.filter(mine, pk=action.pk, status=Status.CLAIMED).exists():
            return None
        try:
            with transaction.atomic():
                _recheck(action, chain.now)
                found = operations.get(action.operation).intend(action, chain)
                _consume(action, chain.now)
        except Stale as stale:
            if isinstance(stale, NotYet) and not last:
                raise
            _refuse(chain, action, claim.fence, stale)
            return None
        request = operations.get(action.operation).build(exact_input(action))
        if request.body is not None and request.body != exact_wire(action):
            _refuse(
                chain,
                action,
                claim.fence,
                Stale("wire_changed", "This release would send other bytes. Ask again."),
            )
            return None
        return _commit_intent(chain, action, claim.fence, request, found, started)


def loaded(action_id: UUID) -> Action:
    return Action.objects.select_related(
        "tenant", "endpoint__tenant", "endpoint__seen", "requester", "policy", "approval"
    ).get(pk=action_id)


def _recheck(action: Action, now: datetime) -> None:
    """Rule 3: policy, roles, endpoint and credential once more. Raises Stale.

    A denial on its way releases nothing, so only endpoint, time and its reviewer count.
    """
    if action.send_before <= now:
        raise Stale("too_late", "Its 15 minutes are over.")
    refuse_changed_endpoint(action.endpoint, action.endpoint_revision, action.credential_revision)
    if action.linked_to_id is None:
        _recheck_permission(action)
    if action.needs_approval and votes(action.approval) < max(action.verdict["approvers"], 1):
        raise Stale("approver_role", "Somebody who approved this is no longer a reviewer.")


def _recheck_permission(action: Action) -> None:
    if not access.has_role(action.requester, action.tenant, Role.REQUESTER):
        raise Stale("requester_role", f"{action.requester} is no longer a requester in {action.tenant}.")
    revision = PolicyRevision.objects.filter(tenant=action.tenant_id).order_by("-number").first()
    if revision is None or revision.pk == action.policy_id:
        return
    input = exact_input(action)
    _, verdict = weigh(
        endpoint=action.endpoint,
        operation=action.operation,
        requester=action.requester,
        input=input,
        state=operations.get(action.operation).facts(action.subject, str(input.get("choice", ""))),
    )
    refuse_stricter(action.verdict, verdict, revision)


def _consume(action: Action, now: datetime) -> None:
    """The approval is used up, in the same transaction as the intent."""
    if not action.needs_approval:
        return
    try:
        action.approval.move(Approval.Status.CONSUMED, Q(effective_at__gt=now), closed_at=now)
    except Conflict as conflict:
        late = action.approval.effective_at <= now
        raise Stale(
            "too_late" if late else conflict.code, "Its time is over." if late else conflict.sentence
        ) from None


def _refuse(chain: Chain, action: Action, fence: int, stale: Stale) -> None:
    """Proven unsent: the re-check failed."""
    execution = Execution.objects.get(pk=action.pk)
    if not execution.moves_to(
        Status.REFUSED,
        Q(fence=fence),
        settled_at=chain.now,
        settled_by="recheck",
        code=stale.code,
        sentence=stale.sentence[:1000],
    ):
        return
    outcome = Outcome(Status.REFUSED, stale.code, stale.sentence)
    _append_result(chain, action, execution, outcome, by="recheck", actor=WORKER)
    if action.needs_approval:
        late = stale.code == "too_late"
        end = Approval.Status.EXPIRED if late else Approval.Status.STALE
        close_approval(chain, action.approval, end, f"{stale.sentence} Nothing was sent.", WORKER)
    operations.get(action.operation).settle(action, execution, outcome, chain)
    _next_in_lane(action)


def _commit_intent(
    chain: Chain, action: Action, fence: int, request: WireRequest, found: dict[str, object], started: float
) -> Intent:
    contract = CONTRACTS[action.operation]
    window = settings.SEND_WINDOW_SECONDS
    deadline = min(chain.now + timedelta(seconds=contract.aip_timeout), _ends_at(action))
    send_until = chain.now + timedelta(seconds=window)
    reply_until = send_until + timedelta(seconds=request.timeout + settings.SETTLE_MARGIN_SECONDS)
    Execution.objects.get(pk=action.pk).move(
        Status.SENT, Q(fence=fence), sent_at=chain.now, send_until=send_until, reply_until=reply_until
    )
    voters = list(
        Decision.objects.filter(approval__action=action, verdict=Decision.Verdict.APPROVE)
        .order_by("created_at")
        .values_list("by__username", flat=True)
    )
    chain.append(
        Kind.EXECUTION_INTENT,
        actor=WORKER,
        action=action.pk,
        approval=action.approval.pk if action.needs_approval else None,
        data={
            "method": request.method,
            "path": request.path,
            "input_digest": action.input_digest,
            "wire_digest": action.wire_digest,
            "approvers": voters,
            "fence": fence,
            "worker": worker_name(),
            "send_until": evidence.timestamp(send_until),
            "deadline": evidence.timestamp(deadline),
            "checked": found,
            "provenance": evidence.provenance(action.endpoint),
        },
    )
    call = Call(
        principal=action.requester.get_username(),
        tenant=action.tenant.slug,
        issuer=ISSUER,
        trace_id=action.pk.hex,
        correlation_id=str(action.approval.pk if action.needs_approval else action.pk),
        delegation_chain=(action.requester.get_username(), *voters, "portal"),
        session_id=None,
        deadline=deadline,
        idempotency_key=str(action.pk),
        session_key=request.session_key,
    )
    return Intent(action, fence, request, call, chain.now, started + window)


def _ends_at(action: Action) -> datetime:
    return (
        min(action.send_before, action.approval.effective_at) if action.needs_approval else action.send_before
    )


def _send(intent: Intent) -> Outcome:
    """Sends once. Whatever happens comes back as an outcome; only what is proven is called applied or not applied."""
    operation = operations.get(intent.action.operation)
    endpoint = intent.action.endpoint
    try:
        confirmed = operation.confirm(intent.action, intent.sent_at)
        client = Client(endpoint.target())
        reached("connecting")
        reply = client.send(intent.request, intent.call, send_until=intent.send_until, now=clock.now)
        if endpoint.seen.health != EndpointStatus.Health.OK:
            mark(endpoint.pk, EndpointStatus.Health.OK, "")
        outcome = operation.accepted(intent.action, reply)
        return replace(outcome, found=confirmed | outcome.found)
    except Stale as stale:
        return Outcome(Status.NOT_APPLIED, stale.code, f"{stale.sentence} Nothing was sent.")
    except sealing.CannotOpen:
        return Outcome(
            Status.NOT_APPLIED, "token_unreadable", "The endpoint's token cannot be opened. Nothing was sent."
        )
    except (NotSent, Refused) as error:
        if isinstance(error, CredentialRefused):
            mark(endpoint.pk, EndpointStatus.Health.CREDENTIAL_REFUSED, error.sentence)
        if isinstance(error, ConnectFailed):
            mark(endpoint.pk, EndpointStatus.Health.UNREACHABLE, error.sentence)
        return operation.refused(error) or Outcome(
            Status.NOT_APPLIED, error.code, error.sentence, shown(error, endpoint)
        )
    except OutcomeUnknown as error:
        return Outcome(Status.UNKNOWN, error.code, error.sentence, shown(error, endpoint))
    except Exception as error:  # a fault of ours in reading the reply proves nothing about the provider
        log.exception("The reply to %s could not be handled", intent.action.pk)
        return Outcome(
            Status.UNKNOWN,
            "portal_fault",
            f"The portal failed while it read the answer ({type(error).__name__}).",
        )


def shown(error: HermesError, endpoint: Endpoint) -> dict[str, object]:
    """What a provider said with its refusal, redacted and bounded."""
    own = [endpoint.open_token()]
    return {
        "status": error.status,
        "reason": redaction.excerpt(redaction.redact(error.reason, own=own), 100),
        "detail": redaction.excerpt(redaction.redact(error.detail, own=own), 500),
        "retry_after": None if error.retry_after is None else int(error.retry_after),
    }


def mark(endpoint_pk: UUID, health: str, detail: str) -> None:
    """What was seen of an endpoint, for people."""
    EndpointStatus.objects.filter(pk=endpoint_pk).update(
        health=health, detail=detail[:500], checked_at=clock.now()
    )


# --- settling ------------------------------------------------------------------------------------------------------


def settle(action_id: UUID, fence: int, outcome: Outcome, *, by: str, actor: Actor = WORKER) -> bool:
    """Writes what came of an attempt, once. A later, better answer may only turn `unknown` into something known."""
    tenant = Action.objects.select_related("tenant").get(pk=action_id).tenant
    with evidence.chain(tenant, durable=True) as chain:
        action = loaded(action_id)
        execution = Execution.objects.select_for_update().get(pk=action_id)
        moved = execution.moves_to(
            outcome.status,
            Q(fence=fence),
            settled_at=chain.now,
            settled_by=by,
            code=outcome.code,
            sentence=outcome.sentence[:1000],
            found=outcome.found,
        )
        if not moved:
            if outcome.status != execution.status:
                _append_result(
                    chain, action, execution, outcome, by=by, actor=actor, kind=Kind.EXECUTION_LATE
                )
            return False
        _append_result(chain, action, execution, outcome, by=by, actor=actor)
        operations.get(action.operation).settle(action, execution, outcome, chain)
        _next_in_lane(action)
    return True


def _append_result(
    chain: Chain,
    action: Action,
    execution: Execution,
    outcome: Outcome,
    *,
    by: str,
    actor: Actor,
    kind: Kind | None = None,
) -> None:
    chain.append(
        kind or RESULTS[Status(outcome.status)],
        actor=actor,
        action=action.pk,
        approval=action.approval.pk if action.needs_approval else None,
        data={
            "outcome": str(outcome.status),
            "code": outcome.code,
            "sentence": outcome.sentence,
            "settled_by": by,
            "found": json.loads(json.dumps(outcome.found, default=str)),
            "input_digest": action.input_digest,
            "wire_digest": action.wire_digest,
            "fence": execution.fence,
            "provenance": evidence.provenance(action.endpoint),
        },
    )


def _next_in_lane(action: Action) -> None:
    """Wakes what waited for this lane."""
    waiting = (
        sendable(clock.now()).filter(lane=action.lane).exclude(pk=action.pk).order_by("created_at").first()
    )
    if waiting:
        nudge(waiting)


def settle_overdue() -> int:
    """The sweep that ends every attempt: dead claims, sends without a reply, and what reading can settle."""
    now = clock.now()
    return (
        _each(Execution.objects.filter(status=Status.CLAIMED, lease_until__lt=now), _end_dead_claim)
        + _each(Execution.objects.filter(status=Status.SENT, reply_until__lt=now), _give_up_waiting)
        + _each(Execution.objects.filter(status=Status.UNKNOWN, claimed_at__gt=now - READ_FOR), _read_outcome)
        + each(never_tried(now).select_related("tenant").order_by("created_at")[:SWEEP_SIZE], _lapse)
    )


def never_tried(now: datetime) -> QuerySet[Action]:
    """Actions without a need for approval that no worker took while they could be sent."""
    return Action.objects.filter(needs_approval=False, execution__isnull=True, send_before__lte=now)


def _lapse(action: Action) -> bool:
    with evidence.chain(action.tenant, durable=True) as chain:
        row = Execution(
            action=action,
            tenant=action.tenant,
            lane=action.lane,
            lease_until=chain.now,
            claimed_at=chain.now,
            worker="",
        )
        row.save(force_insert=True)
        _refuse(
            chain, loaded(action.pk), row.fence, Stale("too_late", "No worker was there to send it in time.")
        )
    return True


def _each(rows: QuerySet[Execution], step: Callable[[Execution], bool]) -> int:
    return each(rows.select_related("action__tenant").order_by("claimed_at")[:SWEEP_SIZE], step)


def _end_dead_claim(execution: Execution) -> bool:
    """A claim whose worker died: tried again while it may be, refused once it may not."""
    if sendable(clock.now()).filter(pk=execution.pk).exists():
        publish("approvals.tasks.execute", str(execution.pk))
        return False
    with evidence.chain(execution.action.tenant, durable=True) as chain:
        action = loaded(execution.pk)
        _refuse(chain, action, execution.fence, _why_not(action))
    return True


def _why_not(action: Action) -> Stale:
    """Why an action that was taken by a worker can no longer be sent."""
    if action.needs_approval and action.approval.status not in (
        Approval.Status.APPROVED,
        Approval.Status.EXPIRED,
    ):
        state = action.approval.get_status_display().lower()
        return Stale(f"is_{action.approval.status}", f"Its approval is {state}: {action.approval.closed_why}")
    return Stale("too_late", "No worker sent it in time.")


def _give_up_waiting(execution: Execution) -> bool:
    outcome = Outcome(
        Status.UNKNOWN,
        "worker_lost",
        "The worker was lost after the intent; whether Hermes got the request is not known.",
    )
    settle(execution.pk, execution.fence, outcome, by="lease", actor=CLOCK)
    return True


def _read_outcome(execution: Execution) -> bool:
    outcome = operations.get(execution.action.operation).reconcile(execution.action, execution)
    if outcome is None:
        return False
    seen_before = replace(outcome, found=execution.found | outcome.found)
    return settle(execution.pk, execution.fence, seen_before, by="reading")


def close_unknown(*, action: Action, user: User, reason: str) -> None:
    """A person ends an unknown outcome with a reason. It proves nothing and sends nothing."""
    _require_closer(user, action)
    reason = checked_reason(reason, action.endpoint)
    with evidence.chain(action.tenant) as chain:
        _require_closer(user, action)
        execution = Execution.objects.select_for_update().get(pk=action.pk)
        execution.move(Status.CLOSED, settled_at=chain.now, settled_by="person")
        chain.append(Kind.EXECUTION_CLOSED, actor=Actor.user(user), action=action.pk, data={"reason": reason})


def _require_closer(user: User, action: Action) -> None:
    if not access.has_role(user, action.tenant, Role.REVIEWER, Role.ADMIN):
        raise Denied("Closing an unknown outcome needs the role reviewer or admin.")


# --- exact bytes ---------------------------------------------------------------------------------------------------


def _unsealed(action: Action, blob: bytes | memoryview) -> bytes:
    return sealing.unseal(blob, table="action", tenant=f"{action.tenant_id}:{action.pk}")


def exact_input(action: Action) -> dict[str, object]:
    """The canonical input as it was reviewed."""
    document: dict[str, object] = json.loads(_unsealed(action, action.input))
    return document


def exact_wire(action: Action) -> bytes:
    """The body as it was reviewed; these bytes are sent (rule 3)."""
    return _unsealed(action, action.wire)
