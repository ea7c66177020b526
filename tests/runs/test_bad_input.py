"""Bad input and bad providers, each with the state it leaves and the sentence a person reads, through the pages.

What other files test already:

| Case                                             | Where |
|--------------------------------------------------|-------|
| decide without a reason, without `seen`          | approvals/test_views_approval: what_was_not_offered_or_not_said |
| choices that were not offered, fields sent twice | runs/test_prompt_rules: case_4 |
| 409 approval_not_active and approval_not_pending | runs/test_prompt_rules: what_hermes_no_longer_waited_for |
| ids in addresses (CR, LF, NUL, look-alike digits)| portal/hermes/test_client: only_a_whole_run_id, test_capabilities |
| 404 of events, status 404: the run is lost       | runs/test_consumer: a_run_that_hermes_forgot |
| a hub and a refused token: one try, then silence | runs/test_consumer: a_refused_token |
| every reply of a start and its outcome           | approvals/test_ledger: each_reply_has_its_outcome |
"""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from approvals import execution, services, setup
from approvals.errors import Invalid
from approvals.evidence import OPERATOR
from approvals.models import Action, EndpointStatus, Execution
from hermes_portal import clock
from runs.models import Run
from tests import fake_hermes
from tests.factories import Cast
from tests.fake_hermes import Answer, FakeHermes, provider_error
from tests.runs.streams import cast_at, fresh, hub, received, until

KEYS = itertools.count(1)
RUNS = "/v1/runs"
Sent = Execution.Status


@pytest.fixture
def hermes() -> Iterator[FakeHermes]:
    with FakeHermes() as fake:
        yield fake


@pytest.fixture
def desk(db: None, hermes: FakeHermes) -> Cast:
    return cast_at(hermes)


def as_(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def start(desk: Cast, **fields: Any) -> Any:
    """The start form, sent by the requester; members that are None are left out."""
    given = {
        "endpoint": desk.endpoint.endpoint_id,
        "input": "Count the rows.",
        "reason": "SUP-1",
        "idempotency_key": f"key-{next(KEYS)}",
    } | fields
    return as_(desk.requester).post(
        reverse("start"), {name: value for name, value in given.items() if value is not None}
    )


def text_of(answer: Any) -> str:
    return unescape(answer.content.decode())


def started(desk: Cast) -> Run:
    """Asks for a run and lets a worker try it once."""
    assert start(desk).status_code == 302
    run = Run.objects.latest("created_at")
    execution.execute(run.action_id)
    run.refresh_from_db()
    return run


def page(desk: Cast, run: Run) -> str:
    answer = as_(desk.requester).get(reverse("run", args=[run.pk]))
    assert answer.status_code == 200
    return text_of(answer)


def sweep(run: Run) -> None:
    """Everything that might be tempted to send it again."""
    execution.execute(run.action_id)
    execution.dispatch()
    execution.settle_overdue()


# --- what a person writes


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reason": ""}, "Say why"),
        ({"reason": None}, "Say why"),
        ({"reason": " \n\t "}, "Say why"),
        ({"reason": "x" * 2001}, "Shorten the reason"),
        ({"input": ""}, "The input is empty"),
        ({"input": "5"}, "text or a list"),
        ({"input": "true"}, "text or a list"),
        ({"input": "null"}, "The input is missing"),
        ({"input": '{"text": "x"}'}, "text or a list"),
        ({"input": "[]"}, "The input is missing"),
        ({"input": "[5]"}, "Each message must be an object"),
        ({"input": '["x", {"role": "user"}]'}, "content"),
        ({"input": '[{"role": "user", "content": ""}]'}, "content"),
        ({"input": '[{"role": "user", "content": "x"'}, "cannot be read"),
        ({"input": '[{"role": "user", "content": "x", "content": "y"}]'}, "cannot be read"),
        ({"input": '[{"role": "user", "content": "a\\u0000b"}]'}, "NUL"),
        ({"conversation_history": "5"}, "history"),
        ({"conversation_history": "[5]"}, "history"),
        ({"conversation_history": "no json"}, "cannot be read"),
        ({"idempotency_key": "two words"}, "key"),
        ({"idempotency_key": "x" * 256}, "key"),
        ({"idempotency_key": "né"}, "key"),
    ],
)
def test_what_cannot_be_a_start_is_422_with_a_sentence_and_writes_nothing(
    desk: Cast, hermes: FakeHermes, fields: dict[str, Any], sentence: str
) -> None:
    answer = start(desk, **fields)
    assert answer.status_code == 422
    assert sentence in text_of(answer)
    assert 'role="alert"' in text_of(answer)
    assert not Action.objects.exists()
    assert hermes.requests == []


