"""Celery tasks of runs: nudges and the sweep. Each may run twice, late or never without harm."""

from celery import shared_task

from runs import bootstep
from runs.reconcile import sweep


@shared_task
def follow(run_id: str) -> None:
    bootstep.nudge()


@shared_task
def reconcile() -> None:
    sweep()
