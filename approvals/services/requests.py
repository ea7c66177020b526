"""Asking for an action: validation, the idempotency key, policy, and the rows that follow."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from approvals import access, evidence, operations
from approvals.errors import Forbidden, Invalid
from approvals.models import Action, Endpoint, IdempotencyKey, Role, User
from approvals.nudges import nudge
from approvals.operations import Operation
from approvals.services.actions import checked_reason, make_action, weigh
from approvals.services.approvals import open_approval
from hermes_portal import canonical, clock, sealing
from hermes_portal.hermes import capabilities
from hermes_portal.hermes.errors import InvalidInput
from hermes_portal.transitions import Conflict


@dataclass(frozen=True, slots=True)
class Requested:
    """The action that a request led to; `replayed` when its key had been used before."""

    action: Action
    replayed: bool = False
    input_matches: bool = True


def request(
    *, user: User, endpoint: Endpoint, operation: str, raw: dict[str, Any], reason: str, key: str
) -> Requested:
    """Asks for one action.

    The same key on the same capability answers the original action for 24 hours and never applies another input
    (spec runs: idempotency). Raises Denied, Invalid, Forbidden, Conflict.
    """
    access.require(user, endpoint.tenant, Role.REQUESTER)
    if not operations.offered(operation):
        raise Forbidden(f"The operation {operation} is not offered here.")
    known = operations.get(operation)
    reason = checked_reason(reason, endpoint)
    key, input = _checked(known, key, raw)
    likeness = sealing.likeness(endpoint.tenant_id, canonical.dumps(input))
    original = _original(endpoint, operation, key, likeness)
    if original:
        return original
    if not endpoint.enabled:
        raise Conflict(
            f"The endpoint {endpoint.endpoint_id} is disabled. An admin of the tenant can enable it."
        )
    try:
        asked = known.ask(endpoint=endpoint, input=input, user=user)
    except operations.Stale as stale:
        raise Conflict(stale.sentence, code=stale.code) from stale
    with evidence.chain(endpoint.tenant) as chain:
        access.require(user, endpoint.tenant, Role.REQUESTER)  # once more, now that no role can change
        original = _original(endpoint, operation, key, likeness)  # a double click was first
        if original:
            return original
        revision, verdict = weigh(
            endpoint=endpoint, operation=operation, requester=user, input=asked.input, state=asked.facts
        )
        if verdict["forbidden"]:
            raise Forbidden(verdict["forbidden"])
        action = make_action(
            chain,
            endpoint=endpoint,
            operation=operation,
            requester=user,
            reason=reason,
            asked=asked,
            revision=revision,
            verdict=verdict,
            key=key,
        )
        known.asked(action, chain)
        if action.needs_approval:
            open_approval(
                chain,
                endpoint=endpoint,
                operation=operation,
                requester=user,
                reason=reason,
                title=asked.title,
                context=asked.context,
                subject=f"action:{action.pk}",
                subject_digest=action.input_digest,
                offered=[],
                needs={"": verdict},
                policy=revision,
                effective_at=action.send_before,
                effective_why="approval_lifetime",
                action=action,
            )
        else:
            nudge(action)
    return Requested(action)


def _checked(known: Operation, key: str, raw: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The key and the canonical input. Raises Invalid with the field to correct."""
    try:
        key = capabilities.check_idempotency_key(key)
        input = known.validate(raw)
        exact = canonical.dumps(input)
    except InvalidInput as error:
        raise Invalid(error.field, error.sentence) from error
    except ValueError as error:
        raise Invalid(
            "input", "The input holds a number or character that JSON cannot carry exactly."
        ) from error
    if len(exact) > settings.INPUT_LIMIT_BYTES:
        raise Invalid("input", f"The input is larger than {settings.INPUT_LIMIT_BYTES:,} bytes. Shorten it.")
    return key, input


def _original(endpoint: Endpoint, operation: str, key: str, likeness: str) -> Requested | None:
    """The action that the key stands for, unless the 24 hours are over and its outcome is settled."""
    found = (
        IdempotencyKey.objects.select_related("action", "action__execution")
        .filter(
            tenant=endpoint.tenant_id,
            capability_id=capabilities.capability_id(endpoint.endpoint_id, operation),
            key=key,
        )
        .first()
    )
    if found is None:
        return None
    attempt = getattr(found.action, "execution", None)
    settled = attempt is None or attempt.status != attempt.Status.UNKNOWN
    if settled and found.claimed_at <= clock.now() - settings.IDEMPOTENCY_LIFETIME:
        return None
    return Requested(found.action, replayed=True, input_matches=found.action.input_likeness == likeness)
