"""Reading replies: what a status, headers and a body prove. Pure: no I/O, no HTTP library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hermes_portal.hermes import strictjson
from hermes_portal.hermes.errors import (
    HermesError,
    ReplyIncomplete,
    ReplyUndecodable,
    from_status,
    retry_after_seconds,
)
from hermes_portal.hermes.wire import RUN_ID, Reply

JSON_LIMIT = 16 * 1024 * 1024
"""Bytes of a JSON reply that are read; a larger one is undecodable."""

SUCCESS = frozenset({200, 201, 202})
KEPT_HEADERS = ("content-type", "date", "idempotency-replayed", "retry-after", "server")
REASON = re.compile(r"[a-z0-9_]{1,64}")


def complete(status: int, headers: Mapping[str, str], body: bytes, required: tuple[str, ...]) -> Reply:
    """The reply, if it is a 2xx whose body is a strict JSON object with every required member.

    Raises the leaf of the status, ReplyUndecodable or ReplyIncomplete.
    """
    if status not in SUCCESS:
        raise failure(status, headers, body)
    try:
        parsed = strictjson.loads(body, max_bytes=JSON_LIMIT)
    except strictjson.StrictJSONError as exc:
        raise ReplyUndecodable(str(exc), status=status) from exc
    for member in required:
        _require(parsed.value, member, status)
    if not isinstance(parsed.value, dict):
        raise ReplyIncomplete("not an object", status=status)
    return Reply(status, parsed.value, parsed.sha256, kept(headers), parsed.sanitised)


def failure(status: int, headers: Mapping[str, str], body: bytes) -> HermesError:
    """The leaf for a complete reply that is no success."""
    reason, message = error_facts(body)
    retry_after = retry_after_seconds(headers.get("retry-after"))
    return from_status(status, detail=message, reason=reason, retry_after=retry_after)


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Whether the body is compressed, though identity was asked for (a small reply could unpack to gigabytes)."""
    return headers.get("content-encoding", "").strip().lower() not in ("", "identity")


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The few reply headers that are worth keeping."""
    return {name: headers[name] for name in KEPT_HEADERS if name in headers}


def _require(value: Any, member: str, status: int) -> None:
    """Raises ReplyIncomplete unless the dotted member is there; a run id must also be a whole, valid one."""
    for name in member.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        raise ReplyIncomplete(f"no {member}", status=status)
    if name == "run_id" and not (isinstance(value, str) and RUN_ID.fullmatch(value)):
        raise ReplyIncomplete(f"{member} is not a run id", status=status)


def error_facts(body: bytes) -> tuple[str, str]:
    """Error code and message of an error body, in any of the shapes that Hermes has (contract 0.19 (b),
    Errors).

    An object in `error` with `message` and perhaps `code`, a text in `error` (jobs), plain text (its web
    server), or nothing. The code is "" unless it is well-formed; the message is provider text and not
    redacted.
    """
    text = body.decode("utf-8", "replace")
    try:
        value = strictjson.loads(body, max_bytes=JSON_LIMIT).value
    except strictjson.StrictJSONError:
        return "", text
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", text
    code, message = error.get("code"), error.get("message")
    return (
        code if isinstance(code, str) and REASON.fullmatch(code) else "",
        message if isinstance(message, str) else text,
    )
