"""Django admin is sealed by tenant, deletes nothing, shows no token and writes evidence with every save."""

import json
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import models
from django.test import Client
from django.urls import reverse

from approvals import admin, evidence, setup
from approvals.errors import Invalid
from approvals.evidence import OPERATOR
from approvals.models import (
    Endpoint,
    EndpointStatus,
    EvidenceEntry,
    Membership,
    PolicyRevision,
    Role,
    Tenant,
    User,
)
from tests import factories
from tests.factories import PASSWORD, TOKEN, Cast
from tests.fake_hermes import KEY, FakeHermes

pytestmark = pytest.mark.django_db
FRESH = "another-token-0123456789"
POLICY = '[[rules]]\nname = "Two"\noperations = ["run_stop"]\neffect = "require"\napprovers = 2\n'


@pytest.fixture
def client(cast: Cast) -> Client:
    """The admin of acme, signed in."""
    return signed_in(cast.admin)


@pytest.fixture
def root(cast: Cast) -> Client:
    """A superuser, signed in."""
    return signed_in(factories.user("root", superuser=True))


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(model: type[models.Model], *which: object, view: str = "") -> str:
    """The address of a model's list, or of one row's page."""
    view = view or ("change" if which else "changelist")
    return reverse(f"admin:approvals_{model._meta.model_name}_{view}", args=which)


def text(response: Any) -> str:
    return str(response.content.decode())


def last(of: Tenant | None) -> tuple[str, str, dict[str, Any]]:
    """Kind, actor and data of a chain's last entry."""
    entry = EvidenceEntry.objects.filter(tenant=of).order_by("-seq")[0]
    return entry.kind, entry.actor, json.loads(bytes(entry.payload.body))["data"]


def count(of: Tenant | None) -> int:
    return EvidenceEntry.objects.filter(tenant=of).count()


