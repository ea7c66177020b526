"""A decoder for server-sent events: bytes in, frames, comments and the unfinished tail out. No I/O, no clock.

Three things differ from the line iterators of HTTP clients (case 15, case 16, F14): only LF, CR and CRLF end
a line, so that U+2028 inside a message can never start a second ``data:`` line; the text is UTF-8 whatever a
charset header says; and nothing grows without bound. Comments are kept, because ``: keepalive`` and ``:
stream closed`` are signs of life and of an orderly end. Otherwise this is the event stream format of the HTML
standard, section 9.2.6.
"""

import hashlib
from typing import Final, Literal, NamedTuple

MAX_FRAME: Final = 1024 * 1024
"""Largest frame in bytes, field names and line ends included."""

_BOM: Final = b"\xef\xbb\xbf"
_CR: Final = 0x0D
_LF: Final = 0x0A
_COLON: Final = 0x3A
_MAX_RETRY_DIGITS: Final = 12


class Frame(NamedTuple):
    """One complete frame that carried data.

    ``data`` is the joined value of the ``data`` lines as received (bytes) and ``raw_sha256`` its hex digest;
    ``event`` and ``id`` are what *this* frame said (``""`` and ``None`` if it did not); ``retry`` is in
    milliseconds. ``decode_replaced`` says that some bytes were not UTF-8, so that the text holds U+FFFD in
    their place.
    """

    data: bytes
    event: str
    id: str | None
    retry: int | None
    raw_sha256: str
    decode_replaced: bool

    @property
    def text(self) -> str:
        """The data as text, with U+FFFD for bytes that are not UTF-8."""
        return self.data.decode("utf-8", "replace")


class Comment(NamedTuple):
    """One comment line, without its colon and one leading space."""

    text: str


class Tail(NamedTuple):
    """What was left when the stream ended inside a frame or a line: evidence, never an event (case 18).

    ``raw`` is at most the frame cap long and is not redacted: mask it whole, cut it afterwards.
    """

    raw: bytes
    reason: Literal["ended_mid_frame", "frame_too_large"]


class FrameTooLarge(Exception):
    """A frame passed the cap (case 19): close the stream. The frames before it were all handed out."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a frame of the event stream is larger than {limit} bytes")
        self.limit = limit


class Decoder:
    """Turns the bytes of one connection into frames and comments, wherever the bytes were cut.

    Memory is bounded by ``max_frame`` (bytes) plus what one fed chunk decodes to.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        # The first bytes, until it is known whether they are a byte order mark; then None.
        self._start: bytes | None = b""
        self._lines: list[bytes] = []  # complete lines of the frame under way
        self._held = 0  # their size with line ends
        self._partial = bytearray()  # the line under way
        self._after_cr = False
        self._overflow = False
        self.last_event_id: str | None = None
        """The last ``id`` of the stream as the standard keeps it (for ``Last-Event-ID``), or None."""

    def feed(self, chunk: bytes) -> list[Frame | Comment]:
        """Decode the next bytes.

        Raises :class:`FrameTooLarge` once a frame passes the cap. What the same chunk completed before that
        frame is returned first; the error then comes with the next call.
        """
        if self._overflow:
            raise FrameTooLarge(self._max_frame)
        if self._start is not None:
            chunk = self._without_mark(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:  # the second half of a CRLF that was cut in two
                chunk = chunk[1:]
        if not chunk:
            return []
        out: list[Frame | Comment] = []
        lines = chunk.splitlines(keepends=True)  # of bytes: cuts at LF, CR and CRLF only
        unfinished = b"" if lines[-1][-1] in (_LF, _CR) else lines.pop()
        for line in lines:
            if self._partial:
                line = bytes(self._partial) + line
                self._partial.clear()
            if not self._line(line, out):
                return self._overflowed(out)
        self._after_cr = chunk[-1] == _CR
        self._partial += unfinished
        if self._held + len(self._partial) > self._max_frame:
            return self._overflowed(out)
        return out

    def flush(self) -> Tail | None:
        """Say what the end of the stream left unfinished; None if it ended between frames."""
        raw = b"".join(self._lines) + bytes(self._partial) + (self._start or b"")
        reason: Literal["ended_mid_frame", "frame_too_large"] = (
            "frame_too_large" if self._overflow else "ended_mid_frame"
        )
        self._lines, self._held, self._start = [], 0, None
        self._partial.clear()
        return Tail(raw[: self._max_frame], reason) if raw else None

    def _without_mark(self, chunk: bytes) -> bytes:
        """Take one leading byte order mark off the stream; nothing until three bytes could be compared."""
        head = (self._start or b"") + chunk
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._start = head
            return b""
        self._start = None
        return head.removeprefix(_BOM)

    def _line(self, line: bytes, out: list[Frame | Comment]) -> bool:
        """Take one complete line with its end; False if it takes the frame over the cap."""
        first = line[0]
        if first in (_LF, _CR):
            if self._lines:
                self._dispatch(out)
            return True
        size = len(line)
        if self._held + size > self._max_frame:
            self._partial += line
            return False
        if first == _COLON:
            out.append(Comment(_value(line.rstrip(b"\r\n"), 0).decode("utf-8", "replace")))
        else:
            self._lines.append(line)
            self._held += size
        return True

    def _dispatch(self, out: list[Frame | Comment]) -> None:
        """End the frame under way. Without a data line it gives nothing, but its id counts for the stream."""
        lines, self._lines, self._held = self._lines, [], 0
        data: list[bytes] = []
        event = frame_id = b""
        has_id, retry = False, None
        for line in lines:
            line = line.rstrip(b"\r\n")
            colon = line.find(b":")
            name = line if colon < 0 else line[:colon]
            value = b"" if colon < 0 else _value(line, colon)
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value
            elif name == b"id" and b"\0" not in value:
                has_id, frame_id = True, value
            elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                retry = int(value)
        if has_id:
            self.last_event_id = frame_id.decode("utf-8", "replace")
        if not data:
            return
        body = data[0] if len(data) == 1 else b"\n".join(data)
        out.append(
            Frame(
                body,
                event.decode("utf-8", "replace"),
                self.last_event_id if has_id else None,
                retry,
                hashlib.sha256(body).hexdigest(),
                not (_is_utf8(body) and _is_utf8(event) and _is_utf8(frame_id)),
            )
        )

    def _overflowed(self, out: list[Frame | Comment]) -> list[Frame | Comment]:
        """Keep what came before the frame that is too large, hold only the cap's worth of it, and stop."""
        self._overflow = True
        del self._partial[max(0, self._max_frame - self._held) :]
        if not out:
            raise FrameTooLarge(self._max_frame)
        return out


def _value(line: bytes, colon: int) -> bytes:
    """What follows the colon, without one leading space."""
    start = colon + 2 if line[colon + 1 : colon + 2] == b" " else colon + 1
    return line[start:]


def _is_utf8(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
