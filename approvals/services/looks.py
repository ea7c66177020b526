"""A look at confidential data: the exact bytes behind a card, with a reason, as evidence (rule 10)."""

from approvals import access, evidence, operations
from approvals.errors import Denied
from approvals.evidence import Actor
from approvals.models import Approval, Kind, Role, User
from approvals.services.actions import checked_reason

LOOKERS = (Role.REVIEWER, Role.AUDITOR)


def may_look(approval: Approval, user: User) -> bool:
    """The boolean twin of the check in `look`."""
    return access.has_role(user, approval.tenant, *LOOKERS)


def look(*, approval: Approval, user: User, reason: str) -> bytes:
    """The exact input of the action, or the exact frame in which Hermes asked.

    The evidence is committed before anything is handed out. Raises Denied, Invalid, sealing.CannotOpen.
    """
    if not may_look(approval, user):
        raise Denied("Looking at the exact bytes needs the role reviewer or auditor.")
    reason = checked_reason(reason, approval.endpoint)
    exact = operations.get(approval.operation).exact(approval)
    with evidence.chain(approval.tenant) as chain:
        chain.append(
            Kind.DATA_VIEWED,
            actor=Actor.user(user),
            approval=approval.pk,
            action=approval.action_id,
            data={"reason": reason, "subject_digest": approval.subject_digest, "bytes": len(exact)},
        )
    return exact
