"""What an action is made of: its reason, the policy in force for it, its sealed bytes and its first evidence."""

from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings

from approvals import evidence, operations, policy
from approvals.errors import Invalid
from approvals.evidence import Actor, Chain
from approvals.models import Action, Approval, Endpoint, IdempotencyKey, Kind, PolicyRevision, User
from approvals.operations import Asked
from hermes_portal import canonical, redaction, sealing
from hermes_portal.hermes import capabilities
from hermes_portal.ids import uuid7

REASON_LIMIT = 2000
REASON_STORED = 4000  # characters of the column; marks of hidden characters are longer than what they mark
NO_RULES = policy.Ruleset()
# Denying releases nothing: one reviewer is enough and no rule stands in the way, so that a run need not wait.
DENIAL: dict[str, Any] = {
    "forbidden": None,
    "approvers": 1,
    "floor": 1,
    "sentences": ["One reviewer may deny it, whatever the rules say."],
    "matched": [],
    "matched_left_out": 0,
    "near": [],
    "near_left_out": 0,
}


def checked_reason(reason: str, endpoint: Endpoint) -> str:
    """A reason fit to store: trimmed, redacted, 1 to 2,000 characters of which few are hidden. Raises Invalid.

    People paste what they have at hand, so the endpoint's own token is masked here as well.
    """
    reason = reason.strip()
    if not reason:
        raise Invalid("reason", "Say why: the reason is part of the record.")
    if len(reason) > REASON_LIMIT:
        raise Invalid("reason", f"Shorten the reason to {REASON_LIMIT} characters.")
    try:
        own = [endpoint.open_token()]
    except sealing.CannotOpen:  # a lost key must not keep people from closing what is open
        own = []
    shown = redaction.redact(reason, own=own)
    if len(shown) > REASON_STORED:
        raise Invalid("reason", "The reason holds too many invisible characters. Write it as plain text.")
    return shown


def weigh(
    *, endpoint: Endpoint, operation: str, requester: User, input: dict[str, Any], state: dict[str, Any]
) -> tuple[PolicyRevision | None, dict[str, Any]]:
    """The policy in force for this tenant, applied: the revision and its verdict as it is stored."""
    revision = PolicyRevision.objects.filter(tenant=endpoint.tenant_id).order_by("-number").first()
    rules = _rules(revision.digest, revision.pk) if revision else NO_RULES
    facts = policy.Facts(
        operation=operation,
        endpoint_id=endpoint.endpoint_id,
        contract_needs_approval=capabilities.CONTRACTS[operation].approval,
        requester=requester.get_username(),
        roles=frozenset(
            requester.memberships.filter(tenant=endpoint.tenant_id).values_list("role", flat=True)
        ),
        input=input,
        state=state,
    )
    own = [endpoint.open_token()]
    return revision, policy.evaluate(
        rules, facts, mask=lambda text: redaction.redact(text, own=own)
    ).as_json()


@lru_cache(maxsize=64)
def _rules(digest: str, revision: UUID) -> policy.Ruleset:
    """The parsed rules of a revision, which never changes; parsing a thousand of them takes a tenth of a second."""
    return policy.parse_rules(PolicyRevision.objects.get(pk=revision, digest=digest).rules)


def make_action(
    chain: Chain,
    *,
    endpoint: Endpoint,
    operation: str,
    requester: User,
    reason: str,
    asked: Asked,
    revision: PolicyRevision | None,
    verdict: dict[str, Any],
    key: str,
    linked_to: Approval | None = None,
    actor: Actor | None = None,
) -> Action:
    """Writes an action, its key and its evidence inside `chain`. Exact bytes are sealed, digests stand beside them."""
    identity, tenant = uuid7(), endpoint.tenant

    def sealed(document: bytes) -> sealing.Sealed:
        return sealing.seal(document, table="action", tenant=f"{tenant.pk}:{identity}")

    body = operations.get(operation).build(asked.input).body or b""
    input, wire = sealed(canonical.dumps(asked.input)), sealed(body)
    snapshot = sealed(canonical.dumps(asked.snapshot))
    action = Action.objects.create(
        id=identity,
        tenant=tenant,
        endpoint=endpoint,
        operation=operation,
        requester=requester,
        reason=reason,
        title=asked.title,
        subject=asked.subject or f"action:{identity}",
        lane=asked.lane or f"action:{identity}",
        needs_approval=verdict["approvers"] > 0,
        created_at=chain.now,
        send_before=chain.now + settings.APPROVAL_LIFETIME,
        input=input.blob,
        input_digest=input.digest,
        input_likeness=sealing.likeness(tenant.pk, canonical.dumps(asked.input)),
        input_shown=asked.shown,
        wire=wire.blob,
        wire_digest=wire.digest,
        snapshot=snapshot.blob,
        snapshot_digest=snapshot.digest,
        snapshot_shown=asked.snapshot_shown,
        endpoint_revision=endpoint.revision,
        credential_revision=endpoint.credential_revision,
        policy=revision,
        verdict=verdict,
        linked_to=linked_to,
    )
    IdempotencyKey.objects.update_or_create(
        tenant=tenant,
        capability_id=action.capability_id,
        key=key,
        defaults={"action": action, "claimed_at": chain.now},
    )
    chain.append(
        Kind.ACTION_REQUESTED,
        actor=actor or Actor.user(requester),
        action=action.pk,
        approval=linked_to.pk if linked_to else None,
        data={
            "capability": action.capability_id,
            "requester": requester.get_username(),
            "reason": reason,
            "title": action.title,
            "input": bounded(asked.shown),
            "input_digest": input.digest,
            "wire_digest": wire.digest,
            "snapshot": bounded(asked.snapshot_shown),
            "snapshot_digest": snapshot.digest,
            "policy": policy_evidence(revision, verdict),
            "provenance": evidence.provenance(endpoint),
        },
    )
    return action


def policy_evidence(revision: PolicyRevision | None, verdict: dict[str, Any]) -> dict[str, Any]:
    """Which revision said what; no revision means that the contract's floor held."""
    return {
        "revision": revision.number if revision else None,
        "digest": revision.digest if revision else None,
        "verdict": verdict,
    }


def bounded(shown: dict[str, Any]) -> dict[str, Any] | str:
    """A redacted form that fits into evidence; a larger one is represented by its digest alone."""
    try:
        size = len(canonical.dumps(shown))
    except ValueError:
        return "has no canonical form; see the digest"
    return shown if size <= 16 * 1024 else f"{size} bytes; see the digest"
