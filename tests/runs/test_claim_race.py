"""Two hubs that saw the same free run: on PostgreSQL the second one waits for the first, and then must lose."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from hermes_portal import clock
from runs import journal
from runs.models import Hub, Run
from tests import scenes
from tests.factories import Cast


def free_run(cast: Cast) -> Run:
    run = scenes.running(cast.requester, cast.endpoint)
    Run.objects.filter(pk=run.pk).update(stream=Run.Stream.NONE, hub=None)
    return Run.objects.select_related("endpoint__tenant", "tenant", "requester").get(pk=run.pk)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_hub_that_waited_for_another_one_does_not_subscribe_as_well(cast: Cast) -> None:
    run = free_run(cast)
    until = clock.now() + timedelta(seconds=30)
    first, second = (Hub.objects.create(name=name, lease_until=until) for name in ("first", "second"))
    won: list[bool] = []

    def late() -> None:
        won.append(journal._take(run, second.pk, clock.now()) is not None)
        connection.close()

    thread = threading.Thread(target=late)
    with transaction.atomic():
        assert journal._take(run, first.pk, clock.now()) is not None
        thread.start()
        thread.join(0.5)
        assert thread.is_alive(), "it waits for the row"
    thread.join(10)
    assert won == [False]
    run.refresh_from_db()
    assert (run.hub_id, run.fence) == (first.pk, 1)


@pytest.mark.django_db
def test_a_hub_that_comes_later_does_not_subscribe_as_well(cast: Cast) -> None:
    run = free_run(cast)
    until = clock.now() + timedelta(seconds=30)
    first, second = (Hub.objects.create(name=name, lease_until=until) for name in ("first", "second"))
    assert journal._take(run, first.pk, clock.now()) is not None
    assert journal._take(run, second.pk, clock.now()) is None
