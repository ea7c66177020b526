"""A governed endpoint whose provider is the fake, and ways to ask for things."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from approvals import services
from approvals.models import Action, Approval
from tests import factories
from tests.fake_hermes import FakeHermes

KEYS = itertools.count(1)


@pytest.fixture
def hermes() -> Iterator[FakeHermes]:
    with FakeHermes() as fake:
        yield fake


@pytest.fixture
def desk(db: None, hermes: FakeHermes) -> factories.Cast:
    """The cast, whose endpoint is the fake provider."""
    return factories.cast(base_url=hermes.url, token=hermes.key, allow_networks=("127.0.0.0/8",))


Ask = Callable[..., Action]


@pytest.fixture
def ask(desk: factories.Cast) -> Ask:
    """Asks for a run."""

    def start(text: str = "Count the rows.", key: str = "", **more: Any) -> Action:
        return services.request(
            user=desk.requester,
            endpoint=desk.endpoint,
            operation="run_start",
            raw={"body": {"input": text}},
            reason=more.get("reason", "A test asks."),
            key=key or f"key-{next(KEYS)}",
        ).action

    return start


@pytest.fixture
def governed(desk: factories.Cast, ask: Ask) -> Callable[[], Approval]:
    """A pending approval: policy wants one for run_start here."""

    def pending(approvers: int = 1) -> Approval:
        if not desk.acme.policy_revisions.exists():
            factories.policy(desk.acme, factories.require("run_start", approvers))
        return ask().approval

    return pending


def approve(approval: Approval, by: Any, reason: str = "Looks right.") -> None:
    services.decide(
        approval=approval, user=by, verdict="approve", reason=reason, seen=services.seen_digest(approval)
    )
