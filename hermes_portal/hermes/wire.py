"""What goes over the wire: the endpoint, on whose behalf, the exact request, the paths and the headers. No I/O."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hermes_portal.hermes.errors import AuthenticationMissing, InvalidInput, TenantMismatch

Headers = dict[str, str | bytes]

BODY_LIMIT = 10_000_000
"""Bytes of a request body; contract 0.19 (b): one more is answered 413. Refused before anything is sent."""

RUN_ID = re.compile(r"run_[0-9a-f]{32}")
JOB_ID = re.compile(r"[0-9a-f]{12}")
METHODS = frozenset({"GET", "POST", "PATCH", "DELETE"})
PATH = re.compile(r"(?:/[A-Za-z0-9_.~:-]+)+(?:\?[A-Za-z0-9_.~=&%-]*)?")
RUN_SUFFIXES = frozenset({"", "approval", "events", "stop"})
JOB_SUFFIXES = frozenset({"", "pause", "resume", "run"})

COMMON_HEADERS: Headers = {
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": "hermes-portal",
}

# Visible ASCII that stands for itself in an AIP header. Not in it: the comma, which divides the delegation
# chain, and the percent sign, which starts an escape.
_PLAIN = "!#$&'()*+-./:;<=>?@[]^_`{|}~"


def utc_now() -> datetime:
    """The process clock. The ledger passes the database's clock instead."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Target:
    """One endpoint as the client needs it. `allow_networks` are the CIDR texts of its allow list."""

    endpoint_id: str
    base_url: str
    token: str = field(repr=False)
    allow_networks: tuple[str, ...]
    tenant_slug: str


@dataclass(frozen=True)
class Call:
    """On whose behalf a request is made: the AIP headers (spec runs: Keep run and continuity identities
    separate).

    `delegation_chain` is requester, approvers, portal. `deadline` is aware; a call is cut there.
    `idempotency_key` on the wire is the action's id. Session keys are memory scopes and not shown by
    `repr`.
    """

    principal: str
    tenant: str
    issuer: str
    trace_id: str
    correlation_id: str
    delegation_chain: tuple[str, ...]
    session_id: str | None
    deadline: datetime
    idempotency_key: str | None = None
    session_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WireRequest:
    """The exact request: what was reviewed and digested is `body`, byte for byte (rule 3).

    `path` starts with `/` and is already percent-encoded. `timeout` is the provider timeout in seconds, for
    the whole call. `required` are dotted members (`job.id`) without which a 2xx proves nothing.
    """

    method: str
    path: str
    body: bytes | None
    timeout: float
    required: tuple[str, ...] = ()
    session_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Reply:
    """A complete 2xx reply. `value` is strict JSON, `raw_sha256` the hex digest of the bytes as received."""

    status: int
    value: Any
    raw_sha256: str
    headers: Mapping[str, str]
    sanitised: int = 0


def run_path(run_id: str, suffix: str = "") -> str:
    """The path of a run, or of its `events`, `approval` or `stop`. Raises InvalidInput for any other id."""
    if not RUN_ID.fullmatch(run_id):
        raise InvalidInput("run_id", "A run id is run_ and 32 hexadecimal digits.")
    return _with_suffix(f"/v1/runs/{run_id}", suffix, RUN_SUFFIXES)


def job_path(job_id: str, suffix: str = "") -> str:
    """The path of a job, or of its `pause`, `resume` or `run`. Raises InvalidInput for any other id."""
    if not JOB_ID.fullmatch(job_id):
        raise InvalidInput("job_id", "A job id is 12 lower-case hexadecimal digits.")
    return _with_suffix(f"/api/jobs/{job_id}", suffix, JOB_SUFFIXES)


def _with_suffix(path: str, suffix: str, known: frozenset[str]) -> str:
    suffix = suffix.removeprefix("/")
    if suffix not in known:
        raise InvalidInput("path", "Hermes has no such operation.")
    return f"{path}/{suffix}" if suffix else path


