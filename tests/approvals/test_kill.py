"""A worker is killed at each point of the ledger: at most one request arrives, and the record becomes final."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection

from approvals import execution
from approvals.models import Action, Approval, Execution
from hermes_portal import clock
from tests import fake_hermes
from tests.approvals.conftest import Ask, approve
from tests.factories import Cast
from tests.fake_hermes import FakeHermes

pytestmark = pytest.mark.django_db(transaction=True)
Status = Execution.Status
FINAL = (Status.REFUSED, Status.APPLIED, Status.NOT_APPLIED, Status.UNKNOWN)


def killed_at(action: Action, point: str) -> int:
    """Runs a worker process that dies at `point`; its exit code."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.approvals.ledger_worker",
            str(connection.settings_dict["NAME"]),
            str(action.pk),
            point,
        ],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "hermes_portal.settings"},
        timeout=60,
        check=False,
        capture_output=True,
    )
    return done.returncode


@pytest.mark.parametrize(
    ("point", "sent", "final"),
    [
        ("claimed", 1, Status.APPLIED),  # nobody had promised anything: another worker sends it
        ("intended", 0, Status.UNKNOWN),
        ("connecting", 0, Status.UNKNOWN),
        ("answered", 1, Status.UNKNOWN),
        ("settled", 1, Status.APPLIED),
        ("never", 1, Status.APPLIED),
    ],
)
def test_a_worker_killed_at_a_point_of_the_ledger(
    desk: Cast, governed: Callable[..., Approval], hermes: FakeHermes, point: str, sent: int, final: str
) -> None:
    approval = governed()
    approve(approval, desk.reviewer)
    approval.refresh_from_db()
    action = approval.action
    assert action is not None
    assert killed_at(action, point) == (0 if point == "never" else -9)

    with clock.moved(timedelta(seconds=100)):  # leases and reply windows are over: a live worker sweeps
        execution.settle_overdue()
        execution.execute(action.pk)
        execution.settle_overdue()
        execution.execute(action.pk)

    assert len(hermes.mutations()) == sent
    row = Execution.objects.get(pk=action.pk)
    assert row.status == final
    assert row.status in FINAL


def test_a_worker_killed_while_the_reply_is_on_its_way_leaves_one_request_and_unknown(
    ask: Ask, hermes: FakeHermes
) -> None:
    action = ask()
    hermes.script("POST", "/v1/runs", fake_hermes.default(delay=3.0))
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.approvals.ledger_worker",
            str(connection.settings_dict["NAME"]),
            str(action.pk),
            "never",
        ],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "hermes_portal.settings"},
    )
    deadline = 600
    while not hermes.mutations() and deadline:
        deadline -= 1
        hermes.stopping.wait(0.05)
    worker.kill()
    worker.wait()
    with clock.moved(timedelta(seconds=100)):
        execution.settle_overdue()
        execution.execute(action.pk)
    assert len(hermes.mutations()) == 1
    assert Execution.objects.get(pk=action.pk).status == Status.UNKNOWN


def test_five_copies_of_one_message_on_four_workers_send_once(ask: Ask, hermes: FakeHermes) -> None:
    action = ask()
    hermes.script("POST", "/v1/runs", fake_hermes.default(delay=0.5))
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.approvals.ledger_worker",
                str(connection.settings_dict["NAME"]),
                str(action.pk),
                "never",
            ],
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "hermes_portal.settings"},
        )
        for _ in range(4)
    ]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0, 0]
    execution.execute(action.pk)
    assert len(hermes.mutations()) == 1
    assert Execution.objects.get(pk=action.pk).status == Status.APPLIED
