"""When nothing was sent and the run still waits, the card comes back; denying and stopping stay possible."""

from datetime import timedelta

import pytest

from approvals import execution, services, setup
from approvals.evidence import OPERATOR
from approvals.models import Action, Approval, Execution, Role, User
from approvals.operations import Outcome
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from runs.models import Prompt, Run
from tests import factories, scenes
from tests.factories import Cast

Status = Execution.Status


@pytest.fixture
def prompt(cast: Cast) -> Prompt:
    return scenes.asks(scenes.running(cast.requester, cast.endpoint))


def vote(approval: Approval, by: User, choice: str = "once") -> None:
    seen = services.seen_digest(approval)
    services.decide(approval=approval, user=by, choice=choice, reason="Because.", seen=seen)


def pending(prompt: Prompt) -> Approval:
    return Approval.objects.get(subject=prompt.subject, status=Approval.Status.PENDING)


def test_a_revoked_answer_can_be_decided_anew(cast: Cast, prompt: Prompt) -> None:
    first = pending(prompt)
    vote(first, cast.reviewer)
    services.revoke(approval=first, user=cast.second, reason="Wrong path.")
    again = pending(prompt)
    assert again != first
    assert again.fixed_choice == ""


def test_a_card_that_turned_stale_comes_back_under_what_holds_now(cast: Cast, prompt: Prompt) -> None:
    first = pending(prompt)
    factories.policy(cast.acme, factories.require("run_approval", 2))
    with pytest.raises(Conflict, match="now needs 2"):
        vote(first, cast.reviewer)
    again = pending(prompt)
    assert again.need("once")["approvers"] == 2
    vote(again, cast.reviewer)
    vote(pending(prompt), cast.second)
    again.refresh_from_db()
    assert again.status == Approval.Status.APPROVED


def test_a_card_whose_fifteen_minutes_ended_comes_back_while_hermes_still_waits(
    cast: Cast, prompt: Prompt
) -> None:
    first = pending(prompt)
    Prompt.objects.filter(pk=prompt.pk).update(wait_until=clock.now() + timedelta(hours=1))
    with clock.moved(timedelta(minutes=15)):
        services.expire()
        assert pending(prompt) != first


def test_a_card_whose_provider_stopped_waiting_does_not_come_back(prompt: Prompt) -> None:
    Prompt.objects.filter(pk=prompt.pk).update(wait_until=clock.now() + timedelta(seconds=30))
    Approval.objects.update(effective_at=clock.now() + timedelta(seconds=28), effective_why="provider_wait")
    with clock.moved(timedelta(seconds=31)):
        services.expire()
    assert not Approval.objects.filter(status=Approval.Status.PENDING).exists()


def test_no_rule_stands_in_the_way_of_a_denial(cast: Cast) -> None:
    factories.policy(cast.acme, factories.forbid("run_approval", "Nothing runs here."))
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    assert card.need("once")["forbidden"] == "Nothing runs here."
    vote(card, cast.reviewer, "deny")
    carrier = Action.objects.get(linked_to=card)
    assert execution.sendable(clock.now()).filter(pk=carrier.pk).exists()


def test_a_denial_is_sent_although_whoever_started_the_run_is_gone(cast: Cast, prompt: Prompt) -> None:
    card = pending(prompt)
    vote(card, cast.reviewer, "deny")
    setup.set_roles(user=cast.requester, tenant=cast.acme, roles=[Role.AUDITOR], by=OPERATOR)
    carrier = Action.objects.get(linked_to=card)
    claim = execution._claim(carrier.pk)
    assert claim is not None
    assert execution._intend(claim) is not None


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("approval_not_pending", Prompt.Status.LAPSED),
        ("run_not_found", Prompt.Status.VOID),
        ("connect_failed", Prompt.Status.OPEN),
    ],
)
def test_a_late_proof_frees_a_request_from_doubt(cast: Cast, prompt: Prompt, code: str, state: str) -> None:
    card = pending(prompt)
    vote(card, cast.reviewer)
    card.refresh_from_db()
    assert card.action_id is not None
    claim = execution._claim(card.action_id)
    assert claim is not None
    assert execution._intend(claim) is not None
    lost = Outcome(Status.UNKNOWN, "worker_lost", "Lost.")
    assert execution.settle(claim.action_id, claim.fence, lost, by="lease")
    prompt.refresh_from_db()
    assert prompt.status == Prompt.Status.IN_DOUBT
    late = Outcome(Status.NOT_APPLIED, code, "It was not taken.")
    assert execution.settle(claim.action_id, claim.fence, late, by="reply")
    prompt.refresh_from_db()
    assert prompt.status == state
    assert Approval.objects.filter(subject=prompt.subject, status="pending").exists() == (
        state == Prompt.Status.OPEN
    )


def test_after_a_stop_of_unknown_outcome_a_person_may_ask_for_another(cast: Cast) -> None:
    run = scenes.running(cast.requester, cast.endpoint)

    def stop(key: str) -> Action:
        return services.request(
            user=cast.requester,
            endpoint=cast.endpoint,
            operation="run_stop",
            raw={"run_id": run.provider_run_id},
            reason="Too long.",
            key=key,
        ).action

    first = stop("first")
    seen = services.seen_digest(first.approval)
    services.decide(approval=first.approval, user=cast.reviewer, verdict="approve", reason="Yes.", seen=seen)
    claim = execution._claim(first.pk)
    assert claim is not None
    assert execution._intend(claim) is not None
    with pytest.raises(Conflict, match="A stop was sent already"):
        stop("second")
    unknown = Outcome(Status.UNKNOWN, "reply_lost", "Lost.")
    execution.settle(first.pk, claim.fence, unknown, by="reply")
    assert Run.objects.get(pk=run.pk).stop_asked_at is not None, "answers stay blocked"
    assert stop("third") != first
