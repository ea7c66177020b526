"""Requests that could not be shown, read or timed: nobody allows what nobody saw, nothing behind them is answered."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from approvals.errors import Invalid
from approvals.models import Kind
from approvals.operations import Stale
from approvals.services import decide, seen_digest
from hermes_portal import clock, redaction
from runs import journal, prompts
from runs.models import Prompt, Run
from tests import factories, scenes
from tests.fake_hermes import FakeRun
from tests.runs.streams import Told, card_of, evidence_of, fresh, received

pytestmark = pytest.mark.django_db

HIDDEN = "rm -rf /srv # " + f"{chr(0x200B)}{chr(0x200C)}" * 70_000


@pytest.fixture
def told(cast: factories.Cast) -> Told:
    return Told(received(cast, FakeRun("run_" + "a" * 32)))


def unreadable(run: Run, **members: object) -> bytes:
    """A request with a member that Python's json writes and strict JSON refuses."""
    request = {"event": "approval.request", "run_id": run.provider_run_id, "timestamp": 1.0, **members}
    return f"data: {json.dumps(request | {'expires': float('inf')})}\n\n".encode()


def refusal(prompt: Prompt) -> str:
    with pytest.raises(Stale) as stale:
        prompts.prove_head(prompt, clock.now(), alive=False)
    return stale.value.code


def test_a_command_that_cannot_be_shown_can_only_be_denied(cast: factories.Cast, told: Told) -> None:
    prompt = told.asks(HIDDEN)
    card = card_of(prompt)
    assert prompt.command in redaction.WITHHELD
    assert prompt.choices == card.offered == ["deny"]
    assert prompt.description.startswith(prompts.UNSEEN)
    with pytest.raises(Invalid):
        decide(approval=card, user=cast.reviewer, choice="once", reason="Go.", seen=seen_digest(card))


def test_a_provider_that_writes_the_mark_itself_withholds_nothing(told: Told) -> None:
    prompt = told.asks("[redacted:too large to show safely]")
    assert prompt.command not in redaction.WITHHELD
    assert "once" in prompt.choices


def test_a_request_that_cannot_be_read_stands_before_the_next_one(told: Told) -> None:
    told.raw(unreadable(told.run, command="rm -rf /srv", choices=["once", "deny"]))
    first = Prompt.objects.get(run=told.run)
    assert first.choices == []
    assert "could not be read" in first.description
    assert len(evidence_of(told.run, Kind.PROMPT_OPENED)) == 1
    assert refusal(told.asks("ls")) == "earlier_request"


def test_a_request_that_cannot_be_read_no_longer_blocks_once_its_tool_has_ended(told: Told) -> None:
    told.tell("tool.started", tool="terminal", preview="rm")
    told.raw(unreadable(told.run, command="rm -rf /srv"))
    told.tell("tool.completed", tool="terminal", duration=1.0, error=True)
    prompt = told.asks("ls")
    assert prompts.prove_head(prompt, clock.now(), alive=False)


def test_a_timestamp_of_a_far_century_hides_no_request(cast: factories.Cast, told: Told) -> None:
    told.tell("reasoning.available", text="Hm.", timestamp=200_000_000_000.0)
    assert told.asks("ls").choices
    other = Told(
        received(cast, FakeRun("run_" + "b" * 32))
    )  # recent runs of the endpoint are measured as well
    assert other.asks("ls").choices


def test_the_worthless_measurement_counts_from_the_start_of_the_run_in_a_backlog() -> None:
    now = datetime(2026, 12, 1, 12, tzinfo=UTC)
    begun = now - timedelta(seconds=30)
    given = {"received": now, "provider_at": now, "lag": None, "elsewhere": -1.8e11, "started_at": begun}
    assert prompts.wait_start(**given, early=True) == begun  # type: ignore[arg-type]
    assert prompts.wait_start(**given, early=False) == now  # type: ignore[arg-type]


@pytest.mark.parametrize("resolved", [-(2**63), 2**63 - 1, -1])
def test_a_count_of_answers_out_of_range_does_not_end_the_reading(told: Told, resolved: int) -> None:
    told.asks("ls")
    told.tell("approval.responded", choice="once", resolved=resolved)
    assert len(evidence_of(told.run, Kind.PROMPT_RESPONDED)) == 1


def test_what_is_no_text_is_masked_before_it_is_shortened(cast: factories.Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    for cut in range(40):
        journal._describe(run, {"model": {"note": "x" * (270 - cut), "is": factories.TOKEN}}, clock.now())
        assert factories.TOKEN[:6] not in fresh(run).model
