"""Hubs, fakes and runs for the tests of reading: a real socket, a real hub thread, a real database."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from django.conf import settings

from approvals.models import Approval, EvidenceEntry, Kind
from hermes_portal import clock
from runs import journal
from runs.consumer import Hub
from runs.models import Hub as HubRow
from runs.models import Prompt, Run, RunEvent
from runs.reading import Caps, Control, Reading
from tests import factories, scenes
from tests.fake_hermes import KEY, FakeHermes, FakeRun

T = TypeVar("T")
LOOPBACK = ("127.0.0.0/8",)


def cast_at(hermes: FakeHermes, **more: Any) -> factories.Cast:
    """The cast, with the fake behind its endpoint."""
    return factories.cast(base_url=hermes.url, token=KEY, allow_networks=LOOPBACK, **more)


def received(cast: factories.Cast, fake: FakeRun) -> Run:
    """A run of ours that has just got its receipt, and that nobody reads yet."""
    run = Run.objects.get(action=scenes.start(cast.requester, cast.endpoint))
    run.move(Run.Status.QUEUED, provider_run_id=fake.run_id, started_at=clock.now(), status_from="receipt")
    return run


@contextmanager
def hub(name: str = "hub") -> Iterator[Hub]:
    """A hub that is stopped in good order."""
    started = Hub(name)
    started.start()
    try:
        yield started
    finally:
        started.stop()


def until(what: Callable[[], T], seconds: float = 30.0) -> T:
    """Waits for a true value. Raises AssertionError when it does not come."""
    limit = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.02)
    return value


def fresh(run: Run) -> Run:
    return Run.objects.get(pk=run.pk)


def reads(run: Run, status: str) -> Run:
    """Waits until the run has that status."""
    until(lambda: fresh(run).status == status)
    return fresh(run)


def events(run: Run, kind: str = "") -> list[RunEvent]:
    found = RunEvent.objects.filter(run=run).order_by("ordinal")
    return list(found.filter(kind=kind) if kind else found)


def kinds(run: Run) -> list[str]:
    """What the transcript holds, without rows that only carry text which was held back before."""
    return [event.kind for event in events(run) if event.count]


def text_of(run: Run) -> str:
    return "".join(event.text for event in events(run, RunEvent.TEXT))


def prompt_of(run: Run, number: int = 0) -> Prompt:
    """The run's prompt with this number, once it is there."""
    return until(lambda: list(run.prompts.order_by("ordinal")[: number + 1])[number:])[0]


def card_of(prompt: Prompt) -> Approval:
    return Approval.objects.get(subject=prompt.subject)


def evidence_of(run: Run, kind: Kind) -> list[EvidenceEntry]:
    return list(EvidenceEntry.objects.filter(run_id=run.pk, kind=kind).order_by("seq"))


class Told:
    """A run whose events are told directly, without a socket or a hub, in the order of the calls."""

    def __init__(self, run: Run) -> None:
        self.hub = HubRow.objects.create(name="told", lease_until=clock.now() + timedelta(minutes=5))
        (self.owned,) = journal.claim(self.hub.pk, (), {}, 10)
        assert self.owned.run_id == run.pk
        self.owned.opened = time.monotonic() - 60
        self.run = run
        self.reading = Reading(
            run.provider_run_id,
            own=[self.owned.target.token],
            next_ordinal=self.owned.next_ordinal,
            caps=Caps(settings.STREAM_LIMIT_BYTES, settings.STREAM_LIMIT_EVENTS),
        )
        self.alive()

    def tell(self, kind: str, **members: Any) -> None:
        event = {
            "event": kind,
            "run_id": self.run.provider_run_id,
            "timestamp": clock.now().timestamp(),
            **members,
        }
        self.raw(f"data: {json.dumps(event)}\n\n".encode())

    def raw(self, data: bytes) -> None:
        for item in (*self.reading.feed(data, time.monotonic()), *self.reading.cut()):
            if isinstance(item, Control):
                if not journal.control(self.owned, item):
                    self.reading.settled(item.row.ordinal)
            else:
                journal.write_rows([(self.owned, item)])

    def asks(self, command: str = "rm -rf /srv/cache", **members: Any) -> Prompt:
        self.tell(
            "approval.request",
            command=command,
            description="recursive delete",
            pattern_key="recursive delete",
            pattern_keys=["recursive delete"],
            **{"choices": ["once", "session", "always", "deny"], "allow_permanent": True} | members,
        )
        return Prompt.objects.filter(run=self.run).latest("ordinal")

    def alive(self) -> None:
        """Everything that had come by now is durable."""
        journal.read_through(self.hub.pk, [self.run.pk], time.monotonic())

    def breaks(self, cause: str = "connection_lost") -> None:
        journal.gap(self.owned, cause)
