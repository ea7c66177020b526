"""The life of an approval around its decision: opened, narrowed, and closed in one of its ways."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from approvals import access, evidence, operations
from approvals.errors import Denied
from approvals.evidence import CLOCK, Actor, Chain
from approvals.models import (
    Action,
    Approval,
    Decision,
    Endpoint,
    Kind,
    PolicyRevision,
    Role,
    User,
)
from approvals.services.actions import checked_reason, policy_evidence
from approvals.sweeps import each
from hermes_portal import canonical, clock, redaction
from hermes_portal.ids import uuid7
from hermes_portal.transitions import Conflict

Status = Approval.Status
CLOSING = {
    Status.EXPIRED: Kind.APPROVAL_EXPIRED,
    Status.WITHDRAWN: Kind.APPROVAL_WITHDRAWN,
    Status.REVOKED: Kind.APPROVAL_REVOKED,
    Status.STALE: Kind.APPROVAL_STALE,
}
SWEEP_SIZE = 200


# --- opening -----------------------------------------------------------------------------------------


def open_approval(
    chain: Chain,
    *,
    endpoint: Endpoint,
    operation: str,
    requester: User,
    reason: str,
    title: str,
    context: str,
    subject: str,
    subject_digest: str,
    offered: list[str],
    needs: dict[str, dict[str, Any]],
    policy: PolicyRevision | None,
    effective_at: datetime,
    effective_why: str,
    action: Action | None = None,
    run: object = None,
) -> Approval:
    """Opens the 15-minute record about a subject. `effective_at` is the earliest of its deadlines (rule 7)."""
    identity = uuid7()
    approval = Approval.objects.create(
        id=identity,
        tenant=endpoint.tenant,
        endpoint=endpoint,
        operation=operation,
        requester=requester,
        reason=reason,
        title=title,
        context=context,
        subject=subject,
        subject_digest=subject_digest,
        action=action,
        created_at=chain.now,
        effective_at=effective_at,
        effective_why=effective_why,
        offered=offered,
        needs=needs,
        policy=policy,
        endpoint_revision=endpoint.revision,
        credential_revision=endpoint.credential_revision,
    )
    chain.append(
        Kind.APPROVAL_OPENED,
        actor=Actor.provider(endpoint) if offered else Actor.user(requester),
        approval=identity,
        action=action.pk if action else None,
        run=str(run) if run else None,
        data={
            "capability": approval.capability_id,
            "subject": subject,
            "subject_digest": subject_digest,
            "title": title,
            "requester": requester.get_username(),
            "reason": reason,
            "offered": offered,
            "needs": {choice: policy_evidence(policy, verdict) for choice, verdict in needs.items()},
            "ends_at": evidence.timestamp(effective_at),
            "ends_why": effective_why,
            "redactor": redaction.VERSION,
        },
    )
    return approval


# --- what was on the screen ----------------------------------------------------------------------------------------


def seen_digest(approval: Approval) -> str:
    """The digest of all that a decision rests on. Not the clock, the transcript or who else looks at it."""
    action = approval.action
    return canonical.digest(
        {
            "schema": 1,
            "approval": str(approval.pk),
            "capability": approval.capability_id,
            "endpoint_revision": approval.endpoint_revision,
            "credential_revision": approval.credential_revision,
            "subject_digest": approval.subject_digest,
            "input_digest": action.input_digest if action else None,
            "wire_digest": action.wire_digest if action else None,
            "snapshot_digest": action.snapshot_digest if action else None,
            "offered": approval.offered,
            "fixed_choice": approval.fixed_choice,
            "reason": approval.reason,
            "requester": approval.requester.get_username(),
            "needs": canonical.digest(approval.needs),
            "policy": approval.policy.digest if approval.policy else None,
            "redactor": redaction.VERSION,
        }
    )


# --- closing -------------------------------------------------------------------------------------------------------


def close_approval(chain: Chain, approval: Approval, to: str, why: str, actor: Actor) -> bool:
    """Ends a live approval with evidence. False when something else ended it first."""
    if not approval.moves_to(to, closed_at=chain.now, closed_why=why[:500]):
        return False
    chain.append(
        CLOSING[Status(to)],
        actor=actor,
        approval=approval.pk,
        action=approval.action_id,
        data={"why": why},
    )
    operations.get(approval.operation).abandoned(approval, chain)
    return True


def withdraw(*, approval: Approval, user: User) -> None:
    """The requester takes a pending request back. Nothing is sent."""
    _require_requester(approval, user)
    if approval.offered:
        raise Denied("Hermes asked this, not you. To end the run, ask for a stop.")
    with evidence.chain(approval.tenant) as chain:
        approval = locked(approval)
        _require_requester(approval, user)
        if approval.status == Status.APPROVED:
            raise Conflict("This was approved meanwhile. A reviewer can revoke it until it is sent.")
        if not close_approval(
            chain, approval, Status.WITHDRAWN, "Withdrawn by the requester.", Actor.user(user)
        ):
            raise Conflict(
                f"This is {approval.get_status_display().lower()} by now; nothing is left to withdraw."
            )


def _require_requester(approval: Approval, user: User) -> None:
    if approval.requester_id != user.pk or not access.has_role(user, approval.tenant, Role.REQUESTER):
        raise Denied("Only the person who asked can withdraw this.")


def revoke(*, approval: Approval, user: User, reason: str) -> None:
    """A reviewer takes an approval back, until the intent is committed. Nothing is sent."""
    access.require(user, approval.tenant, Role.REVIEWER)
    reason = checked_reason(reason, approval.endpoint)
    with evidence.chain(approval.tenant) as chain:
        approval = locked(approval)
        access.require(user, approval.tenant, Role.REVIEWER)
        if not close_approval(chain, approval, Status.REVOKED, reason, Actor.user(user)):
            raise Conflict(f"This is {approval.get_status_display().lower()}; it can no longer be revoked.")


def expire() -> int:
    """Makes what has run out look so. Correctness never waits for it (rule 2)."""
    overdue = Approval.objects.filter(
        status__in=(Status.PENDING, Status.APPROVED), effective_at__lte=clock.now()
    ).select_related("tenant")
    return each(overdue.order_by("effective_at")[:SWEEP_SIZE], _expire)


def _expire(approval: Approval) -> bool:
    with evidence.chain(approval.tenant) as chain:
        approval = locked(approval)
        if approval.effective_at > chain.now:
            return False
        why = {
            "approval_lifetime": "Nobody decided and sent it within 15 minutes.",
            "provider_wait": "Hermes has stopped waiting for an answer.",
        }.get(approval.effective_why, "Its deadline has passed.")
        return close_approval(chain, approval, Status.EXPIRED, f"{why} Nothing was sent.", CLOCK)


def locked(approval: Approval) -> Approval:
    """The fresh row, locked, with all that its checks read."""
    return (
        Approval.objects.select_for_update(of=("self",))
        .select_related("tenant", "endpoint__tenant", "endpoint__seen", "requester", "action", "policy")
        .get(pk=approval.pk)
    )


def earlier_denials(approval: Approval) -> Iterable[Decision]:
    """Denials of the same input in this tenant, newest first: they are shown on the new card (case 6)."""
    if approval.action is None:
        return Decision.objects.none()
    same = Action.objects.filter(tenant=approval.tenant_id, input_likeness=approval.action.input_likeness)
    return (
        Decision.objects.filter(
            approval__action__in=same, verdict=Decision.Verdict.DENY, approval__status=Status.DENIED
        )
        .exclude(approval=approval.pk)
        .select_related("by")
        .order_by("-created_at")[:3]
    )
