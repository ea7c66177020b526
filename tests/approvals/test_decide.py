"""Deciding: who may, on what they saw, once, in time."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from approvals import execution, services, setup
from approvals.errors import Denied, Invalid
from approvals.evidence import OPERATOR
from approvals.models import Approval, Decision, EvidenceEntry, Kind, Role
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from tests import factories
from tests.approvals.conftest import approve
from tests.factories import Cast

Governed = Callable[..., Approval]
Status = Approval.Status


def test_one_approval_makes_it_ready_to_send(desk: Cast, governed: Governed) -> None:
    approval = governed()
    approve(approval, desk.reviewer)
    approval.refresh_from_db()
    assert approval.status == Status.APPROVED
    assert list(execution.sendable(clock.now())) == [approval.action]
    entry = EvidenceEntry.objects.get(kind=Kind.APPROVAL_APPROVED)
    assert entry.actor == "user:reviewer"


def test_the_requester_can_not_decide(desk: Cast, governed: Governed) -> None:
    setup.set_roles(user=desk.requester, tenant=desk.acme, roles=[Role.REQUESTER, Role.REVIEWER], by=OPERATOR)
    with pytest.raises(Denied, match="yourself"):
        approve(governed(), desk.requester)


def test_the_database_refuses_a_vote_of_the_requester(desk: Cast, governed: Governed) -> None:
    approval = governed()
    with pytest.raises(IntegrityError), transaction.atomic():
        Decision.objects.create(
            tenant=desk.acme,
            approval=approval,
            by=desk.requester,
            requester=desk.requester,
            verdict="approve",
            reason="me",
            seen="0" * 64,
            created_at=clock.now(),
        )


@pytest.mark.parametrize("who", ["requester", "auditor", "admin", "stranger", "nobody"])
def test_only_reviewers_of_the_tenant_decide(desk: Cast, governed: Governed, who: str) -> None:
    with pytest.raises(Denied):
        approve(governed(), getattr(desk, who))
    assert not Decision.objects.exists()


def test_a_vote_needs_a_reason_and_a_verdict(desk: Cast, governed: Governed) -> None:
    approval = governed()
    seen = services.seen_digest(approval)
    with pytest.raises(Invalid, match="Say why"):
        services.decide(approval=approval, user=desk.reviewer, verdict="approve", reason=" ", seen=seen)
    with pytest.raises(Invalid, match="approve or deny"):
        services.decide(approval=approval, user=desk.reviewer, verdict="yes", reason="ok", seen=seen)


def test_a_vote_on_another_card_than_the_present_one_is_refused(desk: Cast, governed: Governed) -> None:
    with pytest.raises(Conflict, match="changed since"):
        services.decide(
            approval=governed(), user=desk.reviewer, verdict="approve", reason="ok", seen="0" * 64
        )


def test_the_second_click_names_the_first(desk: Cast, governed: Governed) -> None:
    approval = governed()
    approve(approval, desk.reviewer)
    with pytest.raises(Conflict, match="reviewer approved this"):
        approve(approval, desk.second)
    with pytest.raises(Conflict, match="You approved this"):
        approve(approval, desk.reviewer)
    assert Decision.objects.count() == 1


def test_denied_is_final(desk: Cast, governed: Governed) -> None:
    approval = governed()
    services.decide(
        approval=approval,
        user=desk.reviewer,
        verdict="deny",
        reason="No.",
        seen=services.seen_digest(approval),
    )
    with pytest.raises(Conflict, match="reviewer denied this"):
        approve(approval, desk.second)
    assert not execution.sendable(clock.now()).exists()


def test_a_quorum_of_two_needs_two_people(desk: Cast, governed: Governed) -> None:
    approval = governed(approvers=2)
    approve(approval, desk.reviewer)
    approval.refresh_from_db()
    assert approval.status == Status.PENDING
    with pytest.raises(Conflict, match="voted on this already"):
        approve(approval, desk.reviewer)
    approve(approval, desk.second)
    approval.refresh_from_db()
    assert approval.status == Status.APPROVED


@pytest.mark.parametrize(
    ("after", "decidable"),
    [(timedelta(minutes=15) - timedelta(seconds=1), True), (timedelta(minutes=15), False)],
)
def test_fifteen_minutes_bound_the_decision(
    desk: Cast, governed: Governed, after: timedelta, decidable: bool
) -> None:
    approval = governed()
    with clock.moved(approval.created_at + after - clock.now()):
        if decidable:
            approve(approval, desk.reviewer)
        else:
            with pytest.raises(Conflict, match="expired at"):
                approve(approval, desk.reviewer)
    assert Decision.objects.exists() == decidable


def test_what_has_run_out_is_not_pending_even_if_no_sweep_ran(governed: Governed) -> None:
    approval = governed()
    assert Approval.objects.pending(approval.effective_at - timedelta(microseconds=1)).exists()
    assert not Approval.objects.pending(approval.effective_at).exists()


def test_the_sweep_makes_expiry_visible_with_evidence_and_no_decider(governed: Governed) -> None:
    approval = governed()
    with clock.moved(timedelta(minutes=15, seconds=1)):
        assert services.expire() == 1
        assert services.expire() == 0
    approval.refresh_from_db()
    assert approval.status == Status.EXPIRED
    assert not approval.decisions.exists()
    assert EvidenceEntry.objects.filter(kind=Kind.APPROVAL_EXPIRED, approval_id=approval.pk).count() == 1


def test_a_requester_can_withdraw_and_nobody_else(desk: Cast, governed: Governed) -> None:
    approval = governed()
    with pytest.raises(Denied):
        services.withdraw(approval=approval, user=desk.reviewer)
    services.withdraw(approval=approval, user=desk.requester)
    with pytest.raises(Conflict, match="withdrawn"):
        approve(approval, desk.reviewer)


def test_an_approval_can_be_revoked_before_it_is_sent(desk: Cast, governed: Governed) -> None:
    approval = governed()
    approve(approval, desk.reviewer)
    services.revoke(approval=approval, user=desk.second, reason="Wrong table.")
    assert not execution.sendable(clock.now()).exists()


def test_a_policy_that_became_stricter_makes_the_card_stale(desk: Cast, governed: Governed) -> None:
    approval = governed()
    factories.policy(desk.acme, factories.require("run_start", 2))
    with pytest.raises(Conflict, match="now needs 2"):
        approve(approval, desk.reviewer)
    approval.refresh_from_db()
    assert approval.status == Status.STALE
    assert not Decision.objects.exists()


def test_a_policy_that_became_looser_changes_nothing(desk: Cast, governed: Governed) -> None:
    approval = governed(approvers=2)
    factories.policy(desk.acme)
    approve(approval, desk.reviewer)
    approval.refresh_from_db()
    assert approval.status == Status.PENDING


def test_a_replaced_token_makes_the_card_stale(desk: Cast, governed: Governed) -> None:
    approval = governed()
    setup.rotate_token(endpoint=desk.endpoint, token="another-token-0123456789", by=OPERATOR)
    with pytest.raises(Conflict, match="token of ops was replaced"):
        approve(approval, desk.reviewer)


def test_an_earlier_denial_of_the_same_input_is_shown(desk: Cast, governed: Governed) -> None:
    first = governed()
    services.decide(
        approval=first,
        user=desk.reviewer,
        verdict="deny",
        reason="Not now.",
        seen=services.seen_digest(first),
    )
    second = governed()
    assert [denial.reason for denial in services.earlier_denials(second)] == ["Not now."]


def test_without_evidence_there_is_no_decision(
    desk: Cast, governed: Governed, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = governed()

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the evidence table is full")

    monkeypatch.setattr("approvals.evidence.EvidencePayload.objects.create", fail)
    with pytest.raises(RuntimeError):
        approve(approval, desk.reviewer)
    approval.refresh_from_db()
    assert approval.status == Status.PENDING
    assert not Decision.objects.exists()
