"""Tenants, the people in them and their roles."""

from typing import ClassVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.core.validators import RegexValidator
from django.db import models

from hermes_portal.ids import uuid7


class User(AbstractUser):
    """An account. Deactivated, never deleted: evidence and decisions point at it."""

    objects: ClassVar[UserManager["User"]] = UserManager()  # type: ignore[assignment]


class Tenant(models.Model):
    """The isolation boundary: every other row belongs to one and nothing crosses (rule 12)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.CharField(
        max_length=64,
        unique=True,
        validators=[
            RegexValidator(r"\A[a-z0-9][a-z0-9-]{0,63}\Z", "Use a-z, 0-9 and -, at most 64 characters.")
        ],
    )
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member may do. Roles never imply each other."""

    REQUESTER = "requester", "Requester"
    REVIEWER = "reviewer", "Reviewer"
    AUDITOR = "auditor", "Auditor"
    ADMIN = "admin", "Admin"


class Membership(models.Model):
    """One role of one user in one tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "user", "role"), name="one_row_per_role"),)

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.tenant}"