def authorization(target: Target) -> Headers:
    """The bearer token. Raises AuthenticationMissing for one that is no header value."""
    if not re.fullmatch(r"[\x21-\x7e]{1,4096}", target.token):
        raise AuthenticationMissing
    return {"Authorization": f"Bearer {target.token}"}


def call_headers(target: Target, call: Call, session_key: str | None = None) -> Headers:
    """The AIP headers of a call; the request's own session key comes before the call's.

    Raises TenantMismatch, AuthenticationMissing, or InvalidInput for a value that is none.
    """
    if call.tenant != target.tenant_slug:
        raise TenantMismatch
    if call.deadline.tzinfo is None:
        raise InvalidInput("deadline", "The deadline needs a time zone.")
    fields = authorization(target)
    fields["X-AIP-Principal-Id"] = header_text("principal", call.principal)
    fields["X-AIP-Tenant-Id"] = header_text("tenant", call.tenant)
    fields["X-AIP-Authentication-Issuer"] = header_text("issuer", call.issuer)
    fields["X-AIP-Trace-Id"] = header_text("trace_id", call.trace_id)
    fields["X-AIP-Correlation-Id"] = header_text("correlation_id", call.correlation_id)
    fields["X-AIP-Delegation-Chain"] = _chain(call.delegation_chain)
    if call.session_id is not None:
        fields["X-AIP-Session-Id"] = header_text("session_id", call.session_id)
    fields["X-AIP-Deadline-Unix-Ms"] = str(int(call.deadline.timestamp() * 1000))
    if call.idempotency_key is not None:
        fields["Idempotency-Key"] = visible("idempotency_key", call.idempotency_key, 255)
    session_key = session_key if session_key is not None else call.session_key
    if session_key is not None:
        fields["X-Hermes-Session-Key"] = _session_key(session_key)
    return fields


def header_text(name: str, value: str, limit: int = 2048) -> str:
    """`value` as an AIP header value: visible ASCII as it is, other characters percent-encoded as UTF-8.

    Raises InvalidInput for an empty value, a control character (CR, LF and NUL among them), a lone
    surrogate, or more than `limit` characters when encoded.
    """
    if not value or re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", value):
        raise InvalidInput(name, f"The {name} must not be empty or hold control characters.")
    encoded = urllib.parse.quote(value, safe=_PLAIN)
    if len(encoded) > limit:
        raise InvalidInput(name, f"The {name} is too long.")
    return encoded


def _chain(names: tuple[str, ...]) -> str:
    joined = ",".join(header_text("delegation_chain", name) for name in names)
    if not joined or len(joined) > 6144:  # Hermes' server takes header lines of up to 8190 bytes
        raise InvalidInput("delegation_chain", "The delegation chain must not be empty, and not that long.")
    return joined


def visible(name: str, value: str, limit: int) -> str:
    if len(value) > limit or not re.fullmatch(r"[\x21-\x7e]+", value):
        raise InvalidInput(name, f"The {name} must be 1 to {limit} visible ASCII characters.")
    return value


def _session_key(value: str) -> bytes:
    """The key as it is, in UTF-8: an encoded one would name another memory scope. Spec runs: up to 256
    characters."""
    if value != value.strip() or re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", value):
        raise InvalidInput("session_key", "The session key must not hold control characters or outer spaces.")
    if not 1 <= len(value) <= 256:
        raise InvalidInput("session_key", "The session key must have 1 to 256 characters.")
    return value.encode()


def raw_headers(fields: Mapping[str, str | bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode("ascii"), value if isinstance(value, bytes) else value.encode("ascii"))
        for name, value in fields.items()
    ]


def check_path(path: str) -> None:
    segments = path.partition("?")[0].split("/")
    if not PATH.fullmatch(path) or "." in segments or ".." in segments:
        raise InvalidInput("path", "The request's path is not one of Hermes' operations.")
