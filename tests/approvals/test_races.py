"""Many at once: deciders, workers, a stop and an answer, clocks that disagree, messages too early or never (rule 1, 2).

Every thread has a connection of its own and all are released together. The number of rounds of the deciders' race is
PORTAL_TEST_RACE_ROUNDS (5 unless told; `make chaos` asks for more).
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from django.conf import settings as portal_settings
from django.db import connection, connections, transaction
from django.test import Client
from django.urls import reverse

from approvals import execution, nudges, services, tasks
from approvals.models import (
    Action,
    Approval,
    Decision,
    EvidenceEntry,
    Execution,
    Kind,
    Role,
    User,
)
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from runs.models import Prompt, Run
from tests import factories, fake_hermes
from tests.approvals.conftest import Ask, approve
from tests.factories import Cast
from tests.fake_hermes import FakeHermes, FakeRun
from tests.runs.streams import Told, received
from tests.services import free_port

pytestmark = pytest.mark.django_db(transaction=True)
Governed = Callable[..., Approval]
Status = Execution.Status
ROUNDS = int(os.environ.get("PORTAL_TEST_RACE_ROUNDS", "5"))
PATIENT = timedelta(seconds=60)  # for locks: the machine that runs the tests may be slow


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Results (or exceptions) of calls that are released at one moment, each in a thread with its own connection."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(number: int, call: Callable[[], Any]) -> None:
        try:
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET lock_timeout = %s", [f"{PATIENT.seconds}s"])
            else:
                connection.ensure_connection()
            barrier.wait(60)
            results[number] = call()
        except Exception as error:  # noqa: BLE001 - the result of a racer; the test looks at it
            results[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


# --- deciders (case 7)


def reviewers(desk: Cast, count: int) -> list[User]:
    return [factories.member(f"reviewer-{number}", desk.acme, Role.REVIEWER) for number in range(count)]


def test_case_7_of_many_deciders_released_together_exactly_one_wins(
    desk: Cast, governed: Governed, hermes: FakeHermes
) -> None:
    count = 40 if connection.vendor == "postgresql" else 8
    people = reviewers(desk, count)
    for _ in range(ROUNDS):
        race(governed(), people, hermes)


def race(approval: Approval, people: Sequence[User], hermes: FakeHermes) -> None:
    """One round: half of the people approve, half deny, all at one moment."""
    before = len(hermes.mutations())
    seen = services.seen_digest(approval)

    def click(number: int) -> Callable[[], Decision]:
        verdict = ("approve", "deny")[number % 2]
        return lambda: services.decide(
            approval=Approval.objects.get(pk=approval.pk),
            user=people[number],
            verdict=verdict,
            reason="In a hurry.",
            seen=seen,
        )

    results = together(*(click(number) for number in range(len(people))))
    (winner,) = (result for result in results if isinstance(result, Decision))
    losers = [result for result in results if result is not winner]
    assert [type(result) for result in losers] == [Conflict] * (len(people) - 1), losers
    word = "approved" if winner.verdict == "approve" else "denied"
    named = f"{winner.by.get_username()} {word} this at {winner.created_at:%H:%M:%S} UTC."
    assert {loser.sentence for loser in losers} == {named}
    assert Decision.objects.get(approval=approval) == winner
    decided = (Kind.APPROVAL_APPROVED, Kind.APPROVAL_DENIED, Kind.APPROVAL_VOTED)
    assert EvidenceEntry.objects.filter(approval_id=approval.pk, kind__in=decided).count() == 1
    assert approval.action is not None
    together(*[lambda: execution.execute(approval.action.pk)] * 2)
    assert len(hermes.mutations()) - before == (1 if winner.verdict == "approve" else 0)


def test_a_quorum_of_two_is_reached_once_however_many_vote_at_once(desk: Cast, governed: Governed) -> None:
    people = reviewers(desk, 6)
    approval = governed(approvers=2)
    seen = services.seen_digest(approval)

    def vote(user: User) -> Decision:
        return services.decide(
            approval=Approval.objects.get(pk=approval.pk),
            user=user,
            verdict="approve",
            reason="Yes.",
            seen=seen,
        )

    results = together(*(lambda user=user: vote(user) for user in people))
    assert sum(isinstance(result, Decision) for result in results) == 2
    assert sum(isinstance(result, Conflict) for result in results) == 4
    assert EvidenceEntry.objects.filter(kind=Kind.APPROVAL_VOTED).count() == 1
    assert EvidenceEntry.objects.filter(kind=Kind.APPROVAL_APPROVED).count() == 1


def test_a_decision_and_the_sweep_at_the_deadline_leave_one_end(desk: Cast, governed: Governed) -> None:
    for _ in range(3):
        approval = governed()
        Approval.objects.filter(pk=approval.pk).update(effective_at=clock.now() + timedelta(milliseconds=30))
        seen = services.seen_digest(approval)

        def late(approval: Approval = approval, seen: str = seen) -> Decision:
            return services.decide(
                approval=approval, user=desk.reviewer, verdict="approve", reason="Just.", seen=seen
            )

        def sweep() -> int:
            time.sleep(0.03)
            return services.expire()

        decision, swept = together(late, sweep)
        approval.refresh_from_db()
        if isinstance(decision, Decision):
            assert approval.status in (Approval.Status.APPROVED, Approval.Status.EXPIRED)
            assert decision.created_at < approval.effective_at
        else:
            assert isinstance(decision, Conflict)
            assert not approval.decisions.exists()
        assert not isinstance(swept, Exception)


def test_of_a_revocation_and_a_worker_one_is_first(
    desk: Cast, governed: Governed, hermes: FakeHermes
) -> None:
    for _ in range(5):
        approval = governed()
        approve(approval, desk.reviewer)
        approval.refresh_from_db()
        before = len(hermes.mutations())

        def revoke(approval: Approval = approval) -> None:
            services.revoke(approval=approval, user=desk.second, reason="Wrong.")

        def send(approval: Approval = approval) -> None:
            execution.execute(approval.action_id)  # type: ignore[arg-type]

        revoked, _ = together(revoke, send)
        approval.refresh_from_db()
        sent = len(hermes.mutations()) - before
        if isinstance(revoked, Conflict):
            assert (approval.status, sent) == (Approval.Status.CONSUMED, 1)
        else:
            assert (revoked, approval.status, sent) == (None, Approval.Status.REVOKED, 0)


# --- one key, one action


def test_a_form_sent_many_times_at_once_is_one_action(ask: Ask) -> None:
    results = together(*[lambda: ask(key="one")] * 6)
    assert all(isinstance(result, Action) for result in results), results
    assert len({result.pk for result in results}) == 1
    assert Run.objects.count() == 1


# --- workers (case 39)


def test_workers_that_claim_one_action_at_once_send_it_once(ask: Ask, hermes: FakeHermes) -> None:
    for _ in range(5):
        action = ask()
        before = len(hermes.mutations())
        results = together(*[lambda: execution.execute(action.pk)] * 8)  # noqa: B023 - joined in this turn
        assert results == [None] * 8
        assert len(hermes.mutations()) - before == 1
        row = Execution.objects.get(pk=action.pk)
        assert (row.status, row.fence) == (Status.APPLIED, 1)
        kinds = EvidenceEntry.objects.filter(action_id=action.pk, kind__startswith="execution.")
        assert list(kinds.order_by("seq").values_list("kind", flat=True)) == [
            Kind.EXECUTION_INTENT,
            Kind.EXECUTION_APPLIED,
        ]


def test_a_dead_claim_is_taken_over_by_one_of_many(ask: Ask, hermes: FakeHermes) -> None:
    action = ask()
    assert execution._claim(action.pk) is not None
    Execution.objects.update(lease_until=clock.now() - timedelta(seconds=1))
    together(*[lambda: execution.execute(action.pk)] * 6)
    assert len(hermes.mutations()) == 1
    assert Execution.objects.get(pk=action.pk).fence == 2


def test_a_reply_and_the_sweep_that_gave_it_up_settle_once(ask: Ask) -> None:
    action = ask()
    claim = execution._claim(action.pk)
    assert claim is not None
    intent = execution._intend(claim)
    assert intent is not None
    found = execution._send(intent)
    Execution.objects.update(reply_until=clock.now() - timedelta(seconds=1))
    results = together(
        lambda: execution.settle(action.pk, intent.fence, found, by="reply"), execution.settle_overdue
    )
    assert not [result for result in results if isinstance(result, Exception)]
    assert Execution.objects.get(pk=action.pk).status == Status.APPLIED
    assert EvidenceEntry.objects.filter(kind=Kind.EXECUTION_APPLIED).count() == 1
    assert Run.objects.get(action=action).status == Run.Status.QUEUED


# --- a stop and an answer (case 51)


class Waiting:
    """A run that waits at a command, with an approved answer and an approved stop."""

    def __init__(self, desk: Cast, hermes: FakeHermes) -> None:
        self.fake: FakeRun = hermes.run()
        self.hermes = hermes
        told = Told(received(desk, self.fake))
        self.fake.ask("rm -rf /srv/cache")
        self.prompt: Prompt = told.asks("rm -rf /srv/cache")
        told.alive()
        card = Approval.objects.get(subject=self.prompt.subject)
        decision = services.decide(
            approval=card,
            user=desk.reviewer,
            choice="once",
            reason="Yes.",
            seen=services.seen_digest(card),
        )
        answer = Approval.objects.get(pk=decision.approval_id).action
        assert answer is not None
        self.answer: Action = answer
        self.stop: Action = services.request(
            user=desk.requester,
            endpoint=desk.endpoint,
            operation="run_stop",
            raw={"run_id": self.fake.run_id},
            reason="Wrong year.",
            key=f"stop-{self.fake.run_id}",
        ).action
        approve(self.stop.approval, desk.second)
        told.hub.delete()
        # no hub runs here: as if the reading were always up to the moment
        Run.objects.filter(pk=self.prompt.run_id).update(read_through_at=clock.now() + timedelta(hours=1))

    def order(self) -> list[str]:
        """What reached the provider about this run, in the order of arrival: `approval`, `stop`."""
        mine = [seen for seen in self.hermes.mutations() if self.fake.run_id in seen.path]
        return [seen.path.rsplit("/", 1)[1] for seen in sorted(mine, key=lambda seen: seen.at)]


def test_case_51_of_a_stop_and_an_answer_at_once_no_answer_follows_a_stop(
    desk: Cast, hermes: FakeHermes
) -> None:
    for number in range(6):
        scene = Waiting(desk, hermes)
        pair = [scene.answer.pk, scene.stop.pk]
        if number % 2:
            pair.reverse()
        together(*(lambda pk=pk: execution.execute(pk) for pk in pair))
        for pk in pair:  # whoever found the lane taken is woken again by the settlement
            execution.execute(pk)
        assert scene.order() in (["approval", "stop"], ["stop"])
        answer = Execution.objects.get(pk=scene.answer.pk)
        if scene.order() == ["stop"]:
            assert (answer.status, answer.code) == (Status.REFUSED, "stop_asked")
            assert scene.fake.released == []
        else:
            assert answer.status == Status.APPLIED
        assert Execution.objects.get(pk=scene.stop.pk).status == Status.APPLIED


def test_case_51_a_stop_waits_for_the_answer_that_is_on_its_way_and_is_woken_by_its_end(
    desk: Cast, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Waiting(desk, hermes)
    hermes.script("POST", r".*/approval", fake_hermes.default(delay=0.8))
    worker = threading.Thread(target=in_own_connection, args=(lambda: execution.execute(scene.answer.pk),))
    worker.start()
    limit = time.monotonic() + 30
    while scene.order() != ["approval"]:
        assert time.monotonic() < limit
        time.sleep(0.01)
    execution.execute(scene.stop.pk)
    assert scene.order() == ["approval"], "the lane of the run is taken"
    assert not Execution.objects.filter(pk=scene.stop.pk).exists()
    woken: list[tuple[str, ...]] = []
    monkeypatch.setattr(nudges, "publish", lambda task, *args: woken.append((task, *args)))
    worker.join(30)
    assert ("approvals.tasks.execute", str(scene.stop.pk)) in woken
    execution.execute(scene.stop.pk)
    assert scene.order() == ["approval", "stop"]


def in_own_connection(call: Callable[[], object]) -> None:
    try:
        call()
    finally:
        connections.close_all()


# --- clocks of processes that disagree (rule 2)


def skewed(action: Action, seconds: int) -> None:
    """A worker process whose clock is wrong by so much tries the action."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.approvals.skewed_worker",
            str(connection.settings_dict["NAME"]),
            str(action.pk),
            str(seconds),
        ],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "hermes_portal.settings"},
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.postgresql
@pytest.mark.parametrize("seconds", [-600, 600])
@pytest.mark.parametrize(("left", "sent"), [(timedelta(minutes=5), 1), (timedelta(seconds=-1), 0)])
def test_only_the_clock_of_the_database_counts(
    desk: Cast, governed: Governed, hermes: FakeHermes, seconds: int, left: timedelta, sent: int
) -> None:
    """Ten minutes too late it still sends what has five minutes left; ten too early it sends nothing that is over."""
    approval = governed()
    approve(approval, desk.reviewer)
    ends = clock.now() + left
    Approval.objects.filter(pk=approval.pk).update(effective_at=ends)
    approval.refresh_from_db()
    assert approval.action is not None
    skewed(approval.action, seconds)
    assert len(hermes.mutations()) == sent
    if sent:
        row = Execution.objects.get(pk=approval.action_id)
        assert row.status == Status.APPLIED
        assert abs(clock.now() - row.claimed_at) < timedelta(minutes=3)
        deadline = int(hermes.mutations()[0].headers["x-aip-deadline-unix-ms"]) / 1000
        assert deadline < ends.timestamp() + 1


