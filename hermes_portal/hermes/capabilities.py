"""The thirteen capabilities of an endpoint: their ids, their contracts for machines and people, their checks.

The contracts themselves are in ``contracts.py``, the inputs in ``inputs.py``. ``docs/capabilities.md`` is
printed by this module, and a test compares the two:

    python -m hermes_portal.hermes.capabilities > docs/capabilities.md
"""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hermes_portal.hermes.contracts import (
    APPLIES_TO,
    APPROVAL_SECONDS,
    CONTRACTS,
    DECLARED_NOTE,
    IDEMPOTENCY_SECONDS,
    REVIEWED_REVISION,
    Contract,
)
from hermes_portal.hermes.errors import InvalidInput
from hermes_portal.hermes.inputs import (
    check_idempotency_key,
    check_job_id,
    check_run_id,
    check_session_key,
    normalise_endpoint_id,
    validate_input,
)

__all__ = [
    "CONTRACTS",
    "Contract",
    "as_json",
    "capability_id",
    "check_idempotency_key",
    "check_job_id",
    "check_run_id",
    "check_session_key",
    "markdown",
    "normalise_endpoint_id",
    "parse_capability_id",
    "validate_input",
]

_CAPABILITY_ID: Final = re.compile(r"cap:hermes_agent:([a-z0-9_-]{1,128}):([a-z_]+)", re.ASCII)


def capability_id(endpoint_id: str, operation: str) -> str:
    """``cap:hermes_agent:<endpoint_id>:<operation>``, or :class:`InvalidInput` for what cannot be one."""
    if operation not in CONTRACTS:
        raise InvalidInput(
            "operation", "This operation is not known. Choose one of the thirteen capabilities."
        )
    return f"cap:hermes_agent:{normalise_endpoint_id(endpoint_id)}:{operation}"


def parse_capability_id(value: object) -> tuple[str, str]:
    """The endpoint id and the operation of a capability id, or :class:`InvalidInput`."""
    match = _CAPABILITY_ID.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in CONTRACTS:
        raise InvalidInput(
            "capability",
            "A capability id reads cap:hermes_agent:<endpoint id>:<operation>. Copy it from the list.",
        )
    return match[1], match[2]


def _plain(value: Any) -> Any:
    """A copy of a frozen value that the JSON encoder takes."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def as_json(endpoint_id: str) -> list[dict[str, Any]]:
    """The thirteen contracts of one endpoint as fresh, JSON-ready values."""
    return [_contract_json(endpoint_id, contract) for contract in CONTRACTS.values()]


def _contract_json(endpoint_id: str, contract: Contract) -> dict[str, Any]:
    return {
        "capability_id": capability_id(endpoint_id, contract.operation),
        "operation": contract.operation,
        "kind": contract.kind,
        "stability": contract.stability,
        "request": {"method": contract.method, "path": contract.path, "credential": contract.credential},
        "risk": contract.risk,
        "approval": {
            "required": contract.approval,
            "expires_after_seconds": contract.approval_seconds,
            "evidence": list(contract.approval_evidence),
        },
        "idempotency": {
            "key": contract.key,
            "ttl_seconds": contract.idempotency_ttl,
            "collision": contract.idempotency_collision,
        },
        "retry": {
            "marker": contract.retry,
            "supported": contract.retry_support,
            "safety": contract.retry_safety,
        },
        "execution": {
            "modes": list(contract.modes),
            "expected": contract.expected_mode,
            "completion": contract.completion,
        },
        "data": {
            "published": {"class": contract.published_class, "contains_pii": contract.published_pii},
            "handled": {"class": contract.handled_class, "contains_pii": contract.handled_pii},
            "redaction_required": contract.redact,
        },
        "timeouts": {"provider_seconds": contract.provider_timeout, "aip_seconds": contract.aip_timeout},
        "side_effects": list(contract.side_effects),
        "transaction": contract.transaction,
        "compensation": contract.compensation,
        "declared_not_measured": {
            "note": DECLARED_NOTE,
            "expected_latency_seconds": contract.expected_latency,
            "maximum_queue_delay_seconds": contract.queue_delay,
            "availability": contract.availability,
        },
        "input_schema": _plain(contract.input_schema),
    }


# ---------------------------------------------------------------------------------- docs/capabilities.md


def markdown() -> str:
    """The whole of ``docs/capabilities.md``."""
    rows = CONTRACTS.values()
    parts = [
        _INTRODUCTION,
        "## Operations\n",
        _table(
            (
                "Operation",
                "Request",
                "Kind",
                "Risk",
                "Approval",
                "Key",
                "Retry",
                "Retry supported",
                "Retry safety",
            ),
            (
                (
                    f"`{row.operation}`",
                    f"`{row.method} {row.path}`",
                    row.kind,
                    row.risk,
                    _yes(row.approval),
                    row.key,
                    row.retry,
                    _yes(row.retry_support),
                    row.retry_safety,
                )
                for row in rows
            ),
        ),
        _SHARED,
        "## Data\n",
        _DATA,
        _table(
            ("Operation", "Published", "Handled", "Redaction", "Side effects"),
            (
                (
                    f"`{row.operation}`",
                    _data(row.published_class, row.published_pii),
                    _data(row.handled_class, row.handled_pii),
                    "required" if row.redact else "not required",
                    ", ".join(f"`{effect}`" for effect in row.side_effects),
                )
                for row in rows
            ),
        ),
        "## Execution and time\n",
        _TIME,
        _table(
            ("Operation", "Modes", "Expected mode", "Completion", "Provider timeout", "AIP timeout"),
            (
                (
                    f"`{row.operation}`",
                    ", ".join(row.modes),
                    row.expected_mode,
                    row.completion,
                    _seconds(row.provider_timeout),
                    _seconds(row.aip_timeout),
                )
                for row in rows
            ),
        ),
        f"## Latency, queue delay and availability: {DECLARED_NOTE}\n",
        _table(
            ("Operation", "Expected latency", "Maximum queue delay", "Availability"),
            (
                (
                    f"`{row.operation}`",
                    _seconds(row.expected_latency),
                    _seconds(row.queue_delay),
                    row.availability,
                )
                for row in rows
            ),
        ),
        "## Inputs\n",
        _INPUTS,
        *(_input_section(row) for row in rows),
    ]
    return "\n".join(parts)


_INTRODUCTION: Final = f"""# Capabilities

