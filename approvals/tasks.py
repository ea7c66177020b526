"""Celery tasks: load by id, call one service. Each may run twice, late or never without harm."""

from uuid import UUID

from celery import shared_task

from approvals import execution, export, services


@shared_task
def execute(action_id: str) -> None:
    execution.execute(UUID(action_id))


@shared_task
def expire() -> None:
    services.expire()


@shared_task
def dispatch() -> None:
    execution.dispatch()


@shared_task
def settle_overdue() -> None:
    execution.settle_overdue()


@shared_task
def checkpoint() -> None:
    export.checkpoint()
