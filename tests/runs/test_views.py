"""Pages of runs: starting one, following it, and asking for a stop."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.execution import exact_input
from approvals.models import Action, Approval, Execution, Role
from hermes_portal import clock
from runs import practice
from runs.models import Run
from runs.states import MEANINGS
from tests import factories, scenes
from tests.factories import Cast

HTMX = {"HX-Request": "true"}


def as_(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def ask(user: Any, **fields: Any) -> Any:
    given = {
        "endpoint": "ops",
        "input": "Count the rows.",
        "reason": "Finance asked.",
        "idempotency_key": "key-1",
    }
    return as_(user).post(reverse("start"), given | fields)


def page(user: Any, run: Run, **query: Any) -> str:
    return as_(user).get(reverse("run", args=[run.pk]), query).content.decode()


# --- start -----------------------------------------------------------------------------------------------------------


def test_the_form_shows_its_key_and_says_what_becomes_of_a_list(cast: Cast) -> None:
    text = as_(cast.requester).get(reverse("start")).content.decode()
    assert 'name="idempotency_key" value="form-' in text
    assert "the last item is the current input" in text
    assert "used instead of a previous response" in text
    assert "the start does not fail" in text


def test_a_start_makes_a_run_and_leads_to_it(cast: Cast) -> None:
    answer = ask(cast.requester)
    run = Run.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, reverse("run", args=[run.pk]))
    assert exact_input(run.action) == {"body": {"input": "Count the rows."}}
    assert "nothing to stop yet" in page(cast.requester, run)


def test_every_field_reaches_the_input(cast: Cast) -> None:
    history = [{"role": "user", "content": "Before."}]
    ask(
        cast.requester,
        conversation_history=json.dumps(history),
        instructions="Be brief.",
        model="m",
        session_id="s",
        session_key="k",
        previous_response_id="resp_1",
    )
    assert exact_input(Action.objects.get()) == {
        "body": {
            "input": "Count the rows.",
            "conversation_history": history,
            "instructions": "Be brief.",
            "model": "m",
            "session_id": "s",
            "previous_response_id": "resp_1",
        },
        "session_key": "k",
    }
    assert "not that of the previous response" in page(cast.requester, Run.objects.get())


def test_a_list_of_messages_is_a_list_and_its_last_item_is_named(cast: Cast) -> None:
    messages = [{"role": "user", "content": "Before."}, {"role": "user", "content": "Now."}]
    ask(cast.requester, input=json.dumps(messages))
    run = Run.objects.get()
    assert exact_input(run.action) == {"body": {"input": messages}}
    assert "Current input: item 2 of 2" in page(cast.requester, run)


def test_json_can_be_sent_as_plain_text(cast: Cast) -> None:
    ask(cast.requester, input="42", plain="1")
    assert exact_input(Action.objects.get()) == {"body": {"input": "42"}}


def test_text_that_only_looks_like_json_is_text(cast: Cast) -> None:
    ask(cast.requester, input="[[say:hello]] {x}")
    assert exact_input(Action.objects.get()) == {"body": {"input": "[[say:hello]] {x}"}}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": ""}, "input"),
        ({"input": "   "}, "input"),
        ({"input": "42"}, "input"),
        ({"input": '{"a": 1}'}, "input"),
        ({"input": "[]"}, "input"),
        ({"input": '[{"role": "user"}]'}, "input"),
        ({"input": '[{"role": "user", "content": ""}]'}, "input"),
        ({"input": '[{"role": "user", "content": "x"},]'}, "input"),
        ({"input": '[{"role": "user", "content": "\\u0000"}]'}, "input"),
        ({"input": "x" * (1024 * 1024 + 1)}, "input"),
        ({"conversation_history": "{"}, "conversation_history"),
        ({"conversation_history": '{"a": 1}'}, "conversation_history"),
        ({"session_id": "a\r\nb"}, "session_id"),
        ({"session_key": "k" * 257}, "session_key"),
        ({"session_key": "a\nb"}, "session_key"),
        ({"model": "m\x00"}, "model"),
        ({"endpoint": "nowhere"}, "endpoint"),
        ({"endpoint": "theirs"}, "endpoint"),
        ({"endpoint": ""}, "endpoint"),
        ({"reason": " "}, "reason"),
        ({"idempotency_key": "ä"}, "idempotency_key"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
    ],
)
def test_what_can_not_be_sent_is_422_beside_its_field_and_makes_nothing(
    cast: Cast, fields: dict[str, str], field: str
) -> None:
    answer = ask(cast.requester, **fields)
    text = answer.content.decode()
    assert answer.status_code == 422
    assert not Run.objects.exists()
    element = text.split(f'id="{field}"')[1].split(">")[0]
    assert 'aria-invalid="true"' in element
    assert 'class="wrong" role="alert"' in text


def test_a_double_click_is_one_run(cast: Cast) -> None:
    first, second = ask(cast.requester), ask(cast.requester)
    assert first["Location"] == second["Location"]
    assert Run.objects.count() == 1


def test_a_used_key_with_another_input_answers_the_first_and_says_so(cast: Cast) -> None:
    client = as_(cast.requester)
    given = {"endpoint": "ops", "input": "One.", "reason": "x", "idempotency_key": "same"}
    client.post(reverse("start"), given)
    answer = client.post(reverse("start"), given | {"input": "Two."}, follow=True)
    assert Run.objects.count() == 1
    assert "was not sent" in answer.content.decode()


def test_a_disabled_endpoint_is_409_with_a_sentence(cast: Cast) -> None:
    setup.change_endpoint(endpoint=cast.endpoint, by=OPERATOR, enabled=False)
    answer = ask(cast.requester)
    assert answer.status_code == 409
    assert "disabled" in answer.content.decode()


def test_what_policy_forbids_is_422_with_its_sentence(cast: Cast) -> None:
    factories.policy(cast.acme, factories.forbid("run_start", "No runs in December."))
    answer = ask(cast.requester)
    assert answer.status_code == 422
    assert "No runs in December." in answer.content.decode()


@pytest.mark.parametrize("who", ["reviewer", "auditor", "admin", "nobody"])
def test_only_requesters_have_somewhere_to_start(cast: Cast, who: str) -> None:
    assert "Nowhere to start one" in as_(getattr(cast, who)).get(reverse("start")).content.decode()
    assert ask(getattr(cast, who)).status_code == 422
    assert not Run.objects.exists()


# --- one run ---------------------------------------------------------------------------------------------------------


def test_every_state_has_a_meaning_and_a_next_step() -> None:
    assert set(MEANINGS) == set(Run.Status)
    assert all(meaning.means and meaning.next for meaning in MEANINGS.values())


@pytest.mark.parametrize("status", Run.Status.values)
def test_a_state_is_shown_with_its_meaning(cast: Cast, status: str) -> None:
    early = (Run.Status.REQUESTED, Run.Status.NOT_STARTED, Run.Status.START_UNKNOWN)
    run = (
        scenes.start(cast.requester, cast.endpoint).run
        if status in early
        else scenes.running(cast.requester, cast.endpoint)
    )
    Run.objects.filter(pk=run.pk).exclude(status=status).update(status=status)
    text = page(cast.reviewer, run)
    assert MEANINGS[status].means.split(".")[0].split("'")[0] in text
    if status in ("cancelled", "failed", "interrupted", "lost"):
        assert "may have taken effect" in text
    if status == "stopping":
        assert "Stop requested" in text


def test_the_transcript_shows_text_tools_gaps_and_the_end(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    scenes.event(run, "message.delta", "Counting now.")
    scenes.event(run, "tool.started", "SELECT 1", tool="sql")
    scenes.event(run, "tool.completed", tool="sql", duration=0.25, error=True)
    scenes.event(run, "reasoning.available", "I should look.")
    scenes.event(run, "gap", "The stream broke off.")
    scenes.event(run, "unparsed", "{broken", reason="not_json")
    scenes.event(run, "dropped")
    scenes.event(run, "something.new", x="y")
    scenes.event(run, "run.failed", "boom")
    text = page(cast.reviewer, run)
    for words in (
        "Counting now.",
        "SELECT 1",
        "ended with an error",
        "0.2 s",
        "I should look.",
        "The stream broke off.",
    ):
        assert words in text
    for words in ("could not be read", "1 event not kept", "something.new", "boom"):
        assert words in text


def test_new_rows_come_without_a_reload_and_nothing_else(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    scenes.event(run, "message.delta", "First.")
    client = as_(cast.reviewer)
    address = (
        page(cast.reviewer, run)
        .split('id="follow"')[1]
        .split('hx-get="')[1]
        .split('"')[0]
        .replace("&amp;", "&")
    )
    assert client.get(address, headers=HTMX).status_code == 204
    run.refresh_from_db()
    scenes.event(run, "message.delta", "Second.")
    text = client.get(address, headers=HTMX).content.decode()
    assert "Second." in text
    assert "First." not in text
    assert 'hx-swap-oob="beforeend:#transcript"' in text
    assert 'id="state" hx-swap-oob="true"' in text
    assert "after=1" in text


def test_a_state_that_moves_without_an_event_comes_too(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    address = (
        page(cast.reviewer, run)
        .split('id="follow"')[1]
        .split('hx-get="')[1]
        .split('"')[0]
        .replace("&amp;", "&")
    )
    Run.objects.filter(pk=run.pk).update(status=Run.Status.LOST, version=run.version + 1)
    text = as_(cast.reviewer).get(address, headers=HTMX).content.decode()
    assert MEANINGS[Run.Status.LOST].next in text


def test_the_page_stays_bounded_and_leads_to_earlier_rows(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.views.ROWS", 3)
    run = scenes.running(cast.requester, cast.endpoint)
    for n in range(7):
        scenes.event(run, "reasoning.available", f"thought-{n}")
    text = page(cast.reviewer, run)
    assert [f"thought-{n}" in text for n in range(7)] == [False] * 4 + [True] * 3
    assert "?before=4" in text
    earlier = page(cast.reviewer, run, before=4)
    assert "thought-3" in earlier
    assert "thought-4" not in earlier
    assert "hx-get" not in earlier


@pytest.mark.parametrize("query", [{"after": "x"}, {"after": "-5"}, {"before": "9" * 30}, {"after": ""}])
def test_a_position_that_can_not_be_read_is_the_live_end(cast: Cast, query: dict[str, str]) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    scenes.event(run, "message.delta", "Here.")
    answer = as_(cast.reviewer).get(reverse("run", args=[run.pk]), query)
    assert answer.status_code == 200
    assert "Here." in answer.content.decode()


def test_prompts_lead_to_their_cards(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    card = scenes.card(scenes.asks(run))
    assert reverse("approval", args=[card.pk]) in page(cast.reviewer, run)


def test_a_refused_start_says_why_and_that_slots_are_shared(cast: Cast) -> None:
    action = scenes.start(cast.requester, cast.endpoint)
    now = clock.now()
    Execution.objects.create(
        action=action,
        tenant=action.tenant,
        lane="x",
        status="not_applied",
        lease_until=now,
        worker="t",
        claimed_at=now,
        code="saturated",
        sentence="Hermes is full; ask again in 1 s.",
    )
    Run.objects.filter(action=action).update(status=Run.Status.NOT_STARTED)
    text = page(cast.requester, action.run)
    assert "Hermes is full" in text
    assert "Chat and Responses" in text


def test_hostile_text_of_a_run_is_text(cast: Cast) -> None:
    hostile = '<img src=x onerror=alert(1)><div hx-get="/x" hx-trigger="load">'
    run = scenes.running(cast.requester, cast.endpoint, text=hostile, reason=hostile)
    for kind in ("message.delta", "tool.started", "run.failed", hostile[:90]):
        scenes.event(run, kind, hostile, tool=hostile, other=hostile)
    Run.objects.filter(pk=run.pk).update(model=hostile, session_id=hostile, output=hostile, error=hostile)
    text = page(cast.reviewer, run)
    assert hostile[:28] not in text
    assert 'hx-get="/x"' not in text


def test_the_queries_of_a_run_do_not_grow_with_it(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    client, address = as_(cast.reviewer), reverse("run", args=[run.pk])

    def counted() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.get(address)
        return len(captured)

    scenes.asks(run)
    counted()
    few = counted()
    run.refresh_from_db()
    for n in range(20):
        scenes.event(run, "message.delta", f"{n}")
        scenes.asks(run, f"command {n}")
    assert counted() == few <= 15


def test_runs_are_listed_for_members_only(cast: Cast) -> None:
    scenes.running(cast.requester, cast.endpoint)
    assert "Rebuild the yearly report" in as_(cast.auditor).get(reverse("runs")).content.decode()
    assert "Rebuild the yearly report" not in as_(cast.stranger).get(reverse("runs")).content.decode()


# --- stop ------------------------------------------------------------------------------------------------------------


def stop(user: Any, run: Run, **fields: Any) -> Any:
    given = {"reason": "wrong year", "idempotency_key": "stop-1"} | fields
    return as_(user).post(reverse("stop", args=[run.pk]), given)


def test_a_stop_is_asked_for_and_needs_an_approval(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    assert "Ask for a stop" in page(cast.requester, run)
    answer = stop(cast.requester, run)
    action = Action.objects.get(operation="run_stop")
    assert (answer.status_code, answer["Location"]) == (302, reverse("action", args=[action.pk]))
    assert action.approval.status == Approval.Status.PENDING
    assert "A stop waits for its approval." in page(cast.requester, run)


def test_a_double_click_is_one_stop(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    assert stop(cast.requester, run)["Location"] == stop(cast.requester, run)["Location"]
    assert Action.objects.filter(operation="run_stop").count() == 1


def test_before_the_receipt_there_is_nothing_to_stop(cast: Cast) -> None:
    run = scenes.start(cast.requester, cast.endpoint).run
    answer = stop(cast.requester, run)
    assert answer.status_code == 409
    assert "nothing to stop yet" in answer.content.decode()


def test_a_run_that_is_over_can_not_be_stopped(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    Run.objects.filter(pk=run.pk).update(status=Run.Status.COMPLETED)
    assert "Ask for a stop" not in page(cast.requester, run)
    assert stop(cast.requester, run).status_code == 409


def test_a_stop_needs_a_reason(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    answer = stop(cast.requester, run, reason=" ")
    assert answer.status_code == 422
    assert "Say why" in answer.content.decode()


@pytest.mark.parametrize("who", ["reviewer", "auditor", "admin"])
def test_who_is_no_requester_can_not_ask_for_a_stop(cast: Cast, who: str) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    assert "needs the role requester" in page(getattr(cast, who), run)
    assert stop(getattr(cast, who), run).status_code == 403


def test_an_accepted_stop_is_stop_requested_and_no_end(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    Run.objects.filter(pk=run.pk).update(stop_asked_at=clock.now())
    assert "It is a request, not an end." in page(cast.requester, run)


# --- practice --------------------------------------------------------------------------------------------------------


def test_practice_exists_in_the_demo_only(cast: Cast, settings: Any) -> None:
    settings.PORTAL_DEMO = False
    assert as_(cast.requester).post(reverse("practice")).status_code == 404
    assert "practice" not in as_(cast.requester).get("/").content.decode()


def test_a_reviewer_gets_a_practice_run_that_the_demos_own_account_asked_for(
    cast: Cast, settings: Any
) -> None:
    settings.PORTAL_DEMO = True
    player = factories.member(practice.ACCOUNT, cast.acme, Role.REQUESTER)
    assert "Start a practice run" in as_(cast.reviewer).get("/").content.decode()
    answer = as_(cast.reviewer).post(reverse("practice"))
    run = Run.objects.get()
    assert answer["Location"] == reverse("run", args=[run.pk])
    assert run.requester == player
    assert run.action.reason.endswith("Practice, started by reviewer.")


def test_a_person_without_a_tenant_gets_no_practice_run(cast: Cast, settings: Any) -> None:
    settings.PORTAL_DEMO = True
    assert as_(cast.nobody).post(reverse("practice")).status_code == 404


def test_after_a_gap_a_waiting_run_says_that_only_a_stop_is_left(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    Run.objects.filter(pk=run.pk).update(status=Run.Status.WAITING, gaps=1)
    assert "After a gap it cannot be answered from here." in page(cast.requester, run)
    Run.objects.filter(pk=run.pk).update(features={"request_id": True})
    assert "Open the card of the oldest request" in page(cast.requester, run)
