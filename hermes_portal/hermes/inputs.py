"""Checks of the inputs of the thirteen operations: one canonical form of each, or a sentence that says what to do.

They are written out by hand beside the schemas (``schemas.py``), because a refusal is read by people. Input
never selects an endpoint or an address, and a member that is not known is refused (rule 5).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from hermes_portal.hermes.errors import InvalidInput
from hermes_portal.hermes.events import CHOICES, MAX_REQUEST_ID
from hermes_portal.hermes.schemas import (
    DEFAULT_MAX_EVENTS,
    JOB_FIELDS,
    MAX_DELIVER,
    MAX_EVENTS,
    MAX_LABEL,
    MAX_NAME,
    MAX_PROMPT,
    MAX_REPEAT,
    MAX_SCHEDULE,
    MAX_SESSION_KEY,
    MAX_SKILL,
    MAX_SKILLS,
    START_BODY,
)

PROVIDER_BODY_LIMIT: Final = 10_000_000
"""Bytes of the largest request body that Hermes takes (spec runs: shared limits)."""
DEFAULT_INPUT_LIMIT: Final = 1024 * 1024
"""Bytes of the largest input that the portal takes unless its settings say otherwise; ours."""

RUN_ID: Final = re.compile(r"run_[0-9a-f]{32}", re.ASCII)
JOB_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_ENDPOINT_ID: Final = re.compile(r"[a-z0-9_-]{1,128}", re.ASCII)
_VISIBLE_ASCII: Final = re.compile(r"[!-~]+", re.ASCII)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROL_IN_PROSE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # tab, LF and CR are prose
_NUL: Final = re.compile("\x00")

_ENDPOINT_HINT: Final = (
    "An input cannot choose an endpoint or an address: the capability names it. Remove this member."
)
_ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("endpoint", "endpoint_id", "base_url", "url", "profile"), _ENDPOINT_HINT),
    "idempotency_key": "The idempotency key belongs beside the input, not into it. Remove it from the input.",
    "reason": "The reason belongs beside the input, not into it. Remove it from the input.",
}
_NO_BODY: Final = "This operation takes no 'body'. Give its members at the top level."
_REPEAT_HINT: Final = (
    "The repeat count of a job cannot be changed: Hermes can no longer run a job that was patched so. "
    "Pause the job, create a replacement with the repeat count you want, check it, then delete the old job."
)
_ENABLED_HINT: Final = (
    "A job is not switched by 'enabled': use job_pause or job_resume, which keep its state in step."
)
_SKILL_HINT: Final = "Give the skills as the list 'skills'; the single 'skill' of older servers is not sent."
_ALL_HINT: Final = "Use 'resolve_all' (true or false); 'all' is not taken, so that one decision has one form."
_QUERY_HINT: Final = "jobs_list takes no 'query'. Use 'include_disabled' (true or false)."


# ------------------------------------------------------------------------------- ids, keys and names


def check_run_id(value: object, field: str = "run_id") -> str:
    """A run id in full, or :class:`InvalidInput`. Ids from Hermes pass here too before any link (case 34)."""
    if not isinstance(value, str) or not RUN_ID.fullmatch(value):
        raise InvalidInput(
            field, "A run id is 'run_' and 32 hexadecimal digits in lower case. Copy it in full."
        )
    return value


def check_job_id(value: object, field: str = "job_id") -> str:
    """A job id in full, or :class:`InvalidInput`."""
    if not isinstance(value, str) or not JOB_ID.fullmatch(value):
        raise InvalidInput(
            field,
            "A job id is 12 hexadecimal digits in lower case. Copy it from the list of jobs, not its name.",
        )
    return value


def normalise_endpoint_id(value: object, field: str = "endpoint_id") -> str:
    """An endpoint id, trimmed of blanks and lower-cased, or :class:`InvalidInput`."""
    # ASCII first: lower() turns the Kelvin sign into a plain k.
    text = value.strip(" \t").lower() if isinstance(value, str) and value.isascii() else ""
    if not _ENDPOINT_ID.fullmatch(text):
        raise InvalidInput(
            field, "An endpoint id is 1 to 128 of the characters a-z, 0-9, '_' and '-'. Choose another one."
        )
    return text


def check_idempotency_key(value: object, field: str = "idempotency_key") -> str:
    """1 to 255 visible ASCII characters, or :class:`InvalidInput`."""
    if not isinstance(value, str) or len(value) > 255 or not _VISIBLE_ASCII.fullmatch(value):
        raise InvalidInput(
            field, "An idempotency key is 1 to 255 visible ASCII characters without spaces. Use another key."
        )
    return value


def check_session_key(value: object, field: str = "session_key") -> str:
    """1 to 256 characters that can travel in a header unchanged, or :class:`InvalidInput`."""
    text = _line(value, field, MAX_SESSION_KEY)
    if text != text.strip():
        raise InvalidInput(field, "A header drops the spaces around this text. Remove them.")
    return text


# ------------------------------------------------------------------------------------ whole inputs


def validate_input(operation: str, raw: object, *, max_bytes: int = DEFAULT_INPUT_LIMIT) -> dict[str, Any]:
    """The canonical input of ``operation``, or :class:`InvalidInput` with a sentence for people.

    ``raw`` is parsed JSON or a form's values. Defaults are filled in, so that what is reviewed is complete;
    optional members of a start that are empty are left out, as Hermes treats them so. ``max_bytes`` is the
    portal's cap on the request as compact UTF-8 JSON; Hermes' own limit holds whatever it is.
    """
    check = _CHECKS.get(operation)
    if check is None:
        raise InvalidInput(
            "operation", "This operation is not known. Choose one of the thirteen capabilities."
        )
    if not isinstance(raw, Mapping):
        raise InvalidInput("input", "The input must be a JSON object. Put its members into braces.")
    canonical = check(raw)
    wire = canonical["body"] if operation == "run_start" else canonical
    size = len(json.dumps(wire, ensure_ascii=False, separators=(",", ":")).encode())
    limit = min(max_bytes, PROVIDER_BODY_LIMIT)
    if size > limit:
        whose = "Hermes takes" if limit == PROVIDER_BODY_LIMIT else "this portal takes"
        raise InvalidInput(
            "input", f"The input has {size:,} bytes, but {whose} at most {limit:,}. Shorten it."
        )
    return canonical


def _run_start(raw: Mapping[str, Any]) -> dict[str, Any]:
    if "body" in raw:
        if mixed := [name for name in raw if name not in ("body", "session_key")]:
            raise InvalidInput(
                _shown(mixed[0]),
                "Do not mix 'body' with other members: put them all into it, or leave 'body' out.",
            )
        body, prefix = raw["body"], "body."
        if not isinstance(body, Mapping):
            raise InvalidInput("body", "'body' must be a JSON object that holds 'input'.")
    else:
        body, prefix = {name: raw[name] for name in raw if name != "session_key"}, ""
    _known(body, START_BODY, {}, prefix)
    clean: dict[str, Any] = {"input": _start_input(body.get("input"), prefix + "input")}
    if _given(body, "conversation_history"):
        clean["conversation_history"] = _message_list(
            body["conversation_history"], prefix + "conversation_history"
        )
    if _given(body, "instructions"):
        clean["instructions"] = _prose(body["instructions"], prefix + "instructions", _CONTROL_IN_PROSE)
    for name in ("model", "session_id", "previous_response_id"):
        if _given(body, name):
            clean[name] = _line(body[name], prefix + name, MAX_LABEL)
    canonical: dict[str, Any] = {"body": clean}
    if _given(raw, "session_key"):
        canonical["session_key"] = check_session_key(raw["session_key"])
    return canonical


def _start_input(value: object, field: str) -> str | list[dict[str, str]]:
    """The current input: a text, or messages whose last item has content.

    Hermes answers 400 to a number, an object or a last item without content, and 500 to a list of plain texts
    (contract 0.19 (b)).
    """
    if isinstance(value, str):
        if not value.strip():
            raise InvalidInput(field, "The input is empty. Write what the run should do.")
        return _prose(value, field, _NUL)
    if value is None or value == []:
        raise InvalidInput(field, "The input is missing. Write what the run should do.")
    if not isinstance(value, list):
        raise InvalidInput(field, "The input must be a text or a list of messages with 'role' and 'content'.")
    messages = _message_list(value, field)
    if not messages[-1]["content"].strip():
        raise InvalidInput(
            f"{field}[{len(messages) - 1}].content",
            "The last message is the current input and has no content. Write what the run should do.",
        )
    return messages


def _message_list(value: object, field: str) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise InvalidInput(field, "Give a list of messages, each an object with 'role' and 'content'.")
    messages = []
    for index, item in enumerate(value):
        at = f"{field}[{index}]"
        if not isinstance(item, Mapping) or set(item) != {"role", "content"}:
            raise InvalidInput(
                at, "Each message must be an object with exactly 'role' and 'content', both texts."
            )
        messages.append(
            {
                "role": _line(item["role"], at + ".role", MAX_LABEL),
                "content": _prose(item["content"], at + ".content", _NUL),
            }
        )
    return messages


def _run_by_id(raw: Mapping[str, Any]) -> dict[str, Any]:
    _known(raw, ("run_id",), {"body": _NO_BODY})
    return {"run_id": check_run_id(raw.get("run_id"))}


def _run_events(raw: Mapping[str, Any]) -> dict[str, Any]:
    _known(raw, ("run_id", "max_events"), {"body": _NO_BODY})
    maximum = raw.get("max_events", DEFAULT_MAX_EVENTS)
    return {
        "run_id": check_run_id(raw.get("run_id")),
        "max_events": _integer(maximum, "max_events", MAX_EVENTS),
    }


def _run_approval(raw: Mapping[str, Any]) -> dict[str, Any]:
    _known(raw, ("run_id", "choice", "resolve_all", "request_id"), {"body": _NO_BODY, "all": _ALL_HINT})
    choice = raw.get("choice")
    # Exact: the aliases, cases and spaces that Hermes forgives would make the stored and the sent intent
    # differ.
    if not isinstance(choice, str) or choice not in CHOICES:
        raise InvalidInput("choice", "Choose exactly one of once, session, always or deny.")
    canonical: dict[str, Any] = {
        "run_id": check_run_id(raw.get("run_id")),
        "choice": choice,
        "resolve_all": _boolean(raw.get("resolve_all", False), "resolve_all"),
    }
    if raw.get("request_id") is not None:
        canonical["request_id"] = _request_id(raw["request_id"])
        if canonical["resolve_all"]:
            raise InvalidInput(
                "resolve_all", "An answer names one request or resolves all, not both. Leave one of them out."
            )
    return canonical


def _request_id(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_REQUEST_ID or not _VISIBLE_ASCII.fullmatch(value):
        raise InvalidInput(
            "request_id",
            "A request id is 1 to 256 visible ASCII characters. Use the one that the request carried.",
        )
    return value


def _jobs_list(raw: Mapping[str, Any]) -> dict[str, Any]:
    _known(raw, ("include_disabled",), {"body": _NO_BODY, "query": _QUERY_HINT})
    return {"include_disabled": _boolean(raw.get("include_disabled", False), "include_disabled")}


def _job_by_id(raw: Mapping[str, Any]) -> dict[str, Any]:
    _known(raw, ("job_id",), {"body": _NO_BODY})
    return {"job_id": check_job_id(raw.get("job_id"))}


def _job_create(raw: Mapping[str, Any]) -> dict[str, Any]:
    _known(raw, (*JOB_FIELDS, "repeat"), {"body": _NO_BODY, "skill": _SKILL_HINT})
    for name, what in (("name", "a name"), ("schedule", "a schedule")):
        if name not in raw:
            raise InvalidInput(name, f"A job needs {what}. Add '{name}'.")
    canonical = _job_fields(raw)
    if "repeat" in raw:
        canonical["repeat"] = _integer(raw["repeat"], "repeat", MAX_REPEAT)
    return canonical


def _job_update(raw: Mapping[str, Any]) -> dict[str, Any]:
    hints = {"body": _NO_BODY, "skill": _SKILL_HINT, "repeat": _REPEAT_HINT, "enabled": _ENABLED_HINT}
    _known(raw, ("job_id", *JOB_FIELDS), hints)
    job_id = check_job_id(raw.get("job_id"))
    if not (fields := _job_fields(raw)):
        raise InvalidInput("input", f"Nothing would change. Give at least one of {', '.join(JOB_FIELDS)}.")
    return {"job_id": job_id, **fields}


def _job_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The typed fields that are there. Empty prompts and skill lists stay: on an update they clear the old value."""
    fields: dict[str, Any] = {}
    # Hermes trims these two; trimmed here, what was reviewed is what it stores.
    for name, limit in (("name", MAX_NAME), ("schedule", MAX_SCHEDULE)):
        if name in raw:
            value = raw[name]
            fields[name] = _line(value.strip() if isinstance(value, str) else value, name, limit)
    if "prompt" in raw:
        fields["prompt"] = _prose(raw["prompt"], "prompt", _CONTROL_IN_PROSE, MAX_PROMPT)
    if "deliver" in raw:
        fields["deliver"] = _line(raw["deliver"], "deliver", MAX_DELIVER)
    if "skills" in raw:
        fields["skills"] = _skills(raw["skills"])
    return fields