@pytest.mark.parametrize("name", ["session_key", "session_id", "previous_response_id", "model"])
@pytest.mark.parametrize("bad", ["a\rb", "a\nb", "a\r\nX-Evil: 1", "a\x00b"])
def test_line_ends_and_nul_in_ids_are_422(desk: Cast, hermes: FakeHermes, name: str, bad: str) -> None:
    answer = start(desk, **{name: bad})
    assert answer.status_code == 422
    assert not Action.objects.exists()
    assert hermes.requests == []


@pytest.mark.parametrize("bad", ["key\r\nX-Evil: 1", "key\n", "\nkey", "key\x00"])
def test_line_ends_and_nul_in_a_key_are_422(desk: Cast, bad: str) -> None:
    assert start(desk, idempotency_key=bad).status_code == 422
    assert not Action.objects.exists()


@pytest.mark.parametrize(
    "run_id",
    ["", "run_x", "run_" + "0" * 32 + "\n", "run_" + "0" * 31 + "\x00", "run_" + "A" * 32, "../stop"],
)
def test_a_stop_of_what_is_no_run_id_is_refused_before_anything_is_written(desk: Cast, run_id: str) -> None:
    with pytest.raises(Invalid) as refused:
        services.request(
            user=desk.requester,
            endpoint=desk.endpoint,
            operation="run_stop",
            raw={"run_id": run_id},
            reason="x",
            key="k",
        )
    assert list(refused.value.errors) == ["run_id"]
    assert not Action.objects.exists()


@pytest.mark.parametrize("size", [1_048_577, 2_000_000])
def test_an_input_over_the_portals_limit_is_422_and_says_the_limit(
    desk: Cast, hermes: FakeHermes, size: int
) -> None:
    answer = start(desk, input="x" * size)
    assert answer.status_code == 422
    assert "1,048,576" in text_of(answer)
    assert not Action.objects.exists()


def test_a_form_over_djangos_limit_is_413_with_the_portals_page(desk: Cast, hermes: FakeHermes) -> None:
    answer = start(desk, input="x" * 10_000_001)
    assert answer.status_code == 413
    assert "Nothing was sent. Shorten it" in text_of(answer)
    assert hermes.requests == []


def test_the_providers_limit_holds_whatever_the_portal_is_told_to_allow(
    desk: Cast, hermes: FakeHermes, settings: Any
) -> None:
    settings.INPUT_LIMIT_BYTES = 30_000_000
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 40_000_000
    answer = start(desk, input="x" * 10_000_001)
    assert answer.status_code == 422
    assert "10,000,000" in text_of(answer)
    assert not Action.objects.exists()


def test_an_unknown_endpoint_and_one_of_another_tenant_read_the_same(desk: Cast) -> None:
    unknown = start(desk, endpoint="nosuch")
    foreign = start(desk, endpoint=desk.other_endpoint.endpoint_id)
    assert (unknown.status_code, foreign.status_code) == (422, 422)
    for answer in (unknown, foreign):
        assert "This endpoint is not known, or you may not ask for runs there." in text_of(answer)
    assert not Action.objects.exists()