def errors(response: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = response.context["adminform"].form.errors
    return found


@pytest.fixture
def rows(cast: Cast) -> dict[type[models.Model], tuple[models.Model, models.Model]]:
    """One row of acme and one of the other tenant, by model."""
    rule = factories.require("run_start")
    return {
        Tenant: (cast.acme, cast.other),
        User: (cast.reviewer, cast.stranger),
        Membership: (cast.reviewer.memberships.get(), cast.stranger.memberships.all()[0]),
        Endpoint: (cast.endpoint, cast.other_endpoint),
        PolicyRevision: (factories.policy(cast.acme, rule), factories.policy(cast.other, rule)),
    }


MODELS = list(admin.PAGES)

# --- who may enter ------------------------------------------------------------------------------------------


def test_who_is_not_signed_in_is_sent_to_the_one_sign_in_page():
    response = Client().get("/admin/", follow=True)
    assert response.redirect_chain[-1][0].startswith("/accounts/login/?next=")


@pytest.mark.parametrize("name", ["requester", "reviewer", "auditor", "nobody"])
@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/admin/approvals/endpoint/"])
def test_who_is_admin_of_no_tenant_may_not_enter(cast: Cast, name: str, path: str):
    assert signed_in(getattr(cast, name)).get(path).status_code == 403


def test_a_staff_flag_without_the_role_opens_nothing(cast: Cast):
    User.objects.filter(pk=cast.nobody.pk).update(is_staff=True)
    assert signed_in(cast.nobody).get("/admin/").status_code == 403


def test_who_lost_the_role_is_out_at_once(cast: Cast, client: Client):
    assert client.get("/admin/").status_code == 200
    Membership.objects.filter(user=cast.admin).delete()
    assert client.get("/admin/").status_code == 403


def test_the_site_offers_these_models_and_no_others():
    assert set(admin.site._registry) == {Tenant, User, Membership, Endpoint, PolicyRevision}


def test_passwords_are_changed_on_the_portals_own_page(client: Client):
    assert client.get("/admin/password_change/").headers["Location"] == "/accounts/password/change/"


# --- sealed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_list_shows_ones_own_tenants_only(client: Client, rows: dict, model: type[models.Model]):
    shown = client.get(page(model)).context["cl"].queryset
    own, foreign = rows[model]
    assert own in shown
    assert foreign not in shown


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("view", ["change", "history", "delete"])
def test_a_foreign_row_and_a_missing_one_are_the_same_404(
    client: Client, rows: dict, model: type[models.Model], view: str
):
    foreign = rows[model][1]
    missing = "019b0000-0000-7000-8000-000000000000" if isinstance(foreign.pk, str) else 987654321
    answers = [client.get(page(model, key, view=view)) for key in (foreign.pk, missing, "no-id")]
    assert {answer.status_code for answer in answers} == {404}
    bodies = {text(answer).replace(str(foreign.pk), "").replace(str(missing), "") for answer in answers[:2]}
    assert len(bodies) == 1


@pytest.mark.parametrize("model", MODELS)
def test_a_foreign_row_cannot_be_written(client: Client, cast: Cast, rows: dict, model: type[models.Model]):
    before = count(cast.other)
    assert client.post(page(model, rows[model][1].pk), {"is_active": "", "roles": []}).status_code == 404
    assert count(cast.other) == before


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_deleted_and_nothing_is_done_in_bulk(
    client: Client, rows: dict, model: type[models.Model]
):
    own = rows[model][0]
    assert client.post(page(model, own.pk, view="delete"), {"post": "yes"}).status_code == 403
    listed = client.get(page(model))
    assert "action-select" not in text(listed)
    client.post(page(model), {"action": "delete_selected", "_selected_action": [str(own.pk)], "post": "yes"})
    assert model._default_manager.filter(pk=own.pk).exists()


def test_no_page_names_the_other_tenant(client: Client, rows: dict):
    pages = [page(model) for model in MODELS] + [page(model, own.pk) for model, (own, _) in rows.items()]
    pages += [page(model, view="add") for model in (User, Membership, Endpoint, PolicyRevision)]
    for address in ["/admin/", *pages]:
        shown = text(client.get(address))
        assert "Other" not in shown, address
        assert "stranger" not in shown, address


@pytest.mark.parametrize("model", [User, Membership, Endpoint, PolicyRevision])
def test_a_tenant_of_others_cannot_be_chosen(client: Client, cast: Cast, model: type[models.Model]):
    response = client.post(page(model, view="add"), {"tenant": str(cast.other.pk)})
    assert "Select a valid choice" in str(errors(response)["tenant"])


@pytest.mark.parametrize(
    "lookup",
    ["tenant__memberships__user__password__startswith=p", "memberships__tenant__slug=other", "token=x"],
)
@pytest.mark.parametrize("model", [User, Endpoint])
def test_lists_answer_no_lookups_across_tables(client: Client, model: type[models.Model], lookup: str):
    assert client.get(f"{page(model)}?{lookup}").status_code in (302, 400)


def test_the_history_of_a_row_is_shown_to_its_admin(client: Client, cast: Cast):
    client.post(page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint, approval_wait="900"))
    assert "Approval wait" in text(client.get(page(Endpoint, cast.endpoint.pk, view="history")))


def test_a_superuser_sees_every_tenant(root: Client, rows: dict):
    for model, (own, foreign) in rows.items():
        assert {own, foreign} <= set(root.get(page(model)).context["cl"].queryset)


@pytest.mark.parametrize("who", ["client", "root"])
def test_every_page_works_under_the_strict_policy(request: pytest.FixtureRequest, rows: dict, who: str):
    """No inline script, no style attribute, no handler: the browser would refuse them silently."""
    browser: Client = request.getfixturevalue(who)
    pages = [
        "/admin/",
        *(page(model) for model in MODELS),
        *(page(model, own.pk) for model, (own, _) in rows.items()),
    ]
    pages += [page(model, own.pk, view="history") for model, (own, _) in rows.items()]
    pages += [page(model, view="add") for model in (User, Membership, Endpoint, PolicyRevision)]
    for address in pages:
        response = browser.get(address)
        assert response.status_code == 200, address
        shown = text(response)
        assert not re.search(r"<script(?![^>]*\ssrc=)", shown), address
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", shown), address


