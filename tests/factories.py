"""Plain functions that make rows for tests, and the fixed cast. Everything goes through the services, so that each
row has its evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib.auth.hashers import make_password

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.models import Endpoint, PolicyRevision, Role, Tenant, User

PASSWORD = "correct horse battery"  # everybody's; `client.force_login` needs none
TOKEN = "test-token-0123456789abcdef"
BASE_URL = "https://hermes.example"


def tenant(slug: str = "acme", name: str = "") -> Tenant:
    """A tenant with its chain. The one that is there already, if it is."""
    return Tenant.objects.filter(slug=slug).first() or setup.add_tenant(
        slug=slug, name=name or slug.capitalize(), by=OPERATOR
    )


def user(username: str = "somebody", *, superuser: bool = False) -> User:
    """An account without roles whose password is PASSWORD (hashed once for all tests)."""
    return User.objects.create(
        username=username, password=_hashed(PASSWORD), is_superuser=superuser, is_staff=superuser
    )


@cache
def _hashed(password: str) -> str:
    return make_password(password)


def member(username: str, of: Tenant, *roles: Role) -> User:
    """A person with roles in a tenant; an account that is there already gets these roles there."""
    person = User.objects.filter(username=username).first() or user(username)
    setup.set_roles(user=person, tenant=of, roles=roles, by=OPERATOR)
    person.refresh_from_db()
    return person


def admin(of: Tenant, username: str = "admin") -> User:
    """An admin of a tenant, who may enter Django admin."""
    return member(username, of, Role.ADMIN)


def endpoint(
    of: Tenant,
    endpoint_id: str = "ops",
    *,
    base_url: str = "",
    token: str = TOKEN,
    approval_wait: int = 60,
    allow_networks: tuple[str, ...] = (),
) -> Endpoint:
    """An endpoint with its status row. Its address is its own unless given; nothing listens there."""
    return setup.add_endpoint(
        tenant=of,
        endpoint_id=endpoint_id,
        base_url=base_url or f"{BASE_URL}/p/{endpoint_id}",
        token=token,
        approval_wait=approval_wait,
        allow_networks=allow_networks,
        by=OPERATOR,
    )


def policy(of: Tenant, *rules: Mapping[str, Any], reason: str = "For a test.") -> PolicyRevision:
    """The next policy revision of a tenant, with exactly these rules."""
    return setup.load_policy(
        tenant=of, document={"rules": [dict(rule) for rule in rules]}, reason=reason, by=OPERATOR
    )


def require(operation: str = "*", approvers: int = 1, **more: Any) -> dict[str, Any]:
    """A rule that asks for reviewers. `more`: name, endpoints, when."""
    return {
        "name": f"require {operation}",
        "operations": [operation],
        "effect": "require",
        "approvers": approvers,
    } | more


def forbid(operation: str = "*", message: str = "Not here.", **more: Any) -> dict[str, Any]:
    """A rule that forbids. `more`: name, endpoints, when."""
    return {
        "name": f"forbid {operation}",
        "operations": [operation],
        "effect": "forbid",
        "message": message,
    } | more


@dataclass(frozen=True, slots=True)
class Cast:
    """Who appears in the tests. `acme` is theirs; the stranger holds every role in `other`; `nobody` holds none."""

    acme: Tenant
    other: Tenant
    endpoint: Endpoint
    other_endpoint: Endpoint
    requester: User
    reviewer: User
    second: User
    auditor: User
    admin: User
    stranger: User
    nobody: User


def cast(
    *, base_url: str = "", token: str = TOKEN, allow_networks: tuple[str, ...] = (), **more: Any
) -> Cast:
    """The fixed cast. The address and token are those of acme's endpoint, for tests with a server behind it."""
    acme, other = tenant("acme", "Acme"), tenant("other", "Other")
    return Cast(
        acme=acme,
        other=other,
        endpoint=endpoint(acme, "ops", base_url=base_url, token=token, allow_networks=allow_networks, **more),
        other_endpoint=endpoint(other, "theirs"),
        requester=member("requester", acme, Role.REQUESTER),
        reviewer=member("reviewer", acme, Role.REVIEWER),
        second=member("second", acme, Role.REVIEWER),
        auditor=member("auditor", acme, Role.AUDITOR),
        admin=admin(acme),
        stranger=member("stranger", other, *Role),
        nobody=user("nobody"),
    )