def _skills(value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_SKILLS:
        raise InvalidInput("skills", f"Give the skills as a list of at most {MAX_SKILLS} names.")
    return [_line(item, f"skills[{index}]", MAX_SKILL) for index, item in enumerate(value)]


_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "run_start": _run_start,
    "run_status": _run_by_id,
    "run_events": _run_events,
    "run_approval": _run_approval,
    "run_stop": _run_by_id,
    "jobs_list": _jobs_list,
    "job_create": _job_create,
    "job_get": _job_by_id,
    "job_update": _job_update,
    "job_delete": _job_by_id,
    "job_pause": _job_by_id,
    "job_resume": _job_by_id,
    "job_run": _job_by_id,
}


# ------------------------------------------------------------------------------------ single values


def _known(raw: Mapping[str, Any], names: Iterable[str], hints: Mapping[str, str], prefix: str = "") -> None:
    """Refuse the first member that is not one of ``names``, with the hint for it if there is one."""
    known = tuple(names)
    for name in raw:
        if name in known:
            continue
        hint = hints.get(name) or _ELSEWHERE.get(name)
        listing = ", ".join(known)
        raise InvalidInput(
            prefix + _shown(name), hint or f"This member is not known here. Remove it; known are: {listing}."
        )


def _shown(name: object) -> str:
    """A member's name as it may stand in an error: it came from outside, so it is escaped and short."""
    text = str(name)[:64]
    return text if text.isascii() and text.isprintable() else ascii(text)


