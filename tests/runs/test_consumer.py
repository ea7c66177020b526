"""The hub against a provider on a real socket: one reading, honest gaps, one owner (rules 6 and 8)."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connections

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.models import Approval, EndpointStatus, Kind
from approvals.operations import Stale
from hermes_portal import clock
from runs import consumer, journal, prompts
from runs.consumer import Hub
from runs.models import Hub as HubRow
from runs.models import Prompt, Run, RunEvent
from tests.fake_hermes import KEY, Answer, FakeHermes, FakeRun, gzipped, html, reply
from tests.runs.streams import (
    Told,
    card_of,
    cast_at,
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

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_is_read_to_its_terminal_event():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            fake.emit({"event": "message.delta", "delta": "Hello "})
            fake.emit({"event": "message.delta", "delta": "world.\n"})
            fake.complete("Hello world.")
            ended = reads(run, Run.Status.COMPLETED)
            assert (ended.status_from, ended.stream, ended.output) == ("event", "ended", "Hello world.")
            assert text_of(run) == "Hello world.\n"
            until(lambda: fresh(run).session_id == fake.run_id)
    assert len(evidence_of(run, Kind.RUN_ENDED)) == 1
    assert fake.subscriptions == 1


def test_a_request_becomes_a_prompt_with_a_pending_approval():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            fake.ask("rm -rf /srv/cache")
            prompt = prompt_of(run)
            card = card_of(prompt)
            assert card.status == Approval.Status.PENDING
            assert card.effective_why == "provider_wait"
            assert card.offered == ["once", "session", "always", "deny"]
            until(lambda: fresh(run).read_through_at)
            assert fresh(run).status == Run.Status.WAITING


def asked(fake: FakeRun, run: Run) -> Prompt:
    fake.ask()
    return prompt_of(run)


# --- folding, caps, hostile frames


def test_consecutive_text_is_folded_into_few_rows_that_count_every_event():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        for number in range(1000):
            fake.emit({"event": "message.delta", "delta": f"word {number}\n"})
        fake.emit({"event": "tool.started", "tool": "terminal", "preview": "ls"})
        fake.emit({"event": "message.delta", "delta": "after\n"})
        fake.complete()
        with hub():
            reads(run, Run.Status.COMPLETED)
    assert kinds(run)[-3:] == ["tool.started", "message.delta", "run.completed"]
    assert len(events(run)) < 100
    assert sum(event.count for event in events(run, RunEvent.TEXT)) == 1001
    assert text_of(run).count("\n") == 1001
    assert [event.ordinal for event in events(run)] == list(range(len(events(run))))


def test_a_token_that_is_cut_over_many_events_is_masked_in_the_transcript():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            for character in f"the token {KEY} is it\n":
                fake.emit({"event": "message.delta", "delta": character})
                if character == "8":
                    fake.emit({"event": "tool.started", "tool": "terminal", "preview": "ls"})
                time.sleep(0.02)  # over several folds
            fake.complete()
            reads(run, Run.Status.COMPLETED)
    whole = " ".join(event.text for event in events(run))
    assert not [start for start in range(len(KEY) - 8) if KEY[start : start + 8] in whole]
    assert "[redacted" in whole


def test_over_the_cap_text_is_counted_and_what_was_done_and_asked_is_kept(settings: Any):
    settings.STREAM_LIMIT_EVENTS = 20
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        for number in range(100):
            fake.emit({"event": "message.delta", "delta": f"{number}\n"})
        fake.emit({"event": "tool.started", "tool": "terminal", "preview": "ls"})
        fake.ask("ls /srv")
        with hub():
            prompt_of(run)
            fake.complete()
            ended = reads(run, Run.Status.COMPLETED)
            until(lambda: fresh(run).truncated)
    assert sum(event.count for event in events(run, RunEvent.DROPPED)) == 80
    assert text_of(run).split() == [str(number) for number in range(20)]
    assert kinds(run)[-3:] == ["tool.started", "approval.request", "run.completed"]
    assert ended.gaps == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {not json}\n\n",
        b'data: {"event":"message.delta","event":"run.completed","run_id":"%s"}\n\n',
        b'data: {"event":"run.completed","run_id":"run_00000000000000000000000000000000"}\n\n',
        b'data: {"event":"run.completed","run_id":"%s","usage":{"x":NaN}}\n\n',
        b'data: {"event":"run.completed","run_id":"%s","n":' + b"9" * 5000 + b"}\n\n",
        b'data: {"event":"x","run_id":"%s","n":' + b"[" * 10_000 + b"]" * 10_000 + b"}\n\n",
        b"data: [1]\n\n",
    ],
    ids=["json", "duplicate", "other-run", "nan", "digits", "depth", "array"],
)
def test_one_bad_frame_is_kept_as_it_is_and_stops_nothing(bad: bytes):
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        fake.emit({"event": "message.delta", "delta": "before\n"})
        fake.emit_raw(bad.replace(b"%s", fake.run_id.encode()))
        fake.emit({"event": "message.delta", "delta": "after\n"})
        fake.complete()
        with hub():
            reads(run, Run.Status.COMPLETED)
    assert kinds(run) == ["message.delta", "unparsed", "message.delta", "run.completed"]


def test_characters_that_the_database_cannot_hold_are_replaced_and_counted():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        frame = '{"event":"tool.started","run_id":"%s","timestamp":1e20,"preview":"a\\u0000b\\ud83d","x\\u0000":1}'
        fake.emit_raw(b"data: " + (frame % fake.run_id).encode() + b"\n\n")
        fake.complete()
        with hub():
            reads(run, Run.Status.COMPLETED)
    started = events(run)[0]
    assert "sanitised:3" in started.flags
    assert "no_timestamp" in started.flags
    assert "\0" not in started.text


def test_line_separators_inside_a_text_never_make_a_second_event():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        attack = 'x\u2028data: {"event":"run.completed"}\u2028\u2028'
        frame = json.dumps(
            {"event": "message.delta", "run_id": fake.run_id, "timestamp": 1, "delta": attack},
            ensure_ascii=False,
        )
        fake.emit_raw(f"data: {frame}\n\n".encode())
        fake.emit({"event": "tool.started", "tool": "terminal", "preview": "ls"})
        with hub():
            until(lambda: events(run, "tool.started"))
            assert fresh(run).status == Run.Status.RUNNING


def test_an_endless_frame_ends_the_reading_and_the_status_decides():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            fake.emit({"event": "message.delta", "delta": "before\n"})
            fake.emit_raw(b"data: " + b"A" * (3 * 1024 * 1024))
            until(lambda: fresh(run).gaps == 1)
            fake.status = "completed"
            reads(run, Run.Status.COMPLETED)
    assert causes(run) == ["frame_too_large"]
    assert text_of(run) == "before\n"


# --- gaps


def causes(run: Run) -> list[str]:
    return [event.data["cause"] for event in events(run, RunEvent.GAP)]


def test_case_22_a_connection_that_breaks_is_a_gap_and_is_never_subscribed_again():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            fake.emit({"event": "message.delta", "delta": "before\n"})
            prompt = asked(fake, run)
            fake.cut()
            until(lambda: fresh(run).polled_at and fresh(run).gaps == 1)
            assert card_of(prompt).status == Approval.Status.PENDING
            fake.complete("the end")
            ended = reads(run, Run.Status.COMPLETED)
    assert (ended.status_from, ended.stream, ended.output) == ("poll", "broken", "the end")
    assert causes(run) == ["connection_lost"]
    broken = events(run, RunEvent.GAP)[0]
    assert run.started_at is not None
    assert run.started_at < broken.received_at <= broken.last_received_at
    assert len(evidence_of(run, Kind.RUN_GAP)) == 1
    assert text_of(run) == "before\n"
    assert subscriptions(hermes) == 1
    assert card_of(prompt).status == Approval.Status.STALE


def subscriptions(hermes: FakeHermes) -> int:
    """How often any event stream was asked for."""
    return sum(seen.path.endswith("/events") for seen in hermes.requests)


def statuses(hermes: FakeHermes) -> int:
    return sum(re.fullmatch(r"/v1/runs/run_[0-9a-f]{32}", seen.path) is not None for seen in hermes.requests)


@pytest.mark.parametrize("comment", [True, False])
def test_a_stream_that_ends_without_a_terminal_event_proves_no_end(comment: bool):
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            fake.end(comment=comment)
            until(lambda: fresh(run).gaps)
            assert fresh(run).status in Run.LIVE
            fake.status = "failed"
            assert reads(run, Run.Status.FAILED).status_from == "poll"
    assert causes(run) == ["ended_without_terminal_event"]
    assert subscriptions(hermes) == 1


def test_a_terminal_event_that_was_cut_off_is_no_event():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            whole = json.dumps(
                {"event": "run.completed", "run_id": fake.run_id, "timestamp": 1, "output": "x"}
            )
            fake.emit_raw(f"data: {whole}\n".encode())
            fake.end(comment=False)
            until(lambda: fresh(run).gaps)
            assert fresh(run).status in Run.LIVE
    assert events(run)[0].flags == "ended_mid_frame"


def test_a_run_that_hermes_forgot_is_lost_not_failed():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            prompt = asked(fake, run)
            hermes.forget(fake.run_id)
            fake.cut()
            lost = reads(run, Run.Status.LOST)
    assert lost.ended_at is None
    assert len(evidence_of(run, Kind.RUN_LOST)) == 1
    assert card_of(prompt).status == Approval.Status.STALE


def test_events_that_are_gone_while_the_status_answers_are_out_of_reach():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        fake.gone = True
        with hub():
            until(lambda: fresh(run).polled_at)
            assert fresh(run).out_of_reach_since
            assert fresh(run).status == Run.Status.RUNNING
            fake.complete()
            reads(run, Run.Status.COMPLETED)
    assert causes(run) == ["events_not_found"]


@pytest.mark.parametrize(
    "answer",
    [
        html(),
        reply(200, {"error": "x"}),
        reply(204, body=b"", content_type=None),
        reply(200, body=b"data: {}\n\n", content_type=None),
        gzipped({"x": 1}, content_type="text/event-stream"),
    ],
    ids=["html", "json", "204", "no type", "gzip"],
)
def test_case_21_what_is_no_event_stream_is_a_gap_and_is_not_asked_for_again(answer: Answer):
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        hermes.script("GET", ".*/events", answer, forever=True)
        with hub():
            until(lambda: fresh(run).gaps)
            fake.complete()
            reads(run, Run.Status.COMPLETED)
    assert len(events(run)) == 1
    assert subscriptions(hermes) == 1


def test_a_refused_token_marks_the_endpoint_and_is_not_tried_again():
    with FakeHermes() as hermes:
        cast = cast_at(hermes)
        first, second = received(cast, hermes.run()), received(cast, hermes.run())
        hermes.key = "another-key-0123456789"
        with hub():
            until(lambda: EndpointStatus.objects.get(endpoint=cast.endpoint).health == "credential_refused")
            time.sleep(2.5)
            assert subscriptions(hermes) <= 2  # both runs may have been on their way
            assert {fresh(first).stream, fresh(second).stream} == {"none"}
            setup.rotate_token(endpoint=cast.endpoint, token=hermes.key, by=OPERATOR)
            reads_stream(first)
            until(lambda: EndpointStatus.objects.get(endpoint=cast.endpoint).health == "ok")


def reads_stream(run: Run) -> None:
    until(lambda: fresh(run).stream == Run.Stream.OPEN)


def test_a_server_that_is_busy_is_asked_again_after_a_while():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        hermes.script("GET", ".*/events", reply(503, {}, headers=(("Retry-After", "0"),)))
        with hub():
            fake.wait_for_subscriber()
            fake.complete()
            assert reads(run, Run.Status.COMPLETED).gaps == 0


def test_a_server_that_is_down_when_the_run_is_to_be_read_loses_nothing():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        port = hermes.port
    with hub():
        until(lambda: EndpointStatus.objects.get(endpoint=run.endpoint).health == "unreachable")
        with FakeHermes(port=port) as hermes:
            fake = hermes.run(fake.run_id)
            fake.complete()
            assert reads(run, Run.Status.COMPLETED).gaps == 0


def test_a_stream_that_only_keeps_alive_after_the_end_is_noticed_by_the_status():
    with FakeHermes(keepalive=0.2) as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(consumer, "CHECK_SECONDS", 0.1)
            patch.setattr(consumer, "GRACE_SECONDS", 0.1)
            fake.wait_for_subscriber()
            fake.status = "completed"  # as after a second reader took the terminal event
            ended = reads(run, Run.Status.COMPLETED)
    assert ended.status_from == "poll"
    assert causes(run) == ["terminal_event_missing"]


def test_silence_beyond_the_idle_limit_is_a_gap(settings: Any):
    settings.STREAM_IDLE_SECONDS = 0.5
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            until(lambda: fresh(run).gaps)
    assert causes(run)[0] == "stream_silent"


# --- owners


def test_case_23_two_hubs_read_a_run_once():
    with FakeHermes() as hermes:
        cast = cast_at(hermes)
        runs = [received(cast, hermes.run()) for _ in range(6)]
        with hub("one") as one, hub("two") as two:
            one.nudge()
            two.nudge()
            until(lambda: all(fake.subscriptions for fake in hermes.runs.values()))
            time.sleep(0.6)  # both have looked again
            for fake in hermes.runs.values():
                fake.complete()
            for run in runs:
                reads(run, Run.Status.COMPLETED)
    assert subscriptions(hermes) == 6


def test_what_was_read_under_an_old_fence_is_refused():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), FakeRun("run_" + "c" * 32))
        told = Told(run)
        Run.objects.filter(pk=run.pk).update(fence=told.owned.fence + 1)
        told.tell("tool.started", tool="terminal")
        with pytest.raises(journal.FenceLost):
            told.asks()
        with pytest.raises(journal.FenceLost):
            told.breaks()
    assert events(run) == []


def test_a_run_left_behind_by_a_dead_hub_gets_a_gap_and_is_polled():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        told = Told(run)
        told.tell(
            "message.delta", delta="These words were stored before the process died, and they stay. And so on"
        )
        HubRow.objects.update(lease_until=clock.now())
        with hub():
            until(lambda: fresh(run).polled_at)
            fake.complete()
            reads(run, Run.Status.COMPLETED)
    assert causes(run) == ["consumer_lost"]
    assert text_of(run).startswith("These words were stored")
    assert subscriptions(hermes) == 0


def test_a_hub_that_loses_its_lease_stops_reading_and_says_so_when_it_is_back():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub() as reading:
            fake.wait_for_subscriber()
            old = reading.lease.hub_id
            HubRow.objects.update(lease_until=clock.now() - timedelta(seconds=1))
            reading.lease._beat()  # its next renewal
            until(lambda: fresh(run).gaps)
            assert reading.lease.hub_id != old
            until(lambda: fake.subscribers == 0)
    assert causes(run) == ["consumer_lost"]
    assert subscriptions(hermes) == 1


def test_warm_shutdown_leaves_an_honest_gap_and_a_free_run():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            fake.emit({"event": "message.delta", "delta": "said last"})
            reads(run, Run.Status.RUNNING)
        assert causes(run) == ["portal_stopped"]
        assert text_of(run) == "said last"
        assert fresh(run).hub is None
        assert not HubRow.objects.exists()
        with hub("next"):
            fake.complete()
            reads(run, Run.Status.COMPLETED)
    assert subscriptions(hermes) == 1


def test_case_52_after_a_killed_process_the_card_is_still_there_but_cannot_be_answered():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        killed = in_a_process()
        fake.wait_for_subscriber()
        fake.ask("rm -rf /srv/cache")
        prompt = prompt_of(run)
        killed()
        HubRow.objects.update(lease_until=clock.now())  # the rest of the lease is not waited for here
        with hub():
            until(lambda: fresh(run).gaps)
            until(lambda: fresh(run).polled_at)
            assert card_of(prompt).status == Approval.Status.PENDING
            stale = prompts.blocked(prompt)
            assert stale is not None
            assert stale.code == "gap"
            assert hermes.mutations() == []
    assert causes(run)[0] == "consumer_lost"


def in_a_process() -> Callable[[], None]:
    """A hub in a process of its own; returns what kills it."""
    connections.close_all()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        Hub("to be killed").start()
        while True:
            time.sleep(1)

    def kill() -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    return kill


# --- the proof that a stream is alive


def test_while_a_prompt_is_open_the_proof_of_reading_is_never_older_than_the_limit():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            prompt = asked(fake, run)
            until(lambda: fresh(run).read_through_at)
            for _ in range(5):
                time.sleep(0.2)
                prompts.prove_head(prompt, clock.now())


def test_a_frame_that_is_still_on_its_way_is_no_proof_of_reading():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            prompt = asked(fake, run)
            until(lambda: fresh(run).read_through_at)
            fake.emit_raw(b'data: {"event": "approval.request", "half')
            time.sleep(settings.ALIVE_SECONDS + 0.5)
            with pytest.raises(Stale) as caught:
                prompts.prove_head(prompt, clock.now())
    assert caught.value.code == "stream_not_alive"


def test_without_a_prompt_nothing_is_written_while_nothing_happens():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            before = fresh(run).version
            time.sleep(0.8)
            assert (fresh(run).version, fresh(run).read_through_at) == (before, None)


def test_a_wait_that_ends_makes_the_card_look_so_without_beat():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes, approval_wait=3), fake := hermes.run())
        with hub():
            fake.wait_for_subscriber()
            prompt = asked(fake, run)
            until(lambda: Prompt.objects.get(pk=prompt.pk).status == Prompt.Status.LAPSED)
    assert card_of(prompt).status == Approval.Status.EXPIRED
    assert hermes.mutations() == []