# --- tenants ------------------------------------------------------------------------------------------------


def test_a_superuser_adds_a_tenant_with_its_chain(root: Client):
    root.post(page(Tenant, view="add"), {"slug": "third", "name": "Third"})
    tenant = Tenant.objects.get(slug="third")
    assert last(tenant)[:2] == ("tenant.added", "user:root")
    assert not tenant.memberships.exists()


def test_an_admin_of_a_tenant_adds_no_tenants(client: Client):
    assert client.post(page(Tenant, view="add"), {"slug": "third", "name": "Third"}).status_code == 403
    assert not Tenant.objects.filter(slug="third").exists()


def test_a_tenant_is_never_changed(root: Client, cast: Cast):
    assert root.post(page(Tenant, cast.acme.pk), {"slug": "new", "name": "New"}).status_code == 403
    assert Tenant.objects.get(pk=cast.acme.pk).slug == "acme"


def test_the_name_of_the_portals_own_chain_is_refused(root: Client):
    assert "slug" in errors(root.post(page(Tenant, view="add"), {"slug": "system", "name": "System"}))


# --- accounts -----------------------------------------------------------------------------------------------


def test_an_admin_makes_an_account_with_its_first_roles(client: Client, cast: Cast):
    form = {
        "username": "ann",
        "new_password": PASSWORD,
        "tenant": str(cast.acme.pk),
        "roles": ["reviewer", "auditor"],
    }
    assert client.post(page(User, view="add"), form).status_code == 302
    ann = User.objects.get(username="ann")
    assert ann.check_password(PASSWORD)
    assert setup.roles(ann, cast.acme) == [Role.REVIEWER, Role.AUDITOR]
    assert last(cast.acme)[:2] == ("member.changed", "user:admin")
    assert last(None)[:2] == ("member.changed", "user:admin")


@pytest.mark.parametrize(
    ("field", "value"),
    [("username", "Ann"), ("new_password", "12345678"), ("roles", []), ("username", "reviewer")],
)
def test_a_bad_account_is_refused_beside_its_field(client: Client, cast: Cast, field: str, value: object):
    form = {"username": "ann", "new_password": PASSWORD, "tenant": str(cast.acme.pk), "roles": ["reviewer"]}
    response = client.post(page(User, view="add"), form | {field: value})
    assert list(errors(response)) == [field]
    assert PASSWORD not in text(response)
    assert not User.objects.filter(username="ann").exists()


def test_an_admin_deactivates_an_account_and_gives_a_new_password(client: Client, cast: Cast):
    client.post(page(User, cast.reviewer.pk), {"is_active": "", "new_password": "another horse battery"})
    cast.reviewer.refresh_from_db()
    assert not cast.reviewer.is_active
    assert cast.reviewer.check_password("another horse battery")
    assert last(cast.acme)[2]["account"]["after"] == {"active": False, "password": "replaced"}


def test_an_account_that_is_left_as_it_is_writes_nothing(client: Client, cast: Cast):
    before = count(cast.acme)
    client.post(page(User, cast.reviewer.pk), {"is_active": "on", "new_password": ""})
    assert count(cast.acme) == before
    assert User.objects.get(pk=cast.reviewer.pk).check_password(PASSWORD)


def test_ones_own_account_is_not_changed_here(client: Client, cast: Cast):
    assert (
        client.post(page(User, cast.admin.pk), {"new_password": "another horse battery"}).status_code == 403
    )
    assert User.objects.get(pk=cast.admin.pk).check_password(PASSWORD)


def test_an_account_that_belongs_to_another_tenant_too_is_only_seen(client: Client, root: Client, cast: Cast):
    factories.member("reviewer", cast.other, Role.REVIEWER)
    form = {"is_active": "on", "new_password": "another horse battery"}
    shown = text(client.get(page(User, cast.reviewer.pk)))
    assert "Reviewer of Acme" in shown
    assert "Other" not in shown
    assert client.post(page(User, cast.reviewer.pk), form).status_code == 403
    assert root.post(page(User, cast.reviewer.pk), form).status_code == 302


