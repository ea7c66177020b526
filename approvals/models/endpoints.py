"""Hermes servers: trusted configuration apart from what was seen there."""

from django.core.validators import MinValueValidator
from django.db import models

from approvals.models.tenants import Tenant
from hermes_portal import logs, sealing
from hermes_portal.hermes.client import Target
from hermes_portal.ids import uuid7

TOKENS = "endpoint_token"


class Endpoint(models.Model):
    """One Hermes API server, bound to exactly one tenant. Never renamed, rebound or deleted.

    `revision` grows with every change of what is trusted here, `credential_revision` with every new token; an action
    that was asked under another revision is stale (rule 3).
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="endpoints")
    endpoint_id = models.CharField("endpoint id", max_length=128, unique=True)
    base_url = models.CharField("base URL", max_length=500, unique=True)
    token = models.BinaryField(editable=False)
    credential_revision = models.PositiveIntegerField(default=1, editable=False)
    revision = models.PositiveIntegerField(default=1, editable=False)
    enabled = models.BooleanField(default=True)
    approval_wait = models.PositiveIntegerField(
        default=60,
        validators=[MinValueValidator(1)],
        help_text="Seconds that Hermes waits for an answer (approvals.timeout there; 60 unless configured).",
    )
    allow_networks = models.JSONField(
        default=list, blank=True, help_text="Private networks that may be reached, as CIDR; none by default."
    )
    created_at = models.DateTimeField(editable=False)

    def __str__(self) -> str:
        return self.endpoint_id

    def seal_token(self, token: str) -> None:
        """Stores a token for the present credential revision."""
        self.token = sealing.seal(
            token.encode(), table=TOKENS, tenant=self.tenant_id, revision=self.credential_revision
        ).blob

    def open_token(self) -> str:
        """The token in clear; the log of this process masks it from now on. Raises sealing.CannotOpen."""
        token = sealing.unseal(
            self.token, table=TOKENS, tenant=self.tenant_id, revision=self.credential_revision
        ).decode()
        logs.remember(token)
        return token

    def target(self) -> Target:
        """What the provider client needs to reach this server."""
        return Target(
            endpoint_id=self.endpoint_id,
            base_url=self.base_url,
            token=self.open_token(),
            allow_networks=tuple(self.allow_networks),
            tenant_slug=self.tenant.slug,
        )


class EndpointStatus(models.Model):
    """What was last seen at an endpoint. Never a reason to trust more, and no reason for staleness."""

    class Health(models.TextChoices):
        UNKNOWN = "unknown", "Not checked yet"
        OK = "ok", "Answers"
        UNREACHABLE = "unreachable", "Out of reach"
        CREDENTIAL_REFUSED = "credential_refused", "Credential refused"
        DRAINING = "draining", "Shutting down"

    endpoint = models.OneToOneField(Endpoint, on_delete=models.PROTECT, primary_key=True, related_name="seen")
    health = models.CharField(max_length=24, choices=Health.choices, default=Health.UNKNOWN)
    checked_at = models.DateTimeField(null=True)
    version = models.CharField(max_length=64, blank=True)
    features = models.JSONField(default=dict)
    detail = models.CharField(max_length=500, blank=True)

    def __str__(self) -> str:
        return f"{self.endpoint_id}: {self.health}"
