"""Asking: validation, the key, policy, and what is written."""

from datetime import timedelta

import pytest

from approvals import execution, services
from approvals.errors import Denied, Forbidden, Invalid
from approvals.models import Action, Approval, EvidenceEntry, Kind
from approvals.services import Requested
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from tests import factories
from tests.approvals.conftest import Ask
from tests.factories import Cast


def request(desk: Cast, **changed: object) -> Requested:
    given: dict[str, object] = {
        "user": desk.requester,
        "endpoint": desk.endpoint,
        "operation": "run_start",
        "raw": {"body": {"input": "Count."}},
        "reason": "Why not.",
        "key": "key",
    }
    return services.request(**(given | changed))  # type: ignore[arg-type]


def test_a_start_needs_no_approval_by_contract(ask: Ask) -> None:
    action = ask()
    assert not action.needs_approval
    assert not Approval.objects.exists()
    assert list(execution.sendable(clock.now())) == [action]


def test_policy_can_require_an_approval_for_a_start(governed) -> None:
    approval = governed()
    assert approval.status == Approval.Status.PENDING
    assert approval.effective_at - approval.created_at == timedelta(minutes=15)
    assert not execution.sendable(clock.now()).exists()


def test_a_forbidden_request_writes_nothing_and_says_the_rule_s_sentence(desk: Cast) -> None:
    factories.policy(desk.acme, factories.forbid("run_start", "Not on Fridays."))
    with pytest.raises(Forbidden, match="Not on Fridays"):
        request(desk)
    assert not Action.objects.exists()


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"reason": "  "}, "reason"),
        ({"reason": "x" * 2001}, "reason"),
        ({"key": ""}, "idempotency_key"),
        ({"key": "two words"}, "idempotency_key"),
        ({"raw": {"body": {"input": 5}}}, "body.input"),
        ({"raw": {"body": {"input": {"text": "x"}}}}, "body.input"),
        ({"raw": {"body": {"input": [{"role": "user"}]}}}, "body.input[0]"),
        ({"raw": {"body": {"input": "x"}, "input": "y"}}, "input"),
        ({"raw": {"body": {"input": "x" * 1_100_000}}}, "input"),
    ],
)
def test_bad_input_names_the_field_and_writes_nothing(
    desk: Cast, changed: dict[str, object], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        request(desk, **changed)
    assert list(refused.value.errors) == [field]
    assert not Action.objects.exists()


def test_only_requesters_of_the_tenant_may_ask(desk: Cast) -> None:
    for person in (desk.reviewer, desk.auditor, desk.admin, desk.stranger, desk.nobody):
        with pytest.raises(Denied):
            request(desk, user=person)
    assert not Action.objects.exists()


def test_an_operation_that_is_not_registered_is_refused(desk: Cast) -> None:
    with pytest.raises(Forbidden):
        request(desk, operation="job_create", raw={"name": "x", "schedule": "every 1h"})


def test_a_disabled_endpoint_takes_no_new_request(desk: Cast) -> None:
    desk.endpoint.enabled = False
    desk.endpoint.save()
    with pytest.raises(Conflict, match="disabled"):
        request(desk)


def test_a_repeated_key_answers_the_original_action(desk: Cast) -> None:
    first, second = request(desk), request(desk)
    assert second == Requested(first.action, replayed=True, input_matches=True)
    assert Action.objects.count() == 1


def test_a_repeated_key_with_another_input_says_so_and_applies_nothing(desk: Cast) -> None:
    first = request(desk)
    second = request(desk, raw={"body": {"input": "Delete everything."}})
    assert (second.action, second.input_matches) == (first.action, False)
    assert Action.objects.count() == 1


def test_a_key_is_free_again_after_24_hours(desk: Cast) -> None:
    first = request(desk)
    with clock.moved(timedelta(hours=24, seconds=1)):
        second = request(desk)
    assert second.action != first.action
    assert not second.replayed


def test_the_exact_input_is_sealed_and_the_evidence_holds_its_redacted_form(desk: Cast) -> None:
    action = request(desk, raw={"body": {"input": "use https://svc:hunter2@db.example/"}}).action
    assert b"hunter2" not in bytes(action.input) + bytes(action.wire)
    assert "hunter2" not in str(action.input_shown) + action.title
    assert execution.exact_input(action)["body"] == {"input": "use https://svc:hunter2@db.example/"}
    entry = EvidenceEntry.objects.get(kind=Kind.ACTION_REQUESTED)
    assert b"hunter2" not in bytes(entry.payload.body)
    assert action.input_digest.encode() in bytes(entry.payload.body)