@pytest.mark.parametrize("bad", ["ops\n", "ops\x00", "ops\r\nHost: x", "OPS/../theirs", ""])
def test_an_endpoint_id_that_is_none_is_422(desk: Cast, bad: str) -> None:
    """A trailing line end is trimmed by the form field, as a browser's select would never send it."""
    answer = start(desk, endpoint=bad)
    assert answer.status_code in ((302, 422) if bad == "ops\n" else (422,))


def test_a_disabled_endpoint_is_409_and_names_who_can_enable_it(desk: Cast, hermes: FakeHermes) -> None:
    setup.change_endpoint(endpoint=desk.endpoint, by=OPERATOR, enabled=False)
    answer = start(desk)
    assert answer.status_code == 409
    assert "is disabled. An admin of the tenant can enable it." in text_of(answer)
    assert (Action.objects.count(), hermes.requests) == (0, [])


def test_an_endpoint_that_is_disabled_after_the_request_is_not_spoken_to(
    desk: Cast, hermes: FakeHermes
) -> None:
    assert start(desk).status_code == 302
    run = Run.objects.get()
    setup.change_endpoint(endpoint=desk.endpoint, by=OPERATOR, enabled=False)
    execution.execute(run.action_id)
    run.refresh_from_db()
    assert run.status == Run.Status.NOT_STARTED
    assert "was disabled" in page(desk, run)
    assert hermes.requests == []


# --- what a provider answers


def test_a_wrong_token_marks_the_endpoint_and_is_tried_once(desk: Cast, hermes: FakeHermes) -> None:
    setup.rotate_token(endpoint=desk.endpoint, token="not-the-token-at-all", by=OPERATOR)
    desk.endpoint.refresh_from_db()
    run = started(desk)
    sweep(run)
    assert len(hermes.requests) == 1
    assert run.status == Run.Status.NOT_STARTED
    seen = EndpointStatus.objects.get(pk=desk.endpoint.pk)
    assert seen.health == EndpointStatus.Health.CREDENTIAL_REFUSED
    assert Execution.objects.get().sentence in page(desk, run)
    answer = as_(desk.admin).get(reverse("endpoints"))
    assert seen.get_health_display() in text_of(answer)


def test_a_provider_that_is_down_started_nothing_and_the_page_is_certain(
    desk: Cast, hermes: FakeHermes
) -> None:
    hermes.stop()
    run = started(desk)
    sweep(run)
    assert Execution.objects.get().code == "connect_failed"
    text = page(desk, run)
    assert "Hermes did not start it, and this is certain." in text
    assert Execution.objects.get().sentence in text


@pytest.mark.parametrize(
    "answer",
    [
        provider_error(429, "Too many concurrent runs (max 10)", "rate_limit_exceeded", Retry_After="7"),
        provider_error(503, "Gateway is draining", "gateway_draining", Retry_After="7"),
    ],
)
def test_saturated_and_draining_are_definite_and_the_page_says_when_and_why(
    desk: Cast, hermes: FakeHermes, answer: Answer
) -> None:
    hermes.script("POST", RUNS, answer)
    run = started(desk)
    sweep(run)
    assert len(hermes.mutations()) == 1, "never by itself"
    row = Execution.objects.get()
    assert (row.status, row.found["retry_after"]) == (Sent.NOT_APPLIED, 7)
    assert run.status == Run.Status.NOT_STARTED
    text = page(desk, run)
    assert "ten slots" in text
    assert "Chat and Responses" in text
    assert row.settled_at is not None
    assert "Hermes asked to wait until" in text
    assert f"{row.settled_at + timedelta(seconds=7):%H:%M:%S}</time>" in text
    soon = start(desk)
    assert soon.status_code == 409
    assert "It asked to wait until" in text_of(soon)
    with clock.moved(timedelta(seconds=8)):
        assert start(desk).status_code == 302, "a new start is a new request by a person"
        execution.execute(Run.objects.latest("created_at").action_id)
    assert len(hermes.mutations()) == 2