def test_an_admin_does_not_take_over_a_superuser(client: Client, cast: Cast):
    root = factories.user("root", superuser=True)
    setup.set_roles(user=root, tenant=cast.acme, roles=[Role.AUDITOR], by=OPERATOR)
    assert (
        client.post(
            page(User, root.pk), {"is_active": "on", "new_password": "another horse battery"}
        ).status_code
        == 403
    )


def test_flags_of_django_cannot_be_smuggled_in(client: Client, cast: Cast):
    client.post(page(User, cast.reviewer.pk), {"is_active": "on", "is_superuser": "on", "is_staff": "on"})
    cast.reviewer.refresh_from_db()
    assert not cast.reviewer.is_superuser
    assert not cast.reviewer.is_staff


# --- roles --------------------------------------------------------------------------------------------------


def give(client: Client, tenant: Tenant, user: User, *roles: str) -> Any:
    form = {"tenant": str(tenant.pk), "user": str(user.pk), "roles": roles}
    return client.post(page(Membership, view="add"), form)


def test_an_admin_gives_a_role_and_what_was_held_stays(client: Client, cast: Cast):
    assert give(client, cast.acme, cast.reviewer, "auditor").status_code == 302
    assert setup.roles(cast.reviewer, cast.acme) == [Role.REVIEWER, Role.AUDITOR]
    kind, actor, said = last(cast.acme)
    assert (kind, actor) == ("member.changed", "user:admin")
    assert said["roles"] == {"before": ["reviewer"], "after": ["reviewer", "auditor"]}


def test_an_admin_takes_roles_away(client: Client, cast: Cast):
    row = cast.reviewer.memberships.get()
    assert client.get(page(Membership, row.pk)).context["adminform"].form.initial["roles"] == ["reviewer"]
    assert client.post(page(Membership, row.pk), {"roles": []}).status_code == 302
    assert setup.roles(cast.reviewer, cast.acme) == []
    assert last(cast.acme)[2]["roles"]["after"] == []


def test_one_role_is_exchanged_for_another(client: Client, cast: Cast):
    row = cast.reviewer.memberships.get()
    assert client.post(page(Membership, row.pk), {"roles": ["auditor"]}).status_code == 302
    assert setup.roles(cast.reviewer, cast.acme) == [Role.AUDITOR]


def test_nobody_chooses_themselves(client: Client, cast: Cast):
    assert "Select a valid choice" in str(errors(give(client, cast.acme, cast.admin, "reviewer"))["user"])


def test_nobody_gives_themselves_a_role_on_their_own_row(client: Client, cast: Cast):
    row = cast.admin.memberships.get()
    response = client.post(page(Membership, row.pk), {"roles": ["admin", "reviewer"]}, follow=True)
    assert "Nobody gives a role to themselves" in text(response)
    assert setup.roles(cast.admin, cast.acme) == [Role.ADMIN]


def test_a_superuser_gives_themselves_no_role_either(root: Client, cast: Cast):
    me = User.objects.get(username="root")
    assert "user" in errors(give(root, cast.acme, me, "reviewer"))
    assert not me.memberships.exists()


def test_an_account_of_others_cannot_be_brought_in_by_an_admin(client: Client, root: Client, cast: Cast):
    assert "user" in errors(give(client, cast.acme, cast.stranger, "auditor"))
    assert give(root, cast.acme, cast.stranger, "auditor").status_code == 302


# --- endpoints ----------------------------------------------------------------------------------------------


def endpoint_form(endpoint: Endpoint | None = None, **changes: str) -> dict[str, str]:
    usual = {
        "base_url": "https://new.example",
        "approval_wait": "60",
        "allow_networks": "",
        "new_token": "",
        "enabled": "on",
    }
    if endpoint is not None:
        usual["base_url"] = endpoint.base_url
    return usual | changes


