"""The hub's one way to the database: one thread, batches of rows, and jobs that commit at once.

The loop adds rows and asks for jobs; both are done in the order in which they came. Rows wait for a short time so that
those of all runs share a transaction; a job does not wait, and takes what stands before it along. A slow database fills
the queue, and a full queue stops the reading: nothing is dropped and nothing grows without bound.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from django.db import Error, InterfaceError, OperationalError, close_old_connections, connection, connections

from runs.journal import Owned
from runs.reading import Row

T = TypeVar("T")
log = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 2_000
ROOM_BYTES: Final = 16 * 1024 * 1024
"""What may wait to be written before reading stops."""
RETRY_SECONDS: Final = 0.25


class Abandoned(Exception):
    """The hub lost its lease before this was written: it is no longer ours to write."""


class _Job:
    def __init__(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self.call, self.done = call, done


class _Added:
    def __init__(self, owner: Owned, row: Row) -> None:
        self.owner, self.row = owner, row


class Writer:
    """Belongs to one event loop. `write_rows` stores a batch and returns the owners whose fence is lost."""

    def __init__(
        self,
        write_rows: Callable[[Sequence[tuple[Owned, Row]]], Sequence[Owned]],
        *,
        delay: float,
        alive: Callable[[], bool],
        on_lost: Callable[[Owned], None],
    ) -> None:
        self._write_rows = write_rows
        self._delay = delay
        self._alive = alive
        self._on_lost = on_lost
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hub-writer")
        self._items: list[_Job | _Added] = []
        self._size = 0
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def add(self, owner: Owned, row: Row) -> None:
        """Queues a row. Follow up with `room()` before reading on."""
        self._items.append(_Added(owner, row))
        self._size += row.size
        self._some.set()
        if len(self._items) >= ROWS_AT_ONCE:
            self._hurry.set()
        if self._size > ROOM_BYTES:
            self._hurry.set()
            self._room.clear()

    async def ask(self, call: Callable[[], T]) -> T:
        """Does a job in the writer's thread, after all that was added before it; gives its result or error."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._items.append(_Job(call, done))
        self._some.set()
        self._hurry.set()
        return await done

    async def room(self) -> None:
        """Waits while too much is queued."""
        await self._room.wait()

    async def run(self) -> None:
        """Writes until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._some.wait()
            try:
                async with asyncio.timeout(self._delay):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            items, self._items = self._items, []
            self._some.clear()
            self._hurry.clear()
            written = await loop.run_in_executor(self._thread, self._write, items)
            for settle in written:
                settle()
            self._size -= sum(item.row.size for item in items if isinstance(item, _Added))
            self._room.set()

    async def close(self) -> None:
        """Ends the thread and its database connection."""
        await asyncio.get_running_loop().run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown()

    # --- in the thread ---------------------------------------------------------------------------------------

    def _write(self, items: Sequence[_Job | _Added]) -> list[Callable[[], None]]:
        """Everything in order. Returns what the loop has to do about it: resolve futures, let go of lost runs."""
        close_old_connections()
        settled: list[Callable[[], None]] = []
        rows: list[tuple[Owned, Row]] = []
        for item in items:
            if isinstance(item, _Added):
                rows.append((item.owner, item.row))
                continue
            settled += self._rows(rows)
            rows = []
            settled.append(self._job(item))
        settled += self._rows(rows)
        return settled

    def _rows(self, rows: list[tuple[Owned, Row]]) -> list[Callable[[], None]]:
        lost: list[Owned] = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            try:
                lost += self._insistently(lambda part=part: self._write_rows(part))  # type: ignore[misc]
            except Abandoned:
                lost += [owner for owner, _ in part]
            except Exception:  # one row that cannot be stored must not take the rows of other runs along
                log.exception("A batch of events could not be written; its rows are tried one by one")
                lost += self._one_by_one(part)
        return [lambda owner=owner: self._on_lost(owner) for owner in dict.fromkeys(lost)]  # type: ignore[misc]

    def _one_by_one(self, rows: Sequence[tuple[Owned, Row]]) -> list[Owned]:
        lost: list[Owned] = []
        for owner, row in rows:
            if owner in lost:
                continue
            try:
                lost += self._insistently(lambda pair=(owner, row): self._write_rows([pair]))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends this reading and no other
                log.warning("An event could not be stored (%s); its reading ends", type(error).__name__)
                lost.append(owner)
        return lost

    def _job(self, job: _Job) -> Callable[[], None]:
        try:
            result = self._insistently(job.call)
        except BaseException as error:  # noqa: BLE001 - belongs to whoever asked
            failure = error
            return lambda: None if job.done.done() else job.done.set_exception(failure)
        return lambda: None if job.done.done() else job.done.set_result(result)

    def _insistently(self, call: Callable[[], T]) -> T:
        """Repeats what the database could not take just now, as long as the hub's lease holds.

        All that is written here may be written twice: rows by (run, ordinal), jobs by looking first.
        """
        while True:
            if not self._alive():
                raise Abandoned
            try:
                return call()
            except (OperationalError, InterfaceError) as error:
                log.warning("The database did not take a write (%s); trying again", type(error).__name__)
                try:
                    connection.close()
                except Error:
                    log.debug("The broken connection did not close in good order")
                time.sleep(RETRY_SECONDS)
