"""Whole texts and JSON values in, redacted ones out."""

from collections.abc import Sequence
from typing import Any

from .assignments import name_kind
from .marks import MAX_INPUT, Redacted, gaps, masked, too_many_hidden, visible
from .scan import Found, scan
from .values import WorkLimit, is_reference

TOO_LARGE = Redacted(masked("too large to show safely"))
TOO_COSTLY = Redacted(masked("too many secrets to show safely"))
TOO_DEEP = Redacted(masked("nested too deep to show safely"))

#: A mask can bring together what stood apart; looking again until nothing is found makes `redact` idempotent.
_ROUNDS = 4
_MAX_DEPTH = 64


def redact(text: str, *, own: Sequence[str] = ()) -> Redacted:
    """`text` with every secret masked as `[redacted:kind]` and everything hidden in it made visible.

    `own`: the endpoint's tokens, removed in any encoding (case 35). Longer than MAX_INPUT characters, or more
    candidates than a text may hold: all of it is one mark (case 36). Idempotent, see the package's docstring.
    """
    if len(text) > MAX_INPUT:
        return TOO_LARGE
    if too_many_hidden(text):
        return TOO_LARGE
    try:
        result = _rounds(text, own)
    except WorkLimit:
        return TOO_COSTLY
    return result if len(result) <= MAX_INPUT else TOO_LARGE


def _rounds(text: str, own: Sequence[str]) -> Redacted:
    ours = isinstance(text, Redacted)
    for _ in range(_ROUNDS):
        found = scan(text, own=own, ours=ours)
        if ours and not found:
            return Redacted(text)
        text = render(text, found, 0, len(text), ours=ours)
        if len(text) > MAX_INPUT:
            return TOO_LARGE
        if not found:
            return Redacted(text)
        ours = True
    return Redacted(text) if not scan(text, own=own, ours=True) else TOO_COSTLY


def render(text: str, found: Sequence[Found], start: int, end: int, *, ours: bool) -> str:
    """text[start:end] with these stretches masked and the rest made visible."""
    parts: list[str] = []
    at = start
    for secret in found:
        if secret.start >= end:
            break
        if secret.end <= start:
            continue
        parts.append(_shown(text[at : secret.start], ours=ours))
        parts.append(masked(secret.kind))
        at = secret.end
    parts.append(_shown(text[at:end], ours=ours))
    return "".join(parts)


def _shown(text: str, *, ours: bool) -> str:
    if not ours:
        return visible(text)
    return "".join(text[a:b] if mark else visible(text[a:b]) for a, b, mark in gaps(text))


def redact_value(value: Any, *, own: Sequence[str] = ()) -> Any:
    """A JSON value, redacted through: texts, names of members, and whatever a secret-like name holds.

    Also `{"name": "API_KEY", "value": "..."}` pairs and lists that are command lines. Numbers under a
    password's name go too; booleans, null and counts of tokens stay.
    """
    return _walk(value, own, 0)


def _walk(value: Any, own: Sequence[str], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return TOO_DEEP
    if isinstance(value, str):
        return redact(value, own=own)
    if isinstance(value, dict):
        return _walk_object(value, own, depth)
    if isinstance(value, list | tuple):
        return _walk_list(list(value), own, depth)
    return value


def _walk_object(value: dict[Any, Any], own: Sequence[str], depth: int) -> dict[str, Any]:
    named = next((value[k] for k in ("name", "key", "Name", "Key") if isinstance(value.get(k), str)), None)
    pair_kind = name_kind(named) if named else None
    members: list[tuple[str, Any]] = []
    for name, member in value.items():
        kind = name_kind(str(name)) or (pair_kind if str(name).lower() == "value" else None)
        shown = _mask(member, kind, own, depth + 1) if kind else _walk(member, own, depth + 1)
        members.append((redact(str(name), own=own), shown))
    return _object(members)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these; where masked names are alike the later ones are numbered, so that none is lost."""
    counts: dict[str, int] = {}
    made: dict[str, Any] = {}
    for name, member in members:
        shown = name
        while shown in made:
            counts[name] = counts.get(name, 1) + 1
            shown = f"{name} ({counts[name]})"
        made[shown] = member
    return made


def _mask(value: Any, kind: str, own: Sequence[str], depth: int) -> Any:
    """`value` with every leaf masked: it stands under a name that says it is secret."""
    if depth > _MAX_DEPTH:
        return TOO_DEEP
    if isinstance(value, str):
        return redact(value, own=own) if is_reference(value) else Redacted(masked(kind))
    if isinstance(value, dict):
        return _object(
            [
                (redact(str(name), own=own), _mask(member, name_kind(str(name)) or kind, own, depth + 1))
                for name, member in value.items()
            ]
        )
    if isinstance(value, list | tuple):
        return [_mask(member, kind, own, depth + 1) for member in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Redacted(masked(kind)) if number and kind in ("password", "secret", "api key") else value


def _walk_list(members: list[Any], own: Sequence[str], depth: int) -> list[Any]:
    walked: list[Any] = []
    for index, member in enumerate(members):
        shown = _walk(member, own, depth + 1)
        if index and isinstance(member, str) and isinstance(members[index - 1], str):
            shown = _in_command_line(members, index, shown, own)
        walked.append(shown)
    return walked


def _in_command_line(members: list[Any], index: int, shown: str, own: Sequence[str]) -> str:
    """`shown`, or its mask when the words before it in the list make it a secret: ["-u", "me:secret"]."""
    before, member = members[index - 1], members[index]
    if len(members) == 2 and name_kind(before) and not is_reference(member):
        return Redacted(masked(name_kind(before) or "secret"))
    if not (before.startswith("-") or member.startswith("-")) or len(before) + len(member) > 4096:
        return shown
    first = members[0] if isinstance(members[0], str) and len(members[0]) < 64 else ""
    context = f"{first} {before} " if index > 1 else f"{before} "
    line = context + member
    secret = [found for found in scan(line, own=own) if found.end > len(context)]
    if not secret or any(found.start < len(context) for found in secret):
        return shown
    return Redacted(render(line, secret, len(context), len(line), ours=False))
