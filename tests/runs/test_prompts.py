"""The ledger of prompts: order, identity, what ends one, and when it may be answered (rules 6 and 7)."""

from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings

from approvals import evidence
from approvals.models import Approval, Kind
from approvals.operations import Stale
from hermes_portal import canonical, clock
from runs import journal, prompts
from runs.models import Prompt, Run
from tests import factories
from tests.fake_hermes import FakeRun
from tests.runs.streams import Told, card_of, events, evidence_of, fresh, received

pytestmark = pytest.mark.django_db

WAIT = 60


@pytest.fixture
def told(cast: factories.Cast) -> Told:
    return Told(received(cast, FakeRun("run_" + "a" * 32)))


def refusal(prompt: Prompt, *, alive: bool = True) -> str:
    """The code with which an answer is refused; empty when it may be sent."""
    try:
        prompts.prove_head(prompt, clock.now(), alive=alive)
    except Stale as stale:
        return stale.code
    return ""


def moved_on(prompt: Prompt, to: str, choice: str = "") -> Prompt:
    """What the ledger of executions does to a prompt."""
    with evidence.chain(prompt.tenant) as chain:
        prompts.close(chain, prompt, to, "By a test.", choice=choice)
    return again(prompt)


def answering(prompt: Prompt) -> Prompt:
    prompt.move(Prompt.Status.ANSWERING)
    return prompt


def again(prompt: Prompt) -> Prompt:
    return Prompt.objects.get(pk=prompt.pk)


# --- opening


def test_a_request_opens_a_prompt_and_an_approval_by_the_starter_of_the_run(told: Told):
    prompt = told.asks("rm -rf /srv/cache")
    card = card_of(prompt)
    assert (card.operation, card.requester, card.reason) == (
        "run_approval",
        told.run.requester,
        told.run.action.reason,
    )
    assert card.subject_digest == prompt.exact_digest
    assert set(card.needs) == {"once", "session", "always", "deny"}
    assert card.effective_at == prompt.wait_until - timedelta(seconds=settings.WAIT_MARGIN_SECONDS)
    assert len(evidence_of(told.run, Kind.PROMPT_OPENED)) == 1


def test_the_exact_frame_is_kept_sealed_and_the_token_of_the_endpoint_is_masked(told: Told):
    prompt = told.asks(f"curl -H 'X: {factories.TOKEN}' http://x.example")
    assert factories.TOKEN not in prompt.command
    assert factories.TOKEN.encode() not in bytes(prompt.exact)
    assert factories.TOKEN.encode() in prompts.exact_frame(prompt)


def test_equal_requests_are_two_prompts_with_names_of_their_own(told: Told):
    first, second = told.asks("ls", timestamp=1.0), told.asks("ls", timestamp=1.0)
    assert first.identity != second.identity
    assert Prompt.objects.count() == 2


def test_the_same_event_written_twice_is_one_prompt(told: Told):
    told.asks()
    again_read = Told.__new__(Told)
    again_read.__dict__ |= told.__dict__
    again_read.reading.next_ordinal = 0
    again_read.asks()
    assert (Prompt.objects.count(), Approval.objects.count()) == (1, 1)


def test_fifteen_minutes_end_an_approval_where_hermes_waits_longer(cast: factories.Cast):
    type(cast.endpoint).objects.update(approval_wait=3600)
    told = Told(received(cast, FakeRun("run_" + "b" * 32)))
    card = card_of(told.asks())
    assert card.effective_why == "approval_lifetime"
    assert card.effective_at - card.created_at == timedelta(minutes=15)


def test_a_request_that_cannot_be_read_is_in_the_ledger_but_cannot_be_answered(told: Told):
    prompt = told.asks(choices="once")
    assert prompt.choices == []
    assert not Approval.objects.filter(subject=prompt.subject).exists()
    assert refusal(told.asks("ls")) == "earlier_request"


