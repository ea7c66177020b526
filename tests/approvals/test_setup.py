"""Setting up: every change has its evidence, and what changes nothing writes nothing."""

import json
from typing import Any

import pytest
from django.db import connection

from approvals import evidence, setup
from approvals.errors import Denied, Invalid
from approvals.evidence import OPERATOR, Actor
from approvals.models import (
    ChainHead,
    Endpoint,
    EndpointStatus,
    EvidenceEntry,
    Kind,
    Membership,
    Role,
    Tenant,
    User,
)
from tests import factories
from tests.factories import TOKEN, Cast
from tests.fake_hermes import KEY, FakeHermes, reply

pytestmark = pytest.mark.django_db


def entries(of: Tenant | None) -> list[EvidenceEntry]:
    return list(EvidenceEntry.objects.filter(tenant=of).order_by("seq").select_related("payload"))


def data(entry: EvidenceEntry) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(entry.payload.body))["data"]
    return found


def last(of: Tenant | None) -> tuple[str, dict[str, Any]]:
    entry = entries(of)[-1]
    return entry.kind, data(entry)


def errors_of(refusal: pytest.ExceptionInfo[Invalid]) -> list[str]:
    return list(refusal.value.errors)


# --- tenants ------------------------------------------------------------------------------------------------


def test_a_tenant_begins_its_own_chain():
    tenant = setup.add_tenant(slug="acme", name="Acme", by=OPERATOR)
    assert last(tenant) == (Kind.TENANT_ADDED, {"slug": "acme", "name": "Acme"})
    assert ChainHead.objects.get(tenant=tenant).seq == 1


def test_a_tenant_without_a_name_is_called_by_its_slug():
    assert setup.add_tenant(slug="acme").name == "acme"


@pytest.mark.parametrize("name", ["Acme", ""])
def test_the_same_tenant_again_changes_nothing(name: str):
    tenant = setup.add_tenant(slug="acme", name="Acme")
    assert setup.add_tenant(slug="acme", name=name) == tenant
    assert len(entries(tenant)) == 1


def test_a_taken_slug_under_another_name_is_refused():
    setup.add_tenant(slug="acme", name="Acme")
    with pytest.raises(Invalid) as refusal:
        setup.add_tenant(slug="acme", name="Another")
    assert errors_of(refusal) == ["slug"]


@pytest.mark.parametrize("slug", ["", "Acme", "a b", "-a", "a/b", "ä", "a" * 65, "acme\n", "system"])
def test_a_bad_slug_is_refused(slug: str):
    with pytest.raises(Invalid):
        setup.add_tenant(slug=slug, name="Acme")
    assert not Tenant.objects.exists()


@pytest.mark.parametrize("name", ["a\nb", "a\u202eb", "x" * 201])
def test_a_name_is_one_visible_line(name: str):
    with pytest.raises(Invalid):
        setup.add_tenant(slug="acme", name=name)


# --- accounts and roles -----------------------------------------------------------------------------------------


def test_a_new_account_is_in_the_system_chain_without_its_password():
    setup.add_user("ann", "correct horse battery")
    kind, said = last(None)
    assert kind == Kind.MEMBER_CHANGED
    assert said == {"user": "ann", "account": {"before": None, "after": {"active": True, "password": True}}}


def test_an_account_without_a_password_lets_nobody_in():
    assert not setup.add_user("ann").has_usable_password()


@pytest.mark.parametrize("username", ["", "Ann", "аnn", "a b", "ann\n", "a" * 151, ".ann", "ann/../x"])
def test_user_names_that_could_be_mistaken_for_others_are_refused(username: str):
    with pytest.raises(Invalid):
        setup.add_user(username, "correct horse battery")
    assert not User.objects.exists()


def test_a_taken_user_name_is_refused_and_keeps_its_password():
    setup.add_user("ann", "correct horse battery")
    with pytest.raises(Invalid):
        setup.add_user("ann", "another horse battery")
    assert User.objects.get(username="ann").check_password("correct horse battery")


def test_a_weak_password_is_refused():
    with pytest.raises(Invalid) as refusal:
        setup.add_user("ann", "12345678")
    assert errors_of(refusal) == ["password"]


