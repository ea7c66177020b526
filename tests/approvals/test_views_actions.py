"""Requests and case files: where an action stands, what proves it, and closing an unknown outcome."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from approvals import services
from approvals.models import Action, Approval, EvidenceEntry, Execution, Kind
from hermes_portal import clock
from tests import factories, scenes
from tests.factories import Cast

HTMX = {"HX-Request": "true"}


def as_(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(user: Any, action: Action) -> str:
    return as_(user).get(reverse("action", args=[action.pk])).content.decode()


@pytest.fixture
def start(cast: Cast) -> Action:
    return scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")


def attempted(action: Action, status: str) -> Action:
    """A ledger row for an action, in any state."""
    now = clock.now()
    Execution.objects.create(
        action=action,
        tenant=action.tenant,
        lane=action.lane,
        status=status,
        lease_until=now,
        worker="test",
        claimed_at=now,
        sent_at=now,
        code="reply_lost",
        sentence="No answer came back.",
    )
    return action


@pytest.fixture
def unknown(start: Action) -> Action:
    """Sent, and no answer came."""
    return attempted(start, Execution.Status.UNKNOWN)


def test_requests_are_listed_newest_first_with_their_state(cast: Cast, start: Action) -> None:
    scenes.start(cast.requester, cast.endpoint, text="A later one")
    text = as_(cast.reviewer).get(reverse("requests")).content.decode()
    assert text.index("A later one") < text.index("Rebuild the yearly report")
    assert "Waiting to be sent" in text


def test_requests_of_others_never_show(cast: Cast, start: Action) -> None:
    text = as_(cast.stranger).get(reverse("requests")).content.decode()
    assert "Rebuild" not in text


def test_unknown_outcomes_are_listed_for_people(cast: Cast, unknown: Action) -> None:
    assert "outcome unknown" in as_(cast.reviewer).get("/").content.decode()
    text = as_(cast.reviewer).get(reverse("requests"), {"outcome": "unknown"}).content.decode()
    assert unknown.title in text
    assert "Outcome unknown" in text


def test_an_expired_approval_shows_as_expired_before_any_sweep(cast: Cast) -> None:
    factories.policy(cast.acme, factories.require("run_start"))
    scenes.start(cast.requester, cast.endpoint)
    with clock.moved(timedelta(minutes=16)):
        text = as_(cast.reviewer).get(reverse("requests")).content.decode()
    assert '<span class="tag ">Expired</span>' in text


def test_the_case_file_has_every_entry_with_number_and_digest(cast: Cast) -> None:
    factories.policy(cast.acme, factories.require("run_start"))
    action = scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    approval = Approval.objects.get(action=action)
    services.decide(
        approval=approval,
        user=cast.reviewer,
        verdict="approve",
        reason="agreed",
        seen=services.seen_digest(approval),
    )
    text = page(cast.auditor, action)
    for entry in EvidenceEntry.objects.filter(action_id=action.pk):
        assert f"entry {entry.seq} " in text
        assert entry.digest in text
    assert ">agreed<" in text
    assert "match the stored entries" in text


def test_the_denial_of_a_command_is_in_the_file_of_the_action_that_carries_it(cast: Cast) -> None:
    approval = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    services.decide(
        approval=approval,
        user=cast.reviewer,
        verdict="deny",
        reason="too wide",
        seen=services.seen_digest(approval),
    )
    text = page(cast.auditor, Action.objects.get(linked_to=approval))
    assert "Denied" in text
    assert ">too wide<" in text
    assert reverse("approval", args=[approval.pk]) in text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("refused", "Nothing was sent"),
        ("unknown", "not known"),
        ("closed", "not known"),
        ("applied", "A receipt says"),
    ],
)
def test_it_says_what_it_does_not_prove(cast: Cast, start: Action, status: str, words: str) -> None:
    text = page(cast.auditor, attempted(start, status))
    assert words in text.split("What this does not prove")[1]


def test_an_accepted_stop_is_called_stop_requested(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    action = services.request(
        user=cast.requester,
        endpoint=cast.endpoint,
        operation="run_stop",
        raw={"run_id": run.provider_run_id},
        reason="x",
        key="k",
    ).action
    text = page(cast.auditor, attempted(action, "applied"))
    assert "Stop requested" in text
    assert "Accepted by Hermes" not in text


def test_a_person_closes_an_unknown_outcome_with_a_reason(cast: Cast, unknown: Action) -> None:
    address = reverse("close", args=[unknown.pk])
    assert "Close it with this reason" in page(cast.reviewer, unknown)
    assert as_(cast.reviewer).post(address, {"reason": " "}).status_code == 422
    assert as_(cast.reviewer).post(address, {"reason": "looked at the server"}).status_code == 302
    assert Execution.objects.get(pk=unknown.pk).status == Execution.Status.CLOSED
    assert EvidenceEntry.objects.filter(kind=Kind.EXECUTION_CLOSED).count() == 1
    assert as_(cast.reviewer).post(address, {"reason": "again"}).status_code == 409


@pytest.mark.parametrize("who", ["requester", "auditor"])
def test_who_may_not_close_gets_no_form_and_403(cast: Cast, unknown: Action, who: str) -> None:
    person = getattr(cast, who)
    assert "Close it with this reason" not in page(person, unknown)
    assert as_(person).post(reverse("close", args=[unknown.pk]), {"reason": "x"}).status_code == 403


def test_what_was_never_sent_can_not_be_closed(cast: Cast, start: Action) -> None:
    answer = as_(cast.reviewer).post(reverse("close", args=[start.pk]), {"reason": "x"})
    assert answer.status_code == 409
    assert "nothing to close" in answer.content.decode()


def test_a_poll_is_204_until_there_is_another_entry(cast: Cast, unknown: Action) -> None:
    client = as_(cast.reviewer)
    address = page(cast.reviewer, unknown).split('hx-get="')[1].split('"')[0]
    assert client.get(address, headers=HTMX).status_code == 204
    client.post(reverse("close", args=[unknown.pk]), {"reason": "looked"})
    answer = client.get(address, headers=HTMX)
    assert answer.status_code == 200
    assert "<html" not in answer.content.decode()


def test_hostile_reasons_are_text(cast: Cast) -> None:
    text = '<img src=x onerror=alert(1)> <div hx-get="/x">'
    action = scenes.start(cast.requester, cast.endpoint, text=text, reason=text)
    assert text not in page(cast.auditor, action)
    assert text not in as_(cast.auditor).get(reverse("requests")).content.decode()