def test_an_admin_connects_an_endpoint(client: Client, cast: Cast):
    form = endpoint_form(
        tenant=str(cast.acme.pk), endpoint_id=" NEW ", new_token=FRESH, allow_networks="10.1.0.0/16\nfd00::/8"
    )
    assert client.post(page(Endpoint, view="add"), form).status_code == 302
    endpoint = Endpoint.objects.get(endpoint_id="new")
    assert (endpoint.open_token(), endpoint.allow_networks) == (FRESH, ["10.1.0.0/16", "fd00::/8"])
    assert last(cast.acme)[:2] == ("endpoint.added", "user:admin")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("new_token", ""),
        ("new_token", "short"),
        ("base_url", "http://127.1"),
        ("base_url", "https://hermes.example/p/theirs"),
        ("endpoint_id", "a b"),
        ("endpoint_id", "theirs"),
        ("approval_wait", "0"),
        ("allow_networks", "everything"),
    ],
)
def test_a_bad_endpoint_is_refused_beside_its_field(client: Client, cast: Cast, field: str, value: str):
    form = endpoint_form(tenant=str(cast.acme.pk), endpoint_id="new", new_token=FRESH) | {field: value}
    response = client.post(page(Endpoint, view="add"), form)
    assert list(errors(response)) == [field]
    assert FRESH not in text(response)
    assert Endpoint.objects.count() == 2


def test_the_token_is_on_no_page(client: Client, cast: Cast):
    shown = text(client.get(page(Endpoint, cast.endpoint.pk)))
    assert TOKEN not in shown
    assert re.search(r'<input type="password" name="new_token"(?![^>]*value=)', shown)


def test_a_change_bumps_the_revision_and_keeps_the_token(client: Client, cast: Cast):
    client.post(page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint, approval_wait="900"))
    endpoint = Endpoint.objects.get(pk=cast.endpoint.pk)
    assert (endpoint.approval_wait, endpoint.revision, endpoint.credential_revision) == (900, 2, 1)
    assert endpoint.open_token() == TOKEN
    assert last(cast.acme)[2]["after"] == {"approval_wait": 900}


def test_a_new_token_bumps_the_credential_revision(client: Client, cast: Cast):
    client.post(page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint, new_token=FRESH))
    endpoint = Endpoint.objects.get(pk=cast.endpoint.pk)
    assert (endpoint.revision, endpoint.credential_revision, endpoint.open_token()) == (1, 2, FRESH)
    assert last(cast.acme)[0] == "endpoint.credential_rotated"
    assert not any(FRESH in entry.change_message for entry in LogEntry.objects.all())


def test_another_address_bumps_the_revision_and_needs_a_token(client: Client, cast: Cast):
    elsewhere = endpoint_form(cast.endpoint, base_url="https://elsewhere.example")
    assert list(errors(client.post(page(Endpoint, cast.endpoint.pk), elsewhere))) == ["new_token"]
    client.post(page(Endpoint, cast.endpoint.pk), elsewhere | {"new_token": FRESH})
    endpoint = Endpoint.objects.get(pk=cast.endpoint.pk)
    assert (endpoint.base_url, endpoint.revision) == ("https://elsewhere.example", 2)


def test_an_endpoint_that_is_left_as_it_is_writes_nothing(client: Client, cast: Cast):
    before = count(cast.acme)
    assert client.post(page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint)).status_code == 302
    assert count(cast.acme) == before


def test_an_endpoint_is_disabled(client: Client, cast: Cast):
    client.post(page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint, enabled=""))
    assert not Endpoint.objects.get(pk=cast.endpoint.pk).enabled


def test_an_endpoint_is_never_renamed_or_moved(client: Client, cast: Cast):
    smuggled = endpoint_form(cast.endpoint, endpoint_id="renamed", tenant=str(cast.other.pk), revision="7")
    client.post(page(Endpoint, cast.endpoint.pk), smuggled)
    endpoint = Endpoint.objects.get(pk=cast.endpoint.pk)
    assert (endpoint.endpoint_id, endpoint.tenant, endpoint.revision) == ("ops", cast.acme, 1)


def test_what_is_refused_at_the_last_moment_is_said_on_the_page(
    client: Client, cast: Cast, monkeypatch: pytest.MonkeyPatch
):
    def taken(**given: object) -> None:
        raise Invalid("base_url", "It belongs to another endpoint already.")

    monkeypatch.setattr(setup, "change_endpoint", taken)
    response = client.post(
        page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint, approval_wait="900"), follow=True
    )
    assert "It belongs to another endpoint already." in text(response)
    assert not LogEntry.objects.exists()


