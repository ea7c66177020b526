"""Secrets that are known by the name in front of them: assignments, prose, flags, JSON, XML, name and value."""

import re
from collections.abc import Iterator

from .marks import OPAQUE
from .shadow import Shadow
from .values import COMMAND, Span, Value, Work, is_reference, label, read_value

#: Name stems by a literal they all start with, so that each costs one fast search. (kind, literal, rest)
_STEMS = (
    ("password", "pass", r"(?:w(?:or)?d|wort|phrase|code|)"),
    ("password", "pwd", ""),
    ("password", "pw", ""),
    ("password", "kennwort", ""),
    ("password", "contrase", r"[nñ]a"),
    ("password", "парол", r"ь?"),
    ("password", "identified by", ""),
    ("secret", "secret", ""),
    ("token", "token", ""),
    ("credential", "credential", ""),
    ("shared key", "psk", ""),
    ("session", "jsessionid", ""),
    ("session", "phpsessid", ""),
    ("session", "net_sessionid", ""),
    ("credential", "auth", ""),
    (
        "api key",
        "key",
        r"(?:(?<=apikey)|(?<=api[ _.-]key)|(?<=auth[ _.-]key)|(?<=authkey)|(?<=access[ _.-]key)|(?<=accesskey)"
        r"|(?<=private[ _.-]key)|(?<=privatekey)|(?<=encryption[ _.-]key)|(?<=signing[ _.-]key)"
        r"|(?<=master[ _.-]key)|(?<=account[ _.-]key)|(?<=accountkey)|(?<=service[ _.-]key)"
        r"|(?<=shared[ _.-]key)|(?<=storage[ _.-]key)|(?<=license[ _.-]key)|(?<=deploy[ _.-]key)"
        r"|(?<=ssh[ _.-]key)|(?<=client[ _.-]key)|(?<=app[ _.-]key)|(?<=admin[ _.-]key)|(?<=hmac[ _.-]key))",
    ),
)
#: Stems that are ordinary parts of other words: they count only as a whole part of a name.
_SHORT = frozenset({"pass", "pw", "psk", "auth", "pwd"})

_REST = r"""
    (?P<tail>[a-z0-9_-]{0,40}+)
    (?P<close>[\\"'`\])*]{0,9}+)
    (?:
        (?P<pair>,?\s{0,24}+[\\"']{0,9}+value[\\"']{0,9}+[ \t]{0,4}+[=:][ \t]{0,4}+)
      | [ \t]{0,16}+
        (?P<op>=>|:=|[=!]==?|[:=]|>(?=[^\s<>])|\((?=\\{0,9}["'])|,(?=[ \t]{0,4}+\\{0,9}["'])|%3d)[ \t*]{0,16}+
        (?P<below>\r?\n[ \t]{0,16}+(?=[^\s:=]{4,128}+[ \t]{0,16}+(?:[\r\n]|\Z)))?
      | [ \t]{1,8}+
        (?:(?:for|of|on)[ \t]{1,4}+[^\s:=]{1,40}+(?:[ \t]{1,4}+(?!is\b|was\b)[^\s:=]{1,40}+){0,2}+[ \t]{0,4}+)?+
        (?P<word>:|=|(?:is|was|are|equals|to|set[ ]to)(?=[\s:=]))
        (?:[ \t]{1,4}+(?:now|currently|still)(?=[\s:=]))?+[ \t]{0,4}+[:=]?[ \t*]{0,8}+
      | [ \t]{1,16}+(?P<bare>(?=\S))
    )
"""
_PATTERNS = tuple(
    (kind, literal, re.compile(f"{re.escape(literal)}{rest}{_REST}", re.VERBOSE | re.ASCII))
    for kind, literal, rest in _STEMS
    if " " not in literal
)
_IDENTIFIED = re.compile(
    r"identified[ ]{1,4}(?:with[ ]\S{1,40}[ ]{1,4})?by[ ]{1,4}(?:password[ ]{1,4})?(?=[\"'])"
)

#: What the rest of a name may say without making it the name of something public.
_TAIL = re.compile(
    r"s?(?:[_-].*|[0-9]+|(?:key|hash|salt|value|token|id|secret|word|text|string|confirm|confirmation)s?)?"
)
_PUBLIC_TAIL = re.compile(
    r".*(?:^|[_-])(?:type|url|uri|urls|endpoint|counts?|limits?|length|len|file|files|path|paths|name|names|expir\w*|ttl"
    r"|size|policy|required|enabled|disabled|stdin|env|from|ref|prompt|field|label|help|hint|min|max|age|budget"
    r"|usage|used|details|manager|store|provider|version|rotation|scopes?|algorithm|method|info|status|class)"
)
_TOKEN_COUNT = re.compile(r"[0-9][0-9.,_]{0,11}[km]?", re.ASCII | re.IGNORECASE)

