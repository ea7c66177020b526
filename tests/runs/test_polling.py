"""What a status says and does not say, how often it is asked for, and the writer behind the hub."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from approvals.models import Kind
from hermes_portal.hermes.errors import ConnectFailed, CredentialRefused, NotFound, ServerFault
from runs import bootstep, journal, polling, prompts
from runs.lease import Lease
from runs.models import Hub, Prompt, Run
from runs.polling import Backoff, Look
from runs.reading import Row
from runs.writing import Abandoned, Writer
from tests import factories
from tests.fake_hermes import FakeHermes, FakeRun, html
from tests.runs.streams import Told, cast_at, evidence_of, fresh, hub, received, until

# --- how often


def test_the_delay_doubles_from_one_to_thirty_seconds_and_starts_anew_when_forgotten():
    backoff = Backoff()
    assert [backoff.delay("a") for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.forget("a")
    assert backoff.delay("a") == 1


def test_a_longer_wait_that_the_provider_asks_for_is_honoured_up_to_five_minutes():
    assert Backoff().delay("a", 12.0) == 12
    assert Backoff().delay("a", 100_000_000.0) == 300


# --- what it means


@pytest.mark.parametrize(
    ("error", "health"),
    [
        (None, "ok"),
        (NotFound(reason="run_not_found"), "ok"),
        (CredentialRefused(), "credential_refused"),
        (ConnectFailed(), "unreachable"),
        (ServerFault(status=502), None),
    ],
)
def test_what_an_answer_says_about_the_endpoint(error: Any, health: str | None):
    assert polling.health_of(error) == health


def test_only_hermes_own_words_make_a_run_unknown():
    assert Look(error=NotFound(reason="run_not_found")).gone
    assert not Look(error=NotFound()).gone


@pytest.fixture
def told(cast: factories.Cast) -> Told:
    return Told(received(cast, FakeRun("run_" + "d" * 32)))


@pytest.mark.django_db
def test_beside_an_open_stream_a_status_only_adds_what_events_do_not_say(told: Told):
    seen = {
        "status": "waiting_for_approval",
        "model": "m",
        "session_id": "s",
        "created_at": 1.5,
        "updated_at": True,
    }
    journal.status_seen(told.owned, seen, delay=None)
    run = fresh(told.run)
    assert (run.status, run.model, run.session_id) == (Run.Status.QUEUED, "m", "s")
    assert run.provider_created_at is not None
    assert run.provider_updated_at is None


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["running", "waiting_for_approval"])
def test_after_a_gap_a_state_that_is_not_final_moves_no_prompt(told: Told, state: str):
    prompt = told.asks()
    told.breaks()
    journal.status_seen(told.owned, {"status": state}, delay=1.0)
    assert Prompt.objects.get(pk=prompt.pk).status == Prompt.Status.OPEN
    assert fresh(told.run).status == state


@pytest.mark.django_db
def test_a_stop_that_somebody_else_asked_for_ends_the_answering(told: Told):
    prompt = told.asks()
    told.alive()
    journal.status_seen(told.owned, {"status": "stopping"}, delay=None)
    stale = prompts.blocked(prompt)
    assert stale is not None
    assert stale.code == "stop_asked"
    told.tell("approval.responded", choice="once", resolved=1)
    assert fresh(told.run).status == Run.Status.STOPPING


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["exploded", 7, None, ["completed"], "x" * 5000])
def test_a_state_that_nobody_knows_changes_nothing(told: Told, status: object):
    told.tell("tool.started", tool="terminal")
    told.breaks()
    journal.status_seen(told.owned, {"status": status, "output": {"x": 1}}, delay=1.0)
    assert fresh(told.run).status == Run.Status.RUNNING


@pytest.mark.django_db
def test_an_end_is_written_once_whoever_says_it(told: Told):
    told.tell("run.failed", error="it broke")
    journal.status_seen(told.owned, {"status": "completed", "output": "no"}, delay=1.0)
    run = fresh(told.run)
    assert (run.status, run.error, run.output) == (Run.Status.FAILED, "it broke", "")
    assert len(evidence_of(told.run, Kind.RUN_ENDED)) == 1


@pytest.mark.django_db(transaction=True)
def test_something_else_at_the_address_does_not_make_a_run_lost():
    with FakeHermes() as hermes:
        run = received(cast_at(hermes), fake := hermes.run())
        hermes.script("GET", f"/v1/runs/{fake.run_id}", html(status=404), html(status=200), forever=True)
        with hub():
            fake.wait_for_subscriber()
            fake.cut()
            until(lambda: fresh(run).gaps)
            time.sleep(1.5)
        assert fresh(run).status in Run.LIVE


# --- the writer


def row(ordinal: int) -> Row:
    return Row(ordinal, "message.delta", 0.0, 0.0, text="x" * 1000)


def with_writer(write: Any, test: Any, *, alive: Any = lambda: True) -> list[Any]:
    """Runs `test(writer)` in a loop of its own; returns the owners that were let go of."""
    lost: list[Any] = []

    async def scene() -> None:
        writer = Writer(write, delay=0.05, alive=alive, on_lost=lost.append)
        running = asyncio.create_task(writer.run())
        await asyncio.wait_for(test(writer), 10)
        running.cancel()
        await writer.close()

    asyncio.run(scene())
    return lost


@pytest.mark.once
@pytest.mark.django_db
def test_rows_share_a_batch_and_a_job_comes_after_what_was_added_before_it():
    order: list[Any] = []

    def write(rows: Sequence[tuple[Any, Row]]) -> list[Any]:
        order.append([item.ordinal for _, item in rows])
        return []

    async def scene(writer: Writer) -> None:
        owner: Any = object()
        for number in range(3):
            writer.add(owner, row(number))
        await writer.ask(lambda: order.append("job"))
        writer.add(owner, row(3))
        await writer.ask(lambda: None)

    with_writer(write, scene)
    assert order == [[0, 1, 2], "job", [3]]


@pytest.mark.once
@pytest.mark.django_db
def test_a_database_that_does_not_take_a_write_is_asked_again():
    tries: list[int] = []

    def write(rows: Sequence[tuple[Any, Row]]) -> list[Any]:
        tries.append(len(rows))
        if len(tries) < 3:
            raise OperationalError("locked")
        return []

    async def scene(writer: Writer) -> None:
        writer.add(owner, row(0))
        await writer.ask(lambda: None)

    owner: Any = object()
    assert with_writer(write, scene) == []
    assert tries == [1, 1, 1]


@pytest.mark.once
@pytest.mark.django_db
def test_without_a_lease_nothing_is_written_and_whoever_asks_is_told():
    async def scene(writer: Writer) -> None:
        with pytest.raises(Abandoned):
            await writer.ask(lambda: pytest.fail("written without a lease"))

    with_writer(lambda rows: [], scene, alive=lambda: False)


@pytest.mark.once
@pytest.mark.django_db
def test_a_row_that_cannot_be_stored_ends_the_reading_of_its_own_run_only():
    stored: list[Any] = []

    def write(rows: Sequence[tuple[Any, Row]]) -> list[Any]:
        if any(owner == "bad" for owner, _ in rows):
            raise ValueError("cannot be stored")
        stored.extend(owner for owner, _ in rows)
        return []

    async def scene(writer: Writer) -> None:
        for number, owner in enumerate(("good", "bad", "bad", "fine")):
            writer.add(owner, row(number))  # type: ignore[arg-type]
        await writer.ask(lambda: None)

    assert with_writer(write, scene) == ["bad"]
    assert stored == ["good", "fine"]


@pytest.mark.once
@pytest.mark.django_db
def test_a_slow_database_stops_the_reading_instead_of_filling_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runs.writing.ROOM_BYTES", 10_000)
    go = threading.Event()

    def write(rows: Sequence[tuple[Any, Row]]) -> list[Any]:
        go.wait(5)
        return []

    async def scene(writer: Writer) -> None:
        owner: Any = object()
        for number in range(20):
            writer.add(owner, row(number))
        waiting: Coroutine[Any, Any, None] = writer.room()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.2)
        go.set()
        await writer.room()

    with_writer(write, scene)


# --- the lease and the worker


@pytest.mark.django_db(transaction=True)
def test_a_lease_ends_by_our_own_clock_when_it_cannot_be_renewed(settings: Any):
    settings.HUB_LEASE_SECONDS = 0.2
    lease = Lease("hub")
    lease._beat()
    first = lease.hub_id
    assert lease.holds(first)
    assert Hub.objects.get().pk == first
    time.sleep(0.25)
    assert not lease.holds(first)
    lease._beat()
    assert lease.hub_id not in (None, first)
    assert Hub.objects.count() == 2


class Parent:
    """As much of a Celery worker as the step looks at."""

    def __init__(self, pool: str, *queues: str) -> None:
        self.pool_cls = type("TaskPool", (), {"__module__": f"celery.concurrency.{pool}"})
        self.app = type("App", (), {})()
        self.app.amqp = type("Amqp", (), {})()
        self.app.amqp.queues = type("Queues", (), {"consume_from": dict.fromkeys(queues)})()


@pytest.mark.once
def test_a_worker_has_a_hub_only_where_it_consumes_streams():
    assert bootstep.HubStep(Parent("prefork", "default")).include_if(Parent("prefork", "default")) is False
    assert bootstep.HubStep(Parent("thread", "streams")).include_if(Parent("thread", "streams")) is True


@pytest.mark.once
@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_a_hub_refuses_pools_that_fork_or_patch(pool: str):
    with pytest.raises(ImproperlyConfigured, match="threads or solo"):
        bootstep.HubStep(Parent(pool, "streams"))


@pytest.mark.once
def test_a_nudge_in_a_process_without_a_hub_does_nothing():
    assert bootstep.nudge() is None  # type: ignore[func-returns-value]
