"""Redaction of a text that arrives in pieces: given out only up to where no secret can span, never rewritten."""

import re
from collections.abc import Sequence
from typing import Literal

from .commands import REACH
from .marks import Redacted, masked
from .scan import Found, scan
from .shadow import Shadow, shadow
from .text import TOO_COSTLY, redact, render
from .tokens import BODY
from .values import WorkLimit

#: Most characters that wait for what follows them.
HOLD = 4096

#: Looked at in one go; a larger piece is taken apart.
_SLICE = 32_768
#: Kept in front of what is still to come after a masked stretch, so that its last words still count.
_CONTEXT = 256
#: Where text without blanks may be cut: no encoding of any token is longer than this.
_SETTLED = 1024

_BLANK = " \t\n"
#: Words after which a value may come; nine further words or two lines settle it.
_NAMES = re.compile(
    r"pass|pwd|pw|kennwort|contrase|парол|secret|token|credential|psk|sess|auth|key|bearer|basic|cookie|identified"
    r"|%3a|(?<!\S)-\S*|begin|-----|private|\[[0-9]{1,9}\s|(?<![a-z])(?:env|setx|value)(?![a-z])"
    r"|(?<![a-z])(?:api|access|auth|private|encryption|signing|master|account|service|shared|storage|license|deploy"
    r"|ssh|client|app|admin|hmac)\s+(?:key|\S{0,3}\Z)"
)
_WORDS_AFTER = 10
#: Commands and pipes whose arguments are looked at to the end of their line, or as far as REACH.
_COMMANDS = re.compile(
    r"(?<![a-z])(?:curl|wget|https?(?=\s)|xh|mysql|maria|mycli|7z|u?n?rar|sshpass|mongo|rdesktop|useradd|usermod|pgcli|impacket"
    r"|evil-winrm|kinit|ncrack|docker|podman|nerdctl|buildah|skopeo|helm|oc|az|npm|crane|oras|argocd|registry"
    r"|redis-cli|keydb-cli|valkey-cli|ldap|htdigest|sqlcmd|bcp|isql|tsql|ipmitool|u?n?zip|plink|pscp|psftp|putty"
    r"|smbclient|rpcclient|net|smbmap|winexe|wmic|nxc|crackmapexec|ab|java|jenkins-cli|siege|openssl|xfreerdp"
    r"|wfreerdp|cmdkey|mstsc|ssh-keygen|htpasswd|echo|printf|sudo)"
)
_LAST_WORD = re.compile(r"(?:[A-Z]?[a-z]{1,15}|[0-9]{1,6})[.!?:\u2026][\"')]?[ \n]{0,2}")
_ENCODED_WORD = re.compile(r"[A-Za-z0-9+/=_\\\"',-]{16,}|(?:0x|\\x|%|\\u00)?[0-9A-Fa-f]{2,4}[,;:]?")
_LAST_LINE = re.compile(r"[A-Za-z0-9+/=]{1,15}[\"',]{0,2}")
_ENCODED_ENDING = re.compile(r"[A-Za-z0-9+/=]{16}\Z")
_KEY_END = re.compile(r"-{1,5}[ ]?(?:E|EN|END[ A-Z0-9]{0,60}-{0,5})?\Z")
_KEY_GOES_ON = re.compile(
    r"(?:\s|\\[nrt]?|[\"',])*+(?:[A-Za-z0-9+/=]{0,15}+|-{1,5}[ ]?(?:E|EN|END(?:[ ][A-Z0-9 ]{0,60}-{0,5})?)?)\Z"
)
_WORD = re.compile(r"\S+")
_RUN = re.compile(r"[A-Za-z0-9+/=]*+")

_Mode = Literal["", "word", "line", "key"]


