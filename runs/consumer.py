"""The hub: one asyncio loop in a thread of a `streams` worker that reads the event streams of many runs (rule 8).

It claims runs that nobody reads, reads each one's events once, and polls the status where reading is over. All database
work goes through the writer's one thread; the loop itself never waits for the database or for a status. Messages only
nudge it: what they would tell is found by looking anyway (rule 11).
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.conf import settings

from hermes_portal import redaction
from hermes_portal.hermes.client import AsyncStream, Client
from hermes_portal.hermes.errors import (
    CredentialRefused,
    HermesError,
    NotAStream,
    NotFound,
    NotSent,
    Refused,
    ServerFault,
    StreamSilent,
)
from hermes_portal.hermes.sse import FrameTooLarge
from runs import journal, polling, prompts
from runs.journal import FenceLost, Owned
from runs.lease import Lease
from runs.models import Run
from runs.reading import Caps, Control, Reading, Row, TooManyEvents
from runs.writing import Abandoned, Writer

log = logging.getLogger(__name__)

MOST_STREAMS: Final = 1_000
"""Runs that one hub follows; more are left to another hub."""
PROOF_SECONDS: Final = 0.25
"""How often it is proven that the runs with an open prompt are read up to now; at most 0.5 s."""
LOOP_TURNS: Final = 5
"""Turns of the loop after which bytes that had arrived have reached their reader: one to find the socket readable, one
to wake the reader, and the same again for a layer of TLS; one to spare."""
QUIET_SECONDS: Final = 45.0
"""Silence of one and a half keepalives: such a connection proves nothing about what is waiting."""
SWEEP_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 2.0
"""For the terminal event to arrive after a status said that the run ended."""
PERSON_SECONDS: Final = 86_400.0  # the deadline header of a stream, which itself has no total timeout
LOOKERS: Final = 8


@dataclass(slots=True, eq=False)
class Reader:
    """One run that is being read."""

    owned: Owned
    reading: Reading
    task: asyncio.Task[None] | None = None
    waiting_since: float | None = None
    heard: float | None = None
    """When the last bytes came, or the stream was opened."""
    checked: float = 0.0
    keepalives: int = 0
    noted: int = 0
    abandoned: str | None = None

    def abandon(self, cause: str) -> None:
        """Ends the reading from outside, for a cause that becomes a gap."""
        if self.abandoned is None and self.task is not None and not self.task.done():
            self.abandoned = cause
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class Ended:
    """How the reading of a stream ended without a terminal event. `retry` means that it never began."""

    cause: str = ""
    detail: str = ""
    retry: float | None = None


class Hub:
    """Started and stopped by the worker's bootstep (or a test). Everything but `nudge` belongs to its loop."""

    def __init__(self, name: str = "") -> None:
        self.lease = Lease(name or f"{socket.gethostname()}:{os.getpid()}")
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._nudged: asyncio.Event
        self._stopping: asyncio.Event
        self._writer: Writer
        self._hub_id: UUID | None = None
        self._readers: dict[UUID, Reader] = {}
        self._asking: dict[UUID, asyncio.Task[None]] = {}
        self._side: set[asyncio.Task[None]] = set()
        self._backoff = polling.Backoff()
        self._refused: dict[UUID, tuple[int, float]] = {}
        self._lookers = ThreadPoolExecutor(LOOKERS, thread_name_prefix="hub-status")

    # --- from other threads ----------------------------------------------------------------------------------

    def start(self) -> None:
        self.lease.start()
        self._thread.start()
        self._ready.wait(10)

    def stop(self, timeout: float = 20.0) -> None:
        """Warm shutdown: an honest gap for every stream still open, and the runs are free for another hub."""
        self._call(self._stopping.set)
        self._thread.join(timeout)
        self.lease.stop()

    def nudge(self) -> None:
        """There may be a run to follow."""
        self._call(self._nudged.set)

    def _call(self, what: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(what)

    # --- the loop --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            log.exception("The hub ended")
        finally:
            self._loop = None
            self._ready.set()
            self._lookers.shutdown(wait=False, cancel_futures=True)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nudged, self._stopping = asyncio.Event(), asyncio.Event()
        half = settings.HUB_BATCH_SECONDS / 2  # half for folding, half for the batch
        self._writer = Writer(
            journal.write_rows,
            delay=half,
            alive=lambda: self.lease.holds(self._hub_id),
            on_lost=self._row_lost,
        )
        self._ready.set()
        writing = asyncio.create_task(self._writer.run(), name="writer")
        loops = [
            asyncio.create_task(
                self._repeat(self._claim, settings.HUB_POLL_SECONDS, self._nudged), name="claim"
            ),
            asyncio.create_task(self._repeat(self._cut_folds, half), name="folds"),
            asyncio.create_task(self._repeat(self._prove, PROOF_SECONDS), name="proofs"),
            asyncio.create_task(self._repeat(self._sweep, SWEEP_SECONDS), name="sweep"),
        ]
        await self._stopping.wait()
        await _cancelled(loops)
        await self._close()
        await _cancelled([writing])
        await self._writer.close()

    async def _repeat(
        self, step: Callable[[], Awaitable[None]], seconds: float, nudge: asyncio.Event | None = None
    ) -> None:
        """A step over and over; a fault in it is logged and costs this turn only."""
        while True:
            try:
                await step()
            except Abandoned:
                log.warning("The hub has no lease; nothing is written")
            except Exception:
                log.exception("A step of the hub failed")
            if nudge is None:
                await asyncio.sleep(seconds)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await nudge.wait()
            nudge.clear()

    async def _close(self) -> None:
        """What is still open is left with a gap, then the hub's row goes."""
        for reader in list(self._readers.values()):
            reader.abandon("portal_stopped")
        tasks = [reader.task for reader in self._readers.values() if reader.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await _cancelled([*self._asking.values(), *self._side])
        hub_id = self._hub_id
        if hub_id is not None and self.lease.holds(hub_id):
            with suppress(Abandoned):
                await self._writer.ask(lambda: journal.release(hub_id))

    # --- owning runs -----------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        """One look for runs to follow and runs to ask about."""
        hub_id = self.lease.hub_id
        if hub_id != self._hub_id:
            self._let_go()
            self._hub_id = hub_id
        if hub_id is None:
            return
        following, refused = tuple(self._readers), self._refusing()
        room = MOST_STREAMS - len(following)
        for owned in await self._writer.ask(lambda: journal.claim(hub_id, following, refused, room)):
            self._follow(owned)
        asking = tuple(self._asking)
        for owned in await self._writer.ask(lambda: journal.due(hub_id, asking, refused)):
            task = asyncio.create_task(self._ask(owned))
            self._asking[owned.run_id] = task
            task.add_done_callback(lambda _, run_id=owned.run_id: self._asking.pop(run_id, None))  # type: ignore[misc]
            task.add_done_callback(_report)

    def _let_go(self) -> None:
        """The lease is lost: the streams stop at once, and nothing is written about it. Whoever takes over says so."""
        for reader in self._readers.values():
            if reader.task is not None:
                reader.task.cancel()
        for task in (*self._asking.values(), *self._side):
            task.cancel()
        self._readers.clear()

    def _refusing(self) -> dict[UUID, int]:
        now = time.monotonic()
        self._refused = {
            pk: (revision, until) for pk, (revision, until) in self._refused.items() if until > now
        }
        return {pk: revision for pk, (revision, _) in self._refused.items()}

    def _row_lost(self, owned: Owned) -> None:
        reader = self._readers.get(owned.run_id)
        if reader is not None and reader.owned is owned:
            reader.abandon("not_stored")

    def _follow(self, owned: Owned) -> None:
        reading = Reading(
            owned.provider_run_id,
            own=[owned.target.token],
            next_ordinal=owned.next_ordinal,
            caps=Caps(settings.STREAM_LIMIT_BYTES, settings.STREAM_LIMIT_EVENTS),
        )
        reader = Reader(owned, reading)
        self._readers[owned.run_id] = reader
        reader.task = asyncio.create_task(self._followed(reader), name=f"run {owned.run_id}")

    async def _followed(self, reader: Reader) -> None:
        owned = reader.owned
        try:
            try:
                ended = await self._read(reader)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if reader.abandoned is None or task is None:
                    raise
                task.uncancel()
                ended = Ended(reader.abandoned)
            except (FenceLost, Abandoned):
                raise
            except Exception as error:
                log.exception("The reading of run %s failed", owned.run_id)
                ended = Ended("portal_fault", type(error).__name__)
            await self._finished(reader, ended)
        except FenceLost:
            log.warning("Run %s belongs to another hub by now", owned.run_id)
        except Abandoned:
            log.warning("The lease ended while run %s was read", owned.run_id)
        finally:
            if self._readers.get(owned.run_id) is reader:
                del self._readers[owned.run_id]

    async def _finished(self, reader: Reader, ended: Ended | None) -> None:
        """Writes how the reading ended, exactly once."""
        owned = reader.owned
        if ended is None:
            self._backoff.forget(owned.run_id)
            self._aside(self._describe(owned))
        elif ended.retry is not None:
            delay = ended.retry
            await self._writer.ask(lambda: journal.give_back(owned, delay))
        else:
            heard = reader.heard
            rows = list(reader.reading.finish(heard or time.monotonic()))
            keep = ended.cause != "portal_stopped"
            await self._writer.ask(
                lambda: journal.gap(
                    owned, ended.cause, heard=heard, rows=rows, detail=ended.detail, keep=keep
                )
            )
            self._backoff.forget(owned.run_id)
            self._nudged.set()
        self._note(reader)

    def _note(self, reader: Reader) -> None:
        """Stores what the reading showed, when there is something new."""
        reading = reader.reading
        shown = len(reading.features) + reading.truncated
        if shown > reader.noted:
            reader.noted = shown
            features, truncated = set(reading.features), reading.truncated
            self._aside(self._ask_quietly(lambda: journal.note_reading(reader.owned, features, truncated)))

    async def _ask_quietly(self, job: Callable[[], object]) -> None:
        with suppress(Abandoned, FenceLost):
            await self._writer.ask(job)

    def _aside(self, coroutine: Coroutine[object, object, None]) -> None:
        """Something that the reading does not wait for."""
        task = asyncio.create_task(coroutine)
        self._side.add(task)
        task.add_done_callback(self._side.discard)
        task.add_done_callback(_report)

    # --- reading ---------------------------------------------------------------------------------------------

    async def _read(self, reader: Reader) -> Ended | None:
        """Subscribes once and reads to the end; None when a terminal event was committed."""
        owned = reader.owned
        opened = False
        try:
            client = Client(owned.target)
            call = polling.call_for(owned, PERSON_SECONDS)
            owned.opened = time.monotonic()
            async with client.stream(
                owned.provider_run_id, call, idle=settings.STREAM_IDLE_SECONDS
            ) as stream:
                opened = True
                owned.opened = reader.heard = time.monotonic()
                self._answers(owned)
                await self._chunks(reader, stream)
        except FrameTooLarge:
            return Ended("frame_too_large")
        except TooManyEvents:
            return Ended("too_many_events")
        except HermesError as error:
            if reader.reading.ended is None:
                return await self._broken(owned, error, opened)
        return None if reader.reading.ended is not None else Ended("ended_without_terminal_event")

    async def _chunks(self, reader: Reader, stream: AsyncStream) -> None:
        reading = reader.reading
        async with aclosing(stream):
            while reading.ended is None:
                reader.waiting_since = time.monotonic()
                try:
                    chunk = await anext(stream)
                except StopAsyncIteration:
                    return
                finally:
                    reader.waiting_since = None
                reader.heard = time.monotonic()
                for item in reading.feed(chunk, reader.heard):
                    await self._store(reader, item)
                self._heard(reader)
                await self._writer.room()

    async def _store(self, reader: Reader, item: Row | Control) -> None:
        if isinstance(item, Row):
            self._writer.add(reader.owned, item)
            return
        unsettled = await self._writer.ask(lambda: journal.control(reader.owned, item))
        if not unsettled:
            reader.reading.settled(item.row.ordinal)

    def _heard(self, reader: Reader) -> None:
        """After each chunk: features, and a look at the status now and then when only keepalives come."""
        self._note(reader)
        reading, now = reader.reading, time.monotonic()
        first = reader.checked == 0.0 and reading.frames > 0
        silent = reading.keepalives > reader.keepalives and now - reader.checked > CHECK_SECONDS
        reader.keepalives = reading.keepalives
        if reading.ended is None and (first or silent):
            reader.checked = now
            self._aside(self._check(reader))

    async def _broken(self, owned: Owned, error: HermesError, opened: bool) -> Ended:
        """What an error of the stream means: try again because nothing was subscribed, or a gap."""
        self._answers(owned, error)
        detail = redaction.excerpt(redaction.redact(error.detail, own=[owned.target.token]), 512)
        if opened:
            return Ended("stream_silent" if isinstance(error, StreamSilent) else "connection_lost", detail)
        if isinstance(error, NotFound):
            return Ended("events_not_found", detail)
        if isinstance(error, NotAStream):
            log.warning("Endpoint %s gave no event stream: %s", owned.target.endpoint_id, detail)
            return Ended("not_a_stream", detail)
        unavailable = isinstance(error, ServerFault) and error.status == 503
        if unavailable or isinstance(error, NotSent | Refused):
            return Ended(retry=self._backoff.delay(owned.run_id, error.retry_after))
        return Ended(
            "connection_lost", detail
        )  # the subscription may have been made and have taken events along

    def _answers(self, owned: Owned, error: HermesError | None = None) -> None:
        """Notes what an answer, or none, says about the endpoint."""
        if isinstance(error, CredentialRefused):
            self._refused[owned.endpoint] = (
                owned.credential_revision,
                time.monotonic() + polling.REFUSED_DELAY,
            )
        health = polling.health_of(error)
        if health is not None:
            sentence = error.sentence if error is not None and not isinstance(error, NotFound) else ""
            self._aside(self._ask_quietly(lambda: journal.mark(owned.endpoint, health, sentence)))

    # --- statuses --------------------------------------------------------------------------------------------

    async def _look(self, owned: Owned) -> polling.Look:
        return await asyncio.get_running_loop().run_in_executor(self._lookers, polling.look, owned)

    async def _ask(self, owned: Owned) -> None:
        """One look at the status of a run whose events are over for us."""
        try:
            found = await self._look(owned)
            self._answers(owned, found.error)
            if found.gone:
                await self._writer.ask(lambda: journal.lost(owned))
                return
            delay = self._backoff.delay(owned.run_id, found.error.retry_after if found.error else None)
            status = found.status
            if status is None:
                await self._writer.ask(lambda: journal.poll_later(owned.run_id, owned.fence, delay))
                return
            state = await self._writer.ask(lambda: journal.status_seen(owned, status, delay=delay))
            if state in Run.TERMINAL:
                self._backoff.forget(owned.run_id)
        except (FenceLost, Abandoned):
            log.info("Run %s was asked about by a hub that no longer owns it", owned.run_id)

    async def _check(self, reader: Reader) -> None:
        """Beside an open stream: what events do not say; and whether the run ended without our hearing of it."""
        found = await self._look(reader.owned)
        status = found.status
        if status is None:
            return
        await self._ask_quietly(lambda: journal.status_seen(reader.owned, status, delay=None))
        if status.get("status") in Run.TERMINAL:
            await asyncio.sleep(GRACE_SECONDS)
            if reader.reading.ended is None:
                reader.abandon("terminal_event_missing")

    async def _describe(self, owned: Owned) -> None:
        """After the end: model, session and the provider's times."""
        found = await self._look(owned)
        status = found.status
        if status is not None:
            await self._ask_quietly(lambda: journal.described(owned, status))

    # --- at regular times ------------------------------------------------------------------------------------

    async def _cut_folds(self) -> None:
        """Text that was folded long enough becomes a row."""
        for reader in self._readers.values():
            self._cut(reader)

    def _cut(self, reader: Reader) -> None:
        if reader.reading.folding:
            for row in reader.reading.cut():
                self._writer.add(reader.owned, row)

    async def _prove(self) -> None:
        """Commits how far the runs with an open prompt are read, for those whose sockets are drained (rule 6).

        A reader that waits for bytes from before this instant until several turns of the loop later had none to
        read at this instant: the loop asks the sockets in each turn. Its folded text is handed on first, and the
        writer works in order, so that the instant commits after all that was read before it.
        """
        at = time.monotonic()
        candidates = [reader for reader in self._readers.values() if _idle(reader, at)]
        if not candidates:
            return
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        drained = [reader for reader in candidates if _idle(reader, at)]
        for reader in drained:
            self._cut(reader)
        hub_id, run_ids = self._hub_id, [reader.owned.run_id for reader in drained]
        if hub_id is not None and run_ids:
            await self._writer.ask(lambda: journal.read_through(hub_id, run_ids, at))

    async def _sweep(self) -> None:
        if self.lease.holds(self._hub_id):
            await self._writer.ask(prompts.lapse_overdue)


def _idle(reader: Reader, at: float) -> bool:
    """Has an open prompt, waits for bytes since before `at`, is between frames, and heard something lately."""
    since = reader.waiting_since
    return (
        reader.reading.waiting
        and since is not None
        and since <= at
        and not reader.reading.mid_frame
        and reader.heard is not None
        and at - reader.heard < QUIET_SECONDS
    )


def _report(task: asyncio.Task[None]) -> None:
    """A fault in something that nobody waits for is logged."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("A side task of the hub failed", exc_info=error)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