def test_roles_are_evidence_with_before_and_after():
    tenant, ann = factories.tenant(), factories.user("ann")
    setup.set_roles(user=ann, tenant=tenant, roles=["reviewer"], by=OPERATOR)
    setup.set_roles(user=ann, tenant=tenant, roles=[Role.AUDITOR, Role.REVIEWER], by=OPERATOR)
    assert [data(entry)["roles"] for entry in entries(tenant)[1:]] == [
        {"before": [], "after": ["reviewer"]},
        {"before": ["reviewer"], "after": ["reviewer", "auditor"]},
    ]
    assert setup.roles(ann, tenant) == [Role.REVIEWER, Role.AUDITOR]


def test_the_same_roles_again_write_nothing():
    tenant = factories.tenant()
    ann = factories.member("ann", tenant, Role.REVIEWER)
    before = len(entries(tenant))
    setup.set_roles(user=ann, tenant=tenant, roles=[Role.REVIEWER], by=OPERATOR)
    assert len(entries(tenant)) == before


def test_no_roles_end_the_membership():
    tenant = factories.tenant()
    ann = factories.member("ann", tenant, Role.REVIEWER)
    setup.set_roles(user=ann, tenant=tenant, roles=[], by=OPERATOR)
    assert not Membership.objects.filter(user=ann).exists()


def test_an_unknown_role_is_refused():
    with pytest.raises(Invalid):
        setup.set_roles(user=factories.user(), tenant=factories.tenant(), roles=["root"], by=OPERATOR)


def test_nobody_gives_a_role_to_themselves(cast: Cast):
    with pytest.raises(Denied):
        setup.set_roles(
            user=cast.admin, tenant=cast.acme, roles=[Role.ADMIN, Role.REVIEWER], by=Actor.user(cast.admin)
        )
    assert setup.roles(cast.admin, cast.acme) == [Role.ADMIN]


def test_an_admin_may_give_up_a_role(cast: Cast):
    setup.set_roles(user=cast.admin, tenant=cast.acme, roles=[], by=Actor.user(cast.admin))
    assert setup.roles(cast.admin, cast.acme) == []


def test_who_is_admin_somewhere_may_enter_django_admin_and_nobody_else(cast: Cast):
    assert [user.username for user in User.objects.filter(is_staff=True).order_by("username")] == [
        "admin",
        "stranger",
    ]
    setup.set_roles(user=cast.admin, tenant=cast.acme, roles=[Role.AUDITOR], by=OPERATOR)
    cast.admin.refresh_from_db()
    assert not cast.admin.is_staff


def test_a_deactivated_account_gets_no_role(cast: Cast):
    setup.change_user(user=cast.nobody, active=False, by=OPERATOR)
    with pytest.raises(Invalid):
        setup.set_roles(user=cast.nobody, tenant=cast.acme, roles=[Role.REVIEWER], by=OPERATOR)


def test_deactivation_is_evidence_in_every_tenant_of_the_person(cast: Cast):
    factories.member("reviewer", cast.other, Role.AUDITOR)
    setup.change_user(user=cast.reviewer, active=False, by=OPERATOR)
    expected = {"user": "reviewer", "account": {"before": {"active": True}, "after": {"active": False}}}
    assert last(cast.acme) == last(cast.other) == (Kind.MEMBER_CHANGED, expected)


def test_a_replaced_password_is_evidence_and_is_not_in_it(cast: Cast):
    setup.change_user(user=cast.reviewer, password="another horse battery", by=Actor.user(cast.admin))
    entry = entries(cast.acme)[-1]
    assert data(entry)["account"]["after"] == {"password": "replaced"}
    assert entry.actor == "user:admin"
    assert b"another horse" not in bytes(entry.payload.body)


def test_a_change_of_an_account_that_changes_nothing_writes_nothing(cast: Cast):
    before = len(entries(cast.acme))
    setup.change_user(user=cast.reviewer, active=True, by=OPERATOR)
    assert len(entries(cast.acme)) == before


# --- endpoints --------------------------------------------------------------------------------------------------