class StreamRedactor:
    """Feed pieces, get text that is safe to store; `flush` at the end gives the rest.

    What comes out is final. All the pieces together hide all that `redact` hides in the whole text; they may
    hide more (something longer than HOLD, to its end) and marks of blank runs may be split. After `flush` it
    starts anew, for the next text.
    """

    def __init__(self, own: Sequence[str] = ()) -> None:
        self._own = tuple(own)
        self._reset()

    def _reset(self) -> None:
        self._text = ""
        self._swallow = 0  # so many characters of _text are given out or masked already
        self._mode: _Mode = ""
        self._again_at = 0

    def __repr__(self) -> str:
        return f"StreamRedactor(holding {self.held} characters)"

    @property
    def held(self) -> int:
        """Characters that wait, at most HOLD between two calls."""
        return len(self._text) - self._swallow

    def feed(self, text: str) -> Redacted:
        """Take the next piece; what can be given out now (often nothing)."""
        parts: list[str] = []
        for at in range(0, len(text), _SLICE):
            piece = text[at : at + _SLICE]
            self._text += piece
            wants = self.held > HOLD or (
                len(self._text) >= self._again_at and (self._mode or any(blank in piece for blank in _BLANK))
            )
            if wants:
                self._drain(parts)
        return Redacted("".join(parts))

    def pause(self) -> Redacted:
        """Something else interrupts the text: the last word, if it plainly ends a sentence, else nothing.

        So what was said before a tool call stands before it. A word of small letters with a full stop behind it is no
        part of any secret that `redact` knows, unless a name or command before it makes it a value: then it is
        held. What is given out stays as context, so that what follows is still read together with it.
        """
        if self._mode or not self.held or not _LAST_WORD.fullmatch(self._text, self._swallow):
            return Redacted("")
        if _pending(self._text) < len(self._text) or _encoded_tail(self._text) < len(self._text):
            return Redacted("")
        word = self._text[self._swallow :]
        if redact(self._text, own=self._own) != self._text or self._starts_own(word):
            return Redacted("")
        self._swallow = len(self._text)
        return Redacted(word)

    def _starts_own(self, word: str) -> bool:
        """Whether an own token could go on behind `word`."""
        word = word.rstrip(_BLANK)
        return any(token.startswith(word[at:]) for token in self._own for at in range(len(word)))

    def flush(self) -> Redacted:
        """The text has ended: the rest of it."""
        parts: list[str] = []
        if self._mode:
            self._skip()
        if (not self._mode or self._mode == "key") and self.held:
            try:
                self._give(parts, scan(self._text, own=self._own), len(self._text))
            except WorkLimit:
                parts.append(TOO_COSTLY)
        self._reset()
        return Redacted("".join(parts))

    def _drain(self, parts: list[str]) -> None:
        if self._mode:
            self._skip()
            if self._mode:
                return
        try:
            found = scan(self._text, own=self._own)
        except WorkLimit:
            self._mask(parts, TOO_COSTLY, "line")
            return
        cut, encoded = _safe_cut(self._text, found)
        if cut > self._swallow:
            rest = self._text[cut:]
            self._give(parts, found, cut)
            shift = cut
            found = [
                Found(f.start - shift, f.end - shift, f.kind, f.zone_start - shift, f.zone_end - shift)
                for f in found
                if f.start >= cut
            ]
            self._text, self._swallow, self._again_at = rest, 0, 0
        else:
            self._again_at = len(self._text) + max(16, len(self._text) // 8)
        if self.held > HOLD:
            self._give_up(parts, found, encoded=encoded)
        if self.held > HOLD:
            self._drain(parts)

    def _give(self, parts: list[str], found: Sequence[Found], cut: int) -> None:
        """Put out the text from what was given already up to `cut`."""
        shown = render(self._text, found, self._swallow, cut, ours=False)
        parts.append(redact(Redacted(shown), own=self._own) if found else shown)

    def _give_up(self, parts: list[str], found: Sequence[Found], *, encoded: bool) -> None:
        """More is held than may be: mask it, and all that belongs to it until its end."""
        text = self._text
        running = next(
            (f for f in reversed(found) if f.zone_end >= len(text) and f.end > self._swallow), None
        )
        soft = 0 if encoded else _soft_cut(text, found)
        if running is None and len(text) - len(text.rstrip(_BLANK)) > _SETTLED:
            soft = len(text)  # only blanks, and no value starts behind so many
        if soft > self._swallow:
            self._give(parts, found, soft)
            self._text, self._swallow, self._again_at = text[soft:], 0, 0
            return
        if running is not None and running.start > self._swallow:
            self._give(parts, [f for f in found if f is not running], running.start)
        mode: _Mode = "line" if any(blank in text[self._swallow :] for blank in _BLANK) else "word"
        key = running is not None and running.kind.startswith("private key")
        self._mask(
            parts, masked(running.kind if running else "unbroken text"), "key" if key or encoded else mode
        )

    def _mask(self, parts: list[str], mark: str, mode: _Mode) -> None:
        parts.append(mark)
        self._mode = mode
        self._keep_context(len(self._text))

    def _keep_context(self, end: int) -> None:
        """Forget what is masked up to `end`, but for its last words."""
        start = max(0, end - _CONTEXT)
        self._text, self._swallow, self._again_at = self._text[start:], end - start, 0

    def _skip(self) -> None:
        """Drop the continuation of what was masked; leave the mode at its end."""
        if self._mode == "key":
            self._skip_key()
            return
        text = self._text
        ends = ("\n",) if self._mode == "line" else (" ", "\t", "\n")
        found = [at for at in (text.find(end, self._swallow) for end in ends) if at >= 0]
        if found:
            self._mode = ""
        self._keep_context(min(found) if found else len(text))

    def _skip_key(self) -> None:
        text = self._text
        run = _RUN.match(text, self._swallow)
        body = BODY.match(text, run.end() if run else self._swallow)
        end = body.end() if body else self._swallow
        if body and body["end"] and end == len(text):  # its last line may not be all there yet
            end = body.start("end")
        elif (body and body["end"]) or not _KEY_GOES_ON.fullmatch(text, end):
            self._mode = ""
        self._keep_context(end)


def _border(text: str, limit: int) -> int:
    """The last place at or before `limit` where a word starts after a blank; 0 if there is none."""
    at = min(limit, len(text) - 1)
    while at > 0:
        blank = max(text.rfind(blank, 0, at) for blank in _BLANK)
        if blank < 0:
            return 0
        if blank + 1 < at or text[at] not in " \t\n\r":
            return blank + 1
        at = blank
    return 0


def _safe_cut(text: str, found: Sequence[Found]) -> tuple[int, bool]:
    """Up to where `text` may be given out, and whether a stretch of encoded words is what holds the rest."""
    pending = _pending(text)
    encoded = _encoded_tail(text)
    cut = _border(text, min(pending, encoded))
    while True:
        inside = [
            f.zone_start
            for f in found
            if f.zone_start < cut and (cut < f.zone_end or f.zone_end >= len(text))
        ]
        if not inside:
            return cut, encoded < len(text) and cut >= _border(text, encoded)
        cut = _border(text, min(inside))


def _pending(text: str) -> int:
    """Where the first word starts after which a value may still come; the length if there is none."""
    twin = shadow(text, ours=False)
    twins = [twin, shadow(text, ours=False, gap=" ")] if twin.hidden else [twin]
    firsts = [(twin, _pending_in(twin)) for twin in twins]
    return min(twin.origin(first) if first < len(twin.text) else len(text) for twin, first in firsts)


def _pending_in(twin: Shadow) -> int:
    low, first = twin.low, len(twin.low)
    start = max(0, len(low) - REACH)
    for match in _COMMANDS.finditer(low, start):
        if "\n" not in low[match.end() :]:
            first = match.start()
            break
    for match in _NAMES.finditer(low, start, first):
        if len(low[match.end() :].split(None, _WORDS_AFTER)) <= _WORDS_AFTER:
            return match.start()
    return first


def _encoded_tail(text: str) -> int:
    """Where the words start that could be one key or token in lines, the last word aside; else the length."""
    ending = _KEY_END.search(text, max(0, len(text) - 100))
    stop = ending.start() if ending else len(text)
    words = [(match.start(), match.end()) for match in _WORD.finditer(text, 0, stop)]
    if words and words[-1][1] == len(text):
        words.pop()
    first, short = len(text), 0
    for start, end in reversed(words):
        if _ENCODED_WORD.fullmatch(text, start, end):
            first = start
        elif first == len(text) and short < 2 and _LAST_LINE.fullmatch(text, start, end):
            short += 1  # a key's last line, and the checksum some have behind it
        else:
            return start if _ENCODED_ENDING.search(text, start, end) else first
    return first


def _soft_cut(text: str, found: Sequence[Found]) -> int:
    """A place after punctuation, far from the end and outside of any secret, to cut text without blanks at."""
    limit = len(text) - _SETTLED
    at = max(text.rfind(sign, 0, limit) for sign in ",;{}()[]") + 1
    while at > 0:
        inside = [f.zone_start for f in found if f.zone_start < at < f.zone_end]
        if not inside:
            return at
        at = max(text.rfind(sign, 0, min(inside)) for sign in ",;{}()[]") + 1
    return 0
