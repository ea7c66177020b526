"""Strict JSON: the only way in which text from a Hermes server becomes Python values.

``json.loads`` takes NaN, duplicate keys and ``1e999``, raises RecursionError on deep nesting and lets half
surrogate pairs through until something far away tries to encode them (case 24, F15). Here each of these is
refused with a reason, or replaced visibly and counted, at the door.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

MAX_BYTES: Final = 16 * 1024 * 1024
"""Largest document read, in bytes; the cap of a JSON reply."""
MAX_DEPTH: Final = 64
"""Deepest nesting of arrays and objects."""

_MAX_INT_CHARACTERS: Final = 20  # "-9223372036854775808": longer never fits, so int() need not look at it
_MAX_FLOAT_CHARACTERS: Final = 128
_INT64: Final = 2**63

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# Written as escapes, NUL and lone surrogates are legal JSON that PostgreSQL (NUL) and UTF-8 (surrogates)
# cannot hold.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_MAY_BE_UNSTORABLE: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")

_WHITE_SPACE: Final = " \t\r\n"
_STRING: Final = re.compile(rb'"[^"]*"?')
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed bytes


class StrictJSONError(ValueError):
    """The document is refused.

    ``reason`` is one of ``too_large``, ``not_utf8``, ``too_deep``, ``not_json``, ``not_finite``,
    ``number_too_large``, ``duplicate_key``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document that was accepted.

    ``sha256`` is the lower-case hex digest of the bytes as received; ``sanitised`` counts the characters
    (NUL, lone surrogates) that stand in ``value`` as U+FFFD.
    """

    value: Any
    sha256: str
    sanitised: int


def loads(raw: bytes | str, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Parsed:
    """Parse one document, or raise :class:`StrictJSONError`."""
    if isinstance(raw, str):
        # Lone surrogates in a text cannot be UTF-8; they are carried as far as the parser and replaced there.
        data, text = raw.encode("utf-8", "surrogatepass"), raw
    else:
        data = raw
        if len(data) > max_bytes:
            raise StrictJSONError("too_large")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise StrictJSONError("not_utf8") from None
    value, sanitised = parse(text, max_bytes=max_bytes, max_depth=max_depth)
    return Parsed(value, hashlib.sha256(data).hexdigest(), sanitised)


def parse(text: str, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> tuple[Any, int]:
    """The value of decoded text and the number of characters replaced: for callers that hold a digest."""
    if len(text) > max_bytes or (not text.isascii() and len(_encoded(text)) > max_bytes):
        raise StrictJSONError("too_large")
    # Fewer opening brackets than the limit cannot nest deeper than it: the usual document is never measured.
    if text.count("[") + text.count("{") > max_depth and _depth(text) > max_depth:
        raise StrictJSONError("too_deep")
    text = text.strip(_WHITE_SPACE)
    try:
        value, end = _scan(text, 0)
    except StrictJSONError:
        raise
    except (ValueError, StopIteration, RecursionError):
        raise StrictJSONError("not_json") from None
    if end != len(text):
        raise StrictJSONError("not_json")
    if ("\\u" in text and _MAY_BE_UNSTORABLE.search(text)) or (
        not text.isascii() and _UNSTORABLE.search(text)
    ):
        return _storable(value)
    return value, 0


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside strings, without recursion and in linear time.

    Every escape that could hide a quote is taken out first, so that strings are what stands between quotes.
    """
    bare = _encoded(text).replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _STRING.sub(b"", bare).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0)


def _storable(value: Any) -> tuple[Any, int]:
    """The same value with every unstorable character replaced by U+FFFD, and how many there were.

    Recursion is safe here: the depth was bounded before parsing.
    """
    if isinstance(value, str):
        return _UNSTORABLE.subn(REPLACEMENT, value)
    total = 0
    if isinstance(value, list):
        items = []
        for item in value:
            clean, count = _storable(item)
            items.append(clean)
            total += count
        return items, total
    if isinstance(value, dict):
        members: dict[str, Any] = {}
        for key, item in value.items():
            name, in_key = _UNSTORABLE.subn(REPLACEMENT, key)
            if name in members:
                raise StrictJSONError("duplicate_key")
            members[name], count = _storable(item)
            total += in_key + count
        return members, total
    return value, 0


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise StrictJSONError("duplicate_key")  # two readers could see two different events (case 24 g)
    return members


def _integer(text: str) -> int:
    if len(text) > _MAX_INT_CHARACTERS or not -_INT64 <= (number := int(text)) < _INT64:
        raise StrictJSONError("number_too_large")
    return number


def _number(text: str) -> float:
    if len(text) > _MAX_FLOAT_CHARACTERS or math.isinf(number := float(text)):
        raise StrictJSONError("number_too_large")
    return number


def _constant(_name: str) -> Any:
    raise StrictJSONError("not_finite")  # NaN, Infinity, -Infinity: not JSON at all


# The scanner itself: JSONDecoder.decode() looks for white space with a regular expression on both sides of
# it, which is a quarter of the time of a small event.
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=_number, parse_int=_integer, parse_constant=_constant
).scan_once  # type: ignore[attr-defined]  # public since Python 2.6, missing in typeshed