def test_only_offered_choices_are_offered(told: Told):
    assert card_of(told.asks(choices=["once", "deny", "sudo"])).offered == ["once", "deny"]


def test_a_request_read_after_its_wait_is_shown_as_lapsed(told: Told):
    told.tell("tool.started", tool="terminal")  # tells how far apart the clocks are
    old = datetime.now(UTC) - timedelta(seconds=WAIT + 5)
    Run.objects.filter(pk=told.run.pk).update(started_at=old - timedelta(seconds=1))
    prompt = told.asks(timestamp=old.timestamp())
    assert prompt.status == Prompt.Status.LAPSED
    assert not Approval.objects.filter(subject=prompt.subject).exists()


# --- the beginning of the wait

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def began(**more: object) -> float:
    """Seconds before the receipt at which the wait began."""
    given = {
        "received": NOW,
        "provider_at": NOW,
        "lag": None,
        "elsewhere": None,
        "started_at": None,
        "early": False,
    }
    return (NOW - prompts.wait_start(**given | more)).total_seconds()  # type: ignore[arg-type]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({}, 0),
        ({"provider_at": None}, 0),
        ({"provider_at": ago(11.9), "lag": 0.1}, 11.8),
        ({"provider_at": ago(11.9), "elsewhere": 0.4}, 11.5),
        ({"provider_at": ago(3600), "lag": 3599.5}, 0.5),  # a clock an hour behind
        ({"provider_at": ago(-3600), "lag": -3600.2}, 0.2),  # an hour ahead
        (
            {"provider_at": ago(11.9), "early": True, "started_at": ago(20)},
            11.9,
        ),  # a backlog, nothing measured yet
        ({"provider_at": ago(3600), "early": True, "started_at": ago(20)}, 20),
        ({"provider_at": None, "early": True, "started_at": ago(20)}, 20),
        (
            {"provider_at": ago(3600), "elsewhere": 0.1, "started_at": ago(20)},
            0,
        ),  # set back since it was measured
    ],
)
def test_the_wait_began_at_the_earlier_of_receipt_and_corrected_timestamp(
    facts: dict[str, object], seconds: float
):
    assert began(**facts) == pytest.approx(seconds)


# --- the head


def test_the_only_request_on_a_live_gapless_stream_may_be_answered(told: Told):
    prompt = told.asks()
    told.alive()
    proof = prompts.prove_head(prompt, clock.now())
    assert proof["read_through_age_ms"] < 1000
    canonical.dumps(proof)  # fits into evidence


def test_a_later_request_waits_for_the_earlier_one(told: Told):
    first, second = told.asks("rm -rf /srv/cache"), told.asks("ls /srv")
    told.alive()
    assert (refusal(first), refusal(second)) == ("", "earlier_request")
    moved_on(answering(first), Prompt.Status.ANSWERED, choice="once")
    told.tell("approval.responded", choice="once", resolved=1)
    assert refusal(second) == ""


def test_a_stream_that_is_not_read_now_cannot_carry_an_answer(told: Told):
    prompt = told.asks()
    stale = clock.now() - timedelta(seconds=settings.ALIVE_SECONDS + 0.1)
    Run.objects.update(read_through_at=stale)
    assert (refusal(prompt), refusal(prompt, alive=False)) == ("stream_not_alive", "")


def test_a_gap_after_the_request_refuses_every_answer_but_keeps_the_card(told: Told):
    prompt = told.asks()
    told.breaks()
    assert refusal(prompt) == "gap"
    assert card_of(prompt).status == Approval.Status.PENDING
    assert again(prompt).status == Prompt.Status.OPEN


def test_a_request_with_an_id_may_be_answered_out_of_order_and_through_a_gap(told: Told):
    told.asks("rm -rf /srv/cache", request_id="a1")
    second = told.asks("ls", request_id="b2")
    told.alive()
    assert refusal(second) == ""
    told.breaks()
    assert refusal(second) == ""
    assert prompts.answer_input(second, "once")["request_id"] == "b2"


