"""The normalised twin of a text that the patterns are matched on, and the way back to the original.

Zero-width characters, controls and terminal sequences are gone from it (or became a space, in the second
twin, because they can also glue a secret to a word); full-width and mathematical letters are plain ones.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable

from .marks import HIDDEN_CLASS, HIDDEN_RANGES, MARK, OPAQUE, character_class, gaps
from .values import WorkLimit

_SPACES = "\xa0\u1680\u202f\u205f\u2800\u3000\u3164\uffa0" + "".join(map(chr, range(0x2000, 0x200B)))
_NEWLINES = "\x0b\x0c\x85\u2028\u2029"
_FOLDED_RANGES = (
    (0xAA, 0x33FF),
    (0xFB00, 0xFFEF),
    (0x1D400, 0x1D7FF),
    (0x1F100, 0x1F2FF),
    (0x1FBF0, 0x1FBF9),
)


def _folding() -> dict[int, str]:
    table = {ord(c): " " for c in _SPACES} | {ord(c): "\n" for c in _NEWLINES}
    hidden = re.compile(f"[{HIDDEN_CLASS}]")
    for low, high in _FOLDED_RANGES:
        for code in range(low, high + 1):
            plain = unicodedata.normalize("NFKC", chr(code))
            if code not in table and any(c.isascii() for c in plain) and not hidden.match(chr(code)):
                table[code] = plain
    table[0x130] = "I"  # its lower case is two characters, which would shift every index behind it
    return table


_FOLD = _folding()
_FOLD_ONE = {code: plain for code, plain in _FOLD.items() if len(plain) == 1}
_FOLD_MANY = {code: plain for code, plain in _FOLD.items() if len(plain) > 1}


def _class(codes: Iterable[int]) -> str:
    ranges: list[tuple[int, int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return character_class(ranges)


def _or_above(codes: set[int]) -> re.Pattern[str]:
    """One of these, or anything above U+FFFF: as a negation, since a class that goes above it is slow to search."""
    others = [code for code in range(0x10000) if code not in codes]
    return re.compile(f"[^{_class(others)}]")


_DROPPED = {c for low, high in HIDDEN_RANGES if low <= 0xFFFF for c in range(low, high + 1)} - set(_FOLD)
_DROPPED |= {*range(0x300, 0x370), *range(0x20D0, 0x2100)}  # drawn over the letter before them
_DROPPED_ABOVE = character_class([pair for pair in HIDDEN_RANGES if pair[0] > 0xFFFF])
_MANY = {code for code in _FOLD_MANY if code <= 0xFFFF}
_MAY_FOLD = _or_above({code for code in _FOLD_ONE if code <= 0xFFFF})
_MAY_BE_SPECIAL = _or_above(_MANY | _DROPPED)
_SPECIAL = re.compile(
    rf"(?P<many>[{_class(_MANY)}\U0001f100-\U0001f2ff])"
    r"|\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?"
    rf"|[{_class(_DROPPED)}]++|[{_DROPPED_ABOVE}]++"
)
#: Pieces that one text may be taken apart into; each costs about a microsecond.
_PIECES = 100_000
_WORD = re.compile(r"[A-Za-z0-9_\-.+/=]{11,}+")
_ASCII_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Shadow:
    """`text` to match on; `origin` and `origin_end` map a span of it back."""

    __slots__ = ("_froms", "_origins", "_words", "hidden", "low", "text")

    def __init__(
        self, text: str, froms: list[int], origins: list[tuple[int, bool, int]], hidden: bool
    ) -> None:
        self.text = text
        self.low = text.lower()
        self.hidden = hidden
        self._froms = froms
        self._origins = origins
        self._words: list[tuple[int, int]] | None = None

    @property
    def words(self) -> list[tuple[int, int]]:
        """The long words; most tokens are one, and finding these first makes ordinary text cheap."""
        if self._words is None:
            self._words = [match.span() for match in _WORD.finditer(self.text)]
        return self._words

    def origin(self, at: int) -> int:
        """Where the character at `at` starts in the original."""
        if not self._froms:
            return at
        index = bisect_right(self._froms, at) - 1
        start, same_length, _ = self._origins[index]
        return start + (at - self._froms[index]) if same_length else start

    def origin_end(self, at: int) -> int:
        """Where the character before `at` ends in the original."""
        if not self._froms or at <= 0:
            return at
        index = bisect_right(self._froms, at - 1) - 1
        start, same_length, end = self._origins[index]
        return start + (at - self._froms[index]) if same_length else end


def _equivalent(mark: re.Match[str]) -> str:
    """What a mark of ours stood for, so that a second look sees what the first one saw."""
    if mark["masked"]:
        return OPAQUE
    if mark["code"]:
        code = int(mark["code"], 16)
        return "[" if code == 0x5B else _FOLD.get(code, "")
    return ("\n" if mark["blank"] == "blank lines" else " ") * 64


class _Builder:
    def __init__(self, gap: str) -> None:
        self.gap = gap
        self.parts: list[str] = []
        self.froms: list[int] = []
        self.origins: list[tuple[int, bool, int]] = []
        self.length = 0
        self.hidden = False

    def add(self, plain: str, start: int, end: int, *, same_length: bool) -> None:
        if not plain:
            return
        self.parts.append(plain)
        self.froms.append(self.length)
        self.origins.append((start, same_length, end))
        self.length += len(plain)

    def fold(self, text: str, start: int, end: int) -> None:
        """Add text[start:end], of which characters that fold to one other are folded already."""
        at, pieces = start, 0
        candidate = _MAY_BE_SPECIAL.search(text, start, end)
        while candidate:
            match = _SPECIAL.match(text, candidate.start(), end)
            if match:
                self.add(text[at : match.start()], at, match.start(), same_length=True)
                at = match.end()
                self._replace(match)
                pieces += 1
                if pieces > _PIECES:
                    raise WorkLimit
            candidate = _MAY_BE_SPECIAL.search(text, match.end() if match else candidate.end(), end)
        self.add(text[at:end], at, end, same_length=True)

    def _replace(self, match: re.Match[str]) -> None:
        if match["many"]:
            self.add(_FOLD_MANY.get(ord(match[0]), match[0]), *match.span(), same_length=False)
        else:
            self.hidden = True
            self.add(self.gap, *match.span(), same_length=False)


def shadow(text: str, *, ours: bool, gap: str = "") -> Shadow:
    """The twin of `text`. `ours`: the marks in it were written by us. `gap`: what hidden characters become."""
    if not ours and text.isascii() and not _ASCII_CONTROL.search(text):
        return Shadow(text, [], [], False)
    builder = _Builder(gap)
    if _MAY_FOLD.search(text):
        text = text.translate(_FOLD_ONE)
    stretches = gaps(text) if ours else iter([(0, len(text), False)])
    for start, end, is_mark in stretches:
        if not is_mark:
            builder.fold(text, start, end)
            continue
        mark = MARK.fullmatch(text, start, end)
        plain = _equivalent(mark) if mark else OPAQUE
        builder.hidden = builder.hidden or not plain
        builder.add(plain or gap, start, end, same_length=False)
    return Shadow("".join(builder.parts), builder.froms, builder.origins, builder.hidden)
