"""Deciding: one reviewer's vote, on what was shown, in time; and the checks that it shares with the ledger."""

from datetime import datetime
from typing import Any

from django.db.models import Q

from approvals import access, evidence, operations
from approvals.errors import Denied, Invalid
from approvals.evidence import CLOCK, Actor, Chain
from approvals.models import Action, Approval, Decision, Endpoint, Kind, PolicyRevision, Role, User
from approvals.nudges import nudge
from approvals.services.actions import DENIAL, checked_reason, make_action, weigh
from approvals.services.approvals import close_approval, locked, open_approval, seen_digest
from hermes_portal.transitions import Conflict

Status = Approval.Status


def decide(
    *, approval: Approval, user: User, reason: str, seen: str, verdict: str = "", choice: str = ""
) -> Decision:
    """One reviewer's vote. For a prompt the choice is the decision; deny by one ends the approval.

    Raises Denied (not this person), Invalid (correct the form), Conflict (somebody or something was first).
    """
    access.require(user, approval.tenant, Role.REVIEWER)
    if approval.requester_id == user.pk:
        raise Denied("You asked for this yourself. Somebody else has to decide.")
    reason = checked_reason(reason, approval.endpoint)
    choice = _checked_choice(approval, verdict, choice)
    stale: operations.Stale | None = None
    decision: Decision | None = None
    with evidence.chain(approval.tenant) as chain:
        approval = locked(approval)
        access.require(user, approval.tenant, Role.REVIEWER)  # once more, now that no role can change
        _refuse_late(approval, user, chain.now)
        if seen != seen_digest(approval):
            raise Conflict(
                "The card has changed since you opened it. Load it again and decide on what it shows now."
            )
        try:
            _refuse_stale(approval, choice)
        except operations.Stale as found:
            stale = found
            close_approval(chain, approval, Status.STALE, found.sentence, CLOCK)
        else:
            _refuse_blocked(approval, choice, chain.now)
            decision = _vote(chain, approval, user, verdict, choice, reason, seen)
    if decision is None:
        assert stale is not None
        raise Conflict(stale.sentence, code=stale.code)
    return decision


def _checked_choice(approval: Approval, verdict: str, choice: str) -> str:
    """The exact choice for a prompt, empty otherwise. Only what the event offered, byte for byte (case 4)."""
    if not approval.offered:
        if verdict not in Decision.Verdict.values:
            raise Invalid("verdict", "Choose approve or deny.")
        return ""
    wanted = "deny" if verdict == Decision.Verdict.DENY else choice
    if wanted not in approval.offered:
        raise Invalid("choice", f"Choose one of what Hermes offered: {', '.join(approval.offered)}.")
    return wanted


def _refuse_late(approval: Approval, user: User, now: datetime) -> None:
    """Raises Conflict naming who or what was first."""
    votes = list(approval.decisions.select_related("by").order_by("created_at"))
    if approval.status != Status.PENDING:
        last = votes[-1] if votes else None
        if last and approval.status in (Status.APPROVED, Status.DENIED, Status.CONSUMED):
            who = "You" if last.by_id == user.pk else last.by.get_username()
            word = "denied" if approval.status == Status.DENIED else "approved"
            raise Conflict(f"{who} {word} this at {last.created_at:%H:%M:%S} UTC.", code="already_decided")
        why = f": {approval.closed_why}" if approval.closed_why else "."
        raise Conflict(f"This is {approval.get_status_display().lower()}{why}", code=f"is_{approval.status}")
    if approval.effective_at <= now:
        raise Conflict(
            f"This expired at {approval.effective_at:%H:%M:%S} UTC. Nothing was sent.", code="is_expired"
        )
    if any(vote.by_id == user.pk for vote in votes):
        raise Conflict("You have voted on this already. It waits for somebody else.", code="already_voted")


def _refuse_stale(approval: Approval, choice: str) -> None:
    """Raises Stale when configuration or policy would have changed the picture (rule 3)."""
    refuse_changed_endpoint(approval.endpoint, approval.endpoint_revision, approval.credential_revision)
    revision = PolicyRevision.objects.filter(tenant=approval.tenant_id).order_by("-number").first()
    if choice == "deny" or revision is None or revision.pk == approval.policy_id:
        return
    known = operations.get(approval.operation)
    _, verdict = weigh(
        endpoint=approval.endpoint,
        operation=approval.operation,
        requester=approval.requester,
        input=known.policy_input(approval, choice),
        state=known.facts(approval.subject, choice),
    )
    refuse_stricter(approval.need(choice), verdict, revision)


def refuse_changed_endpoint(endpoint: Endpoint, revision: int, credential_revision: int) -> None:
    if not endpoint.enabled:
        raise operations.Stale("endpoint_disabled", f"The endpoint {endpoint.endpoint_id} was disabled.")
    if endpoint.revision != revision:
        raise operations.Stale(
            "endpoint_changed", f"The endpoint {endpoint.endpoint_id} was changed since. Ask again."
        )
    if endpoint.credential_revision != credential_revision:
        raise operations.Stale(
            "credential_changed", f"The token of {endpoint.endpoint_id} was replaced since. Ask again."
        )


def refuse_stricter(before: dict[str, Any], after: dict[str, Any], revision: PolicyRevision) -> None:
    """A policy that became stricter wins; one that became looser changes nothing."""
    if after["forbidden"] and not before["forbidden"]:
        raise operations.Stale(
            "policy_forbids", f"Policy revision {revision.number} forbids it: {after['forbidden']}"
        )
    if after["approvers"] > before["approvers"]:
        raise operations.Stale(
            "policy_stricter",
            f"Policy revision {revision.number} now needs {after['approvers']} approvers. Ask again.",
        )


