"""System checks: silent on a sound installation, and each one speaks when it should."""

from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import CommandError, call_command
from django.db import connection

from approvals import checks, triggers
from approvals.models import Approval, Execution, Kind
from hermes_portal import canonical
from tests import factories


def ids(found: list[Any]) -> list[str]:
    return [message.id for message in found]


@pytest.mark.once
def test_every_message_says_what_to_do(settings: Any):
    settings.PORTAL_KEYS = settings.PORTAL_SIGNING_KEY = "no key"
    found = checks.keys_are_readable(None)
    assert all(message.hint for message in found)
    assert ids(found) == ["approvals.E001", "approvals.E002"]


@pytest.mark.once
def test_sound_keys_are_silent():
    assert checks.keys_are_readable(None) == []


@pytest.mark.once
def test_the_durations_as_they_come_fit_together():
    assert checks.durations_fit_together(None) == []


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ALIVE_SECONDS", 0.3, "approvals.E003"),
        ("HUB_LEASE_SECONDS", 0.5, "approvals.E004"),
        ("LEASE_SECONDS", 5.0, "approvals.E005"),
    ],
)
def test_durations_that_do_not_fit_together_are_errors(settings: Any, name: str, value: float, expected: str):
    setattr(settings, name, value)
    assert expected in ids(checks.durations_fit_together(None))


@pytest.mark.once
def test_the_embedded_mode_is_no_production(settings: Any):
    settings.PRODUCTION = False
    assert ids(checks.fit_for_production(None)) == ["approvals.W001"]


POSTGRES = {"default": {"ENGINE": "django.db.backends.postgresql"}}
SQLITE = {"default": {"ENGINE": "django.db.backends.sqlite3"}}


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"DEBUG": True}, ["approvals.W002"]),
        ({"HTTPS": False}, ["approvals.W003"]),
        ({"CELERY_BROKER_URL": "filesystem://localhost//"}, ["approvals.W004"]),
        ({"DATABASES": SQLITE}, ["approvals.W005"]),
        ({"DATABASES": SQLITE, "CELERY_BROKER_URL": "filesystem://localhost//"}, []),
    ],
)
def test_production_settings_that_contradict_each_other_are_said(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], expected: list[str]
):
    sound = {
        "PRODUCTION": True,
        "DEBUG": False,
        "HTTPS": True,
        "CELERY_BROKER_URL": "redis://127.0.0.1/0",
        "DATABASES": POSTGRES,
    }
    for name, value in (sound | changes).items():
        monkeypatch.setattr(configured, name, value)
    assert ids(checks.fit_for_production(None)) == expected


@pytest.mark.django_db
def test_a_missing_guard_is_named():
    assert checks.guards_stand(None, databases=["default"]) == []
    triggers.remove(connection)
    (message,) = checks.guards_stand(None, databases=["default"])
    assert message.id == "approvals.W006"
    assert "guard_approvals_evidenceentry_update" in message.msg


@pytest.mark.django_db
def test_checks_that_were_given_no_database_look_into_none(django_assert_num_queries: Any):
    with django_assert_num_queries(0):
        assert checks.guards_stand(None) == checks.tokens_open(None) == []


@pytest.mark.django_db
def test_a_token_whose_key_is_gone_is_named(settings: Any):
    factories.endpoint(factories.tenant(), "ops")
    assert checks.tokens_open(None, databases=["default"]) == []
    settings.PORTAL_KEYS = "2:" + "ab" * 32
    (message,) = checks.tokens_open(None, databases=["default"])
    assert (message.id, message.msg.endswith(": ops.")) == ("approvals.W007", True)


@pytest.mark.django_db
def test_unreadable_keys_are_said_once(settings: Any):
    factories.endpoint(factories.tenant(), "ops")
    settings.PORTAL_KEYS = "no key"
    assert checks.tokens_open(None, databases=["default"]) == []


@pytest.mark.django_db
def test_the_checks_are_registered():
    triggers.remove(connection)
    with pytest.raises(CommandError, match=r"approvals\.W006"):
        call_command("check", databases=["default"], fail_level="WARNING")


# --- what is derived from the state machines -------------------------------------------------------------------


@pytest.mark.once
def test_every_way_an_approval_ends_has_its_kind_of_evidence():
    reached = {str(target) for targets in Approval.MOVES.values() for target in targets}
    by_intent = {Approval.Status.CONSUMED.value}  # the execution's intent consumes it, and says so
    assert {f"approval.{state}" for state in reached - by_intent} <= set(Kind.values)


@pytest.mark.once
def test_every_way_an_execution_moves_has_its_kind_of_evidence():
    reached = {str(target) for targets in Execution.MOVES.values() for target in targets}
    named = {"sent": "intent"}
    assert {f"execution.{named.get(state, state)}" for state in reached} <= set(Kind.values)


@pytest.mark.once
def test_a_key_is_thirty_two_bytes_in_hex():
    assert checks._is_key(canonical.sha256(b""))
    assert not checks._is_key("ab" * 31)