<!-- Generated: python -m hermes_portal.hermes.capabilities > docs/capabilities.md -->

The thirteen operations that the portal knows, as the specification (version {APPLIES_TO}, reviewed at
`{REVIEWED_REVISION}`) publishes them. On an endpoint each has the id
`cap:hermes_agent:<endpoint_id>:<operation>`. A dash means that the specification does not say.
"""

_SHARED: Final = f"""All thirteen are stable, need the endpoint's bearer token and declare no transaction. The
compensation contract of each says: {CONTRACTS["run_start"].compensation}. The eight that need approval record
a reason, an input snapshot and the policy decision, and their approval lives {APPROVAL_SECONDS // 60}
minutes. A required idempotency key belongs to the full capability id and answers the original action for
{IDEMPOTENCY_SECONDS // 3600} hours (`ReturnOriginalResult`).
"""

_DATA: Final = """*Published* is what the specification says; *handled* is how the portal treats it. Status, events,
list and get can hold model output, prompts and addresses, and are handled as confidential, with personal
data.
"""

_TIME: Final = """The provider timeout bounds one HTTP exchange; the AIP timeout bounds the action. A call is cut at
the earlier of the AIP timeout and its approval's expiry, and a mutation that was cut is unknown. `run_events`
has no provider timeout: its stream ends by itself, or with the AIP timeout of the person who reads it.
"""

_INPUTS: Final = """A member that is not listed is refused, and no input can choose an endpoint or an address.
`run_start` is the only operation with a `body`.
"""


def _table(head: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    columns = tuple(head)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines.extend("| " + " | ".join(cell or "-" for cell in row) + " |" for row in rows)
    return "\n".join(lines) + "\n"


def _yes(value: bool | None) -> str | None:
    return None if value is None else ("yes" if value else "no")


def _seconds(value: int | None) -> str | None:
    return None if value is None else f"{value} s"


def _data(name: str, pii: bool) -> str:
    return f"{name}; {'PII' if pii else 'no PII'}"


def _input_section(contract: Contract) -> str:
    schema = contract.input_schema
    note = f"\n{schema['description']}\n" if "description" in schema else ""
    table = _table(("Member", "Needed", "Value", "Meaning"), _members(schema, ""))
    return f"### `{contract.operation}`\n{note}\n{table}"


def _members(schema: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, str, str, str]]:
    for name, member in schema["properties"].items():
        needed = "yes" if name in schema["required"] else "no"
        yield f"`{prefix}{name}`", needed, _bounds(member), member["description"]
        if member.get("type") == "object":
            yield from _members(member, f"{prefix}{name}.")


def _bounds(member: Mapping[str, Any]) -> str:
    """One member's type and limits in words."""
    if "oneOf" in member:
        return " or ".join(_bounds(choice) for choice in member["oneOf"])
    if "enum" in member:
        return ", ".join(f"`{value}`" for value in member["enum"])
    words = [member["type"]]
    for low, high, unit in (
        ("minLength", "maxLength", " characters"),
        ("minimum", "maximum", ""),
        ("minItems", "maxItems", " items"),
    ):
        if high in member:
            words.append(f"{member.get(low, 0):,} to {member[high]:,}{unit}")
        elif member.get(low):
            words.append("not empty")
    if "pattern" in member:
        words.append(f"matching `{member['pattern']}`")
    if "default" in member:
        words.append(f"default {member['default']}".lower())
    if "items" in member:
        inner = member["items"]
        words.append("of " + ("messages" if inner["type"] == "object" else f"{_bounds(inner)} each"))
    return ", ".join(words)


if __name__ == "__main__":
    sys.stdout.write(markdown())
