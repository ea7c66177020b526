"""What changes between a person's click and the lock, or between two rows of a sweep, is what counts."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from approvals import evidence, execution, services, setup
from approvals.errors import Denied
from approvals.evidence import OPERATOR
from approvals.models import Action, Approval, Decision, Endpoint, EvidenceEntry, Execution, User
from approvals.operations import Outcome
from approvals.sweeps import each
from hermes_portal import clock
from runs.models import Run
from tests import factories, scenes
from tests.approvals.conftest import approve
from tests.factories import Cast

pytestmark = pytest.mark.django_db(transaction=True)
Status = Execution.Status


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Lets something happen right before the next chain is locked, as if another request had been first."""
    real = evidence.chain

    def before_the_lock(act: Callable[[], Any]) -> None:
        def chain(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(evidence, "chain", real)
            act()
            return real(*args, **more)

        monkeypatch.setattr(evidence, "chain", chain)

    return before_the_lock


Meanwhile = Callable[[Callable[[], Any]], None]


def lose_roles(user: User, cast: Cast) -> Callable[[], Any]:
    return lambda: setup.set_roles(user=user, tenant=cast.acme, roles=[], by=OPERATOR)


def vote(approval: Approval, by: User, choice: str) -> Decision:
    seen = services.seen_digest(approval)
    return services.decide(approval=approval, user=by, choice=choice, reason="Because.", seen=seen)


def stop_of(run: Run, by: User, key: str = "stop-1") -> Action:
    raw = {"run_id": run.provider_run_id}
    asked = services.request(
        user=by, endpoint=run.endpoint, operation="run_stop", raw=raw, reason="Too long.", key=key
    )
    return asked.action


def intended(action: Action) -> execution.Claim:
    """Claimed, with its intent committed and nothing sent."""
    claim = execution._claim(action.pk)
    assert claim is not None
    assert execution._intend(claim) is not None
    return claim


@pytest.mark.parametrize("choice", ["once", "deny"])
def test_who_lost_the_role_while_the_lock_was_awaited_decides_nothing(
    cast: Cast, meanwhile: Meanwhile, choice: str
) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    meanwhile(lose_roles(cast.reviewer, cast))
    with pytest.raises(Denied):
        vote(card, cast.reviewer, choice)
    assert not Decision.objects.exists()
    card.refresh_from_db()
    assert card.status == Approval.Status.PENDING


def test_who_was_deactivated_while_the_lock_was_awaited_decides_nothing(
    cast: Cast, meanwhile: Meanwhile
) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    meanwhile(lambda: setup.change_user(user=cast.reviewer, active=False, by=OPERATOR))
    assert cast.reviewer.is_active  # as the request of the page had loaded the account
    with pytest.raises(Denied):
        vote(card, cast.reviewer, "deny")


def test_who_lost_the_role_while_the_lock_was_awaited_asks_for_nothing(
    cast: Cast, meanwhile: Meanwhile
) -> None:
    meanwhile(lose_roles(cast.requester, cast))
    with pytest.raises(Denied):
        scenes.start(cast.requester, cast.endpoint)
    assert not Action.objects.exists()


def test_who_lost_the_role_while_the_lock_was_awaited_takes_nothing_back(
    cast: Cast, meanwhile: Meanwhile
) -> None:
    approval = stop_of(scenes.running(cast.requester, cast.endpoint), cast.requester).approval
    meanwhile(lose_roles(cast.requester, cast))
    with pytest.raises(Denied):
        services.withdraw(approval=approval, user=cast.requester)
    approve(approval, cast.reviewer)
    meanwhile(lose_roles(cast.second, cast))
    with pytest.raises(Denied):
        services.revoke(approval=approval, user=cast.second, reason="No longer wanted.")


def test_who_lost_the_role_while_the_lock_was_awaited_closes_nothing(
    cast: Cast, meanwhile: Meanwhile
) -> None:
    action = scenes.start(cast.requester, cast.endpoint)
    claim = intended(action)
    execution.settle(action.pk, claim.fence, Outcome(Status.UNKNOWN, "reply_lost", "Lost."), by="reply")
    meanwhile(lose_roles(cast.reviewer, cast))
    with pytest.raises(Denied):
        execution.close_unknown(action=action, user=cast.reviewer, reason="Nothing to be found there.")


def test_a_denial_by_one_is_sent_although_a_policy_that_came_meanwhile_wants_two_to_answer(
    cast: Cast,
) -> None:
    factories.policy(cast.acme, factories.require("run_approval", 2))
    run = scenes.running(cast.requester, cast.endpoint)
    card = scenes.card(scenes.asks(run))
    factories.policy(cast.acme, factories.require("run_approval", 2), factories.require("job_delete", 3))
    vote(card, cast.reviewer, "deny")
    carrier = Action.objects.get(linked_to=card)
    Run.objects.update(read_through_at=clock.now())
    intended(carrier)


def test_a_row_that_a_sweep_cannot_end_does_not_hold_up_those_behind_it(cast: Cast) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    vote(card, cast.reviewer, "once")
    card.refresh_from_db()
    assert card.action is not None
    assert execution._claim(card.action.pk)
    services.revoke(approval=card, user=cast.second, reason="No longer wanted.")
    other = scenes.start(cast.stranger, cast.other_endpoint)
    intended(other)
    past = clock.now() - timedelta(seconds=1)
    Execution.objects.filter(pk=card.action_id).update(lease_until=past)
    Execution.objects.filter(pk=other.pk).update(reply_until=past)
    Endpoint.objects.filter(pk=cast.endpoint.pk).update(token=b"\x01Zsealed with a key that is lost")

    execution.settle_overdue()

    assert Execution.objects.get(pk=other.pk).status == Status.UNKNOWN


def test_a_sweep_counts_what_it_did(cast: Cast) -> None:
    rows = list(EvidenceEntry.objects.order_by("pk")[:3])

    def step(row: EvidenceEntry) -> bool:
        if row == rows[0]:
            raise ValueError("this one cannot be done")
        return row == rows[1]

    assert each(rows, step) == 1


@pytest.mark.parametrize("code", ["credential_refused", "saturated", "connect_failed"])
def test_after_a_stop_that_hermes_did_not_take_another_may_be_asked_for(cast: Cast, code: str) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    stop = stop_of(run, cast.requester)
    approve(stop.approval, cast.reviewer)
    claim = intended(stop)
    assert Run.objects.filter(pk=run.pk, stop_asked_at__isnull=False).exists()
    execution.settle(stop.pk, claim.fence, Outcome(Status.NOT_APPLIED, code, "Refused."), by="reply")
    assert Run.objects.filter(pk=run.pk, stop_asked_at__isnull=True).exists()
    run.refresh_from_db()
    assert stop_of(run, cast.requester, "stop-2") != stop