@pytest.mark.parametrize(
    "answer",
    [
        fake_hermes.reset(),
        fake_hermes.close(),
        fake_hermes.reply(502, body=b"Bad gateway"),
        fake_hermes.html(),
    ],
)
def test_a_provider_that_restarts_under_the_start_leaves_it_unknown_and_says_what_to_do(
    desk: Cast, hermes: FakeHermes, answer: Answer
) -> None:
    hermes.script("POST", RUNS, answer)
    run = started(desk)
    sweep(run)
    assert len(hermes.mutations()) == 1
    assert run.status == Run.Status.START_UNKNOWN
    text = page(desk, run)
    assert "a run may exist at Hermes" in text
    assert "It is not sent again." in text


def test_a_stop_of_a_run_that_hermes_does_not_know_is_no_error_page(desk: Cast, hermes: FakeHermes) -> None:
    run = started(desk)
    client = as_(desk.requester)
    asked = client.post(reverse("stop", args=[run.pk]), {"reason": "Wrong year.", "idempotency_key": "stop"})
    assert asked.status_code == 302
    stop = Action.objects.get(operation="run_stop")
    services.decide(
        approval=stop.approval,
        user=desk.reviewer,
        verdict="approve",
        reason="Stop it.",
        seen=services.seen_digest(stop.approval),
    )
    hermes.forget(run.provider_run_id)
    execution.execute(stop.pk)
    row = Execution.objects.get(pk=stop.pk)
    assert (row.status, row.code) == (Sent.NOT_APPLIED, "nothing_to_stop")
    answer = client.get(reverse("action", args=[stop.pk]))
    assert answer.status_code == 200
    assert "Hermes has nothing to stop" in text_of(answer)
    assert fresh(run).status == Run.Status.QUEUED


def test_a_stop_without_a_reason_is_422_on_the_run_page_and_before_a_receipt_409(
    desk: Cast, hermes: FakeHermes
) -> None:
    run = started(desk)
    client = as_(desk.requester)
    answer = client.post(reverse("stop", args=[run.pk]), {"reason": " ", "idempotency_key": "stop"})
    assert (answer.status_code, "Say why" in text_of(answer)) == (422, True)
    start(desk)
    waiting = Run.objects.latest("created_at")
    answer = client.post(reverse("stop", args=[waiting.pk]), {"reason": "x", "idempotency_key": "stop2"})
    assert answer.status_code == 409
    assert "nothing to stop yet" in text_of(answer)
    assert not Action.objects.filter(operation="run_stop").exists()


# --- what comes instead of events


@pytest.mark.django_db(transaction=True)
def test_a_stream_that_is_a_web_page_is_a_gap_on_the_run_page_and_never_text(transactional_db: None) -> None:
    with FakeHermes() as hermes:
        desk = cast_at(hermes)
        fake = hermes.run()
        hermes.script("GET", r".*/events", fake_hermes.html("<h1>Sign in to proxy</h1>"), forever=True)
        run = received(desk, fake)
        with hub():
            until(lambda: fresh(run).gaps)
            until(lambda: fresh(run).polled_at)
    text = page(desk, run)
    assert "no event stream" in text
    assert "Sign in to proxy" not in text
    assert fresh(run).status == Run.Status.RUNNING, "as the status says"


@pytest.mark.django_db(transaction=True)
def test_a_stream_that_ends_without_an_end_is_a_gap_and_the_status_decides(transactional_db: None) -> None:
    with FakeHermes() as hermes:
        desk = cast_at(hermes)
        fake = hermes.run()
        run = received(desk, fake)
        with hub():
            fake.wait_for_subscriber()
            fake.emit({"event": "message.delta", "delta": "Half a"})
            fake.end()
            until(lambda: fresh(run).gaps)
            text = page(desk, run)
            assert "without saying how the run ended" in text
            assert fresh(run).status not in Run.TERMINAL
            fake.complete("done")
            until(lambda: fresh(run).status == Run.Status.COMPLETED)
    assert fresh(run).status_from == "poll"
