"""The events of a run: one frame becomes one event, or a record that says why it could not.

The type of an event is its JSON member ``event``; servers of the 0.19 line send neither ``event:`` nor
``id:`` lines, newer ones add ``id:`` and a member ``seq`` (contract 0.19 (b) and 0.22 (b3)). Kinds and
members that are not known are kept. Nothing here raises for what a server sends, except
:func:`parse_request`: one bad frame does not stop a stream (case 24). All text in the results is the
provider's, hostile and not redacted (rule 10).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hermes_portal.hermes.sse import Frame
from hermes_portal.hermes.strictjson import StrictJSONError, parse

TERMINAL: Final[Mapping[str, str]] = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.interrupted": "interrupted",
}
"""Kinds that end a run, with the state they prove."""

REQUEST: Final = "approval.request"
RESPONDED: Final = "approval.responded"
TRUNCATED: Final = "replay.truncated"

TEXT: Final = frozenset({"message.delta", "message.interim", "reasoning.available"})
"""Kinds that only carry words of the model. Over a stream's cap they are counted, not kept (case 19)."""

CONTROL: Final = frozenset(
    {
        *TERMINAL,
        REQUEST,
        RESPONDED,
        TRUNCATED,
        "tool.started",
        "tool.completed",
        "run.steered",
        "subagent.start",
        "subagent.complete",
    }
)
"""Kinds that say what was done, asked or ended. They are kept whatever the cap."""

KNOWN: Final = TEXT | CONTROL
"""Every kind of the contracts 0.19 and 0.22."""

CHOICES: Final = ("once", "session", "always", "deny")
"""The canonical answers to a request, in the order in which they are offered."""

MAX_KIND: Final = 128
"""Longest name of a kind, in characters."""
MAX_REQUEST_ID: Final = 256
"""Longest ``request_id`` that a server takes back (contract 0.22 (a))."""
_MAX_TIMESTAMP: Final = 253_402_300_800.0  # 10000-01-01: from here on no datetime can hold it


class Event(NamedTuple):
    """One event of the expected run; a tuple, as frames are, at a third of a frozen dataclass's cost.

    ``timestamp`` is the provider's clock in Unix seconds, or None where it is missing or makes no sense (case
    24 k). ``seq`` is the number within the run, or None; only a number that agrees with the frame's id
    counts, because a gap is closed by these numbers alone (rule 8). ``members`` are all others.
    ``raw_sha256`` is over the frame's data as received; ``sanitised`` counts characters replaced by U+FFFD;
    ``decode_replaced`` is the frame's.
    """

    kind: str
    timestamp: float | None
    seq: int | None
    members: dict[str, Any]
    raw_sha256: str
    sanitised: int
    decode_replaced: bool = False

    @property
    def terminal(self) -> str | None:
        """The state that this event proves, if it ends the run."""
        return TERMINAL.get(self.kind)


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A frame that is no event of this run: evidence that something was said, never a change of state.

    ``reason`` is one of strict JSON's, or ``not_an_object``, ``bad_kind``, ``other_run``. ``text`` is the
    whole data (at most the frame cap), not an excerpt: cutting before masking could leave a readable part of
    a secret.
    """

    reason: str
    raw_sha256: str
    text: str


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a run asks a person.

    ``choices`` are the canonical ones that were offered, in canonical order; empty means that nothing may be
    sent. ``request_id`` names the request where the server gives names.
    """

    command: str
    description: str
    pattern_key: str
    pattern_keys: tuple[str, ...]
    choices: tuple[str, ...]
    allow_permanent: bool
    smart_denied: bool
    request_id: str | None


class MalformedRequest(ValueError):
    """A request whose ``member`` is not what the contracts say: it can be shown, but never answered."""

    def __init__(self, member: str) -> None:
        super().__init__(f"the approval request has an unusable {member}")
        self.member = member


def parse_event(frame: Frame, *, run_id: str) -> Event | Unparsed:
    """Read one frame of the stream of run ``run_id``."""
    text = frame.text
    try:
        value, sanitised = parse(text)
    except StrictJSONError as error:
        return Unparsed(error.reason, frame.raw_sha256, text)
    if not isinstance(value, dict):
        return Unparsed("not_an_object", frame.raw_sha256, text)
    kind = value.pop("event", None)
    if not isinstance(kind, str) or not 0 < len(kind) <= MAX_KIND:
        return Unparsed("bad_kind", frame.raw_sha256, text)
    if value.pop("run_id", None) != run_id:
        return Unparsed("other_run", frame.raw_sha256, text)
    return Event(
        kind,
        _timestamp(value.pop("timestamp", None)),
        _seq(value.pop("seq", None), frame.id),
        value,
        frame.raw_sha256,
        sanitised,
        frame.decode_replaced,
    )


def parse_request(event: Event) -> ApprovalRequest:
    """Check an ``approval.request`` strictly, or raise :class:`MalformedRequest`."""
    if event.kind != REQUEST:
        raise MalformedRequest("event")
    return request_of(event.members)


def request_of(members: Mapping[str, Any]) -> ApprovalRequest:
    """The same check for bare members: a newer server repeats its newest request in the status (0.22 (b1)).

    A choice that is not canonical is dropped. Where the flags contradict the list, the narrower of the two
    holds.
    """
    pattern_key = _text(members, "pattern_key")
    permanent = _flag(members, "allow_permanent")
    refused = {"always"} if permanent is False else set()
    if _flag(members, "allow_session") is False:
        refused.add("session")
    offered = _texts(members, "choices")
    if offered is None:
        raise MalformedRequest("choices")
    choices = tuple(choice for choice in CHOICES if choice in offered and choice not in refused)
    pattern_keys = _texts(members, "pattern_keys")
    if pattern_keys is None:
        pattern_keys = (pattern_key,) if pattern_key else ()
    return ApprovalRequest(
        command=_text(members, "command"),
        description=_text(members, "description"),
        pattern_key=pattern_key,
        pattern_keys=pattern_keys,
        choices=choices,
        allow_permanent="always" in choices if permanent is None else permanent,
        smart_denied=bool(_flag(members, "smart_denied")),
        request_id=_request_id(members),
    )


def _timestamp(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _MAX_TIMESTAMP else None


def _seq(value: object, frame_id: str | None) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value if frame_id is None or frame_id == str(value) else None


def _text(members: Mapping[str, Any], name: str) -> str:
    """A text member; one that is missing or null is empty (a request need not be about a command)."""
    value = members.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedRequest(name)
    return value


def _texts(members: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MalformedRequest(name)
    return tuple(value)


def _flag(members: Mapping[str, Any], name: str) -> bool | None:
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        raise MalformedRequest(name)
    return value


def _request_id(members: Mapping[str, Any]) -> str | None:
    """The id of the request, exactly as it must be sent back.

    One that could not be sent back unchanged makes the request malformed: an answer must never go out without
    the id of a request that had one (rule 6).
    """
    value = members.get("request_id")
    if value is None:
        return None
    usable = isinstance(value, str) and 0 < len(value) <= MAX_REQUEST_ID
    if not usable or not value.isascii() or not value.isprintable() or " " in value:
        raise MalformedRequest("request_id")
    return str(value)
