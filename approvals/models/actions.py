"""An asked-for action, its approval, the votes on it and the ledger row of its one attempt."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from approvals.models.endpoints import Endpoint
from approvals.models.policies import PolicyRevision
from approvals.models.tenants import Tenant
from hermes_portal.hermes.capabilities import CONTRACTS
from hermes_portal.ids import uuid7
from hermes_portal.transitions import Guarded

OPERATIONS = [(name, name) for name in CONTRACTS]
FIFTEEN_MINUTES = timedelta(minutes=15)


class Action(models.Model):
    """One asked-for invocation of a capability, approved or needing no approval.

    Exact input, wire body and snapshot are sealed; beside them stand their digests and the redacted forms.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="actions")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, related_name="actions")
    operation = models.CharField(max_length=16, choices=OPERATIONS)
    requester = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="actions")
    reason = models.CharField(max_length=4000)
    title = models.CharField(max_length=300)
    subject = models.CharField(max_length=80, db_index=True)
    lane = models.CharField(max_length=200)
    needs_approval = models.BooleanField()
    created_at = models.DateTimeField()
    send_before = models.DateTimeField()

    input = models.BinaryField()
    input_digest = models.CharField(max_length=64)
    input_likeness = models.CharField(max_length=64)
    input_shown = models.JSONField()
    wire = models.BinaryField()
    wire_digest = models.CharField(max_length=64)
    snapshot = models.BinaryField()
    snapshot_digest = models.CharField(max_length=64)
    snapshot_shown = models.JSONField()

    endpoint_revision = models.PositiveIntegerField()
    credential_revision = models.PositiveIntegerField()
    policy = models.ForeignKey(PolicyRevision, null=True, on_delete=models.PROTECT, related_name="+")
    verdict = models.JSONField(
        help_text="The policy decision: need, matched rules with facts, near misses, sentences."
    )
    linked_to = models.ForeignKey(
        "Approval", null=True, on_delete=models.PROTECT, related_name="linked_actions"
    )

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(send_before__lte=F("created_at") + FIFTEEN_MINUTES), name="sent_within_15_minutes"
            ),
        )
        indexes = (
            models.Index(fields=("tenant", "-created_at", "-id"), name="actions_newest_first"),
            models.Index(fields=("tenant", "input_likeness"), name="actions_with_same_input"),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def capability_id(self) -> str:
        return f"cap:hermes_agent:{self.endpoint.endpoint_id}:{self.operation}"


class IdempotencyKey(models.Model):
    """A key of a person, scoped to the full capability id; a repeat answers the original action for 24 hours."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    capability_id = models.CharField(max_length=200)
    key = models.CharField(max_length=255)
    action = models.ForeignKey(Action, on_delete=models.PROTECT, related_name="keys")
    claimed_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "capability_id", "key"), name="one_action_per_key"),
        )

    def __str__(self) -> str:
        return self.key


class ApprovalQuerySet(models.QuerySet["Approval"]):
    def pending(self, now: datetime) -> "ApprovalQuerySet":
        """Pending means status and time (case 8): what has run out is not pending, swept or not."""
        return self.filter(status=Approval.Status.PENDING, effective_at__gt=now)


class Approval(Guarded):
    """The 15-minute record about a subject: an action, or a prompt whose action the first approving vote makes."""

    class Status(models.TextChoices):
        PENDING = "pending", "Waiting for a decision"
        APPROVED = "approved", "Approved"
        DENIED = "denied", "Denied"
        EXPIRED = "expired", "Expired"
        WITHDRAWN = "withdrawn", "Withdrawn"
        REVOKED = "revoked", "Revoked"
        STALE = "stale", "Stale"
        CONSUMED = "consumed", "Used"

    MOVES: ClassVar[Mapping[str, tuple[str, ...]]] = {  # type: ignore[assignment]
        Status.PENDING: (Status.APPROVED, Status.DENIED, Status.EXPIRED, Status.WITHDRAWN, Status.STALE),
        Status.APPROVED: (Status.CONSUMED, Status.EXPIRED, Status.REVOKED, Status.STALE),
    }

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="approvals")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, related_name="approvals")
    operation = models.CharField(max_length=16, choices=OPERATIONS)
    requester = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    reason = models.CharField(max_length=4000)
    title = models.CharField(max_length=300)
    context = models.CharField(
        max_length=300, blank=True, help_text="One line below the title in lists, redacted."
    )
    subject = models.CharField(max_length=80)
    subject_digest = models.CharField(max_length=64)
    action = models.OneToOneField(Action, null=True, on_delete=models.PROTECT, related_name="approval")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    closed_why = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    effective_at = models.DateTimeField()
    effective_why = models.CharField(max_length=40, default="approval_lifetime")
    offered = models.JSONField(
        default=list, help_text="Choices that the event offered; empty unless about a prompt."
    )
    fixed_choice = models.CharField(max_length=16, blank=True)
    needs = models.JSONField(help_text="Choice (empty for an action) to what policy says of it.")
    policy = models.ForeignKey(PolicyRevision, null=True, on_delete=models.PROTECT, related_name="+")
    endpoint_revision = models.PositiveIntegerField()
    credential_revision = models.PositiveIntegerField()

    objects = ApprovalQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("subject",), condition=Q(status="pending"), name="one_pending_approval_per_subject"
            ),
            models.CheckConstraint(
                condition=Q(effective_at__lte=F("created_at") + FIFTEEN_MINUTES),
                name="approval_within_15_minutes",
            ),
        )
        indexes = (models.Index(fields=("tenant", "status", "effective_at", "id"), name="approval_queue"),)

    def __str__(self) -> str:
        return self.title

    @property
    def capability_id(self) -> str:
        return f"cap:hermes_agent:{self.endpoint.endpoint_id}:{self.operation}"

    @property
    def risk(self) -> str:
        return CONTRACTS[self.operation].risk

    def need(self, choice: str = "") -> dict[str, Any]:
        """What policy says of one choice: {approvers, forbidden, sentences, matched, near}."""
        found: dict[str, Any] = self.needs[choice]
        return found


class Decision(models.Model):
    """One reviewer's vote, with the digest of what was on the screen."""

    class Verdict(models.TextChoices):
        APPROVE = "approve", "Approve"
        DENY = "deny", "Deny"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="decisions")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="decisions")
    requester = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    verdict = models.CharField(max_length=8, choices=Verdict.choices)
    choice = models.CharField(max_length=16, blank=True)
    reason = models.CharField(max_length=4000)
    seen = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("approval", "by"), name="one_vote_per_person"),
            models.CheckConstraint(condition=~Q(by=F("requester")), name="requester_is_not_approver"),
        )

    def __str__(self) -> str:
        return f"{self.by} {self.verdict}"


