"""Policy revisions: immutable, numbered, hashed."""

from django.conf import settings
from django.db import models

from approvals.models.tenants import Tenant
from hermes_portal.ids import uuid7


class PolicyRevision(models.Model):
    """The rules of a tenant from one change to the next. The highest number is in force."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="policy_revisions")
    number = models.PositiveIntegerField()
    rules = models.JSONField()
    digest = models.CharField(max_length=64)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    reason = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "number"), name="one_revision_per_number"),)

    def __str__(self) -> str:
        return f"revision {self.number}"