# --- messages too early, in vain, or never (case 41)


@pytest.mark.redis
def test_a_publisher_does_not_look_again_for_a_broker_that_is_down() -> None:
    """Without this the transport tries three times, with pauses, and a click waits 6 s for its answer."""
    options = portal_settings.CELERY_BROKER_TRANSPORT_OPTIONS
    assert options["max_retries"] == 0
    assert options["socket_connect_timeout"] == options["socket_timeout"] == 1.0


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have gone to the broker, instead of going there."""
    names: list[str] = []
    monkeypatch.setattr(nudges, "publish", lambda task, *args: names.append(task))
    return names


@pytest.mark.postgresql
def test_case_41_a_worker_that_is_early_finds_nothing_and_makes_nothing(
    desk: Cast, governed: Governed, hermes: FakeHermes, published: list[str]
) -> None:
    approval = governed()
    early: list[object] = []

    def worker() -> None:
        in_own_connection(lambda: early.append(tasks.execute(str(approval.action_id))))

    with transaction.atomic():
        approve(approval, desk.reviewer)
        assert published == []
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join(30)
        assert early == [None]
        assert hermes.mutations() == []
    assert published == ["approvals.tasks.execute"]
    execution.execute(approval.action_id)  # type: ignore[arg-type]
    assert len(hermes.mutations()) == 1


def test_case_41_a_decision_that_is_rolled_back_wakes_nobody(
    desk: Cast, governed: Governed, hermes: FakeHermes, published: list[str]
) -> None:
    approval = governed()
    published.clear()

    def decide_and_fail() -> None:
        with transaction.atomic():
            approve(approval, desk.reviewer)
            raise RuntimeError("after the decision")

    with pytest.raises(RuntimeError, match="after the decision"):
        decide_and_fail()
    assert published == []
    assert not Decision.objects.exists()
    approval.refresh_from_db()
    assert approval.status == Approval.Status.PENDING
    execution.execute(approval.action_id)  # type: ignore[arg-type]
    assert hermes.mutations() == []


def test_case_41_a_message_about_a_row_that_is_not_there_makes_none(db: None) -> None:
    tasks.execute(str(uuid4()))
    assert not Execution.objects.exists()


def test_case_41_a_broker_that_is_down_costs_neither_the_decision_nor_the_action(
    desk: Cast, governed: Governed, hermes: FakeHermes, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = governed()
    down = Celery(broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False)
    given = portal_settings.CELERY_BROKER_TRANSPORT_OPTIONS
    down.conf.broker_transport_options = given if "socket_timeout" in given else {"max_retries": 0}
    client = Client()
    client.force_login(desk.reviewer)
    with monkeypatch.context() as broken:
        broken.setattr(nudges, "current_app", down)
        answer = client.post(
            reverse("decide", args=[approval.pk]),
            {"verdict": "approve", "reason": "Yes.", "seen": services.seen_digest(approval)},
            follow=True,
        )
    down.close()
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "Recorded." in text
    approval.refresh_from_db()
    assert approval.status == Approval.Status.APPROVED
    woken: list[tuple[str, ...]] = []
    monkeypatch.setattr(execution, "publish", lambda task, *args: woken.append((task, *args)))
    assert execution.dispatch() == 1
    assert woken == [("approvals.tasks.execute", str(approval.action_id))]
    execution.execute(approval.action_id)  # type: ignore[arg-type]
    assert len(hermes.mutations()) == 1
