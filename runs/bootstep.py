"""Starts the hub inside a Celery worker that consumes the queue `streams`.

Imports no models: when the Celery application imports this, Django is not set up yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from runs.consumer import Hub

log = logging.getLogger(__name__)
QUEUE = "streams"
POOLS = ("celery.concurrency.thread", "celery.concurrency.solo")
# The hub of this process, for the nudging task that runs beside it.
_hub: Hub | None = None


class HubStep(bootsteps.StartStopStep):
    """Only where `streams` is consumed, and only beside pools that do not fork: a fork would copy the hub's sockets."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, parent: Any) -> bool:
        return QUEUE in parent.app.amqp.queues.consume_from

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        module = getattr(parent.pool_cls, "__module__", str(parent.pool_cls))
        if self.include_if(parent) and module not in POOLS:
            raise ImproperlyConfigured(
                f"A worker that consumes the queue {QUEUE!r} reads event streams and needs --pool threads or solo."
            )

    def start(self, parent: Any) -> None:
        global _hub
        from runs.consumer import Hub

        _hub = Hub(parent.hostname)
        _hub.start()
        log.info("The hub reads event streams")

    def stop(self, parent: Any) -> None:
        global _hub
        hub, _hub = _hub, None
        if hub is not None:
            hub.stop()

    terminate = stop


def install(app: Celery) -> None:
    """Called once by the Celery application."""
    app.steps["worker"].add(HubStep)


def nudge() -> None:
    """Tells the hub of this process, if there is one, to look now. Elsewhere its own polling finds the run."""
    if _hub is not None:
        _hub.nudge()