def add(tenant: Tenant, **given: Any) -> Endpoint:
    usual: dict[str, Any] = {
        "endpoint_id": "ops",
        "base_url": "https://hermes.example",
        "token": TOKEN,
        "by": OPERATOR,
    }
    return setup.add_endpoint(tenant=tenant, **(usual | given))


def test_a_new_endpoint_is_evidence_without_its_token():
    tenant = factories.tenant()
    endpoint = add(tenant, approval_wait=900, allow_networks=["10.1.0.0/16"])
    entry = entries(tenant)[-1]
    assert entry.kind == Kind.ENDPOINT_ADDED
    assert data(entry) == {
        "base_url": "https://hermes.example",
        "approval_wait": 900,
        "allow_networks": ["10.1.0.0/16"],
        "enabled": True,
        "revision": 1,
        "credential_revision": 1,
    }
    assert b'"endpoint":"ops"' in bytes(entry.body)
    assert endpoint.seen.health == EndpointStatus.Health.UNKNOWN
    assert endpoint.open_token() == TOKEN


def test_the_token_lies_nowhere_in_clear(cast: Cast):
    stored = Endpoint.objects.values_list("token", flat=True)
    payloads = [bytes(entry.payload.body) for entry in entries(cast.acme)]
    assert not any(TOKEN.encode() in blob for blob in [*map(bytes, stored), *payloads])


def test_id_and_address_are_stored_in_their_one_spelling():
    endpoint = add(factories.tenant(), endpoint_id="  OPS ", base_url="HTTPS://Hermes.Example:443/p/x/")
    assert (endpoint.endpoint_id, endpoint.base_url) == ("ops", "https://hermes.example/p/x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint_id", "a b"),
        ("endpoint_id", ""),
        ("endpoint_id", "x" * 129),
        ("base_url", "ftp://hermes.example"),
        ("base_url", "http://user@hermes.example"),
        ("base_url", "http://127.1"),
        ("base_url", "http://redis:6379"),
        ("token", "short"),
        ("token", "with blank 0123456789"),
        ("token", "new\nline-0123456789abc"),
        ("token", "ünïcode-0123456789abc"),
        ("token", "x" * 513),
        ("approval_wait", 0),
        ("approval_wait", 86401),
        ("approval_wait", True),
        ("allow_networks", ["10.0.0.1/8"]),
        ("allow_networks", ["everything"]),
        ("allow_networks", ["0.0.0.0/0"]),
        ("allow_networks", ["::/0"]),
        ("allow_networks", [f"10.0.{number}.0/24" for number in range(33)]),
    ],
)
def test_a_bad_value_is_refused_by_its_field_and_nothing_is_written(field: str, value: object):
    tenant = factories.tenant()
    with pytest.raises(Invalid) as refusal:
        add(tenant, **{field: value})
    assert errors_of(refusal) == [field]
    assert not Endpoint.objects.exists()
    assert len(entries(tenant)) == 1


def test_a_refused_token_is_not_repeated():
    with pytest.raises(Invalid) as refusal:
        add(factories.tenant(), token="secret words 0123456789")
    assert "secret words" not in str(refusal.value)


def test_the_same_endpoint_again_changes_nothing():
    tenant = factories.tenant()
    first = add(tenant, approval_wait=900)
    again = add(tenant, approval_wait=900)
    assert (again.pk, again.revision, again.credential_revision) == (first.pk, 1, 1)
    assert len(entries(tenant)) == 2


def test_what_is_not_given_again_stays():
    tenant = factories.tenant()
    add(tenant, approval_wait=900, allow_networks=["10.0.0.0/8"])
    again = add(tenant)
    assert (again.approval_wait, again.allow_networks) == (900, ["10.0.0.0/8"])


def test_a_differing_call_brings_the_endpoint_into_line():
    tenant = factories.tenant()
    add(tenant)
    again = add(tenant, approval_wait=900, token="another-token-0123456789")
    assert (again.revision, again.credential_revision) == (2, 2)
    assert [entry.kind for entry in entries(tenant)[2:]] == [Kind.CREDENTIAL_ROTATED, Kind.ENDPOINT_CHANGED]