def test_without_evidence_nothing_is_saved(client: Client, cast: Cast, monkeypatch: pytest.MonkeyPatch):
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(evidence.Chain, "append", fails)
    with pytest.raises(OSError, match="disk full"):
        client.post(page(Endpoint, cast.endpoint.pk), endpoint_form(cast.endpoint, approval_wait="900"))
    assert Endpoint.objects.get(pk=cast.endpoint.pk).approval_wait == 60


def test_a_check_after_saving_shows_what_was_seen(
    client: Client, cast: Cast, django_capture_on_commit_callbacks: Any
):
    with FakeHermes() as hermes:
        endpoint = factories.endpoint(
            cast.acme, "near", base_url=hermes.url, token=KEY, allow_networks=("127.0.0.0/8",)
        )
        form = endpoint_form(endpoint, allow_networks="127.0.0.0/8", check_now="on")
        with django_capture_on_commit_callbacks(execute=True):
            client.post(page(Endpoint, endpoint.pk), form)
    assert EndpointStatus.objects.get(endpoint=endpoint).health == EndpointStatus.Health.OK
    assert "0.19.0" in text(client.get(page(Endpoint, endpoint.pk)))


# --- policy -------------------------------------------------------------------------------------------------


def paste(
    client: Client, tenant: Tenant, document: str = POLICY, language: str = "toml", reason: str = "Care."
) -> Any:
    form = {"tenant": str(tenant.pk), "document": document, "language": language, "reason": reason}
    return client.post(page(PolicyRevision, view="add"), form)


@pytest.mark.parametrize(
    ("language", "document"),
    [
        ("toml", POLICY),
        (
            "json",
            '{"rules": [{"name": "Two", "operations": ["run_stop"], "effect": "require", "approvers": 2}]}',
        ),
    ],
)
def test_a_pasted_policy_becomes_the_next_revision(client: Client, cast: Cast, language: str, document: str):
    assert paste(client, cast.acme, document, language).status_code == 302
    revision = PolicyRevision.objects.get()
    assert (revision.number, revision.author, revision.reason) == (1, cast.admin, "Care.")
    assert last(cast.acme)[:2] == ("policy.changed", "user:admin")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("document", {"document": "rules = ["}),
        ("document", {"document": POLICY.replace("run_stop", "run_everything")}),
        ("document", {"language": "json"}),
        ("document", {"document": ""}),
        ("reason", {"reason": " "}),
        ("language", {"language": "yaml"}),
    ],
)
def test_a_bad_policy_is_refused_beside_its_field(
    client: Client, cast: Cast, field: str, given: dict[str, str]
):
    assert list(errors(paste(client, cast.acme, **given))) == [field]
    assert not PolicyRevision.objects.exists()


def test_the_rules_in_force_are_not_pasted_again(client: Client, cast: Cast):
    paste(client, cast.acme)
    assert "Revision 1 says this already" in str(errors(paste(client, cast.acme)))
    assert PolicyRevision.objects.count() == 1


def test_a_revision_is_read_only(client: Client, cast: Cast):
    paste(client, cast.acme)
    revision = PolicyRevision.objects.get()
    assert "&quot;approvers&quot;: 2" in text(client.get(page(PolicyRevision, revision.pk)))
    assert client.post(page(PolicyRevision, revision.pk), {"reason": "Other."}).status_code == 403


def test_a_hostile_rule_is_shown_as_text(client: Client, cast: Cast):
    paste(
        client,
        cast.acme,
        POLICY.replace("Two", "<script>alert(1)</script>"),
        reason="<img src=x onerror=alert(1)>",
    )
    revision = PolicyRevision.objects.get()
    for address in (page(PolicyRevision), page(PolicyRevision, revision.pk)):
        shown = text(client.get(address))
        assert "<script>alert" not in shown
        assert "<img src=x" not in shown
