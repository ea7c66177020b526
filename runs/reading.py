"""The reading of one run's event stream: bytes in, rows for the transcript out. No I/O, no database, no clock.

Consecutive text deltas are folded into one row. Text passes the stream redactor, which holds back a tail that may be
the beginning of a secret; the tail goes on with the next row, also across other events, so that a secret that was cut
anywhere is never stored in readable halves. Instants are those of a monotonic clock, in seconds, given by the caller.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hermes_portal import redaction
from hermes_portal.hermes.events import (
    CONTROL,
    REQUEST,
    RESPONDED,
    TERMINAL,
    TEXT,
    ApprovalRequest,
    Event,
    MalformedRequest,
    Unparsed,
    parse_event,
    parse_request,
)
from hermes_portal.hermes.sse import Comment, Decoder, Frame, Tail
from runs.models import RunEvent

DELTA: Final = RunEvent.TEXT
TOOL_STARTED: Final = "tool.started"
TOOL_COMPLETED: Final = "tool.completed"
TAIL_LIMIT: Final = 64 * 1024
"""Characters of an unfinished or unreadable frame that are kept, after masking (case 18)."""
KIND_LIMIT: Final = 100
FOLD_LIMIT: Final = 64 * 1024
"""Characters of text after which a folded row ends."""
FLOOD: Final = 10
"""Times the event cap at which even control events are too many."""
EMPTY: Final = hashlib.sha256().hexdigest()

# The member of each kind that is its text for people.
TEXT_MEMBER: Final = {
    "message.interim": "text",
    "reasoning.available": "text",
    TOOL_STARTED: "preview",
    TOOL_COMPLETED: "preview",
    REQUEST: "command",
    "run.completed": "output",
    "run.failed": "error",
    "run.interrupted": "error",
}


class TooManyEvents(Exception):
    """Control events far beyond the cap: the reading stops (nothing grows without bound)."""


@dataclass(slots=True)
class Row:
    """What becomes a RunEvent. All text is redacted."""

    ordinal: int
    kind: str
    first_read: float
    last_read: float
    provider_at: datetime | None = None
    seq: int | None = None
    count: int = 1
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    raw_digest: str = EMPTY
    flags: str = ""

    @property
    def size(self) -> int:
        """Roughly the bytes that it holds in memory."""
        return 500 + 2 * len(self.text)


@dataclass(slots=True)
class Control:
    """An event that may move a prompt or the run: it commits at once and in a transaction of its own."""

    row: Row
    event: Event
    raw: bytes
    frame: int
    request: ApprovalRequest | None = None
    malformed: str = ""
    none_running: bool = True


@dataclass(slots=True)
class _Fold:
    row: Row
    digest: Any
    parts: list[str] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Caps:
    """Beyond these, text is counted and digested but not kept; control events are (case 19)."""

    data_bytes: int
    events: int


class Reading:
    """One connection's worth of events of one run."""

    def __init__(self, run_id: str, *, own: Sequence[str], next_ordinal: int, caps: Caps) -> None:
        """`run_id` is the provider's, `own` the tokens that are masked wherever they show."""
        self.ended: str | None = None
        """The state that a terminal event proved."""
        self.truncated = False
        self.end_comment = False
        self.keepalives = 0
        self.features: set[str] = set()
        self.waiting = False
        """Whether a tool's end may say something about a prompt."""
        self.last_request = -1
        self.next_ordinal = next_ordinal
        self._run_id = run_id
        self._own = tuple(own)
        self._caps = caps
        self._decoder = Decoder()
        self._redactor = redaction.StreamRedactor(own=self._own)
        self._fold: _Fold | None = None
        self._frames = 0
        self._bytes = 0
        self._tools: Counter[str] = Counter()
        self._tools_uncounted = False
        self._ending = b"\n\n"  # the last bytes of the stream: between frames to begin with

    @property
    def frames(self) -> int:
        return self._frames

    @property
    def folding(self) -> bool:
        """Whether text is held that is not a row yet."""
        return self._fold is not None

    @property
    def mid_frame(self) -> bool:
        """Whether the bytes so far end inside a frame: then not all that was received is an event yet."""
        return not self._ending.endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))

    def settled(self, ordinal: int) -> None:
        """The ledger holds no prompt that waits, as of the event with this ordinal."""
        if self.last_request <= ordinal:
            self.waiting = False

    def feed(self, chunk: bytes, at: float) -> Iterator[Row | Control]:
        """The rows that these bytes complete. Raises sse.FrameTooLarge, TooManyEvents."""
        self._ending = (self._ending + chunk)[-4:] if len(chunk) < 4 else chunk[-4:]
        for item in self._decoder.feed(chunk):
            if isinstance(item, Comment):
                self._comment(item)
            else:
                self._frames += 1
                self._bytes += len(item.data)
                yield from self._take(item, at)

    def cut(self) -> Iterator[Row]:
        """Ends the folded row under way, at a safe place, so that it can be stored."""
        if self._fold is not None:
            fold, self._fold = self._fold, None
            if fold.row.kind == DELTA:
                fold.row.text = self._redactor.feed("".join(fold.parts))
            fold.row.raw_digest = fold.digest.hexdigest()
            yield fold.row

    def finish(self, at: float) -> Iterator[Row]:
        """The end of the stream: what was held back, and what is left of an unfinished frame."""
        yield from self._flush(at)
        tail = self._decoder.flush()
        if tail is not None and self.ended is None:
            yield self._leftover(tail, at)

    # --- one item --------------------------------------------------------------------------------------------

    def _comment(self, comment: Comment) -> None:
        if comment.text == "stream closed":
            self.end_comment = True
        elif comment.text == "keepalive":
            self.keepalives += 1

    def _take(self, frame: Frame, at: float) -> Iterator[Row | Control]:
        event = parse_event(frame, run_id=self._run_id)
        control = _may_be_request(event) if isinstance(event, Unparsed) else event.kind in CONTROL
        if self._over() and not control:
            if not self.truncated:
                self.truncated = True
                yield from self._flush(at)
            self._fold_in(RunEvent.DROPPED, event, frame, at)
        elif isinstance(event, Unparsed):
            self._tools_uncounted |= "tool." in event.text
            yield from self.cut()
            row = self._unparsed(event.reason, event.text, event.raw_sha256, at)
            yield self._unreadable_request(event, frame, row) if control else row
        elif event.kind == DELTA and isinstance(event.members.get("delta"), str):
            yield from self._text(event, frame, at)
        else:
            yield from self._other(event, frame, at)

    def _over(self) -> bool:
        if self._frames > self._caps.events * FLOOD:
            raise TooManyEvents
        return self._bytes > self._caps.data_bytes or self._frames > self._caps.events

    def _ordinal(self) -> int:
        ordinal = self.next_ordinal
        self.next_ordinal += 1
        return ordinal

    def _text(self, event: Event, frame: Frame, at: float) -> Iterator[Row]:
        if self._fold is not None and (self._fold.row.kind != DELTA or self._fold.size > FOLD_LIMIT):
            yield from self.cut()
        fold = self._fold_in(DELTA, event, frame, at)
        text = event.members["delta"]
        fold.parts.append(text)
        fold.size += len(text)

    def _fold_in(self, kind: str, event: Event | Unparsed, frame: Frame, at: float) -> _Fold:
        fold = self._fold
        if fold is None:
            row = Row(self._ordinal(), kind, at, at, count=0)
            if isinstance(event, Event):
                row.provider_at, row.seq = _instant(event.timestamp), event.seq
            fold = self._fold = _Fold(row, hashlib.sha256())
        fold.row.count += 1
        fold.row.last_read = at
        fold.digest.update(frame.data)
        if isinstance(event, Event) and (event.sanitised or event.decode_replaced):
            fold.row.flags = _joined(fold.row.flags, _flags(event))
        self._note_seq(event)
        return fold

    def _note_seq(self, event: Event | Unparsed) -> None:
        if isinstance(event, Event) and event.seq is not None:
            self.features.add("seq")

    def _other(self, event: Event, frame: Frame, at: float) -> Iterator[Row | Control]:
        yield from self._flush(at) if event.kind in TERMINAL else self._interrupt(at)
        row = self._row(event, at)
        none_running = self._count_tools(event)
        moves = event.kind in TERMINAL or event.kind in (REQUEST, RESPONDED)
        if self.ended is not None:
            row.flags = _joined(row.flags, "after_end")
            yield row
        elif moves or (event.kind == TOOL_COMPLETED and self.waiting):
            yield self._control(event, frame, row, none_running)
        else:
            yield row

    def _count_tools(self, event: Event) -> bool:
        """Keeps count of running tools by name; true when it is proven that none runs.

        A tool that ends without having begun, or an event of a tool that could not be read, proves the opposite: the
        count is not whole.
        """
        tool = str(event.members.get("tool", ""))
        if event.kind == TOOL_STARTED:
            self._tools[tool] += 1
        elif event.kind == TOOL_COMPLETED:
            if not self._tools[tool]:
                return False
            self._tools[tool] -= 1
        return not self._tools_uncounted and not self._tools.total()

    def _control(self, event: Event, frame: Frame, row: Row, none_running: bool) -> Control:
        control = Control(row, event, frame.data, self._frames, none_running=none_running)
        self.ended = event.terminal
        if event.kind == REQUEST:
            self.waiting, self.last_request = True, row.ordinal
            try:
                control.request = parse_request(event)
            except MalformedRequest as error:
                control.malformed = error.member
                row.flags = _joined(row.flags, "malformed")
                row.text = self._shown(frame.text)
            else:
                if control.request.request_id is not None:
                    self.features.add("request_id")
        return control

    def _unreadable_request(self, event: Unparsed, frame: Frame, row: Row) -> Control:
        """A request nobody can read still waits at Hermes, before those that come after it (rule 6)."""
        self.waiting, self.last_request = True, row.ordinal
        request = Event(REQUEST, None, None, {}, event.raw_sha256, 0)
        return Control(row, request, frame.data, self._frames, malformed=event.reason)

    def _row(self, event: Event, at: float) -> Row:
        members = dict(event.members)
        name = TEXT_MEMBER.get(event.kind, "")
        text = members.pop(name) if isinstance(members.get(name), str) else ""
        self._note_seq(event)
        return Row(
            self._ordinal(),
            event.kind
            if event.kind in CONTROL or event.kind in TEXT
            else self._shown(event.kind, KIND_LIMIT),
            at,
            at,
            _instant(event.timestamp),
            event.seq,
            text=self._shown(text),
            data=redaction.redact_value(members, own=self._own),
            raw_digest=event.raw_sha256,
            flags=_flags(event),
        )

    def _shown(self, text: str, limit: int = 0) -> str:
        shown = redaction.redact(text, own=self._own)
        return redaction.excerpt(shown, limit) if limit else shown

    def _unparsed(self, reason: str, text: str, digest: str, at: float) -> Row:
        return Row(
            self._ordinal(),
            RunEvent.UNPARSED,
            at,
            at,
            text=self._shown(text, TAIL_LIMIT).replace("\0", "\N{REPLACEMENT CHARACTER}"),
            data={"reason": reason},
            raw_digest=digest,
            flags=reason,
        )

    def _flush(self, at: float) -> Iterator[Row]:
        """Lets go of the held-back tail: nothing can follow it."""
        rows = list(self.cut())
        yield from self._with_tail(rows, self._redactor.flush(), at)

    def _interrupt(self, at: float) -> Iterator[Row]:
        """Another event comes between: a finished sentence stands before it, anything else waits."""
        rows = list(self.cut())
        yield from self._with_tail(rows, self._redactor.pause(), at)

    def _with_tail(self, rows: list[Row], tail: str, at: float) -> Iterator[Row]:
        if tail and rows and rows[-1].kind == DELTA:
            rows[-1].text += tail
        elif tail:
            rows.append(Row(self._ordinal(), DELTA, at, at, count=0, text=tail))
        yield from rows

    def _leftover(self, tail: Tail, at: float) -> Row:
        digest = hashlib.sha256(tail.raw).hexdigest()
        text = tail.raw.decode("utf-8", "replace")
        return self._unparsed(tail.reason, text, digest, at)


def _may_be_request(event: Unparsed) -> bool:
    """Python's json writes Infinity, which strict JSON refuses: a request can be unreadable for one such member."""
    return REQUEST in event.text


def _instant(timestamp: float | None) -> datetime | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC)


def _flags(event: Event) -> str:
    """What was odd about an event, for the transcript."""
    found = []
    if event.sanitised:
        found.append(f"sanitised:{event.sanitised}")
    if event.decode_replaced:
        found.append("decode_replaced")
    if event.timestamp is None:
        found.append("no_timestamp")
    return ",".join(found)


def _joined(flags: str, more: str) -> str:
    known = [flag for flag in flags.split(",") if flag]
    known += [flag for flag in more.split(",") if flag and flag not in known]
    return ",".join(known[:10])[:200]