#: What may follow "the password is" without being one.
_PROSE = frozenset(
    [
        "not",
        "a",
        "an",
        "the",
        "in",
        "on",
        "at",
        "of",
        "to",
        "for",
        "from",
        "and",
        "or",
        "but",
        "so",
        "be",
        "been",
        "being",
        "by",
        "as",
        "if",
        "it",
        "its",
        "that",
        "this",
        "these",
        "those",
        "required",
        "incorrect",
        "wrong",
        "invalid",
        "missing",
        "empty",
        "expired",
        "expiring",
        "too",
        "set",
        "needed",
        "correct",
        "valid",
        "stored",
        "now",
        "used",
        "never",
        "always",
        "only",
        "hidden",
        "masked",
        "redacted",
        "also",
        "still",
        "just",
        "very",
        "stale",
        "unknown",
        "unset",
        "optional",
        "mandatory",
        "available",
        "unavailable",
        "ok",
        "okay",
        "okey",
        "fine",
        "good",
        "bad",
        "weak",
        "strong",
        "secure",
        "insecure",
        "safe",
        "unsafe",
        "there",
        "here",
        "where",
        "what",
        "when",
        "which",
        "who",
        "how",
        "why",
        "yours",
        "mine",
        "ours",
        "theirs",
        "different",
        "same",
        "new",
        "old",
        "longer",
        "shorter",
        "changed",
        "rotated",
        "revoked",
        "rejected",
        "accepted",
        "refused",
        "denied",
        "given",
        "passed",
        "sent",
        "read",
        "written",
        "saved",
        "kept",
        "managed",
        "generated",
        "created",
        "encrypted",
        "hashed",
        "encoded",
        "provided",
        "supplied",
        "configured",
        "defined",
        "present",
        "absent",
        "blank",
        "about",
        "up",
        "down",
        "out",
        "over",
        "with",
        "without",
        "into",
        "under",
        "above",
        "below",
        "case",
        "sensitive",
        "accessible",
        "visible",
        "shown",
        "use",
        "get",
        "see",
        "have",
        "has",
        "had",
        "do",
        "does",
        "did",
        "can",
        "could",
        "will",
        "would",
        "should",
        "may",
        "might",
        "must",
        "enter",
        "type",
        "copy",
        "check",
        "ask",
        "tell",
        "reset",
        "change",
        "update",
        "verify",
        "protected",
        "protect",
        "authenticate",
        "authorise",
        "authorize",
        "log",
        "login",
        "sign",
        "you",
        "me",
        "us",
        "them",
        "him",
        "her",
        "my",
        "your",
        "our",
        "their",
        "one",
        "two",
        "more",
        "less",
        "than",
        "any",
        "some",
        "each",
        "every",
        "all",
        "both",
        "no",
        "yes",
    ]
)
_SOMETHING = re.compile(r"[^\s()\[\]{};,.:]")
_BARE_STOP = re.compile(r"[-/~.$<>|&;(){}\[\]=:,!?]|https?:|[a-z]+://")


def name_kind(name: str) -> str | None:
    """The kind of secret that a field of this name holds ("api_key" -> "api key"); None for other names."""
    low = name.lower()
    if len(low) > 200:
        return None
    if low.endswith("authorization") or low in ("cookie", "cookies", "set-cookie", "set_cookie"):
        return "cookie" if "cookie" in low else "authorization"
    for kind, _, pattern in _PATTERNS:
        for match in pattern.finditer(low + "="):
            if match["op"] and match.end() == len(low) + 1 and _is_name(name + "=", low + "=", match):
                return kind
    return None


def _is_name(text: str, low: str, match: re.Match[str]) -> bool:
    """Whether stem and tail make a whole name of something secret."""
    stem_start, tail = match.start(), match["tail"]
    stem = low[stem_start : match.start("tail")]
    tail_at = text[match.start("tail") : match.start("tail") + 1]
    camel_tail = tail_at.isupper() and text[match.start("tail") - 1].islower()
    if stem in _SHORT:
        before = text[stem_start - 1 : stem_start]
        if before.isalpha() and before != "$" and not (text[stem_start].isupper() and before.islower()):
            joined = low[max(0, stem_start - 8) : stem_start]
            if not joined.endswith(
                ("db", "pg", "my", "user", "root", "admin", "store", "key", "login", "smtp", "old")
            ):
                return False
        if tail and tail[0].isalpha() and not camel_tail:
            return False
    if tail and not camel_tail and not _TAIL.fullmatch(tail):
        return False
    if camel_tail:
        tail = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text[match.start("tail") : match.end("tail")]).lower()
        tail = "_" + tail
    return not _PUBLIC_TAIL.fullmatch(tail)


#: Words that make one name with what follows: "encryption key", "ENV PASSWORD".
_BEFORE_NAME = re.compile(
    r"(?:env|setx|api|access|auth|private|encryption|signing|master|account|service|shared|storage|license|deploy|ssh"
    r"|client|app|admin|hmac)[ \t]{1,4}\Z"
)


