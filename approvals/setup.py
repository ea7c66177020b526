"""How tenants, accounts, roles, endpoints and policy change: the commands and Django admin both end here.

Every change and its evidence are one transaction in the tenant's chain (rule 4). A call that changes nothing writes
nothing. Sentences of `Invalid` are for people and name no other tenant.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from approvals import evidence
from approvals.errors import Denied, Invalid
from approvals.evidence import OPERATOR, Actor, Chain
from approvals.models import Endpoint, EndpointStatus, Kind, Membership, PolicyRevision, Role, Tenant, User
from approvals.policy import PolicyError, Ruleset, parse_rules
from hermes_portal import canonical, clock, redaction, sealing
from hermes_portal.hermes import errors, network
from hermes_portal.hermes.capabilities import normalise_endpoint_id
from hermes_portal.hermes.client import Client

logger = logging.getLogger(__name__)

SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
USERNAME = re.compile(r"[a-z0-9][a-z0-9@.+_-]{0,149}")
TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
USUAL_WAIT = 60  # seconds: what Hermes waits unless configured (contract 0.19)
LONGEST_WAIT = 24 * 3600
MOST_NETWORKS = 32
MOST_FEATURES = 100
DIFF_LIMIT = 40 * 1024  # of the 64 KiB that an evidence payload holds
NAMES_KEPT = 40  # per list, where only names are kept: three lists of 80 characters of 4 bytes fit as well
OTHER_ORIGIN = "Another server needs a token: the present one is never sent to a new address."
# Features that only runs show (contract 0.22 b3, b4): a look at /v1/capabilities says nothing about them.
SHOWN_BY_RUNS = ("request_id", "seq")


# --- tenants ------------------------------------------------------------------------------------------------


def add_tenant(*, slug: str, name: str = "", by: Actor = OPERATOR) -> Tenant:
    """A new tenant with a chain of its own, whose first entry says who added it. Without a name it is its slug.

    The tenant that has this slug and name already is returned as it is. Raises Invalid for a slug that is taken under
    another name, is not of a-z, 0-9 and -, or is the name of the system chain.
    """
    if not SLUG.fullmatch(slug) or slug == evidence.SYSTEM:
        raise Invalid("slug", f"A slug is 1 to 64 of a-z, 0-9 and -, and not {evidence.SYSTEM!r}.")
    name = _line(name, "name", 200) if name else ""
    with transaction.atomic():
        try:
            with transaction.atomic():
                tenant = Tenant.objects.create(slug=slug, name=name or slug, created_at=clock.now())
        except IntegrityError as error:
            there = Tenant.objects.get(slug=slug)
            if name in ("", there.name):
                return there
            raise Invalid(
                "slug", f"The tenant {slug} is there already and is called {there.name!r}."
            ) from error
        evidence.open_chain(tenant)
        with evidence.chain(tenant) as chain:
            chain.append(Kind.TENANT_ADDED, actor=by, data={"slug": slug, "name": tenant.name})
    return tenant


# --- accounts and roles -------------------------------------------------------------------------------------


def add_user(username: str, password: str | None = None, *, by: Actor = OPERATOR) -> User:
    """A new account without roles; without a password nobody can sign in to it yet. Evidence: the system chain.

    User names are ASCII in lower case: evidence names people by them, so no two may look alike. Raises Invalid.
    """
    user = User(username=clean_username(username))
    _set_password(user, password)
    with evidence.chain(None) as chain:
        try:
            with transaction.atomic():
                user.save()
        except IntegrityError as error:
            raise Invalid("username", f"There is an account {username} already.") from error
        after = {"active": True, "password": password is not None}
        data = {"user": username, "account": {"before": None, "after": after}}
        chain.append(Kind.MEMBER_CHANGED, actor=by, data=data)
    return user


def clean_username(text: str) -> str:
    """As it is. Raises Invalid."""
    if not USERNAME.fullmatch(text):
        raise Invalid("username", "A user name is 1 to 150 of a-z, 0-9 and @.+_- in lower case.")
    return text


def change_user(*, user: User, by: Actor, active: bool | None = None, password: str | None = None) -> User:
    """Deactivates, reactivates or gives a new password. Evidence: every tenant of the person, else the system chain.

    Deactivation is what deletion is elsewhere: decisions and evidence go on naming the account. Who is deactivated
    holds no role any more. Raises Invalid for a weak password.
    """
    with ExitStack() as stack:
        tenants = list(Tenant.objects.filter(memberships__user=user).distinct().order_by("slug"))
        names: list[Tenant | None] = [*tenants] or [None]
        chains = [stack.enter_context(evidence.chain(name)) for name in names]
        user = User.objects.select_for_update().get(pk=user.pk)
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        if active is not None and active != user.is_active:
            before["active"], after["active"] = user.is_active, active
            user.is_active = active
        if password is not None:
            _set_password(user, password)
            after["password"] = "replaced"  # noqa: S105 - says that, never which
        if after:
            user.save(update_fields=["is_active", "password"])
            data = {"user": user.username, "account": {"before": before, "after": after}}
            for chain in chains:
                chain.append(Kind.MEMBER_CHANGED, actor=by, data=data)
    return user


def _set_password(user: User, password: str | None) -> None:
    if password is not None:
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise Invalid("password", " ".join(error.messages)) from error
    user.set_password(password)


def roles(user: User, tenant: Tenant) -> list[Role]:
    """The roles that an account holds in a tenant, in the order in which Role lists them."""
    held = set(Membership.objects.filter(user=user, tenant=tenant).values_list("role", flat=True))
    return [role for role in Role if role in held]


def set_roles(*, user: User, tenant: Tenant, roles: Iterable[Role | str], by: Actor) -> list[Role]:
    """Makes `roles` the roles of `user` in `tenant`; none at all ends the membership. Returns them.

    Raises Denied when somebody gives a role to themselves (whoever set up the first tenant does so on the command
    line), Invalid for an inactive account or an unknown role.
    """
    wanted = _known_roles(roles)
    with evidence.chain(tenant) as chain:
        user = User.objects.select_for_update().get(pk=user.pk)
        before = _roles(user, tenant)
        gained = [role for role in wanted if role not in before]
        if gained and by == Actor.user(user):
            raise Denied("Nobody gives a role to themselves. Ask another admin of the tenant.")
        if gained and not user.is_active:
            raise Invalid("user", f"The account {user.username} is deactivated. Reactivate it first.")
        if wanted == before:
            return wanted
        Membership.objects.filter(user=user, tenant=tenant).exclude(role__in=wanted).delete()
        Membership.objects.bulk_create(Membership(user=user, tenant=tenant, role=role) for role in gained)
        _admit_to_admin(user)
        data = {"user": user.username, "roles": {"before": _values(before), "after": _values(wanted)}}
        chain.append(Kind.MEMBER_CHANGED, actor=by, data=data)
    return wanted


_roles = roles  # set_roles has a parameter of that name


def _known_roles(given: Iterable[Role | str]) -> list[Role]:
    try:
        wanted = {Role(role) for role in given}
    except ValueError as error:
        raise Invalid("roles", f"A role is one of {', '.join(Role.values)}.") from error
    return [role for role in Role if role in wanted]


def _values(roles: Iterable[Role]) -> list[str]:
    return [role.value for role in roles]


def _admit_to_admin(user: User) -> None:
    """Django admin lets staff in; staff is who is admin of some tenant, and every superuser."""
    staff = user.is_superuser or Membership.objects.filter(user=user, role=Role.ADMIN).exists()
    if staff != user.is_staff:
        user.is_staff = staff
        user.save(update_fields=["is_staff"])


# --- endpoints ----------------------------------------------------------------------------------------------


def add_endpoint(
    *,
    tenant: Tenant,
    endpoint_id: str,
    base_url: str,
    token: str,
    approval_wait: int | None = None,
    allow_networks: Sequence[str] | None = None,
    by: Actor = OPERATOR,
) -> Endpoint:
    """Connects a Hermes to a tenant, for ever: an endpoint is never renamed, moved to another tenant or deleted.

    An endpoint of this tenant that is there already is brought into line through `change_endpoint`, what is not given
    staying as it is. `approval_wait` is Hermes' approvals.timeout in seconds, 60 unless told; `allow_networks` are the
    private networks that may be reached, none unless told. Raises Invalid; an endpoint id or an origin and profile
    path of another tenant is refused without saying whose it is.
    """
    endpoint_id = clean_endpoint_id(endpoint_id)
    there = Endpoint.objects.filter(tenant=tenant, endpoint_id=endpoint_id).first()
    if there is not None:
        return change_endpoint(
            endpoint=there,
            base_url=base_url,
            token=token,
            approval_wait=approval_wait,
            allow_networks=allow_networks,
            by=by,
        )
    endpoint = Endpoint(
        tenant=tenant,
        endpoint_id=endpoint_id,
        base_url=clean_base_url(base_url),
        approval_wait=clean_approval_wait(USUAL_WAIT if approval_wait is None else approval_wait),
        allow_networks=clean_networks(allow_networks or ()),
    )
    endpoint.seal_token(clean_token(token))
    with evidence.chain(tenant) as chain:
        endpoint.created_at = chain.now
        _save_alone(endpoint)
        EndpointStatus.objects.create(endpoint=endpoint)
        data = _trusted(endpoint) | {
            "revision": endpoint.revision,
            "credential_revision": endpoint.credential_revision,
        }
        chain.append(Kind.ENDPOINT_ADDED, actor=by, data=data, endpoint=endpoint.endpoint_id)
    return endpoint


def change_endpoint(
    *,
    endpoint: Endpoint,
    by: Actor,
    base_url: str | None = None,
    token: str | None = None,
    approval_wait: int | None = None,
    allow_networks: Sequence[str] | None = None,
    enabled: bool | None = None,
) -> Endpoint:
    """Changes what is trusted about an endpoint; what is asked under an earlier revision is stale then (rule 3).

    Another origin needs a token in the same call: else whoever may write an address could have the token, which
    nobody may read, sent to a server of their own. Raises Invalid. Returns the endpoint as it is now.
    """
    given = {
        "base_url": None if base_url is None else clean_base_url(base_url),
        "approval_wait": None if approval_wait is None else clean_approval_wait(approval_wait),
        "allow_networks": None if allow_networks is None else clean_networks(allow_networks),
        "enabled": enabled,
    }
    with evidence.chain(endpoint.tenant) as chain:
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint.pk)
        before = _trusted(endpoint)
        changes = {
            name: value for name, value in given.items() if value is not None and value != before[name]
        }
        if _other_origin(before["base_url"], changes) and token is None:
            raise Invalid(
                "token", "Another address needs a token: the present one is never sent to a new server."
            )
        if token is not None:
            _replace_token(chain, endpoint, token, by)
        if changes:
            for name, value in changes.items():
                setattr(endpoint, name, value)
            endpoint.revision += 1
            _save_alone(endpoint)
            data = {
                "revision": endpoint.revision,
                "before": {name: before[name] for name in changes},
                "after": changes,
            }
            chain.append(Kind.ENDPOINT_CHANGED, actor=by, data=data, endpoint=endpoint.endpoint_id)
        if "base_url" in changes:
            _forget_what_was_seen(endpoint)
    return endpoint


def rotate_token(*, endpoint: Endpoint, token: str, by: Actor) -> Endpoint:
    """Stores a new token under the next credential revision; the same token again changes nothing. Raises Invalid."""
    return change_endpoint(endpoint=endpoint, token=token, by=by)


def _replace_token(chain: Chain, endpoint: Endpoint, token: str, by: Actor) -> None:
    """The new token, its revision and the evidence, which says nothing about either token."""
    token = clean_token(token)
    try:
        if endpoint.open_token() == token:
            return
    except sealing.CannotOpen:
        pass  # its key is gone: any token is an improvement
    endpoint.credential_revision += 1
    endpoint.seal_token(token)
    endpoint.save(update_fields=["token", "credential_revision"])
    _forget_what_was_seen(endpoint)
    data = {"credential_revision": endpoint.credential_revision}
    chain.append(Kind.CREDENTIAL_ROTATED, actor=by, data=data, endpoint=endpoint.endpoint_id)


def _trusted(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "base_url": endpoint.base_url,
        "approval_wait": endpoint.approval_wait,
        "allow_networks": list(endpoint.allow_networks),
        "enabled": endpoint.enabled,
    }


def _other_origin(before: str, changes: Mapping[str, Any]) -> bool:
    return "base_url" in changes and network.origin(before) != network.origin(changes["base_url"])


def _save_alone(endpoint: Endpoint) -> None:
    try:
        with transaction.atomic():
            endpoint.save()
    except IntegrityError as error:
        taken = Endpoint.objects.exclude(pk=endpoint.pk).filter(endpoint_id=endpoint.endpoint_id).exists()
        if taken:
            raise Invalid("endpoint_id", f"The endpoint id {endpoint.endpoint_id} is taken.") from error
        raise Invalid("base_url", f"{endpoint.base_url} belongs to another endpoint already.") from error


def _forget_what_was_seen(endpoint: Endpoint) -> None:
    """Another address or token: a refused credential is no longer known to be refused, a version may be another."""
    EndpointStatus.objects.filter(endpoint=endpoint).update(
        health=EndpointStatus.Health.UNKNOWN, checked_at=None, version="", features={}, detail=""
    )


def check_endpoint(endpoint: Endpoint, by: Actor = OPERATOR) -> EndpointStatus:
    """Reads health and capabilities, which changes nothing there, and keeps what was seen. No evidence: nothing is
    trusted more for it.

    Two reads of at most 10 s each; call it outside of a transaction.
    """
    seen = EndpointStatus.objects.get(endpoint=endpoint)
    observed = dict(seen.features)
    try:
        client = Client(endpoint.target())
        version = str(client.health().get("version", ""))
        features = read_features(client.capabilities())
    except sealing.CannotOpen as error:
        _note(seen, EndpointStatus.Health.UNREACHABLE, f"The token cannot be opened: {error} Set a new one.")
    except errors.CredentialRefused as error:
        _note(seen, EndpointStatus.Health.CREDENTIAL_REFUSED, error.sentence)
    except errors.Draining as error:
        _note(seen, EndpointStatus.Health.DRAINING, error.sentence)
    except errors.HermesError as error:
        _note(seen, EndpointStatus.Health.UNREACHABLE, error.sentence)
    else:
        seen.version = redaction.excerpt(redaction.redact(version), 64)
        seen.features = {name: observed[name] for name in SHOWN_BY_RUNS if name in observed} | features
        _note(seen, EndpointStatus.Health.OK, "")
    logger.info("Endpoint %s was checked by %s: %s", endpoint.endpoint_id, by.name, seen.health)
    return seen


def _note(seen: EndpointStatus, health: EndpointStatus.Health, detail: str) -> None:
    seen.health, seen.detail, seen.checked_at = health, detail[:500], clock.now()
    seen.save()


def read_features(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """The yes-or-no features that a Hermes declares, one level deep: {"runs_idempotency": {"durable": true}} is
    runs_idempotency_durable. Text and numbers are left out; so is what is not named like a feature (rule 10)."""
    found: dict[str, bool] = {}
    declared = capabilities.get("features")
    for name, value in declared.items() if isinstance(declared, dict) else ():
        inner = value.items() if isinstance(value, dict) else (("", value),)
        for part, flag in inner:
            label = f"{name}_{part}" if part else name
            if (
                isinstance(flag, bool)
                and re.fullmatch(r"[a-z0-9_]{1,64}", label)
                and label not in SHOWN_BY_RUNS
            ):
                found[label] = flag
    return dict(list(found.items())[:MOST_FEATURES])


# --- the fields of an endpoint, each as it is stored --------------------------------------------------------


def clean_endpoint_id(text: str) -> str:
    """Trimmed, lower case. Raises Invalid."""
    try:
        return normalise_endpoint_id(text)
    except errors.InvalidInput as error:
        raise Invalid("endpoint_id", error.sentence) from error


def clean_base_url(text: str) -> str:
    """The one spelling of origin and profile path. Raises Invalid."""
    try:
        url = network.normalise_base_url(text)
    except errors.AddressRefused as error:
        raise Invalid("base_url", error.sentence) from error
    if len(url) > 500:
        raise Invalid("base_url", "The base URL is longer than 500 characters.")
    return url


def clean_token(token: str) -> str:
    """As it is. Raises Invalid, with a sentence that never repeats it."""
    if not TOKEN.fullmatch(token):
        raise Invalid("token", "A token is 16 to 512 visible ASCII characters without blanks.")
    return token


def clean_approval_wait(seconds: int) -> int:
    """Whole seconds, from 1 to a day. Raises Invalid."""
    if isinstance(seconds, bool) or not 1 <= seconds <= LONGEST_WAIT:
        raise Invalid(
            "approval_wait", f"The approval wait is a whole number of seconds from 1 to {LONGEST_WAIT}."
        )
    return seconds


def clean_networks(texts: Sequence[str]) -> list[str]:
    """CIDR texts in their usual spelling, sorted, each once. Raises Invalid."""
    try:
        networks = network.parse_networks(texts)
    except errors.AddressRefused as error:
        raise Invalid("allow_networks", error.sentence) from error
    if any(one.prefixlen == 0 for one in networks):
        raise Invalid(
            "allow_networks", "A network of everything switches the address guard off. Name a smaller one."
        )
    found = sorted({str(one) for one in networks})
    if len(found) > MOST_NETWORKS:
        raise Invalid("allow_networks", f"At most {MOST_NETWORKS} networks can be named.")
    return found


def _line(text: str, field: str, most: int) -> str:
    """One line for people, without invisible characters. Raises Invalid."""
    text = text.strip()
    if not text or len(text) > most or not text.isprintable():
        raise Invalid(field, f"Give 1 to {most} visible characters on one line.")
    return text


# --- policy -------------------------------------------------------------------------------------------------


def load_policy(
    *,
    tenant: Tenant,
    document: Mapping[str, Any],
    reason: str,
    author: User | None = None,
    by: Actor = OPERATOR,
) -> PolicyRevision:
    """Puts the rules of `document` (from policy.load_document) in force as the next revision.

    Rules equal to those in force change nothing and return that revision. The evidence says which rules came, went
    and changed. Raises Invalid for a document that is no policy or an empty reason.
    """
    reason = reason.strip()
    if not reason or len(reason) > 2000:
        raise Invalid("reason", "Say in 1 to 2000 characters why the policy changes.")
    try:
        ruleset = parse_rules(document)
    except PolicyError as error:
        raise Invalid("document", str(error)) from error
    rules = ruleset.canonical()
    digest = canonical.digest(rules)
    with evidence.chain(tenant) as chain:
        last = policy_in_force(tenant)
        if last is not None and last.digest == digest:
            return last
        revision = PolicyRevision.objects.create(
            tenant=tenant,
            number=last.number + 1 if last else 1,
            rules=rules,
            digest=digest,
            author=author,
            reason=redaction.redact(reason),
            created_at=chain.now,
        )
        data = {
            "number": revision.number,
            "digest": digest,
            "reason": redaction.redact(reason),
            "previous": {"number": last.number, "digest": last.digest} if last else None,
            "rules": difference(last.rules if last else Ruleset().canonical(), rules),
        }
        chain.append(Kind.POLICY_CHANGED, actor=by, data=data, policy=revision.pk)
    return revision


def policy_in_force(tenant: Tenant) -> PolicyRevision | None:
    """The highest revision; None while the tenant has never had rules, and the contract's floor holds."""
    return PolicyRevision.objects.filter(tenant=tenant).order_by("-number").first()


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What came, went and changed between two canonical documents, by the rules' names, redacted.

    Large changes keep the names only; the whole rules are in the revision whose digest the evidence holds.
    """
    old = {rule["name"]: rule for rule in before["rules"]}
    new = {rule["name"]: rule for rule in after["rules"]}
    found: dict[str, Any] = {
        "added": [rule for name, rule in new.items() if name not in old],
        "removed": [rule for name, rule in old.items() if name not in new],
        "changed": [
            {"before": old[name], "after": rule}
            for name, rule in new.items()
            if name in old and old[name] != rule
        ],
        "reordered": [name for name in old if name in new] != [name for name in new if name in old],
    }
    found = redaction.redact_value(found)
    if len(canonical.dumps(found)) <= DIFF_LIMIT:
        return found
    names = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": [name for name, rule in new.items() if name in old and old[name] != rule],
    }
    kept = redaction.redact_value({key: value[:NAMES_KEPT] for key, value in names.items()})
    counts = {key: len(value) for key, value in names.items()}
    return {**kept, "counts": counts, "reordered": found["reordered"], "only_names": True}
