"""Where a secret's value ends, once something has said that here one starts. No pattern looks back."""

import re
from typing import NamedTuple

from .marks import OPAQUE

#: A value that itself could run something is still masked, but its mark says so: a mask must never be the
#: curtain behind which a command passes the reviewer.
COMMAND = ", could be a command"
_COMMANDISH = re.compile(r"[;|&\n`]|[$<>]\(|>[ \t]*[/~.\w]|\$\{IFS")


class Span(NamedTuple):
    """A secret at [start, end), and the stretch [zone_start, zone_end) that a stream must not cut."""

    start: int
    end: int
    kind: str
    zone_start: int
    zone_end: int


class WorkLimit(Exception):
    """More candidates than one text may cost: whoever catches this masks all of it."""


class Work:
    """Counts candidates, so that the worst case is bounded the same way on every machine.

    A limit in seconds would make the outcome depend on the load, and with it the digest a reviewer decides
    on (rule 3); single patterns are linear by construction, only their number can grow.
    """

    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit

    def spend(self, amount: int = 1) -> None:
        """Count `amount` candidates. WorkLimit when the text has used up its share."""
        self.left -= amount
        if self.left < 0:
            raise WorkLimit


_OPENING = re.compile(r"\\{0,15}+[\"'`]")
_PLAIN = re.compile(
    rf"""(?:
        [^\s"'`\\<>,;&|(){{}}\[\]${OPAQUE}]++
      | \\++(?![nrt"'`\s\\]|\Z)             # an escape inside the value; \n, \t and \" end it
      | \\[ ](?=\S)                         # a blank escaped for a shell
      | [,;&](?![\s&|"'`\\]|\Z|[\w.-]{{1,40}}+=)
      | \|(?![|\s]|\Z)
      | [(){{}}\[\]]++(?=[\w@#%^*+=~!/-])   # brackets count only inside
      | \$(?![({{]|\Z)
    )++""",
    re.VERBOSE | re.ASCII,
)
_QUOTED = {
    quote: re.compile(rf"(?:[^\\\n{quote}{OPAQUE}]++|\\(?:[^\n{OPAQUE}]|(?=\n|\Z)|(?={OPAQUE})))*+")
    for quote in ('"', "'", "`")
}
_CLOSER = {quote: re.compile(rf"\\*+{quote}|\n|{OPAQUE}") for quote in ('"', "'", "`")}
_GLUED = re.compile(r"[\w@#%^*+=~!-]", re.ASCII)
_QUOTE_GLUED = re.compile(r"[\"'][\w@#%^*+=~!-][^\s\"']{0,256}+[\"']", re.ASCII)

#: A reference to a secret is not the secret, and the reviewer has to see it.
_REFERENCE = re.compile(
    r"""
      \$(?:[A-Z_][A-Z0-9_]*+|[a-z_]*(?:pass|pw|secret|token|key|cred)[a-z_]*)
    | \$\{[A-Za-z_][A-Za-z0-9_]*+\}
    | \$\{\{[^{}\n]{1,80}\}\} | \{\{[^{}\n]{1,80}\}\} | %[A-Z_][A-Z0-9_]*+% | %\([a-z_]+\)s | %[sr]
    | \$\((?:[^()]|\([^()]*+\))*+\)
    | (?:true|false|null|none|nil|undefined|nan|yes|no|on|off|str|string|int|integer|bool|boolean|bytes|text
       |varchar|optional|any|object|include|same-origin|omit|required|set|unset|empty|todo|\*{1,}|\.{2,}|…|-{1,})
    | (?:os\.environ|os\.getenv|getenv|environ|process\.env|import\.meta|env|System\.getenv|ENV|getpass|input
       |prompt|settings|config|self|this|request|args|opts|options|kwargs|vault|secrets|var|local|module|data
       |hashlib|uuid|get_\w+|load_\w+|read_\w+|fetch_\w+|create_\w+|generate_\w+|Field|SecretStr)
      \.?[\[(.].*
    """,
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)


class Value(NamedTuple):
    """A value at [start, end); `open` when the text ended before the value did."""

    start: int
    end: int
    open: bool
    closed_at: int


def read_value(text: str, at: int) -> Value | None:
    """The value that starts at `at`: quoted (at any depth of escaping), or a word. None when there is none."""
    opening = _OPENING.match(text, at)
    return _read_quoted(text, opening) if opening else _read_word(text, at)


def _read_word(text: str, at: int) -> Value | None:
    if text[at : at + 1] in ("", "(", "[", "{") or text.startswith(("$(", "${"), at):
        return None
    match = _PLAIN.match(text, at)
    if not match:
        return None
    end = match.end()
    if _QUOTE_GLUED.match(text, end):  # hun"ter2": one word to a shell
        return _join(text, at, end)
    while end > at and text[end - 1] in ".:":
        end -= 1
    if end == at:
        return None
    return Value(at, end, match.end() >= len(text), match.end())


def close_quoted(text: str, at: int, quote: str, depth: int) -> int:
    """Where quoted text from `at` ends: at its quote, a newline or the end. `depth`: backslashes before it."""
    if depth == 0:
        match = _QUOTED[quote].match(text, at)
        return match.end() if match else at
    for closer in _CLOSER[quote].finditer(text, at):
        if closer[0][-1] != quote:
            return closer.start()
        escapes = len(closer[0]) - 1
        if escapes <= depth:
            return closer.start()
    return len(text)


def _read_quoted(text: str, opening: re.Match[str]) -> Value | None:
    quote, depth = opening[0][-1], len(opening[0]) - 1
    start = opening.end()
    end = close_quoted(text, start, quote, depth)
    closer = end
    while text.startswith("\\", closer):
        closer += 1
    closed = text.startswith(quote, closer)
    after = closer + 1 if closed else end
    if (
        closed
        and after < len(text)
        and (_GLUED.match(text, after) or _QUOTE_GLUED.match(text, after) or end == start)
    ):
        joined = _join(text, start, after)
        if joined.end > after:
            return joined
    if end == start:
        return None
    return Value(start, end, end >= len(text), after)


def _join(text: str, start: int, at: int) -> Value:
    """A value of several pieces, quoted and not, without a blank between: "hun"'ter'2."""
    end = at
    for _ in range(32):
        opening = _OPENING.match(text, at)
        if opening and opening.end() < len(text) and not text[opening.end()].isspace():
            stop = close_quoted(text, opening.end(), opening[0][-1], len(opening[0]) - 1)
            if stop == opening.end():  # nothing in it: a closing quote of something larger
                at = stop
                break
            end = stop
            while text.startswith("\\", stop):
                stop += 1
            at = stop + 1 if text.startswith(opening[0][-1], stop) else stop
            continue
        match = _PLAIN.match(text, at)
        if not match:
            break
        at = end = match.end()
    return Value(start, end, end >= len(text), max(at, end))


def is_reference(value: str) -> bool:
    """Whether this names where a secret is kept, or is a word of a language, rather than a secret."""
    return not value.strip() or _REFERENCE.fullmatch(value.strip()) is not None


def label(kind: str, value: str) -> str:
    """`kind`, and the warning when the value could run something."""
    return kind + COMMAND if _COMMANDISH.search(value) else kind
