"""The input schemas of the thirteen operations, as JSON Schema, and the bounds that they and the checks share.

Bounds are the specification's (runs: "Start a run", "Resolve a pending provider approval"; jobs: "Create a
job", "Update safe fields") except where a comment says that they are ours. The checks themselves are in
``inputs.py``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hermes_portal.hermes.events import CHOICES, MAX_REQUEST_ID

MAX_SESSION_KEY: Final = 256
MAX_EVENTS: Final = 100_000
DEFAULT_MAX_EVENTS: Final = 4096
MAX_NAME: Final = 200
MAX_SCHEDULE: Final = 512
MAX_PROMPT: Final = 5000
MAX_DELIVER: Final = 256
MAX_SKILLS: Final = 256
MAX_SKILL: Final = 256
MAX_REPEAT: Final = 1_000_000  # ours: the specification only says "at least one"; 10^30 is no count (case 27)
MAX_LABEL: Final = 256  # ours: model, session and response ids, roles


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({name: _frozen(item) for name, item in value.items()})
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _object(properties: Mapping[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": dict(properties),
        **more,
    }


def _string(low: int, high: int | None, description: str) -> dict[str, Any]:
    bounds = {"minLength": low} if high is None else {"minLength": low, "maxLength": high}
    return {"type": "string", **bounds, "description": description}


_RUN_ID_SCHEMA: Final = {
    "type": "string",
    "pattern": "^run_[0-9a-f]{32}$",
    "description": "The run, exactly as Hermes named it.",
}
_JOB_ID_SCHEMA: Final = {
    "type": "string",
    "pattern": "^[0-9a-f]{12}$",
    "description": "The job, exactly as Hermes named it; never its name.",
}


def _messages(description: str, last: str) -> dict[str, Any]:
    item = _object(
        {
            "role": _string(1, MAX_LABEL, "Who speaks, such as user or assistant."),
            "content": _string(0, None, f"What was said. {last}".strip()),
        },
        "role",
        "content",
    )
    return {"type": "array", "items": item, "description": description}


START_BODY: Final = {
    "input": {
        "description": "What the run is asked to do: a text, or messages of which the last is the current input.",
        "oneOf": [
            _string(1, None, "The request itself."),
            {
                **_messages("All but the last become history.", "The last item's must not be blank."),
                "minItems": 1,
            },
        ],
    },
    "conversation_history": _messages(
        "Earlier messages. If there are any, they win over a previous response.", ""
    ),
    "instructions": _string(1, None, "Standing instructions for this run."),
    "model": _string(1, MAX_LABEL, "The model asked for; some servers only echo it."),
    "session_id": _string(1, MAX_LABEL, "Conversation to continue; without it the run id is used."),
    "previous_response_id": _string(
        1, MAX_LABEL, "Stored response whose history is loaded; if it is missing the run starts without."
    ),
}

JOB_FIELDS: Final = {
    "name": _string(1, MAX_NAME, "Name of the job, one line."),
    "schedule": _string(1, MAX_SCHEDULE, "When it runs: an interval, a cron expression or an instant."),
    "prompt": _string(0, MAX_PROMPT, "What the agent is asked at each run."),
    "deliver": _string(1, MAX_DELIVER, "Where the result goes; without it it stays local."),
    "skills": {
        "type": "array",
        "maxItems": MAX_SKILLS,
        "items": _string(1, MAX_SKILL, "Name of one skill."),
        "description": "Skills that are loaded for the run.",
    },
}

_BY_RUN: Final = _object({"run_id": _RUN_ID_SCHEMA}, "run_id")
_BY_JOB: Final = _object({"job_id": _JOB_ID_SCHEMA}, "job_id")

INPUT_SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = _frozen(
    {
        "run_start": _object(
            {
                "body": _object(
                    START_BODY, "input", description="What is sent to Hermes as the request body."
                ),
                "session_key": _string(
                    1, MAX_SESSION_KEY, "Scope of long-term memory, without control characters."
                ),
            },
            "body",
            description=(
                "The members of body may stand at the top level instead; the two forms are never mixed, and both are "
                "stored in this one."
            ),
        ),
        "run_status": _BY_RUN,
        "run_events": _object(
            {
                "run_id": _RUN_ID_SCHEMA,
                "max_events": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_EVENTS,
                    "default": DEFAULT_MAX_EVENTS,
                    "description": "Events after which a reading ends, finished or not.",
                },
            },
            "run_id",
        ),
        "run_approval": _object(
            {
                "run_id": _RUN_ID_SCHEMA,
                "choice": {
                    "type": "string",
                    "enum": list(CHOICES),
                    "description": "The answer, exactly so written.",
                },
                "resolve_all": {
                    "type": "boolean",
                    "default": False,
                    "description": "Answer every request that the run has pending; never together with a request_id.",
                },
                "request_id": {
                    **_string(
                        1, MAX_REQUEST_ID, "The one request that is answered, where the server names them."
                    ),
                    "pattern": "^[!-~]+$",
                },
            },
            "run_id",
            "choice",
        ),
        "run_stop": _BY_RUN,
        "jobs_list": _object(
            {
                "include_disabled": {
                    "type": "boolean",
                    "default": False,
                    "description": "List paused and otherwise disabled jobs too.",
                }
            }
        ),
        "job_create": _object(
            {
                **JOB_FIELDS,
                "repeat": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_REPEAT,
                    "description": "How often it runs before it is done.",
                },
            },
            "name",
            "schedule",
        ),
        "job_get": _BY_JOB,
        "job_update": _object({"job_id": _JOB_ID_SCHEMA, **JOB_FIELDS}, "job_id", minProperties=2),
        "job_delete": _BY_JOB,
        "job_pause": _BY_JOB,
        "job_resume": _BY_JOB,
        "job_run": _BY_JOB,
    }
)
"""The schema of each operation's input; frozen through and through."""
