"""The hub on the real Hermes 0.19.0 of the sandbox."""

from collections.abc import Iterator

import pytest

from approvals.models import Approval, Kind
from hermes_portal import clock
from hermes_portal.sandbox import Sandbox
from runs import prompts
from runs.models import Prompt, Run, RunEvent
from tests import factories
from tests.fake_hermes import FakeRun
from tests.runs.streams import (
    LOOPBACK,
    Told,
    card_of,
    events,
    evidence_of,
    fresh,
    hub,
    kinds,
    prompt_of,
    reads,
    received,
    text_of,
    until,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.hermes]
WAIT = 5


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(approval_timeout=WAIT) as running:
        yield running


@pytest.fixture
def cast(sandbox: Sandbox, db: None) -> factories.Cast:
    server = sandbox.servers[0]
    return factories.cast(base_url=server.url, token=server.key, allow_networks=LOOPBACK, approval_wait=WAIT)


def started(sandbox: Sandbox, cast: factories.Cast, script: str) -> Run:
    """A run that Hermes really started."""
    status, receipt = sandbox.servers[0].call("POST", "/v1/runs", {"input": script})
    assert status == 202
    return received(cast, FakeRun(receipt["run_id"]))


def test_a_run_with_a_tool_is_read_to_its_end(sandbox: Sandbox, cast: factories.Cast):
    run = started(sandbox, cast, "say: first words\nrun: echo one\nsay: last words")
    with hub():
        ended = reads(run, Run.Status.COMPLETED)
        until(lambda: fresh(run).session_id)
    assert (ended.status_from, ended.gaps) == ("event", 0)
    assert "last words" in text_of(run)
    assert {"tool.started", "tool.completed", "reasoning.available", "run.completed"} <= set(kinds(run))
    assert ended.usage


def test_a_dangerous_command_waits_for_a_person_and_the_report_of_the_answer_closes_it(
    sandbox: Sandbox, cast: factories.Cast
):
    (sandbox.scratch / "gone").mkdir(exist_ok=True)
    run = started(sandbox, cast, "run: rm -rf {scratch}/gone\nallowed: gone\nrefused: kept")
    with hub():
        prompt = prompt_of(run)
        assert card_of(prompt).status == Approval.Status.PENDING
        until(lambda: fresh(run).read_through_at)
        prompts.prove_head(prompt, clock.now())
        sandbox.servers[0].call("POST", f"/v1/runs/{run.provider_run_id}/approval", {"choice": "once"})
        reads(run, Run.Status.COMPLETED)
    assert Prompt.objects.get(pk=prompt.pk).status == Prompt.Status.ANSWERED_ELSEWHERE
    assert card_of(prompt).status == Approval.Status.STALE


def test_a_wait_that_hermes_ends_silently_lapses_and_is_seen_in_the_tools_end(
    sandbox: Sandbox, cast: factories.Cast
):
    run = started(sandbox, cast, "run: rm -rf {scratch}/kept\nrefused: kept")
    with hub():
        prompt = prompt_of(run)
        until(lambda: Prompt.objects.get(pk=prompt.pk).let_go, 20)
        reads(run, Run.Status.COMPLETED)
    assert Prompt.objects.get(pk=prompt.pk).status == Prompt.Status.LAPSED
    assert card_of(prompt).status in (Approval.Status.EXPIRED, Approval.Status.STALE)


def test_a_lost_reader_leaves_a_gap_and_the_status_tells_the_end(sandbox: Sandbox, cast: factories.Cast):
    run = started(sandbox, cast, "say: before the gap\ngate: lost-reader\nsay: after the gap")
    told = Told(run)  # claims the run and then never reads: as a process that was killed
    told.hub.lease_until = clock.now()
    told.hub.save()
    with hub():
        until(lambda: fresh(run).polled_at)
        sandbox.release("lost-reader")
        ended = reads(run, Run.Status.COMPLETED)
    assert (ended.status_from, ended.stream) == ("poll", "broken")
    assert "after the gap" in ended.output
    assert [event.data["cause"] for event in events(run, RunEvent.GAP)] == ["consumer_lost"]
    assert len(evidence_of(run, Kind.RUN_GAP)) == 1


def test_a_run_that_a_restart_forgot_is_lost(sandbox: Sandbox, cast: factories.Cast):
    server = sandbox.servers[0]
    run = started(sandbox, cast, "say: At work.\ngate: never-opened")
    with hub():
        until(lambda: run.events.exists())  # the stream is really being read, not only about to be
        server.crash()
        until(lambda: fresh(run).gaps)
        assert fresh(run).status in Run.LIVE
        server.start()
        reads(run, Run.Status.LOST)
    sandbox.reset_model()
