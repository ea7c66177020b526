"""Messages to workers: ids only, after the commit, never retried. What gets lost is found by the sweeps (rule 11)."""

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

from approvals.models import Action

log = logging.getLogger(__name__)


def nudge(action: Action) -> None:
    """Wakes a worker to try an action, once the present transaction is committed."""
    identity = str(action.pk)
    transaction.on_commit(lambda: publish("approvals.tasks.execute", identity), robust=True)


def publish(task: str, *args: str) -> None:
    """Sends a message now. A broker that is down is logged and costs a second at most.

    Celery turns what its transports raise into kombu's OperationalError; files can also raise OSError.
    """
    try:
        current_app.send_task(task, args=args, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("The broker did not take %s: %s", task, type(error).__name__)