def _given(raw: Mapping[str, Any], name: str) -> bool:
    """Whether an optional member of a start says anything; an empty one means the same to Hermes as none."""
    return raw.get(name) not in (None, "", [])


def _line(value: object, field: str, limit: int) -> str:
    """One line of 1 to ``limit`` characters that is not blank and holds no control characters."""
    text = _prose(value, field, _CONTROL, limit)
    if not text.strip():
        raise InvalidInput(field, "This text is empty. Fill it in or leave the member out.")
    return text


def _prose(value: object, field: str, refused: re.Pattern[str], limit: int | None = None) -> str:
    """A text of at most ``limit`` characters without ``refused`` ones, that UTF-8 can hold."""
    if not isinstance(value, str):
        raise InvalidInput(field, "This must be a text. Write it in quotes or leave the member out.")
    if limit is not None and len(value) > limit:
        raise InvalidInput(
            field, f"This text has {len(value):,} characters; at most {limit:,} go. Shorten it."
        )
    if refused.search(value):
        raise InvalidInput(
            field, "This text holds control characters (such as NUL or a line break). Remove them."
        )
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput(field, "This text holds half of a character pair. Paste it again from its source.")
    return value


def _integer(value: object, field: str, high: int) -> int:
    # A bool is an int to Python, and Hermes stores `true` as a repeat count that breaks the job (F10, case
    # 27).
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise InvalidInput(field, f"Give a whole number from 1 to {high:,}, without quotes.")
    return value


def _boolean(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field, "Give true or false, without quotes.")
    return value
