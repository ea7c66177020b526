"""The append-only hash chain of each tenant (Evidence v1). Written only through approvals/evidence.py."""

from django.db import models

from approvals.models.tenants import Tenant

NO_PREVIOUS = "0" * 64


class Kind(models.TextChoices):
    """Every kind of entry. A closed list: what is not here cannot be written."""

    TENANT_ADDED = "tenant.added", "Tenant added"
    MEMBER_CHANGED = "member.changed", "Roles changed"
    ENDPOINT_ADDED = "endpoint.added", "Endpoint added"
    ENDPOINT_CHANGED = "endpoint.changed", "Endpoint changed"
    CREDENTIAL_ROTATED = "endpoint.credential_rotated", "Endpoint token replaced"
    POLICY_CHANGED = "policy.changed", "Policy changed"
    ACTION_REQUESTED = "action.requested", "Asked"
    APPROVAL_OPENED = "approval.opened", "Approval opened"
    APPROVAL_VOTED = "approval.voted", "Approved by one of several"
    APPROVAL_APPROVED = "approval.approved", "Approved"
    APPROVAL_DENIED = "approval.denied", "Denied"
    APPROVAL_EXPIRED = "approval.expired", "Expired"
    APPROVAL_WITHDRAWN = "approval.withdrawn", "Withdrawn"
    APPROVAL_REVOKED = "approval.revoked", "Revoked"
    APPROVAL_STALE = "approval.stale", "Stale"
    EXECUTION_INTENT = "execution.intent", "About to send"
    EXECUTION_REFUSED = "execution.refused", "Not sent: the re-check failed"
    EXECUTION_APPLIED = "execution.applied", "Accepted by Hermes"
    EXECUTION_NOT_APPLIED = "execution.not_applied", "Not applied"
    EXECUTION_UNKNOWN = "execution.unknown", "Outcome unknown"
    EXECUTION_CLOSED = "execution.closed", "Unknown outcome closed by a person"
    EXECUTION_LATE = "execution.late", "Late note"
    RUN_STARTED = "run.started", "Run receipt"
    RUN_GAP = "run.gap", "Gap in the event stream"
    RUN_ENDED = "run.ended", "Run ended"
    RUN_LOST = "run.lost", "Evidence of the run is lost"
    PROMPT_OPENED = "prompt.opened", "Hermes asks"
    PROMPT_CLOSED = "prompt.closed", "Request of Hermes settled"
    PROMPT_RESPONDED = "prompt.responded", "Hermes reports an answer"
    DATA_VIEWED = "data.viewed", "Confidential data looked at"
    EVIDENCE_EXPORTED = "evidence.exported", "Evidence exported"
    PAYLOAD_ERASED = "payload.erased", "Payload erased"
    CHECKPOINT = "evidence.checkpoint", "Checkpoint"


class ChainHead(models.Model):
    """The end of one chain, and the lock under which every transition of its tenant runs."""

    name = models.CharField(max_length=64, primary_key=True)
    tenant = models.OneToOneField(Tenant, null=True, on_delete=models.PROTECT, related_name="chain")
    seq = models.PositiveBigIntegerField(default=0)
    digest = models.CharField(max_length=64, default=NO_PREVIOUS)

    def __str__(self) -> str:
        return f"{self.name} at {self.seq}"


class EvidenceEntry(models.Model):
    """One link. `body` holds the canonical bytes that were hashed; the columns beside it are for finding it."""

    chain = models.ForeignKey(ChainHead, on_delete=models.PROTECT, related_name="entries")
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="evidence")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=40, choices=Kind.choices)
    actor = models.CharField(max_length=200)
    action_id = models.UUIDField(null=True, db_index=True)
    approval_id = models.UUIDField(null=True, db_index=True)
    run_id = models.UUIDField(null=True, db_index=True)
    body = models.BinaryField()
    digest = models.CharField(max_length=64)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("chain", "seq"), name="one_entry_per_seq"),)
        indexes = (models.Index(fields=("tenant", "-seq"), name="evidence_newest_first"),)

    def __str__(self) -> str:
        return f"{self.chain_id} {self.seq} {self.kind}"


class EvidencePayload(models.Model):
    """The data of an entry, erasable: the entry keeps its digest, and the erasure is an entry of its own."""

    entry = models.OneToOneField(
        EvidenceEntry, primary_key=True, on_delete=models.PROTECT, related_name="payload"
    )
    body = models.BinaryField()

    def __str__(self) -> str:
        return f"payload of {self.entry_id}"
