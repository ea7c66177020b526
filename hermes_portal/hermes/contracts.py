"""The frozen table of the thirteen contracts: every value that both specifications publish, as data.

A value that the specification does not state is None, never a guess. Latency, queue delay and availability
are what the specification declares; nobody measured them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from hermes_portal.hermes.schemas import INPUT_SCHEMAS

APPLIES_TO: Final = "1.x"
"""Versions of the specification that the table holds for."""
REVIEWED_REVISION: Final = "97be86e9efedf07ecf1783b03800f683f107fb04"
"""Revision of the source at which the specification was last reviewed."""

APPROVAL_SECONDS: Final = 15 * 60
"""How long an approval lives (spec runs: "Resolve a pending provider approval"; spec jobs: contract)."""
APPROVAL_EVIDENCE: Final = ("reason", "input_snapshot", "policy_decision")
"""What an approval records, by the same sections."""
IDEMPOTENCY_SECONDS: Final = 24 * 60 * 60
DECLARED_NOTE: Final = "declared, not measured"

Kind = Literal["Workflow", "Tool", "Agent"]
Risk = Literal["low", "medium", "high"]
Key = Literal["required", "optional"]
DataClass = Literal["Internal", "Confidential", "Restricted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What the specification publishes about one operation, and how the portal handles its data.

    Timeouts, latency and delay are in seconds. ``key`` says whether an idempotency key is needed;
    ``idempotency_ttl`` (seconds) and ``idempotency_collision`` are stated for required keys only. ``retry``
    is the column of the overview table, ``retry_support`` and ``retry_safety`` are the jobs' two rows of that
    name. ``published_*`` are the specification's data classes; ``handled_*`` are ours, stricter where real
    data is (status, events, list and get can hold outputs, prompts and addresses).
    """

    operation: str
    kind: Kind
    method: str
    path: str
    risk: Risk
    approval: bool
    key: Key
    retry: str
    retry_support: bool | None
    retry_safety: str | None
    modes: tuple[str, ...]
    expected_mode: str | None
    completion: str
    published_class: DataClass
    published_pii: bool
    handled_class: DataClass
    handled_pii: bool
    provider_timeout: int | None
    aip_timeout: int
    side_effects: tuple[str, ...]
    expected_latency: int | None
    input_schema: Mapping[str, Any]
    redact: bool = True
    stability: str = "stable"
    credential: str = "bearer"
    transaction: bool = False
    compensation: str = "rollback not supported"
    queue_delay: int = 10
    availability: str = "99.9%"

    @property
    def mutates(self) -> bool:
        """Whether the operation changes something at Hermes: nine of the thirteen do."""
        return self.key == "required"

    @property
    def approval_seconds(self) -> int | None:
        """Life of its approval, or None where none is needed."""
        return APPROVAL_SECONDS if self.approval else None

    @property
    def approval_evidence(self) -> tuple[str, ...]:
        """What its approval has to record."""
        return APPROVAL_EVIDENCE if self.approval else ()

    @property
    def idempotency_ttl(self) -> int | None:
        """Seconds for which a key answers the original action."""
        return IDEMPOTENCY_SECONDS if self.key == "required" else None

    @property
    def idempotency_collision(self) -> str | None:
        """What a repeated key gives."""
        return "ReturnOriginalResult" if self.key == "required" else None


_READ: Final = ("read", "external_network")
_WRITE: Final = ("read", "write", "external_network")
_DELETE: Final = ("read", "delete", "external_network")


