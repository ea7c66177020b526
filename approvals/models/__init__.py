"""The nouns of governance. Runs and jobs have models of their own and point here, never the other way."""

from approvals.models.actions import Action, Approval, Decision, Execution, IdempotencyKey
from approvals.models.endpoints import Endpoint, EndpointStatus
from approvals.models.evidence import ChainHead, EvidenceEntry, EvidencePayload, Kind
from approvals.models.policies import PolicyRevision
from approvals.models.tenants import Membership, Role, Tenant, User

__all__ = [
    "Action",
    "Approval",
    "ChainHead",
    "Decision",
    "Endpoint",
    "EndpointStatus",
    "EvidenceEntry",
    "EvidencePayload",
    "Execution",
    "IdempotencyKey",
    "Kind",
    "Membership",
    "PolicyRevision",
    "Role",
    "Tenant",
    "User",
]
