"""A run as we saw it, its events in order, the prompts among them, and the hubs that read the streams."""

from collections.abc import Mapping
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from approvals.models import Action, Endpoint, Tenant
from hermes_portal.ids import uuid7
from hermes_portal.transitions import Guarded


class Hub(models.Model):
    """One stream-reading worker process and its lease. A run belongs to a hub whose lease still holds."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200)
    lease_until = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Run(Guarded):
    """A Hermes run: what the provider says, as observed. `status` before the receipt is ours."""

    class Status(models.TextChoices):
        REQUESTED = "requested", "Asked for, no receipt yet"
        NOT_STARTED = "not_started", "Not started"
        START_UNKNOWN = "start_unknown", "Not known whether it started"
        QUEUED = "queued", "Queued"
        RUNNING = "running", "Running"
        WAITING = "waiting_for_approval", "Waiting for an approval"
        STOPPING = "stopping", "Stop accepted"
        COMPLETED = "completed", "Completed"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"
        INTERRUPTED = "interrupted", "Interrupted"
        LOST = "lost", "Lost from view"

    BEFORE = (Status.REQUESTED, Status.START_UNKNOWN)
    LIVE = (Status.QUEUED, Status.RUNNING, Status.WAITING, Status.STOPPING)
    TERMINAL = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.INTERRUPTED)
    MOVES: ClassVar[Mapping[str, tuple[str, ...]]] = {  # type: ignore[assignment]
        Status.REQUESTED: (Status.NOT_STARTED, Status.START_UNKNOWN, *LIVE),
        Status.START_UNKNOWN: (Status.NOT_STARTED, *LIVE),
        **dict.fromkeys(LIVE, (*LIVE, *TERMINAL, Status.LOST)),
        # a status read later may still show how a lost run ended
        Status.LOST: (*LIVE, *TERMINAL),
    }

    class Stream(models.TextChoices):
        """How far the one reading of the events got."""

        NONE = "none", "Not read yet"
        OPEN = "open", "Being read"
        ENDED = "ended", "Read to its end"
        BROKEN = "broken", "Broken off"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="runs")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, related_name="runs")
    action = models.OneToOneField(Action, on_delete=models.PROTECT, related_name="run")
    requester = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    title = models.CharField(max_length=300)
    provider_run_id = models.CharField(max_length=36, blank=True)
    status = models.CharField(max_length=24, choices=Status.choices, default=Status.REQUESTED)
    status_from = models.CharField(max_length=8, blank=True, help_text="receipt, event or poll")
    stop_asked_at = models.DateTimeField(null=True)
    out_of_reach_since = models.DateTimeField(null=True)
    features = models.JSONField(default=dict, help_text="What this run showed: request_id, seq.")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    polled_at = models.DateTimeField(null=True)
    next_poll_at = models.DateTimeField(null=True)

    model = models.CharField(max_length=300, blank=True)
    session_id = models.CharField(max_length=300, blank=True)
    provider_created_at = models.DateTimeField(null=True)
    provider_updated_at = models.DateTimeField(null=True)
    last_event = models.CharField(max_length=100, blank=True)
    output = models.TextField(blank=True)
    usage = models.JSONField(default=dict)
    error = models.TextField(blank=True)

    stream = models.CharField(max_length=8, choices=Stream.choices, default=Stream.NONE)
    hub = models.ForeignKey(Hub, null=True, on_delete=models.SET_NULL, related_name="runs")
    fence = models.PositiveIntegerField(default=0)
    read_through_at = models.DateTimeField(null=True)
    next_ordinal = models.PositiveBigIntegerField(default=0)
    gaps = models.PositiveIntegerField(default=0)
    truncated = models.BooleanField(default=False)
    lag = models.FloatField(
        null=True, help_text="Smallest seen seconds from provider timestamp to our receipt."
    )
    version = models.PositiveBigIntegerField(
        default=0, help_text="Grows with every visible change, for pages that follow."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("endpoint", "provider_run_id"),
                condition=~Q(provider_run_id=""),
                name="one_run_per_provider_id",
            ),
        )
        indexes = (
            models.Index(fields=("tenant", "-created_at", "-id"), name="runs_newest_first"),
            models.Index(fields=("stream", "status"), name="runs_to_follow"),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def lane(self) -> str:
        """Mutations of one run are serialised by this name (rule 6)."""
        return f"run:{self.endpoint.endpoint_id}:{self.provider_run_id}"


class RunEvent(models.Model):
    """One event, or one row of consecutive text deltas folded together, or a gap. Never rewritten."""

    TEXT = "message.delta"
    GAP = "gap"
    UNPARSED = "unparsed"
    DROPPED = "dropped"  # text over the caps: counted and digested, not kept (case 19)

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="events")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    ordinal = models.PositiveBigIntegerField()
    fence = models.PositiveIntegerField()
    kind = models.CharField(max_length=100)
    received_at = models.DateTimeField()
    last_received_at = models.DateTimeField()
    provider_at = models.DateTimeField(null=True)
    seq = models.BigIntegerField(null=True)
    count = models.PositiveIntegerField(default=1)
    text = models.TextField(blank=True, help_text="Redacted.")
    data = models.JSONField(default=dict, help_text="Other members, redacted.")
    raw_digest = models.CharField(
        max_length=64, help_text="SHA-256 of the raw bytes; of all of them where folded."
    )
    flags = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "ordinal"), name="one_event_per_ordinal"),)

    def __str__(self) -> str:
        return f"{self.run_id} {self.ordinal} {self.kind}"


class Prompt(Guarded):
    """One `approval.request` of a run: the ordered ledger that ties an answer to what was reviewed (rule 6)."""

    class Status(models.TextChoices):
        OPEN = "open", "Waiting for an answer"
        ANSWERING = "answering", "Answer on its way"
        ANSWERED = "answered", "Answered"
        ANSWERED_ELSEWHERE = "answered_elsewhere", "Answered elsewhere"
        LAPSED = "lapsed", "Hermes stopped waiting"
        VOID = "void", "Void"
        IN_DOUBT = "in_doubt", "Not known whether the answer arrived"

    MOVES: ClassVar[Mapping[str, tuple[str, ...]]] = {  # type: ignore[assignment]
        Status.OPEN: (Status.ANSWERING, Status.ANSWERED_ELSEWHERE, Status.LAPSED, Status.VOID),
        # back to open only when it is proven that nothing was sent; lapsed and void by a definite refusal of Hermes
        Status.ANSWERING: (
            Status.ANSWERED,
            Status.IN_DOUBT,
            Status.OPEN,
            Status.ANSWERED_ELSEWHERE,
            Status.LAPSED,
            Status.VOID,
        ),
        # a late reply can still prove that the answer was not taken, or was never sent
        Status.IN_DOUBT: (Status.ANSWERED, Status.VOID, Status.LAPSED, Status.OPEN),
    }
    UNSETTLED = (Status.OPEN, Status.ANSWERING, Status.IN_DOUBT)

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="prompts")
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="prompts")
    ordinal = models.PositiveBigIntegerField()
    identity = models.CharField(max_length=64, unique=True)
    request_id = models.CharField(max_length=256, blank=True)
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.OPEN)
    command = models.TextField(help_text="Redacted, hidden characters as marks, whole.")
    description = models.TextField(blank=True)
    pattern_key = models.CharField(max_length=300, blank=True)
    pattern_keys = models.JSONField(default=list)
    choices = models.JSONField()
    allow_permanent = models.BooleanField(default=False)
    smart_denied = models.BooleanField(default=False)
    exact = models.BinaryField(help_text="The frame's bytes, sealed.")
    exact_digest = models.CharField(max_length=64)
    received_at = models.DateTimeField()
    provider_at = models.DateTimeField(null=True)
    wait_until = models.DateTimeField()
    gaps_before = models.PositiveIntegerField(help_text="Gaps of the run when this was received.")
    answered_choice = models.CharField(max_length=16, blank=True)
    responded_choice = models.CharField(max_length=16, blank=True, help_text="As the stream reported it.")
    responded_at = models.DateTimeField(null=True)
    let_go = models.BooleanField(default=False, help_text="It is proven that Hermes no longer waits for it.")
    closed_at = models.DateTimeField(null=True)
    closed_why = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "ordinal"), name="one_prompt_per_event"),)
        indexes = (models.Index(fields=("run", "status", "ordinal"), name="prompts_in_order"),)

    def __str__(self) -> str:
        return self.command[:80]

    @property
    def subject(self) -> str:
        return f"prompt:{self.pk}"
