"""Between the intent and the first byte: what had arrived by then counts, and so does what Hermes confirms."""

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from approvals import execution, operations, services
from approvals.models import Action, Execution
from approvals.operations import Stale
from hermes_portal import clock
from hermes_portal.hermes.client import Reply
from runs import prompts
from runs.models import Prompt, Run
from tests import scenes
from tests.factories import Cast

Status = Execution.Status


@pytest.fixture
def prompt(cast: Cast) -> Prompt:
    found = scenes.asks(scenes.running(cast.requester, cast.endpoint))
    Run.objects.filter(pk=found.run_id).update(stream=Run.Stream.OPEN, read_through_at=clock.now())
    return found


@pytest.fixture
def action(cast: Cast, prompt: Prompt) -> Action:
    card = scenes.card(prompt)
    seen = services.seen_digest(card)
    services.decide(approval=card, user=cast.reviewer, choice="once", reason="Because.", seen=seen)
    card.refresh_from_db()
    assert card.action is not None
    return card.action


def read_to(prompt: Prompt, instant: datetime) -> None:
    Run.objects.filter(pk=prompt.run_id).update(read_through_at=instant)


def test_a_reading_that_got_past_the_intent_confirms_it(prompt: Prompt) -> None:
    sent_at = clock.now()
    read_to(prompt, sent_at + timedelta(milliseconds=1))
    assert prompts.confirm_head(prompt, sent_at)["confirmed_through"]


@pytest.mark.parametrize(
    "change",
    [
        lambda prompt: Prompt.objects.filter(pk=prompt.pk).update(let_go=True),
        lambda prompt: Prompt.objects.filter(pk=prompt.pk).update(responded_at=clock.now()),
        lambda prompt: Run.objects.filter(pk=prompt.run_id).update(gaps=1),
        lambda prompt: Run.objects.filter(pk=prompt.run_id).update(stream=Run.Stream.BROKEN),
        lambda prompt: Run.objects.filter(pk=prompt.run_id).update(status=Run.Status.COMPLETED),
    ],
)
def test_what_was_read_since_the_intent_stops_the_answer(
    prompt: Prompt, change: Callable[[Prompt], object]
) -> None:
    sent_at = clock.now()
    read_to(prompt, sent_at + timedelta(milliseconds=1))
    change(prompt)
    with pytest.raises(Stale) as stale:
        prompts.confirm_head(prompt, sent_at)
    assert stale.value.code == "head_changed"


def test_a_reading_that_does_not_get_there_stops_the_answer(prompt: Prompt, settings: Any) -> None:
    settings.CONFIRM_SECONDS = 0.1
    with pytest.raises(Stale) as stale:
        prompts.confirm_head(prompt, clock.now() + timedelta(seconds=1))
    assert stale.value.code == "head_not_confirmed"


@pytest.mark.django_db(transaction=True)
def test_the_last_look_waits_for_the_reading(cast: Cast, prompt: Prompt) -> None:
    from django.db import connection

    sent_at = clock.now()

    def later() -> None:
        time.sleep(0.2)
        read_to(prompt, sent_at + timedelta(seconds=1))
        connection.close()

    thread = threading.Thread(target=later)
    thread.start()
    assert prompts.confirm_head(prompt, sent_at)["confirmed_through"]
    thread.join()


def test_a_request_with_an_id_needs_no_last_look(prompt: Prompt) -> None:
    Prompt.objects.filter(pk=prompt.pk).update(request_id="a" * 32, let_go=True)
    prompt.refresh_from_db()
    assert prompts.confirm_head(prompt, clock.now()) == {}


def test_an_answer_that_the_last_look_stops_is_proven_unsent_and_asked_again(
    action: Action, prompt: Prompt, settings: Any
) -> None:
    settings.CONFIRM_SECONDS = 0.0
    claim = execution._claim(action.pk)
    assert claim is not None
    intent = execution._intend(claim)
    assert intent is not None
    outcome = execution._send(intent)
    assert (outcome.status, outcome.code) == (Status.NOT_APPLIED, "head_not_confirmed")
    execution.settle(action.pk, claim.fence, outcome, by="reply")
    prompt.refresh_from_db()
    assert prompt.status == Prompt.Status.OPEN


def reply(action: Action, **changed: Any) -> Reply:
    run_id = execution.exact_input(action)["run_id"]
    value = {"run_id": run_id, "choice": "once", "resolved": 1} | changed
    return Reply(status=200, value=value, raw_sha256="0" * 64, headers={})


def test_a_reply_that_says_what_was_asked_is_an_acceptance(action: Action) -> None:
    outcome = operations.get("run_approval").accepted(action, reply(action))
    assert (outcome.status, outcome.code) == (Status.APPLIED, "accepted")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"choice": "always"}, "reply_contradicts"),
        ({"choice": ["once"]}, "reply_contradicts"),
        ({"run_id": "run_" + "0" * 32}, "reply_contradicts"),
        ({"resolved": 1.0}, "resolved_other"),
        ({"resolved": True}, "resolved_other"),
        ({"resolved": 0}, "resolved_other"),
        ({"resolved": 2}, "resolved_other"),
    ],
)
def test_a_reply_that_says_something_else_proves_nothing(
    action: Action, changed: dict[str, Any], code: str
) -> None:
    outcome = operations.get("run_approval").accepted(action, reply(action, **changed))
    assert (outcome.status, outcome.code) == (Status.UNKNOWN, code)


def test_an_acceptance_after_the_request_went_away_is_not_called_ours(action: Action, prompt: Prompt) -> None:
    Prompt.objects.filter(pk=prompt.pk).update(let_go=True)
    known = operations.get("run_approval")
    outcome = known.accepted(action, reply(action))
    assert (outcome.status, outcome.code) == (Status.UNKNOWN, "released_other")
    claim = execution._claim(action.pk)
    assert claim is not None
    Execution.objects.filter(pk=action.pk).update(code="released_other")
    assert known.reconcile(action, Execution.objects.get(pk=action.pk)) is None
