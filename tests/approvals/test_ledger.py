"""The ledger: at most one request per action, and an honest outcome for each."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from approvals import execution, services, setup
from approvals.evidence import OPERATOR
from approvals.models import Action, Approval, EndpointStatus, EvidenceEntry, Execution, Kind, Role
from approvals.operations import NotYet
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from runs.models import Run
from tests import factories, fake_hermes
from tests.approvals.conftest import Ask, approve
from tests.factories import Cast
from tests.fake_hermes import FakeHermes

Governed = Callable[..., Approval]
Status = Execution.Status
RUNS = "/v1/runs"


@pytest.fixture
def approved(desk: Cast, governed: Governed) -> Action:
    approval = governed()
    approve(approval, desk.reviewer)
    approval.refresh_from_db()
    assert approval.action is not None
    return approval.action


def outcome(action: Action) -> tuple[str, str]:
    row = Execution.objects.get(pk=action.pk)
    return row.status, row.code


def kinds(action: Action) -> list[str]:
    return list(
        EvidenceEntry.objects.filter(action_id=action.pk).order_by("seq").values_list("kind", flat=True)
    )


def test_an_approved_start_is_sent_once_and_the_run_has_its_receipt(
    approved: Action, hermes: FakeHermes
) -> None:
    execution.execute(approved.pk)
    execution.execute(approved.pk)
    (seen,) = hermes.mutations()
    assert outcome(approved) == (Status.APPLIED, "accepted")
    assert Run.objects.get(action=approved).provider_run_id in hermes.runs
    assert seen.body == execution.exact_wire(approved)
    assert kinds(approved)[-3:] == [Kind.EXECUTION_INTENT, Kind.EXECUTION_APPLIED, Kind.RUN_STARTED]


def test_the_call_names_requester_approvers_and_portal(approved: Action, hermes: FakeHermes) -> None:
    execution.execute(approved.pk)
    headers = {name.lower(): value for name, value in hermes.mutations()[0].headers.items()}
    assert headers["x-aip-delegation-chain"] == "requester,reviewer,portal"
    assert headers["idempotency-key"] == str(approved.pk)
    assert headers["x-aip-tenant-id"] == "acme"
    assert "origin" not in headers


def test_the_approval_is_consumed_with_the_intent(approved: Action) -> None:
    execution.execute(approved.pk)
    approved.approval.refresh_from_db()
    assert approved.approval.status == Approval.Status.CONSUMED


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (fake_hermes.close(), (Status.UNKNOWN, "reply_lost")),
        (fake_hermes.reset(), (Status.UNKNOWN, "reply_lost")),
        (fake_hermes.half(), (Status.UNKNOWN, "reply_lost")),
        (fake_hermes.reply(500, body=b"500 Internal Server Error"), (Status.UNKNOWN, "server_fault")),
        (fake_hermes.reply(202, {"status": "started"}), (Status.UNKNOWN, "reply_incomplete")),
        (
            fake_hermes.reply(202, {"run_id": "run_x", "status": "started"}),
            (Status.UNKNOWN, "reply_incomplete"),
        ),
        (fake_hermes.html(), (Status.UNKNOWN, "reply_undecodable")),
        (fake_hermes.redirect("http://127.0.0.1:1/"), (Status.UNKNOWN, "redirected")),
        (fake_hermes.provider_error(400, "Missing 'input' field"), (Status.NOT_APPLIED, "bad_request")),
        (
            fake_hermes.provider_error(429, "Too many", "rate_limit_exceeded"),
            (Status.NOT_APPLIED, "saturated"),
        ),
        (fake_hermes.provider_error(503, "Draining", "gateway_draining"), (Status.NOT_APPLIED, "draining")),
        (fake_hermes.provider_error(401, "Invalid API key"), (Status.NOT_APPLIED, "credential_refused")),
    ],
)
def test_each_reply_has_its_outcome_and_none_is_sent_again(
    ask: Ask, hermes: FakeHermes, answer: fake_hermes.Answer, expected: tuple[str, str]
) -> None:
    action = ask()
    hermes.script("POST", RUNS, answer)
    execution.execute(action.pk)
    execution.execute(action.pk)
    execution.dispatch()
    assert outcome(action) == expected
    assert len(hermes.mutations()) == 1
    run = Run.objects.get(action=action)
    assert run.status == (
        Run.Status.START_UNKNOWN if expected[0] == Status.UNKNOWN else Run.Status.NOT_STARTED
    )


def test_a_wrong_token_marks_the_endpoint(ask: Ask, hermes: FakeHermes, desk: Cast) -> None:
    hermes.script("POST", RUNS, fake_hermes.provider_error(401, "Invalid API key"))
    execution.execute(ask().pk)
    seen = EndpointStatus.objects.get(pk=desk.endpoint.pk)
    assert seen.health == EndpointStatus.Health.CREDENTIAL_REFUSED


def test_an_unreachable_provider_is_not_applied_and_the_endpoint_is_marked(
    ask: Ask, hermes: FakeHermes, desk: Cast
) -> None:
    action = ask()
    hermes.stop()
    execution.execute(action.pk)
    assert outcome(action) == (Status.NOT_APPLIED, "connect_failed")
    assert EndpointStatus.objects.get(pk=desk.endpoint.pk).health == EndpointStatus.Health.UNREACHABLE


def test_an_answer_clears_the_mark_of_an_endpoint(ask: Ask, desk: Cast) -> None:
    EndpointStatus.objects.update(health=EndpointStatus.Health.UNREACHABLE)
    execution.execute(ask().pk)
    assert EndpointStatus.objects.get(pk=desk.endpoint.pk).health == EndpointStatus.Health.OK


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            lambda desk: setup.change_endpoint(endpoint=desk.endpoint, by=OPERATOR, approval_wait=90),
            "endpoint_changed",
        ),
        (
            lambda desk: setup.rotate_token(endpoint=desk.endpoint, token="x" * 20, by=OPERATOR),
            "credential_changed",
        ),
        (
            lambda desk: setup.set_roles(
                user=desk.reviewer, tenant=desk.acme, roles=[Role.AUDITOR], by=OPERATOR
            ),
            "approver_role",
        ),
        (
            lambda desk: setup.set_roles(
                user=desk.requester, tenant=desk.acme, roles=[Role.AUDITOR], by=OPERATOR
            ),
            "requester_role",
        ),
        (lambda desk: factories.policy(desk.acme, factories.forbid("run_start")), "policy_forbids"),
        (lambda desk: factories.policy(desk.acme, factories.require("run_start", 2)), "policy_stricter"),
    ],
)
def test_a_change_after_the_decision_means_that_nothing_is_sent(
    approved: Action, desk: Cast, hermes: FakeHermes, change: Callable[[Cast], object], code: str
) -> None:
    change(desk)
    execution.execute(approved.pk)
    assert outcome(approved) == (Status.REFUSED, code)
    assert hermes.mutations() == []
    approved.approval.refresh_from_db()
    assert approved.approval.status == Approval.Status.STALE
    assert Run.objects.get(action=approved).status == Run.Status.NOT_STARTED


def test_what_was_approved_in_time_but_not_sent_in_time_is_not_sent(
    approved: Action, hermes: FakeHermes
) -> None:
    with clock.moved(timedelta(minutes=15)):
        execution.execute(approved.pk)
    assert hermes.mutations() == []
    assert not Execution.objects.exists()


def test_time_that_runs_out_between_claim_and_intent_refuses(
    approved: Action, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(point: str) -> None:
        if point == "claimed":
            Approval.objects.update(effective_at=clock.now())

    monkeypatch.setattr(execution, "reached", late)
    execution.execute(approved.pk)
    assert outcome(approved) == (Status.REFUSED, "too_late")
    assert hermes.mutations() == []
    approved.approval.refresh_from_db()
    assert approved.approval.status == Approval.Status.EXPIRED


def test_a_revoked_approval_is_not_sent(approved: Action, desk: Cast, hermes: FakeHermes) -> None:

    services.revoke(approval=approved.approval, user=desk.second, reason="Wrong.")
    execution.execute(approved.pk)
    assert hermes.mutations() == []


def test_a_send_that_comes_too_late_after_the_intent_is_proven_unsent(
    ask: Ask, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    settings.SEND_WINDOW_SECONDS = 0.1  # type: ignore[attr-defined]
    import time

    monkeypatch.setattr(
        execution, "reached", lambda point: time.sleep(0.2) if point == "connecting" else None
    )
    action = ask()
    execution.execute(action.pk)
    assert outcome(action) == (Status.NOT_APPLIED, "deadline_expired")
    assert hermes.mutations() == []


def test_a_dead_claim_is_taken_over_with_a_higher_fence(
    ask: Ask, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = ask()
    monkeypatch.setattr(execution, "_intend", lambda claim, **_: None)
    execution.execute(action.pk)
    monkeypatch.undo()
    execution.execute(action.pk)
    assert outcome(action)[0] == Status.CLAIMED, "the lease still holds"
    with clock.moved(timedelta(seconds=31)):
        execution.execute(action.pk)
    row = Execution.objects.get(pk=action.pk)
    assert (row.status, row.fence) == (Status.APPLIED, 2)
    assert len(hermes.mutations()) == 1


def test_a_worker_that_lost_its_claim_sends_nothing(ask: Ask, hermes: FakeHermes) -> None:
    action = ask()
    claim = execution._claim(action.pk)
    assert claim is not None
    with clock.moved(timedelta(seconds=31)):
        assert execution._claim(action.pk) is not None
    assert execution._intend(claim) is None
    assert hermes.mutations() == []


def test_a_lost_worker_after_the_intent_becomes_unknown_and_is_not_resent(
    ask: Ask, hermes: FakeHermes
) -> None:
    action = ask()
    claim = execution._claim(action.pk)
    assert claim is not None
    assert execution._intend(claim) is not None
    assert execution.settle_overdue() == 0, "a reply may still come"
    with clock.moved(timedelta(seconds=80)):
        execution.settle_overdue()
        execution.dispatch()
        execution.execute(action.pk)
    assert outcome(action) == (Status.UNKNOWN, "worker_lost")
    assert hermes.mutations() == []


def test_a_late_reply_settles_an_unknown_outcome_of_the_same_attempt(ask: Ask) -> None:
    action = ask()
    claim = execution._claim(action.pk)
    assert claim is not None
    intent = execution._intend(claim)
    assert intent is not None
    with clock.moved(timedelta(seconds=80)):
        execution.settle_overdue()
        late = execution._send(intent)
        execution.settle(action.pk, intent.fence, late, by="reply")
    assert outcome(action)[0] == Status.NOT_APPLIED, "the send window was over"


def test_actions_of_one_lane_wait_for_each_other(ask: Ask, hermes: FakeHermes) -> None:
    first, second = ask(), ask()
    Action.objects.update(lane="one lane")
    claim = execution._claim(first.pk)
    assert claim is not None
    assert execution._claim(second.pk) is None
    intent = execution._intend(claim)
    assert intent is not None
    assert execution._claim(second.pk) is None
    execution.settle(first.pk, intent.fence, execution._send(intent), by="reply")
    execution.execute(second.pk)
    assert len(hermes.mutations()) == 2


def test_a_claim_that_can_no_longer_be_sent_frees_its_lane(approved: Action, hermes: FakeHermes) -> None:
    assert execution._claim(approved.pk) is not None
    with clock.moved(timedelta(minutes=16)):
        assert execution.settle_overdue() == 1
    assert outcome(approved) == (Status.REFUSED, "too_late")


def test_a_person_closes_an_unknown_outcome_with_a_reason(ask: Ask, hermes: FakeHermes, desk: Cast) -> None:
    action = ask()
    hermes.script("POST", RUNS, fake_hermes.close())
    execution.execute(action.pk)
    execution.close_unknown(
        action=action, user=desk.reviewer, reason="Looked at the server: it did not start."
    )
    assert outcome(action)[0] == Status.CLOSED
    assert kinds(action)[-1] == Kind.EXECUTION_CLOSED


def test_without_evidence_of_the_intent_nothing_is_sent(
    ask: Ask, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = ask()

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the evidence table is full")

    monkeypatch.setattr("approvals.evidence.EvidencePayload.objects.create", fail)
    with pytest.raises(RuntimeError):
        execution.execute(action.pk)
    assert hermes.mutations() == []
    assert outcome(action)[0] == Status.CLAIMED


def test_a_result_whose_evidence_fails_is_found_again(
    ask: Ask, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = ask()
    claim = execution._claim(action.pk)
    assert claim is not None
    intent = execution._intend(claim)
    assert intent is not None
    result = execution._send(intent)

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the evidence table is full")

    with monkeypatch.context() as broken:
        broken.setattr("approvals.evidence.EvidencePayload.objects.create", fail)
        with pytest.raises(RuntimeError):
            execution.settle(action.pk, intent.fence, result, by="reply")
    assert outcome(action)[0] == Status.SENT
    with clock.moved(timedelta(seconds=80)):
        execution.settle_overdue()
        execution.execute(action.pk)
    assert outcome(action)[0] == Status.UNKNOWN
    assert len(hermes.mutations()) == 1


def test_a_denied_start_is_a_run_that_never_started(desk: Cast, governed: Governed) -> None:
    approval = governed()
    seen = services.seen_digest(approval)
    services.decide(approval=approval, user=desk.reviewer, verdict="deny", reason="No.", seen=seen)
    assert Run.objects.get(action=approval.action).status == Run.Status.NOT_STARTED


def test_an_expired_start_is_a_run_that_never_started(governed: Governed) -> None:
    approval = governed()
    with clock.moved(timedelta(minutes=15)):
        services.expire()
    assert Run.objects.get(action=approval.action).status == Run.Status.NOT_STARTED


def test_a_start_that_no_worker_took_in_time_is_refused_in_the_end(ask: Ask, hermes: FakeHermes) -> None:
    action = ask()
    with clock.moved(timedelta(minutes=14)):
        assert execution.settle_overdue() == 0
    with clock.moved(timedelta(minutes=15)):
        assert execution.settle_overdue() == 1
        assert execution.settle_overdue() == 0
    assert outcome(action) == (Status.REFUSED, "too_late")
    assert Run.objects.get(action=action).status == Run.Status.NOT_STARTED
    assert hermes.mutations() == []


@pytest.mark.parametrize(
    "answer",
    [
        fake_hermes.provider_error(429, "Too many", "rate_limit_exceeded", Retry_After="30"),
        fake_hermes.provider_error(503, "Draining", "gateway_draining", Retry_After="30"),
    ],
)
def test_a_new_start_waits_as_long_as_a_full_hermes_asked(
    ask: Ask, hermes: FakeHermes, answer: fake_hermes.Answer
) -> None:
    hermes.script("POST", RUNS, answer)
    execution.execute(ask().pk)
    with pytest.raises(Conflict, match="asked to wait"):
        ask()
    with clock.moved(timedelta(seconds=31)):
        execution.execute(ask().pk)
    assert len(hermes.mutations()) == 2


def test_what_may_pass_by_itself_is_asked_again_before_the_approval_is_used_up(
    approved: Action, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def intend(self: object, action: Action, chain: object) -> dict[str, object]:
        asked.append(1)
        if len(asked) < 3:
            raise NotYet("stream_not_alive", "Not read right now.")
        return {}

    monkeypatch.setattr("runs.operations.RunStart.intend", intend)
    execution.execute(approved.pk)
    assert outcome(approved) == (Status.APPLIED, "accepted")
    assert len(hermes.mutations()) == 1


def test_what_does_not_pass_is_refused_in_the_end(
    approved: Action, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch, settings: pytest.FixtureRequest
) -> None:
    settings.PATIENCE_SECONDS = 0.15  # type: ignore[attr-defined]

    def intend(self: object, action: Action, chain: object) -> dict[str, object]:
        raise NotYet("stream_not_alive", "Not read right now.")

    monkeypatch.setattr("runs.operations.RunStart.intend", intend)
    execution.execute(approved.pk)
    assert outcome(approved) == (Status.REFUSED, "stream_not_alive")
    assert hermes.mutations() == []
