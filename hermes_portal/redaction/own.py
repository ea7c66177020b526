"""The endpoint's own token in any encoding: as it is, escaped, percent-encoded, in hex, in base64 at any offset."""

import base64
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from .shadow import Shadow, shadow
from .values import Span, Work

KIND = "endpoint token"
#: Shorter ones are not looked for: they would tear ordinary words apart. Hermes itself asks for 16.
MINIMUM = 8

_BETWEEN_HEX = r"[^0-9A-Za-z]{0,4}+(?:0?x|u00)?+"
_ESCAPES = re.compile(r"%[0-9A-Fa-f]{2}|\\[\\ux/\"']|&#|=[0-9A-Fa-f]{2}")
_WRAP = r"(?:\s|\\{1,7}+[rn]){0,80}+"
_BASE64_LEFT = re.compile(r"[A-Za-z0-9+/_-]*+")
_BASE64_RIGHT = re.compile(r"(?:[A-Za-z0-9+/_-]|%2[BbFf])*+(?:=|%3[Dd]){0,2}")


class _Matchers(NamedTuple):
    plain: str
    escaped: tuple[re.Pattern[str], re.Pattern[str]]
    hexadecimal: re.Pattern[str]
    base64: tuple[re.Pattern[str], ...]
    part: int


def _alternatives(character: str) -> tuple[str, list[str]]:
    """A character as it is, and in every escape that is in use."""
    code, raw = ord(character), character.encode("utf-8", "surrogatepass")
    return re.escape(character), [
        "".join(rf"(?:%(?:25){{0,3}}|=)(?i:{byte:02x})" for byte in raw),
        rf"\\{{1,7}}(?:u00|x|u\{{0{{0,4}})(?i:{code:02x})\}}?",
        rf"&\#(?:0{{0,4}}{code}|[xX]0{{0,4}}(?i:{code:x}));?",
    ]


def _escaped(token: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The token with any of its characters escaped, apart by how it starts: each has a start that is fast to find."""
    plain, escapes = _alternatives(token[0])
    rest = []
    for character in token[1:]:
        literal, others = _alternatives(character)
        rest.append("(?:" + "|".join([rf"\\{{0,7}}{literal}", *others]) + ")")
    tail = "".join(rest)
    return re.compile(plain + tail), re.compile("(?:" + "|".join(escapes) + ")" + tail)


def _base64(raw: bytes) -> Iterator[str]:
    """What base64 of any text with `raw` in it must hold, for the three places it may start at."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode()
        first = (0, 2, 3)[offset]
        whole = (offset + len(raw)) * 8 // 6
        yield _WRAP.join(
            {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:\\{0,7}/|_|%2[Ff])"}.get(c, c) for c in encoded[first:whole]
        )


@lru_cache(maxsize=32)
def _matchers(token: str) -> _Matchers:
    raw = token.encode("utf-8", "surrogatepass")
    wide = token.encode("utf-16-le", "surrogatepass")  # what PowerShell's -EncodedCommand holds
    plain = shadow(token, ours=False).text
    return _Matchers(
        plain=plain,
        escaped=_escaped(plain),
        hexadecimal=re.compile(_BETWEEN_HEX.join(f"(?i:{byte:02x})" for byte in raw)),
        base64=tuple(re.compile(shape) for text in (raw, wide) for shape in _base64(text)),
        part=max(MINIMUM, min(12, len(plain) // 2)),
    )


def own_tokens(twin: Shadow, own: Sequence[str], work: Work) -> Iterator[Span]:
    """Every trace of these tokens; of base64 the whole word around it, of a cut token what is left of it."""
    for token in own:
        if len(token.strip()) < MINIMUM:
            continue
        for start, end in _traces(twin.text, _matchers(token.strip()), work):
            yield Span(start, end, KIND, start, end)


def _traces(text: str, matchers: _Matchers, work: Work) -> Iterator[tuple[int, int]]:
    yield from _parts(text, matchers, work)
    if _ESCAPES.search(text):
        for pattern in matchers.escaped:
            for match in pattern.finditer(text):
                work.spend()
                yield match.span()
    for match in matchers.hexadecimal.finditer(text):
        work.spend()
        yield match.span()
    for pattern in matchers.base64:
        at = 0
        while found := pattern.search(text, at):
            work.spend()
            right = _BASE64_RIGHT.match(text, found.end())
            left = _BASE64_LEFT.match(text[at : found.start()][::-1])
            start, at = (
                found.start() - (left.end() if left else 0),
                max(found.end(), right.end() if right else 0),
            )
            yield start, at


def _parts(text: str, matchers: _Matchers, work: Work) -> Iterator[tuple[int, int]]:
    """The token, or a first or last part of it that is long enough to be told from chance."""
    token, part = matchers.plain, matchers.part
    if not token:
        return
    at = text.find(token[:part])
    while at >= 0:
        work.spend()
        length = part
        while length < len(token) and text.startswith(token[length], at + length):
            length += 1
        yield at, at + length
        at = text.find(token[:part], at + length)
    ending = token[-part:]
    at = text.find(ending)
    while at >= 0:
        work.spend()
        length = part
        while (
            length < len(token)
            and at + part - length > 0
            and text[at + part - length - 1] == token[-length - 1]
        ):
            length += 1
        yield at + part - length, at + part
        at = text.find(ending, at + part)
