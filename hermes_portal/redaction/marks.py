"""The marks that stand in redacted text, the characters that are made visible, and how a text is cut."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal

Kind = Literal["text", "masked", "mark"]

#: Longest text, in characters, that is looked at and that is ever given back.
MAX_INPUT = 1_048_576

#: A run of blanks this long pushes what follows out of sight, so its length is written instead.
BLANKS = 40
TABS = 8
BLANK_LINES = 4

#: Never legible as themselves: controls, format characters, odd spaces, fillers, variation selectors, tags,
#: lone surrogates, private use, non-characters. Written out, because a table of our own does not move with
#: the Unicode version of the Python below. TAB, LF and the CR of a CRLF stay.
HIDDEN_RANGES = (
    (0x00, 0x08),
    (0x0B, 0x0C),
    (0x0E, 0x1F),
    (0x7F, 0xA0),
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x1680, 0x1680),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2000, 0x200F),
    (0x2028, 0x202F),
    (0x205F, 0x206F),
    (0x2800, 0x2800),
    (0x3000, 0x3000),
    (0x3164, 0x3164),
    (0xD800, 0xF8FF),
    (0xFDD0, 0xFDEF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFC),
    (0xFFFE, 0xFFFF),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0x10FFFF),
)


#: Stands for a mark of ours in what the patterns see; private use characters of a text itself never get there.
OPAQUE = "\ue000"


def character_class(ranges: Sequence[tuple[int, int]]) -> str:
    """The inside of a regex character class for these code point ranges."""
    return "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)


HIDDEN_CLASS = character_class(HIDDEN_RANGES)

# Two classes, below and above U+10000, because one over both is searched an order of magnitude slower.
_BELOW = character_class([pair for pair in HIDDEN_RANGES if pair[0] <= 0xFFFF])
_ABOVE = character_class([pair for pair in HIDDEN_RANGES if pair[0] > 0xFFFF])
_HIDDEN = re.compile(rf"(?P<one>[{_BELOW}]|[{_ABOVE}])(?P=one)*+")
_HIDDEN_ASCII = re.compile(r"(?P<one>[\x00-\x08\x0b\x0c\x0e-\x1f\x7f])(?P=one)*+")
_LONE_CR = re.compile(r"\r(?!\n)")
_LINES = re.compile(rf"\n(?:[ \t]*+\r?\n){{{BLANK_LINES},}}+")
_SPACES = re.compile(rf"(?<![ \t])[ \t]{{{BLANKS},}}+|(?<!\t)\t{{{TABS},}}+")

#: Everything that this package writes by itself.
MARK = re.compile(
    r"(?P<masked>\[redacted:[a-z0-9][a-z0-9 ,'-]{0,79}\])"
    r"|\[U\+(?P<code>[0-9A-F]{4,6})(?: ×[0-9]{1,9})?\]"
    r"|\[(?P<count>[0-9]{1,9}) (?P<blank>spaces|tabs|blanks|blank lines)\]"
)
_LOOKALIKE = re.compile(
    r"\[(?=(?i:redacted):|U\+[0-9A-Fa-f]|[0-9]{1,9} (?:spaces|tabs|blanks|blank lines)\])"
)
BRACKET = "[U+005B]"


class Redacted(str):
    """Text that has passed `redact`: the marks in it are ours.

    `redact` gives one back, and takes one without calling its marks a provider's imitation. A text read
    from a column that only ever holds redacted text may be wrapped in it. Anything built from one (a
    slice, a format string) is a plain `str` again: trust does not spread by itself.
    """

    __slots__ = ()


def masked(kind: str) -> str:
    """The mark of a secret of this kind."""
    return f"[redacted:{kind}]"


def _hidden_mark(match: re.Match[str]) -> str:
    run = match[0]
    return f"[U+{ord(run[0]):04X}]" if len(run) == 1 else f"[U+{ord(run[0]):04X} ×{len(run)}]"


def _blank_mark(match: re.Match[str]) -> str:
    run = match[0]
    unit = "spaces" if run.count(" ") == len(run) else "tabs" if run.count("\t") == len(run) else "blanks"
    return f"[{len(run)} {unit}]"


def _lines_mark(match: re.Match[str]) -> str:
    return f"\n[{match[0].count(chr(10)) - 1} blank lines]\n"


def visible(text: str) -> str:
    """`text` with imitated marks taken apart and everything hidden or blank in it made visible."""
    if "[" in text:
        text = _LOOKALIKE.sub(BRACKET, text)
    text = (_HIDDEN_ASCII if text.isascii() else _HIDDEN).sub(_hidden_mark, text)
    if "\r" in text:
        text = _LONE_CR.sub(_hidden_mark, text)
    if "\n" in text:
        text = _LINES.sub(_lines_mark, text)
    if "\t" in text or " " * BLANKS in text:
        text = _SPACES.sub(_blank_mark, text)
    return text


def too_many_hidden(text: str) -> bool:
    """Whether the marks alone would pass the limit of what is ever given back."""
    most = MAX_INPUT // len("[U+0000]")
    return len(text) > most and any(count > most for count, _ in enumerate(_HIDDEN.finditer(text), start=1))


def segments(text: str) -> list[tuple[Kind, str]]:
    """Redacted text in pieces for a template: what is written, what was masked, what was made visible.

    The pieces joined are the text. Only marks of ours match: in text that came through `redact` an
    imitation has lost its bracket to a `[U+005B]` mark.
    """
    pieces: list[tuple[Kind, str]] = []
    at = 0
    for match in MARK.finditer(text):
        if match.start() > at:
            pieces.append(("text", text[at : match.start()]))
        pieces.append(("masked" if match["masked"] else "mark", match[0]))
        at = match.end()
    if at < len(text):
        pieces.append(("text", text[at:]))
    return pieces


def excerpt(text: str, limit: int) -> Redacted:
    """At most `limit` characters of redacted text; a cut shows as "…" and counts.

    Never inside a mark, between a base character and what combines with it, or beside a joiner, so a
    family of emoji stays or goes whole (case 24 j). Redact first: this hides nothing.
    """
    if len(text) <= limit:
        return Redacted(text)
    if limit < 1:
        return Redacted("")
    cut = limit - 1
    near = max(0, cut - 100)
    for match in MARK.finditer(text, near):
        if match.start() >= cut:
            break
        if match.end() > cut:
            cut = match.start()
    for _ in range(64):  # a text that only combines has no border: then a code point has to do
        back = _glued(text, cut)
        if not back:
            break
        cut -= back
    return Redacted(text[: max(cut, 0)] + "…")


_JOINING_MARK = re.compile(r"\[U\+(?:200D|FE0[0-9A-F]|E00[2-7][0-9A-F])\]")


def _glued(text: str, cut: int) -> int:
    """How many characters to step back because text[cut - 1] and text[cut] belong together; 0 if not."""
    if cut <= 0 or cut >= len(text):
        return 0
    before = text[max(0, cut - 9) : cut]
    if before.endswith("[U+200D]"):
        return len("[U+200D]")
    if _JOINING_MARK.match(text, cut) or text[cut - 1] == "\u200d" or _combines(text[cut]):
        return _unit_before(before)
    if _regional(text[cut]) and _regional(text[cut - 1]):
        flags = 0
        while flags < cut and _regional(text[cut - 1 - flags]):
            flags += 1
        return flags % 2
    return 0


def _unit_before(before: str) -> int:
    """Length of the last mark or character of `before`."""
    mark = before.rfind("[U+")
    return len(before) - mark if mark >= 0 and MARK.fullmatch(before, mark) else 1


def _combines(character: str) -> bool:
    code = ord(character)
    return (
        code in (0x200D, 0xFE0E, 0xFE0F)
        or 0x1F3FB <= code <= 0x1F3FF  # skin tones
        or 0xDC00 <= code <= 0xDFFF
        or unicodedata.category(character) in ("Mn", "Me", "Mc")
    )


def _regional(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF


def gaps(text: str) -> Iterator[tuple[int, int, bool]]:
    """The stretches of redacted text as (start, end, is it a mark of ours)."""
    at = 0
    for match in MARK.finditer(text):
        if match.start() > at:
            yield at, match.start(), False
        yield match.start(), match.end(), True
        at = match.end()
    if at < len(text):
        yield at, len(text), False
