"""The set-up commands: idempotent, clear about what they did, and they never show a secret."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from approvals import setup
from approvals.models import Endpoint, EvidenceEntry, PolicyRevision, Role, Tenant, User
from tests import factories
from tests.factories import TOKEN
from tests.fake_hermes import KEY, FakeHermes

pytestmark = pytest.mark.django_db
POLICY = """
[[rules]]
name = "Stops need two"
operations = ["run_stop"]
effect = "require"
approvers = 2
"""


def run(*words: object) -> str:
    """What the command prints."""
    out = StringIO()
    name, *rest = map(str, words)
    call_command(name, *rest, stdout=out)
    return out.getvalue()


def refused(*words: object) -> str:
    """What the command refuses with."""
    with pytest.raises(CommandError) as told:
        run(*words)
    return str(told.value)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(POLICY)
    return path


# --- tenant -------------------------------------------------------------------------------------------------


def test_tenant_add_says_what_it_added():
    assert run("tenant", "add", "acme", "--name", "Acme") == "Added the tenant acme (Acme).\n"
    assert Tenant.objects.get().name == "Acme"


def test_tenant_add_twice_changes_nothing_and_says_so():
    run("tenant", "add", "acme", "--name", "Acme")
    assert "Nothing was changed" in run("tenant", "add", "acme", "--name", "Acme")
    assert "Nothing was changed" in run("tenant", "add", "acme")
    assert EvidenceEntry.objects.count() == 1


def test_tenant_add_refuses_a_taken_slug_and_a_bad_one():
    run("tenant", "add", "acme", "--name", "Acme")
    assert "is called 'Acme'" in refused("tenant", "add", "acme", "--name", "Another")
    assert "a-z" in refused("tenant", "add", "Acme")


def test_tenant_list_names_them():
    factories.tenant("b"), factories.tenant("a")
    assert run("tenant", "list") == "a\tA\nb\tB\n"


# --- member -------------------------------------------------------------------------------------------------


def test_member_add_makes_the_account_and_gives_the_roles(tmp_path: Path):
    factories.tenant()
    path = tmp_path / "password"
    path.write_text("correct horse battery\n")
    said = run(
        "member", "add", "ann", "--tenant", "acme", "--role", "reviewer", "admin", "--password-file", path
    )
    assert (
        said
        == "ann: made the account; gave the role reviewer, admin in acme. Roles in acme: reviewer, admin.\n"
    )
    ann = User.objects.get(username="ann")
    assert ann.check_password("correct horse battery")
    assert ann.is_staff
    assert "correct horse" not in said


def test_member_add_twice_changes_nothing_and_says_so(tmp_path: Path):
    factories.tenant()
    path = tmp_path / "password"
    path.write_text("correct horse battery")
    words = ("member", "add", "ann", "--tenant", "acme", "--role", "reviewer", "--password-file", path)
    run(*words)
    before = EvidenceEntry.objects.count(), User.objects.get().password
    assert "nothing was changed" in run(*words)
    assert (EvidenceEntry.objects.count(), User.objects.get().password) == before


def test_member_add_keeps_the_roles_that_are_held():
    tenant = factories.tenant()
    ann = factories.member("ann", tenant, Role.AUDITOR)
    run("member", "add", "ann", "--tenant", "acme", "--role", "reviewer", "--role", "requester")
    assert setup.roles(ann, tenant) == [Role.REQUESTER, Role.REVIEWER, Role.AUDITOR]


def test_member_add_replaces_a_password_with_evidence(tmp_path: Path):
    tenant = factories.tenant()
    factories.member("ann", tenant, Role.AUDITOR)
    path = tmp_path / "password"
    path.write_text("another horse battery")
    said = run("member", "add", "ann", "--tenant", "acme", "--role", "auditor", "--password-file", path)
    assert said.startswith("ann: replaced the password.")
    assert EvidenceEntry.objects.filter(tenant=tenant).last().kind == "member.changed"  # type: ignore[union-attr]


def test_member_add_without_a_password_says_that_nobody_can_sign_in():
    factories.tenant()
    assert "Nobody can sign in" in run("member", "add", "ann", "--tenant", "acme", "--role", "reviewer")


def test_member_add_leaves_nothing_behind_when_it_is_refused(tmp_path: Path):
    factories.tenant()
    path = tmp_path / "password"
    path.write_text("12345678")
    words = ("--tenant", "acme", "--role", "reviewer", "--password-file", path)
    assert "too common" in refused("member", "add", "ann", *words)
    assert not User.objects.exists()


def test_member_add_refuses_an_unknown_role_tenant_and_file(tmp_path: Path):
    factories.tenant()
    assert "invalid choice" in refused("member", "add", "ann", "--tenant", "acme", "--role", "root")
    assert "tenant list" in refused("member", "add", "ann", "--tenant", "nowhere", "--role", "reviewer")
    words = ("--tenant", "acme", "--role", "reviewer", "--password-file", tmp_path / "none")
    assert "cannot be read" in refused("member", "add", "ann", *words)


# --- endpoint -----------------------------------------------------------------------------------------------


def connect(*more: object, token: Path, url: str = "https://hermes.example", tenant: str = "acme") -> str:
    words = ("--tenant", tenant, "--base-url", url, "--token-file", token, *more)
    return run("endpoint", "add", "ops", *words)


def test_endpoint_add_connects_a_server(secret: Path):
    factories.tenant()
    said = connect("--approval-wait", 900, "--allow-network", "10.1.0.0/16", token=secret)
    endpoint = Endpoint.objects.get()
    assert said.startswith("ops: connected to acme.")
    assert (endpoint.approval_wait, endpoint.allow_networks) == (900, ["10.1.0.0/16"])
    assert endpoint.open_token() == TOKEN
    assert TOKEN not in said


def test_endpoint_add_takes_the_token_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    factories.tenant()
    monkeypatch.setenv("HERMES_TOKEN", TOKEN)
    words = ("--tenant", "acme", "--base-url", "https://hermes.example", "--token-env")
    run("endpoint", "add", "ops", *words, "HERMES_TOKEN")
    assert Endpoint.objects.get().open_token() == TOKEN
    assert "is not set" in refused("endpoint", "add", "second", *words, "NOT_SET")


def test_endpoint_add_twice_changes_nothing_and_says_so(secret: Path):
    factories.tenant()
    connect("--approval-wait", 900, token=secret)
    before = EvidenceEntry.objects.count()
    assert "nothing was changed" in connect("--approval-wait", 900, token=secret)
    assert "nothing was changed" in connect(token=secret)
    assert EvidenceEntry.objects.count() == before


def test_endpoint_add_with_other_values_changes_them_and_says_so(secret: Path):
    factories.tenant()
    connect(token=secret)
    secret.write_text("another-token-0123456789")
    said = connect("--approval-wait", 900, token=secret, url="https://elsewhere.example")
    assert "changed, now revision 2; token replaced, now credential revision 2" in said
    assert Endpoint.objects.get().base_url == "https://elsewhere.example"


def test_an_endpoint_cannot_be_moved_to_another_tenant(secret: Path):
    factories.tenant(), factories.tenant("other")
    connect(token=secret)
    words = ("--tenant", "other", "--base-url", "https://hermes.example", "--token-file", secret)
    assert "belongs to the tenant acme and cannot be moved" in refused("endpoint", "add", "OPS", *words)
    assert Endpoint.objects.get().tenant.slug == "acme"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--base-url", "http://127.1"), "four decimal numbers"),
        (("--approval-wait", "soon"), "whole number"),
        (("--approval-wait", "0"), "whole number"),
        (("--allow-network", "10.0.0.1/8"), "is not a network"),
    ],
)
def test_endpoint_add_says_what_is_wrong(secret: Path, words: tuple[str, ...], said: str):
    factories.tenant()
    usual = ("--tenant", "acme", "--base-url", "https://hermes.example", "--token-file", secret)
    assert said in refused("endpoint", "add", "ops", *usual, *words)
    assert not Endpoint.objects.exists()


def test_endpoint_add_wants_exactly_one_token(secret: Path):
    factories.tenant()
    words = ("endpoint", "add", "ops", "--tenant", "acme", "--base-url", "https://hermes.example")
    assert "required" in refused(*words)
    assert "not allowed with" in refused(*words, "--token-file", secret, "--token-env", "HERMES_TOKEN")


def test_endpoint_check_says_version_and_features(secret: Path):
    factories.tenant()
    secret.write_text(KEY)
    with FakeHermes() as hermes:
        connect("--allow-network", "127.0.0.0/8", token=secret, url=hermes.url)
        said = run("endpoint", "check", "ops")
    assert said.startswith("ops: answers. Hermes 0.19.0. Features: ")
    assert "run_stop" in said


def test_endpoint_check_fails_when_it_does_not_answer(secret: Path):
    factories.tenant()
    with FakeHermes() as hermes:
        connect("--allow-network", "127.0.0.0/8", token=secret, url=hermes.url)
        assert "credential refused" in refused("endpoint", "check", "ops")
    assert "out of reach" in refused("endpoint", "check", "ops")
    assert "There is no endpoint" in refused("endpoint", "check", "nowhere")


# --- policy -------------------------------------------------------------------------------------------------


def test_policy_load_puts_rules_in_force(policy_file: Path):
    factories.tenant()
    said = run("policy", "load", policy_file, "--tenant", "acme", "--reason", "Two pairs of eyes.")
    revision = PolicyRevision.objects.get()
    assert said == f"acme: revision 1 is in force, 1 rule, SHA-256 {revision.digest}.\n"
    assert (revision.reason, revision.author) == ("Two pairs of eyes.", None)


def test_policy_load_twice_changes_nothing_and_says_so(policy_file: Path):
    factories.tenant()
    run("policy", "load", policy_file, "--tenant", "acme")
    assert "Nothing was changed" in run("policy", "load", policy_file, "--tenant", "acme")
    assert PolicyRevision.objects.count() == 1


def test_policy_load_says_where_a_document_is_wrong(policy_file: Path, tmp_path: Path):
    factories.tenant()
    policy_file.write_text(POLICY.replace("run_stop", "run_everything"))
    assert "rules[0].operations[0]" in refused("policy", "load", policy_file, "--tenant", "acme")
    policy_file.write_text("rules = [")
    assert "not valid TOML" in refused("policy", "load", policy_file, "--tenant", "acme")
    assert "cannot be read" in refused("policy", "load", tmp_path / "none.toml", "--tenant", "acme")
    assert "tenant list" in refused("policy", "load", policy_file, "--tenant", "nowhere")
    assert not PolicyRevision.objects.exists()
