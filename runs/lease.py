"""A hub's lease: one row by the database's clock, renewed by a thread of its own.

The loop and its writer may be busy for seconds; the heartbeat is not behind them. A hub that could not renew in time
knows it by its own monotonic clock, without asking anybody, and stops its streams at once.
"""

import logging
import threading
import time
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import Error, close_old_connections, connection, connections

from hermes_portal import clock
from hermes_portal.ids import uuid7
from runs.models import Hub

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.5


class Lease:
    """Held from `start` to `stop`. Every loss gives the hub a new identity, so that old claims are nobody's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds: float = settings.HUB_LEASE_SECONDS
        self._held: tuple[UUID, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="hub-heartbeat", daemon=True)

    @property
    def hub_id(self) -> UUID | None:
        """The identity under which runs may be claimed now; None while there is no lease."""
        held = self._held
        return held[0] if held is not None and time.monotonic() < held[1] else None

    def holds(self, hub_id: UUID | None) -> bool:
        """Whether this identity is still the one."""
        return hub_id is not None and self.hub_id == hub_id

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops renewing; the row is released by whoever gives the runs back."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _keep(self) -> None:
        pause = 0.0
        try:
            while not self._stop.wait(pause):
                pause = self._beat()
        finally:
            connections.close_all()

    def _beat(self) -> float:
        """One renewal; returns the seconds until the next one."""
        try:
            close_old_connections()
            self._renew()
        except Error as error:
            log.warning("The hub's lease could not be renewed (%s); trying again", type(error).__name__)
            connection.close()
            return RETRY_SECONDS
        return self._seconds / 3

    def _renew(self) -> None:
        asked = (
            time.monotonic()
        )  # before the database's instant: our idea of the lease ends before the database's
        now = clock.now()
        until = now + timedelta(seconds=self._seconds)
        if self._held is not None:
            hub_id = self._held[0]
            if Hub.objects.filter(pk=hub_id, lease_until__gt=now).update(lease_until=until):
                self._held = (hub_id, asked + self._seconds)
                return
            log.error("The hub lost its lease; it stops its streams and starts again under a new identity")
        hub = Hub.objects.create(id=uuid7(), name=self._name, lease_until=until)
        self._held = (hub.pk, asked + self._seconds)