def test_nothing_is_answered_once_a_stop_was_sent_or_seen(told: Told):
    prompt = told.asks()
    told.alive()
    Run.objects.update(stop_asked_at=clock.now())
    assert refusal(prompt) == "stop_asked"


def test_nothing_is_answered_from_the_margin_before_the_end_of_the_wait(told: Told):
    prompt = told.asks()
    margin = timedelta(seconds=settings.WAIT_MARGIN_SECONDS)
    told.alive()
    prompts.prove_head(prompt, prompt.wait_until - margin - timedelta(milliseconds=1), alive=False)
    with pytest.raises(Stale) as caught:
        prompts.prove_head(prompt, prompt.wait_until - margin, alive=False)
    assert caught.value.code == "wait_over"


# --- the end of a prompt


def test_case_2_a_tool_that_ended_sets_the_old_card_aside_and_the_next_request_needs_its_own_decision(
    told: Told,
):
    told.tell("tool.started", tool="terminal")
    old = told.asks("systemctl restart web")
    told.tell("tool.completed", tool="terminal", error=True)
    told.tell("tool.started", tool="terminal")
    new = told.asks("dropdb billing")
    told.alive()
    assert again(old).status == Prompt.Status.LAPSED
    assert card_of(old).status == Approval.Status.STALE
    assert "stopped waiting" in card_of(old).closed_why
    assert card_of(new).status == Approval.Status.PENDING
    assert refusal(new) == ""


def test_another_tool_that_ends_says_nothing_about_a_waiting_one(told: Told):
    told.tell("tool.started", tool="terminal")
    told.tell("tool.started", tool="read_file")
    prompt = told.asks()
    told.tell("tool.completed", tool="read_file", error=True)
    assert again(prompt).status == Prompt.Status.OPEN


def test_a_wait_that_is_over_by_our_clock_alone_still_stands_before_later_requests(told: Told):
    told.tell("tool.started", tool="terminal")
    told.tell("tool.started", tool="terminal")
    old = told.asks()
    with clock.moved(timedelta(seconds=WAIT + 1)):
        assert prompts.lapse_overdue() == 1
        assert again(old).status == Prompt.Status.LAPSED
        assert card_of(old).status == Approval.Status.EXPIRED
        assert fresh(told.run).status == Run.Status.RUNNING
        new = told.asks("ls")
        assert refusal(new, alive=False) == "earlier_unproven"
        told.tell("tool.completed", tool="terminal", error=True)
        assert refusal(new, alive=False) == ""


def test_an_answer_that_is_not_ours_closes_the_oldest_request(told: Told):
    first, second = told.asks("one"), told.asks("two")
    told.tell("approval.responded", choice="deny", resolved=1)
    assert again(first).status == Prompt.Status.ANSWERED_ELSEWHERE
    assert card_of(first).status == Approval.Status.STALE
    assert again(second).status == Prompt.Status.OPEN
    assert len(evidence_of(told.run, Kind.PROMPT_RESPONDED)) == 1


def test_one_answer_to_all_closes_all(told: Told):
    both = [told.asks("one"), told.asks("two")]
    told.tell("approval.responded", choice="once", resolved=2)
    assert {again(prompt).status for prompt in both} == {Prompt.Status.ANSWERED_ELSEWHERE}


def test_a_report_that_comes_before_our_reply_is_only_recorded(told: Told):
    prompt = answering(told.asks())
    told.tell("approval.responded", choice="once", resolved=1)
    assert again(prompt).status == Prompt.Status.ANSWERING
    assert moved_on(prompt, Prompt.Status.ANSWERED, choice="once").status == Prompt.Status.ANSWERED


