"""Asking Hermes for the status of a run, and how long to wait before asking again. Reads only."""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from approvals.execution import ISSUER
from approvals.models import EndpointStatus
from hermes_portal.hermes.client import READ_SECONDS, Call, Client
from hermes_portal.hermes.errors import (
    ConnectFailed,
    CredentialRefused,
    Draining,
    HermesError,
    NotFound,
)
from runs.journal import Owned

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
REFUSED_DELAY: Final = 300.0
"""After a refused token, and the most that a Retry-After is honoured (case 21 f, g)."""
AIP_SECONDS: Final = 60.0  # spec runs: AIP timeout of status reads

Health = EndpointStatus.Health


class Backoff:
    """Delays that double from 1 s to 30 s, per key."""

    def __init__(self) -> None:
        self._next: dict[Hashable, float] = {}

    def delay(self, key: Hashable, at_least: float | None = None) -> float:
        """The next delay in seconds; `at_least` is what the provider asked for, honoured up to five minutes."""
        delay = self._next.get(key, FIRST_DELAY)
        self._next[key] = min(delay * 2, LONGEST_DELAY)
        return max(delay, min(at_least or 0.0, REFUSED_DELAY))

    def forget(self, key: Hashable) -> None:
        self._next.pop(key, None)


@dataclass(frozen=True, slots=True)
class Look:
    """What came of asking: a status, or the error, or proof that the run is unknown there."""

    status: dict[str, Any] | None = None
    error: HermesError | None = None

    @property
    def gone(self) -> bool:
        """Hermes itself says that it does not know the run; a 404 of something else says nothing."""
        return isinstance(self.error, NotFound) and self.error.reason == "run_not_found"


def call_for(owned: Owned, seconds: float = AIP_SECONDS) -> Call:
    """A read on behalf of whoever started the run."""
    return Call(
        principal=owned.requester,
        tenant=owned.target.tenant_slug,
        issuer=ISSUER,
        trace_id=owned.action_id.hex,
        correlation_id=str(owned.run_id),
        delegation_chain=(owned.requester, "portal"),
        session_id=None,
        deadline=datetime.now(UTC) + timedelta(seconds=seconds),
    )


def look(owned: Owned) -> Look:
    """Asks once. Blocks for up to 30 s; touches no database, so that it can run in any thread."""
    try:
        return Look(
            status=Client(owned.target).run_status(owned.provider_run_id, call_for(owned, READ_SECONDS))
        )
    except HermesError as error:
        return Look(error=error)


def health_of(error: HermesError | None) -> str | None:
    """What an answer says about the endpoint; None where it says nothing."""
    if error is None or isinstance(error, NotFound):
        return Health.OK
    if isinstance(error, CredentialRefused):
        return Health.CREDENTIAL_REFUSED
    if isinstance(error, Draining):
        return Health.DRAINING
    if isinstance(error, ConnectFailed):
        return Health.UNREACHABLE
    return None