def test_an_endpoint_id_of_another_tenant_is_taken_and_its_owner_unnamed():
    add(factories.tenant("other", "Others"))
    with pytest.raises(Invalid) as refusal:
        add(factories.tenant(), base_url="https://another.example")
    assert errors_of(refusal) == ["endpoint_id"]
    assert "other" not in str(refusal.value).lower().replace("another", "")


@pytest.mark.parametrize(
    "spelling", ["https://hermes.example", "https://HERMES.example:443/", "https://hermes.example/p/default"]
)
def test_one_origin_and_profile_path_belongs_to_one_endpoint(spelling: str):
    add(factories.tenant("other"))
    with pytest.raises(Invalid) as refusal:
        add(factories.tenant(), endpoint_id="mine", base_url=spelling)
    assert errors_of(refusal) == ["base_url"]


def test_another_profile_of_the_same_server_is_another_endpoint():
    tenant = factories.tenant()
    add(tenant)
    assert add(tenant, endpoint_id="second", base_url="https://hermes.example/p/second").revision == 1


def test_a_change_is_evidence_with_before_and_after():
    tenant = factories.tenant()
    endpoint = add(tenant)
    changed = setup.change_endpoint(endpoint=endpoint, approval_wait=900, enabled=False, by=OPERATOR)
    assert last(tenant) == (
        Kind.ENDPOINT_CHANGED,
        {
            "revision": 2,
            "before": {"approval_wait": 60, "enabled": True},
            "after": {"approval_wait": 900, "enabled": False},
        },
    )
    assert (changed.revision, changed.credential_revision) == (2, 1)


def test_a_change_that_changes_nothing_writes_nothing():
    tenant = factories.tenant()
    endpoint = setup.change_endpoint(endpoint=add(tenant), approval_wait=60, enabled=True, by=OPERATOR)
    assert endpoint.revision == 1
    assert len(entries(tenant)) == 2


def test_another_server_needs_a_token_so_that_the_present_one_cannot_be_fetched():
    endpoint = add(factories.tenant())
    with pytest.raises(Invalid) as refusal:
        setup.change_endpoint(endpoint=endpoint, base_url="https://elsewhere.example", by=OPERATOR)
    assert errors_of(refusal) == ["token"]
    endpoint.refresh_from_db()
    assert endpoint.base_url == "https://hermes.example"


@pytest.mark.parametrize("url", ["http://hermes.example", "https://hermes.example:8443"])
def test_another_scheme_or_port_is_another_server(url: str):
    with pytest.raises(Invalid):
        setup.change_endpoint(endpoint=add(factories.tenant()), base_url=url, by=OPERATOR)


def test_another_profile_path_of_the_same_server_keeps_the_token():
    endpoint = setup.change_endpoint(
        endpoint=add(factories.tenant()), base_url="https://hermes.example/p/x", by=OPERATOR
    )
    assert (endpoint.revision, endpoint.open_token()) == (2, TOKEN)


def test_another_server_with_a_token_bumps_both_revisions_and_forgets_what_was_seen():
    endpoint = add(factories.tenant())
    EndpointStatus.objects.filter(endpoint=endpoint).update(
        health="ok", version="0.19.0", features={"seq": True}
    )
    endpoint = setup.change_endpoint(
        endpoint=endpoint, base_url="https://elsewhere.example", token="another-token-0123456789", by=OPERATOR
    )
    seen = EndpointStatus.objects.get(endpoint=endpoint)
    assert (endpoint.revision, endpoint.credential_revision) == (2, 2)
    assert (seen.health, seen.version, seen.features) == (EndpointStatus.Health.UNKNOWN, "", {})


def test_rotation_bumps_the_credential_revision_only_and_says_nothing_of_the_token():
    tenant = factories.tenant()
    endpoint = setup.rotate_token(endpoint=add(tenant), token="another-token-0123456789", by=OPERATOR)
    assert (endpoint.revision, endpoint.credential_revision) == (1, 2)
    assert last(tenant) == (Kind.CREDENTIAL_ROTATED, {"credential_revision": 2})
    assert endpoint.open_token() == "another-token-0123456789"