def _run(
    operation: str,
    request: str,
    data: tuple[DataClass, bool],
    *,
    modes: tuple[str, ...] = ("sync",),
    completion: str,
    provider_timeout: int | None = 30,
    aip_timeout: int = 60,
    approval: bool = True,
    retry: str = "unsafe",
    handled: tuple[DataClass, bool] | None = None,
    expected_mode: str | None = None,
) -> Contract:
    """One row of the runs' specification: sections "Operations" and "Shared AIP contract"."""
    method, path = request.split(" ")
    reads = method == "GET"
    handled = handled or data
    return Contract(
        operation=operation,
        kind="Workflow",
        method=method,
        path=path,
        risk="low" if reads else "medium",
        approval=approval,
        key="optional" if reads else "required",
        retry=retry,
        retry_support=None,
        retry_safety=None,
        modes=modes,
        expected_mode=expected_mode,
        completion=completion,
        published_class=data[0],
        published_pii=data[1],
        handled_class=handled[0],
        handled_pii=handled[1],
        provider_timeout=provider_timeout,
        aip_timeout=aip_timeout,
        side_effects=_READ if reads else _WRITE,
        expected_latency=None,
        input_schema=INPUT_SCHEMAS[operation],
    )


def _job(
    operation: str,
    request: str,
    data: tuple[DataClass, bool],
    *,
    side_effects: tuple[str, ...] = _WRITE,
    kind: Kind = "Tool",
    risk: Risk = "medium",
    completion: str = "synchronous",
) -> Contract:
    """One row of the jobs' specification: sections "Operations" and "Shared AIP contract"."""
    method, path = request.split(" ")
    reads = method == "GET"
    handled: tuple[DataClass, bool] = ("Confidential", True) if reads else data
    return Contract(
        operation=operation,
        kind=kind,
        method=method,
        path=path,
        risk="low" if reads else risk,
        approval=not reads,
        key="optional" if reads else "required",
        retry="safe" if reads else "unsafe",
        retry_support=reads,
        retry_safety="safe" if reads else "unsafe",
        modes=("sync",),
        expected_mode=None,
        completion=completion,
        published_class=data[0],
        published_pii=data[1],
        handled_class=handled[0],
        handled_pii=handled[1],
        provider_timeout=30,
        aip_timeout=60,
        side_effects=_READ if reads else side_effects,
        expected_latency=5,
        input_schema=INPUT_SCHEMAS[operation],
    )


_ROWS: Final = (
    _run(
        "run_start",
        "POST /v1/runs",
        ("Confidential", True),
        modes=("sync", "async"),
        expected_mode="async",
        completion="synchronous receipt; the run goes on in the background",
        provider_timeout=60,
        approval=False,
    ),
    _run(
        "run_status",
        "GET /v1/runs/{run_id}",
        ("Internal", False),
        handled=("Confidential", True),
        completion="synchronous read",
        approval=False,
        retry="safe",
    ),
    _run(
        "run_events",
        "GET /v1/runs/{run_id}/events",
        ("Confidential", False),
        handled=("Confidential", True),
        modes=("async", "stream", "cancel"),
        expected_mode="stream",
        completion="a terminal event, or an explicit incomplete result",
        provider_timeout=None,
        aip_timeout=300,
        approval=False,
        retry="safe read",
    ),
    _run(
        "run_approval",
        "POST /v1/runs/{run_id}/approval",
        ("Restricted", True),
        completion="synchronous mutation",
    ),
    _run("run_stop", "POST /v1/runs/{run_id}/stop", ("Restricted", True), completion="synchronous mutation"),
    _job("jobs_list", "GET /api/jobs", ("Internal", False)),
    _job("job_create", "POST /api/jobs", ("Confidential", True)),
    _job("job_get", "GET /api/jobs/{job_id}", ("Internal", False)),
    _job("job_update", "PATCH /api/jobs/{job_id}", ("Confidential", True)),
    _job("job_delete", "DELETE /api/jobs/{job_id}", ("Restricted", True), risk="high", side_effects=_DELETE),
    _job("job_pause", "POST /api/jobs/{job_id}/pause", ("Internal", True)),
    _job("job_resume", "POST /api/jobs/{job_id}/resume", ("Internal", True)),
    _job(
        "job_run",
        "POST /api/jobs/{job_id}/run",
        ("Confidential", True),
        kind="Agent",
        risk="high",
        completion="synchronous request; the job itself runs later",
    ),
)

CONTRACTS: Final[Mapping[str, Contract]] = MappingProxyType({row.operation: row for row in _ROWS})
"""The thirteen contracts by operation, in the specifications' order."""
