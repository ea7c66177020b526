"""The normalised twin of a text that the patterns are matched on, and the way back to the original.

Zero-width characters, controls and terminal sequences are gone from it (or became a space, in the second
twin, because they can also glue a secret to a word); full-width and mathematical letters are plain ones.
"""

import re
import unicodedata
from bisect import bisect_right

from .marks import HIDDEN_CLASS, MARK, gaps

#: Stands for a mark of ours; private use characters of the text itself never reach the twin.
OPAQUE = "\ue000"

_SPACES = "\xa0\u1680\u202f\u205f\u2800\u3000\u3164\uffa0" + "".join(map(chr, range(0x2000, 0x200B)))
_NEWLINES = "\x0b\x0c\x85\u2028\u2029"
_FOLDED_RANGES = ((0xAA, 0x33FF), (0xFB00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F100, 0x1F2FF), (0x1FBF0, 0x1FBF9))


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
_ONE = re.escape("".join(chr(code) for code, plain in _FOLD.items() if len(plain) == 1))
_MANY = re.escape("".join(chr(code) for code, plain in _FOLD.items() if len(plain) != 1))
_SPECIAL = re.compile(
    rf"(?P<one>[{_ONE}]++)|(?P<many>[{_MANY}])"
    r"|(?P<drop>(?:\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?"
    rf"|(?![{_ONE}{_MANY}])[{HIDDEN_CLASS}\u0300-\u036f\u20d0-\u20ff])++)"
)
_ASCII_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Shadow:
    """`text` to match on; `origin` and `origin_end` map a span of it back."""

    __slots__ = ("_froms", "_origins", "hidden", "low", "text")

    def __init__(self, text: str, froms: list[int], origins: list[tuple[int, bool, int]], hidden: bool) -> None:
        self.text = text
        self.low = text.lower()
        self.hidden = hidden
        self._froms = froms
        self._origins = origins

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
        return chr(code) if code == 0x5B else _FOLD.get(code, "") if code <= 0x10FFFF else ""
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
        """Add text[start:end], normalised."""
        at = start
        for match in _SPECIAL.finditer(text, start, end):
            self.add(text[at : match.start()], at, match.start(), same_length=True)
            at = match.end()
            if match["one"]:
                self.add(match[0].translate(_FOLD), match.start(), at, same_length=True)
            elif match["many"]:
                self.add(_FOLD[ord(match[0])], match.start(), at, same_length=False)
            else:
                self.hidden = True
                self.add(self.gap, match.start(), at, same_length=False)
        self.add(text[at:end], at, end, same_length=True)


def shadow(text: str, *, ours: bool, gap: str = "") -> Shadow:
    """The twin of `text`. `ours`: the marks in it were written by us. `gap`: what hidden characters become."""
    if not ours and text.isascii() and not _ASCII_CONTROL.search(text):
        return Shadow(text, [], [], False)
    builder = _Builder(gap)
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