def test_a_rotation_to_the_same_token_changes_nothing():
    tenant = factories.tenant()
    assert setup.rotate_token(endpoint=add(tenant), token=TOKEN, by=OPERATOR).credential_revision == 1
    assert len(entries(tenant)) == 2


def test_a_token_whose_key_is_gone_can_be_replaced(settings: Any):
    endpoint = add(factories.tenant())
    settings.PORTAL_KEYS = "2:" + "ab" * 32
    assert setup.rotate_token(endpoint=endpoint, token=TOKEN, by=OPERATOR).open_token() == TOKEN


# --- looking at an endpoint -----------------------------------------------------------------------------------------


def behind(hermes: FakeHermes, token: str = KEY) -> Endpoint:
    return add(factories.tenant(), base_url=hermes.url, token=token, allow_networks=["127.0.0.0/8"])


def test_a_check_keeps_version_and_features_and_changes_nothing_there():
    with FakeHermes() as hermes:
        seen = setup.check_endpoint(behind(hermes), by=OPERATOR)
        assert hermes.mutations() == []
    assert (seen.health, seen.version) == (EndpointStatus.Health.OK, "0.19.0")
    assert seen.features["run_stop"] is True
    assert seen.checked_at is not None


def test_durable_keys_are_a_feature():
    with FakeHermes(generation="0.22") as hermes:
        assert setup.check_endpoint(behind(hermes)).features["runs_idempotency_durable"] is True


def test_a_wrong_token_marks_the_endpoint():
    with FakeHermes() as hermes:
        seen = setup.check_endpoint(behind(hermes, token="wrong-token-0123456789"))
    assert seen.health == EndpointStatus.Health.CREDENTIAL_REFUSED
    assert "wrong-token" not in seen.detail


def test_a_silent_address_is_out_of_reach():
    with FakeHermes() as hermes:
        endpoint = behind(hermes)
    assert setup.check_endpoint(endpoint).health == EndpointStatus.Health.UNREACHABLE


def test_a_private_address_without_an_allowed_network_is_not_connected_to():
    with FakeHermes() as hermes:
        endpoint = add(factories.tenant(), base_url=hermes.url, token=KEY)
        seen = setup.check_endpoint(endpoint)
        assert hermes.requests == []
    assert seen.health == EndpointStatus.Health.UNREACHABLE


def test_what_runs_have_shown_survives_a_check():
    with FakeHermes(generation="0.22") as hermes:
        endpoint = behind(hermes)
        EndpointStatus.objects.filter(endpoint=endpoint).update(features={"request_id": True, "gone": True})
        features = setup.check_endpoint(endpoint).features
    assert features["request_id"] is True
    assert "gone" not in features


def test_a_hostile_version_is_bounded():
    with FakeHermes() as hermes:
        hermes.script("GET", "/health", reply(200, {"status": "ok", "version": "9" * 10_000}))
        assert len(setup.check_endpoint(behind(hermes)).version) <= 64


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"a": True, "b": False}, {"a": True, "b": False}),
        ({"keys": {"durable": True, "retention_seconds": 86400}}, {"keys_durable": True}),
        ({"header": "X-Hermes", "count": 3, "list": [True]}, {}),
        ({"<script>": True, "A": True, "x" * 65: True}, {}),
        ({"seq": True, "request_id": True}, {}),
        ([True], {}),
        (None, {}),
    ],
)
def test_only_yes_or_no_features_with_plain_names_are_kept(declared: object, expected: dict[str, bool]):
    assert setup.read_features({"features": declared}) == expected


def test_the_number_of_features_is_bounded():
    many = {f"feature_{number}": True for number in range(1000)}
    assert len(setup.read_features({"features": many})) == setup.MOST_FEATURES


# --- policy -----------------------------------------------------------------------------------------------------