class Execution(Guarded):
    """The ledger row of the one attempt to send an action (rule 1)."""

    class Status(models.TextChoices):
        CLAIMED = "claimed", "Taken by a worker"
        REFUSED = "refused", "Not sent"
        SENT = "sent", "Being sent"
        APPLIED = "applied", "Accepted by Hermes"
        NOT_APPLIED = "not_applied", "Not applied"
        UNKNOWN = "unknown", "Outcome unknown"
        CLOSED = "closed", "Unknown, closed by a person"

    MOVES: ClassVar[Mapping[str, tuple[str, ...]]] = {  # type: ignore[assignment]
        Status.CLAIMED: (Status.REFUSED, Status.SENT),
        Status.SENT: (Status.APPLIED, Status.NOT_APPLIED, Status.UNKNOWN),
        Status.UNKNOWN: (Status.APPLIED, Status.NOT_APPLIED, Status.CLOSED),
    }
    HOLDS_LANE = (Status.CLAIMED, Status.SENT)

    action = models.OneToOneField(
        Action, primary_key=True, on_delete=models.PROTECT, related_name="execution"
    )
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    lane = models.CharField(max_length=200)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.CLAIMED)
    fence = models.PositiveIntegerField(default=1)
    lease_until = models.DateTimeField()
    worker = models.CharField(max_length=200)
    claimed_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    send_until = models.DateTimeField(null=True)
    reply_until = models.DateTimeField(null=True, help_text="After this no reply can come any more.")
    settled_at = models.DateTimeField(null=True)
    settled_by = models.CharField(max_length=16, blank=True, help_text="reply, reading or person")
    code = models.CharField(max_length=64, blank=True)
    sentence = models.CharField(max_length=1000, blank=True)
    found = models.JSONField(default=dict, help_text="What the reply or the reading showed, redacted.")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("lane",), condition=Q(status__in=("claimed", "sent")), name="one_mutation_per_lane"
            ),
        )
        indexes = (models.Index(fields=("status", "lease_until"), name="executions_by_lease"),)

    def __str__(self) -> str:
        return f"{self.action_id} {self.status}"