def test_a_report_that_comes_after_our_reply_is_not_taken_for_an_answer_to_the_next_request(told: Told):
    first = answering(told.asks("one"))
    moved_on(first, Prompt.Status.ANSWERED, choice="once")
    second = told.asks("two")
    told.tell("approval.responded", choice="once", resolved=1)
    assert again(second).status == Prompt.Status.OPEN
    assert again(first).responded_choice == "once"


def test_a_lost_reply_leaves_the_prompt_in_doubt_and_blocks_the_run_until_the_stream_tells(told: Told):
    first, second = answering(told.asks("one")), told.asks("two")
    moved_on(first, Prompt.Status.IN_DOUBT)
    told.alive()
    assert refusal(second) == "in_doubt"
    told.tell("approval.responded", choice="once", resolved=1)
    assert again(first).status == Prompt.Status.ANSWERED
    assert prompts.observed(again(first), "once") == "applied"
    assert refusal(second) == ""


def test_a_lost_reply_whose_report_was_seen_before_is_answered(told: Told):
    prompt = answering(told.asks())
    told.tell("approval.responded", choice="once", resolved=1)
    assert moved_on(prompt, Prompt.Status.IN_DOUBT, choice="once").status == Prompt.Status.ANSWERED


def test_a_lost_reply_and_a_report_of_another_choice_was_answered_elsewhere(told: Told):
    prompt = answering(told.asks())
    told.tell("approval.responded", choice="deny", resolved=1)
    assert moved_on(prompt, Prompt.Status.IN_DOUBT, choice="once").status == Prompt.Status.ANSWERED_ELSEWHERE
    assert prompts.observed(again(prompt), "once") == "not_applied"


def test_a_request_that_went_away_unanswered_proves_that_the_lost_answer_was_not_applied(told: Told):
    told.tell("tool.started", tool="terminal")
    prompt = moved_on(answering(told.asks()), Prompt.Status.IN_DOUBT)
    told.tell("tool.completed", tool="terminal", error=True)
    assert again(prompt).status == Prompt.Status.VOID
    assert prompts.observed(again(prompt), "once") == "not_applied"


def test_through_a_gap_the_end_of_a_run_proves_nothing_about_a_lost_answer(told: Told):
    prompt = moved_on(answering(told.asks()), Prompt.Status.IN_DOUBT)
    told.breaks()
    journal.status_seen(told.owned, {"status": "completed"}, delay=1.0)
    assert again(prompt).status == Prompt.Status.VOID
    assert prompts.observed(again(prompt), "once") is None


def test_the_end_of_the_run_voids_what_is_open(told: Told):
    prompt = told.asks()
    told.tell("run.cancelled")
    assert again(prompt).status == Prompt.Status.VOID
    assert card_of(prompt).status == Approval.Status.STALE
    assert refusal(prompt) == "prompt_void"


def test_an_answer_that_never_left_opens_a_new_approval(told: Told):
    prompt = answering(told.asks())
    old = card_of(prompt)
    with evidence.chain(prompt.tenant) as chain:
        old.move(Approval.Status.APPROVED)
        old.move(Approval.Status.CONSUMED)
        new = prompts.reopen(chain, prompt)
    assert new is not None
    assert new.pk != old.pk
    assert again(prompt).status == Prompt.Status.OPEN


def test_nothing_is_reopened_when_hermes_stopped_waiting(told: Told):
    prompt = answering(told.asks())
    with clock.moved(timedelta(seconds=WAIT + 1)), evidence.chain(prompt.tenant) as chain:
        assert prompts.reopen(chain, prompt) is None
    assert again(prompt).status == Prompt.Status.LAPSED


def test_a_hostile_kind_and_choice_change_nothing_and_are_kept_as_text(told: Told):
    prompt = told.asks()
    told.tell("approval.responded\u202e", choice="once")
    told.tell("approval.responded", choice={"x": 1}, resolved=True)
    assert again(prompt).status == Prompt.Status.ANSWERED_ELSEWHERE
    assert events(told.run)[1].kind == "approval.responded[U+202E]"