def test_a_first_policy_is_revision_one_with_its_rules_in_the_evidence():
    tenant = factories.tenant()
    revision = factories.policy(tenant, factories.require("run_start"), reason="Be careful.")
    kind, said = last(tenant)
    assert (kind, said["number"], said["previous"]) == (Kind.POLICY_CHANGED, 1, None)
    assert (said["reason"], said["digest"]) == ("Be careful.", revision.digest)
    assert [rule["name"] for rule in said["rules"]["added"]] == ["require run_start"]


def test_the_same_rules_again_are_the_same_revision():
    tenant = factories.tenant()
    first = factories.policy(tenant, factories.require("run_start"))
    assert factories.policy(tenant, factories.require("run_start")) == first
    assert len(entries(tenant)) == 2


def test_a_change_says_what_came_went_and_changed():
    tenant = factories.tenant()
    factories.policy(tenant, factories.require("run_start"), factories.require("run_stop"))
    second = factories.policy(tenant, factories.require("run_start", 2), factories.forbid("job_run"))
    _, said = last(tenant)
    assert second.number == 2
    assert said["previous"]["number"] == 1
    assert [rule["name"] for rule in said["rules"]["added"]] == ["forbid job_run"]
    assert [rule["name"] for rule in said["rules"]["removed"]] == ["require run_stop"]
    assert [pair["after"]["approvers"] for pair in said["rules"]["changed"]] == [2]


def test_a_new_order_is_a_new_revision_and_says_so():
    tenant = factories.tenant()
    one, two = factories.require("run_start"), factories.require("run_stop")
    factories.policy(tenant, one, two)
    factories.policy(tenant, two, one)
    assert last(tenant)[1]["rules"] == {"added": [], "removed": [], "changed": [], "reordered": True}


def test_a_policy_too_large_for_evidence_names_its_rules_only():
    tenant = factories.tenant()
    factories.policy(
        tenant, *(factories.forbid("run_stop", "x" * 280, name=f"rule {number}") for number in range(400))
    )
    said = last(tenant)[1]["rules"]
    assert said["only_names"] is True
    assert said["counts"] == {"added": 400, "removed": 0, "changed": 0}
    assert said["added"][0] == "rule 0"


def test_a_document_that_is_no_policy_is_refused():
    with pytest.raises(Invalid) as refusal:
        setup.load_policy(tenant=factories.tenant(), document={"rulez": []}, reason="Try.")
    assert errors_of(refusal) == ["document"]


@pytest.mark.parametrize("reason", ["", "  ", "x" * 2001])
def test_a_policy_change_needs_a_reason(reason: str):
    with pytest.raises(Invalid) as refusal:
        setup.load_policy(tenant=factories.tenant(), document={"rules": []}, reason=reason)
    assert errors_of(refusal) == ["reason"]


# --- no evidence, no act --------------------------------------------------------------------------------------------


def test_without_evidence_nothing_is_set_up(cast: Cast, monkeypatch: pytest.MonkeyPatch):
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(evidence.Chain, "append", fails)
    for change in (
        lambda: setup.add_tenant(slug="third"),
        lambda: setup.add_user("third", "correct horse battery"),
        lambda: setup.set_roles(user=cast.nobody, tenant=cast.acme, roles=[Role.ADMIN], by=OPERATOR),
        lambda: setup.change_user(user=cast.reviewer, active=False, by=OPERATOR),
        lambda: add(cast.acme, endpoint_id="third", base_url="https://third.example"),
        lambda: setup.change_endpoint(endpoint=cast.endpoint, enabled=False, by=OPERATOR),
        lambda: setup.rotate_token(endpoint=cast.endpoint, token="another-token-0123456789", by=OPERATOR),
        lambda: factories.policy(cast.acme, factories.require("run_start")),
    ):
        with pytest.raises(OSError, match="disk full"):
            change()
    assert not connection.needs_rollback
    assert Tenant.objects.count() == 2
    assert not User.objects.filter(username="third").exists()
    assert not Membership.objects.filter(user=cast.nobody).exists()
    assert User.objects.get(pk=cast.reviewer.pk).is_active
    assert Endpoint.objects.get(pk=cast.endpoint.pk).open_token() == TOKEN
    assert Endpoint.objects.filter(enabled=True).count() == 2
    assert setup.policy_in_force(cast.acme) is None
