"""Who may: every view and task starts from a queryset that is scoped here (rule 12)."""

from typing import Any, TypeVar

from django.contrib.auth.models import AnonymousUser
from django.db.models import Model, QuerySet
from django.http import Http404

from approvals.errors import Denied
from approvals.models import Membership, Role, Tenant, User

M = TypeVar("M", bound=Model)


def tenants(user: User | AnonymousUser, *roles: Role) -> QuerySet[Tenant]:
    """The tenants in which an active user has one of the roles, or any role when none is named."""
    if not isinstance(user, User) or not user.is_active:
        return Tenant.objects.none()
    # active as the row is now, not as it was when `user` was loaded
    held = Membership.objects.filter(user=user, user__is_active=True)
    if roles:
        held = held.filter(role__in=roles)
    return Tenant.objects.filter(pk__in=held.values("tenant"))


def has_role(user: User | AnonymousUser, tenant: Tenant, *roles: Role) -> bool:
    """Does an active user have one of the roles there? The boolean twin of `require`."""
    return tenants(user, *roles).filter(pk=tenant.pk).exists()


def require(user: User | AnonymousUser, tenant: Tenant, role: Role) -> None:
    """Raises Denied with a sentence that names the missing role."""
    if not has_role(user, tenant, role):
        raise Denied(
            f"This needs the role {role.label.lower()} in {tenant.name}. An admin of it can give you the role."
        )


def scoped(queryset: QuerySet[M], user: User | AnonymousUser, *roles: Role) -> QuerySet[M]:
    """Only rows of tenants in which the user has one of the roles."""
    return queryset.filter(tenant__in=tenants(user, *roles))


def get_or_404(queryset: QuerySet[M], user: User | AnonymousUser, *roles: Role, **lookup: Any) -> M:
    """One scoped row; a foreign id and an unknown id raise the same Http404."""
    found = scoped(queryset, user, *roles).filter(**lookup).first()
    if found is None:
        raise Http404("Not found.")
    return found