def _name_start(low: str, at: int) -> int:
    start = at
    while start > 0 and at - start < 48 and (low[start - 1].isalnum() or low[start - 1] in "_.-"):
        start -= 1
    return start


def assignments(twin: Shadow, work: Work) -> Iterator[Span]:
    """Values of secret-like names."""
    low = twin.low
    for kind, literal, pattern in _PATTERNS:
        if literal not in low:
            continue
        at = 0
        while match := pattern.search(low, at):
            work.spend()
            span = _assigned(twin, kind, match)
            at = max(match.end(), span.end) if span else match.start("tail") or match.end()
            if span:
                yield span
    if "identified" in low:
        for match in _IDENTIFIED.finditer(low):
            work.spend()
            value = read_value(twin.text, match.end())
            if value:
                yield _span(twin.text, "password", match.start(), value)


def _assigned(twin: Shadow, kind: str, match: re.Match[str]) -> Span | None:
    text, low = twin.text, twin.low
    if not _is_name(text, low, match):
        return None
    value = read_value(text, match.end())
    if value is None or text[value.start] == OPAQUE:
        return None
    if text.startswith(('")', "')"), value.start - 1):  # the end of a prompt: input("Password: ")
        return None
    following = text[value.end : value.end + 1]
    found = text[value.start : value.end]
    if is_reference(found + following if following in ("(", "[") else found) or not _SOMETHING.search(found):
        return None
    if not _plausible(twin, kind, match, value, found):
        return None
    start = _name_start(low, match.start())
    before = _BEFORE_NAME.search(low, max(0, start - 14), start)
    return _span(text, kind, before.start() if before else start, value)


def _span(text: str, kind: str, zone_start: int, value: Value) -> Span:
    found = text[value.start : value.end]
    substituted = text.startswith("`", value.start - 1) and " " in found  # what a shell would run
    named = kind + COMMAND if substituted else label(kind, found)
    return Span(value.start, value.end, named, zone_start, len(text) if value.open else value.closed_at)


def _plausible(twin: Shadow, kind: str, match: re.Match[str], value: Value, found: str) -> bool:
    """Whether the way name and value are joined makes this a value, and not the next word of a sentence."""
    low = twin.low
    stem = low[match.start() : match.start("tail")]
    if kind == "token" and match["tail"].startswith("s") and _TOKEN_COUNT.fullmatch(found):
        return False
    if stem == "pwd" and found.startswith(("/", "~")):  # the working directory
        return False
    quoted = value.start > match.end()
    if match["op"]:
        return _plausible_operator(twin, stem, match, found, quoted)
    if match["pair"]:
        return True
    start = _name_start(low, match.start())
    dashed = low.startswith("-", start) and not low[match.start() - 1].isalpha()
    flag = dashed or low[max(0, start - 5) : start].strip() in ("env", "setx")
    if flag and match["bare"] is not None:
        return not found.startswith("-") or quoted
    return _plausible_prose(kind, stem, match, found, quoted)


def _plausible_operator(twin: Shadow, stem: str, match: re.Match[str], found: str, quoted: bool) -> bool:
    low, operator = twin.low, match["op"]
    if operator == ">":
        start = _name_start(low, match.start())
        return low[max(0, start - 1) : start] == "<" or ":" in low[max(0, start - 1) : start]
    if operator == ",":  # header("X-Token", "abc"), but not the next member after a value
        start = _name_start(low, match.start())
        return bool(match["close"]) and low[max(0, start - 9) : start].rstrip("\\\"'`").endswith(("(", "["))
    if stem == "auth":  # a header or option that only says how: the value has to look like a credential
        return len(found) >= 8 and (quoted or any(c.isdigit() for c in found))
    if stem == "pass" and operator == ":" and not match["close"] and match["tail"] == "":
        # "PASS: test_x" and "pass: 12" are reports
        start = _name_start(low, match.start())
        return start < match.start() or not (found.isdigit() or "_" in found or "/" in found)
    return True


def _plausible_prose(kind: str, stem: str, match: re.Match[str], found: str, quoted: bool) -> bool:
    password = (kind == "password" and stem not in ("pass", "pwd", "pw")) or kind == "shared key"
    digit, letter = any(c.isdigit() for c in found), any(c.isalpha() for c in found)
    if match["word"] in (":", "="):
        return True
    if match["word"] in ("to", "set to"):
        return quoted or (password and digit) or len(found) >= 20
    if match["word"]:
        if stem in _SHORT - {"psk"} and not digit:
            return False
        return found.lower().rstrip(".,;:!?") not in _PROSE
    if quoted:
        return (password and len(found) >= 3) or len(found) >= 16
    if _BARE_STOP.match(found.lower()):
        return False
    return digit and letter and (len(found) >= 6 if password else len(found) >= 16)