def _refuse_blocked(approval: Approval, choice: str, now: datetime) -> None:
    """Raises Invalid for a forbidden or already fixed other choice, Conflict for what stands in the way now."""
    if forbidden := approval.need(choice)["forbidden"]:
        raise Invalid("choice" if choice else "verdict", forbidden)
    if choice and choice != "deny" and approval.fixed_choice and choice != approval.fixed_choice:
        raise Conflict(f"The first vote fixed the choice {approval.fixed_choice}; vote on that one or deny.")
    try:
        operations.get(approval.operation).decidable(approval, choice, now)
    except operations.Stale as blocked:
        raise Conflict(blocked.sentence, code=blocked.code) from blocked


def _vote(
    chain: Chain, approval: Approval, user: User, verdict: str, choice: str, reason: str, seen: str
) -> Decision:
    denies = choice == "deny" or (not choice and verdict == Decision.Verdict.DENY)
    decision = _record(
        chain,
        approval,
        user,
        Decision.Verdict.DENY if denies else Decision.Verdict.APPROVE,
        choice,
        reason,
        seen,
    )
    if denies:
        _deny(chain, approval, decision)
    else:
        _approve(chain, approval, decision)
    return decision


def _record(
    chain: Chain, approval: Approval, user: User, verdict: str, choice: str, reason: str, seen: str
) -> Decision:
    return Decision.objects.create(
        tenant=approval.tenant,
        approval=approval,
        by=user,
        requester=approval.requester,
        verdict=verdict,
        choice=choice,
        reason=reason,
        seen=seen,
        created_at=chain.now,
    )


def _voted(decision: Decision, **more: Any) -> dict[str, Any]:
    return {"choice": decision.choice, "reason": decision.reason, "seen": decision.seen, **more}


def _deny(chain: Chain, approval: Approval, decision: Decision) -> None:
    """Final for this record. A prompt's deny is sent to Hermes by a linked action, so that the run does not wait."""
    approval.move(
        Status.DENIED, Q(effective_at__gt=chain.now), closed_at=chain.now, closed_why=decision.reason[:500]
    )
    chain.append(
        Kind.APPROVAL_DENIED,
        actor=Actor.user(decision.by),
        approval=approval.pk,
        action=approval.action_id,
        data=_voted(decision),
    )
    if not approval.offered:
        operations.get(approval.operation).abandoned(approval, chain)
        return
    linked = _choice_action(chain, approval, decision, "deny", DENIAL, linked_to=approval)
    carrier = open_approval(
        chain,
        endpoint=approval.endpoint,
        operation=approval.operation,
        requester=approval.requester,
        reason=approval.reason,
        title=linked.title,
        context=f"tells Hermes of the denial by {decision.by.get_username()}",
        subject=f"action:{linked.pk}",
        subject_digest=linked.input_digest,
        offered=[],
        needs={"": linked.verdict},
        policy=approval.policy,
        effective_at=approval.effective_at,
        effective_why=approval.effective_why,
        action=linked,
    )
    same_vote = _record(
        chain, carrier, decision.by, Decision.Verdict.APPROVE, "deny", decision.reason, decision.seen
    )
    _approve(chain, carrier, same_vote)


def _choice_action(
    chain: Chain,
    approval: Approval,
    decision: Decision,
    choice: str,
    verdict: dict[str, Any],
    linked_to: Approval | None = None,
) -> Action:
    """The action that a choice means, asked for by whoever the approval is for and caused by this vote."""
    asked = operations.get(approval.operation).choice_input(approval, choice)
    return make_action(
        chain,
        endpoint=approval.endpoint,
        operation=approval.operation,
        requester=approval.requester,
        reason=approval.reason,
        asked=asked,
        key=asked.key,
        revision=approval.policy,
        verdict=verdict,
        linked_to=linked_to,
        actor=Actor.user(decision.by),
    )


def _approve(chain: Chain, approval: Approval, decision: Decision) -> None:
    """Counts the votes; the first one on a prompt makes its action and so fixes the input."""
    choice = "" if approval.action_id else decision.choice
    if approval.action_id is None:
        approval.action = _choice_action(chain, approval, decision, choice, approval.need(choice))
        approval.fixed_choice = choice
        approval.save(update_fields=["action", "fixed_choice"])
    have, need = votes(approval), approval.need(approval.fixed_choice)["approvers"]
    if have < need:
        chain.append(
            Kind.APPROVAL_VOTED,
            actor=Actor.user(decision.by),
            approval=approval.pk,
            action=approval.action_id,
            data=_voted(decision, votes=have, needed=need),
        )
        return
    approval.move(Status.APPROVED, Q(effective_at__gt=chain.now))
    chain.append(
        Kind.APPROVAL_APPROVED,
        actor=Actor.user(decision.by),
        approval=approval.pk,
        action=approval.action_id,
        data=_voted(decision, votes=have, needed=need),
    )
    assert approval.action is not None
    nudge(approval.action)


def votes(approval: Approval) -> int:
    """Approving votes of people who are still active reviewers there. One person counts once, by constraint."""
    return (
        approval.decisions.filter(
            verdict=Decision.Verdict.APPROVE,
            by__is_active=True,
            by__memberships__tenant=approval.tenant_id,
            by__memberships__role=Role.REVIEWER,
        )
        .values("by")
        .distinct()
        .count()
    )
