"""Reads policy documents. Whatever is not known is refused, with its place and a sentence."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from approvals.policy.rules import (
    REQUESTER_FIELDS,
    STATE_FIELDS,
    VERSION,
    Comparison,
    Condition,
    Effect,
    Rule,
    Ruleset,
    Scalar,
    any_glob,
    matches_glob,
    speaks_of_always,
)
from hermes_portal.hermes.capabilities import CONTRACTS

Words = TypeVar("Words", bound=StrEnum)

MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_RULES = 1000
MAX_CONDITIONS = 10
MAX_LIST = 100
MAX_APPROVERS = 20
MAX_NAME = 80
MAX_FIELD = 120
MAX_MESSAGE = 300
MAX_TEXT = 1000
MAX_INTEGER = 2**53 - 1  # own documents hold integers that every JSON reader can hold
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-*")


class PolicyError(ValueError):
    """A document that is no policy: `path` says where (`rules[2].effect`), `sentence` what to do about it."""

    def __init__(self, path: str, sentence: str) -> None:
        super().__init__(f"{path}: {sentence}" if path else sentence)
        self.path, self.sentence = path, sentence


def load_document(raw: bytes, filename: str) -> dict[str, Any]:
    """The document in a TOML or JSON file, told apart by the ending of `filename`.

    Raises PolicyError with a sentence that names the line where the reader stopped.
    """
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise PolicyError("", f"The file is larger than {MAX_DOCUMENT_BYTES} bytes.")
    ending = filename.rsplit(".", 1)[-1].lower()
    if ending not in ("toml", "json"):
        raise PolicyError("", "The file's name must end in .toml or .json.")
    try:
        text = raw.decode("utf-8")
        document = (
            tomllib.loads(text) if ending == "toml" else json.loads(text, object_pairs_hook=_no_duplicates)
        )
    except UnicodeDecodeError as error:
        raise PolicyError("", "The file is not UTF-8 text.") from error
    except RecursionError as error:
        raise PolicyError("", "The file is nested too deeply.") from error
    except PolicyError:
        raise
    except ValueError as error:  # both decoders' errors are of this kind and say the line
        raise PolicyError("", f"The file is not valid {ending.upper()}: {error}.") from error
    if not isinstance(document, dict):
        raise PolicyError("", "The document must be an object with the member rules.")
    return document


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise PolicyError("", f"The member {twice!r} stands twice in one object.")
    return document


def parse_rules(document: Mapping[str, Any]) -> Ruleset:
    """The ruleset in a document as `load_document` gives it, or in the canonical form.

    Raises PolicyError for anything that is not known: a member, an operation, a field, a comparison.
    """
    _only_members(document, "", ("version", "rules"))
    version = document.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise PolicyError("version", f"This portal reads version {VERSION} of policy documents.")
    raw_rules = _list(document.get("rules", []), "rules", most=MAX_RULES)
    rules = tuple(_rule(raw, f"rules[{index}]") for index, raw in enumerate(raw_rules))
    seen: dict[str, int] = {}
    for index, rule in enumerate(rules):
        if rule.name in seen:
            raise PolicyError(f"rules[{index}].name", f"rules[{seen[rule.name]}] has this name already.")
        seen[rule.name] = index
    return Ruleset(rules)


def _rule(raw: Any, path: str) -> Rule:
    _object(raw, path)
    _only_members(raw, path, ("name", "operations", "endpoints", "when", "effect", "approvers", "message"))
    effect = _word(raw, "effect", path, Effect)
    operations = _patterns(raw.get("operations"), f"{path}.operations")
    for index, pattern in enumerate(operations):
        if not any(matches_glob(pattern, name) for name in CONTRACTS):
            known = ", ".join(sorted(CONTRACTS))
            raise PolicyError(
                f"{path}.operations[{index}]", f"No operation is called {pattern!r}. Known: {known}."
            )
    when = _list(raw.get("when", []), f"{path}.when", most=MAX_CONDITIONS)
    rule = Rule(
        name=_text(raw.get("name"), f"{path}.name", most=MAX_NAME),
        operations=operations,
        endpoints=_patterns(raw.get("endpoints", ["*"]), f"{path}.endpoints"),
        when=tuple(_condition(one, f"{path}.when[{index}]") for index, one in enumerate(when)),
        effect=effect,
        approvers=_approvers(raw, path, effect),
        message=_message(raw, path, effect),
    )
    for index, condition in enumerate(rule.when):
        _refuse_unknown_input(condition.field, rule, f"{path}.when[{index}].field")
    _refuse_idle_allow(rule, path)
    return rule


def _touched(rule: Rule) -> list[str]:
    """The operations that a rule can be about."""
    return [name for name in CONTRACTS if any_glob(rule.operations, name)]


def _refuse_unknown_input(name: str, rule: Rule, path: str) -> None:
    """A member that no input of the rule's operations has would silently never match."""
    root, *steps = name.split(".")
    if root != "input" or any(_has_member(CONTRACTS[one].input_schema, steps) for one in _touched(rule)):
        return
    known = sorted({member for one in _touched(rule) for member in CONTRACTS[one].input_schema["properties"]})
    raise PolicyError(path, f"No input of these operations has {name!r}. Known: {', '.join(known)}.")


def _has_member(schema: Mapping[str, Any], steps: Sequence[str]) -> bool:
    for step in steps:
        members = schema.get("properties")
        if members is None:
            return True
        if step not in members:
            return False
        schema = members[step]
    return True


def _approvers(raw: Mapping[str, Any], path: str, effect: Effect) -> int:
    if effect != Effect.REQUIRE:
        if "approvers" in raw:
            raise PolicyError(
                f"{path}.approvers", "Only a rule with the effect require names a number of approvers."
            )
        return 0
    approvers = raw.get("approvers", 1)
    if not _is_integer(approvers) or not 1 <= approvers <= MAX_APPROVERS:
        raise PolicyError(f"{path}.approvers", f"Give a whole number from 1 to {MAX_APPROVERS}.")
    return int(approvers)


def _message(raw: Mapping[str, Any], path: str, effect: Effect) -> str:
    if effect == Effect.FORBID:
        return _text(raw.get("message"), f"{path}.message", most=MAX_MESSAGE)
    if "message" in raw:
        raise PolicyError(
            f"{path}.message", "Only a rule with the effect forbid has a message, for the requester."
        )
    return ""


def _refuse_idle_allow(rule: Rule, path: str) -> None:
    """An `allow` that can change nothing reads like a permission, so it is refused (rule 5)."""
    if rule.effect != Effect.ALLOW or speaks_of_always(rule):
        return
    touched = _touched(rule)
    if all(CONTRACTS[name].approval for name in touched):
        raise PolicyError(
            f"{path}.effect",
            f"allow has no effect on {', '.join(sorted(touched))}: the contract asks for an approver whatever"
            " the rules say. Use require for more approvers, or leave the rule out.",
        )


def _condition(raw: Any, path: str) -> Condition:
    _object(raw, path)
    _only_members(raw, path, ("field", "is", "value"))
    name = _field(raw.get("field"), f"{path}.field")
    comparison = _word(raw, "is", path, Comparison)
    if comparison == Comparison.ABSENT:
        if "value" in raw:
            raise PolicyError(f"{path}.value", "absent takes no value.")
        return Condition(name, comparison)
    if "value" not in raw:
        raise PolicyError(f"{path}.value", f"{comparison.value} needs a value to compare with.")
    return Condition(name, comparison, _value(raw["value"], comparison, f"{path}.value"))


def _field(raw: Any, path: str) -> str:
    name = _text(raw, path, most=MAX_FIELD)
    steps = name.split(".")
    if name in STATE_FIELDS or name in REQUESTER_FIELDS:
        return name
    if steps[0] == "input" and len(steps) > 1 and all(steps):
        return name
    known = ", ".join(("input.<member>", *STATE_FIELDS, *REQUESTER_FIELDS))
    raise PolicyError(path, f"{name!r} is not a known field. Known: {known}.")


def _value(raw: Any, comparison: Comparison, path: str) -> Scalar | tuple[Scalar, ...]:
    if comparison == Comparison.IN:
        values = _list(raw, path, least=1, most=MAX_LIST)
        return tuple(_scalar(one, f"{path}[{index}]") for index, one in enumerate(values))
    if comparison == Comparison.GLOB:
        return _text(raw, path, most=MAX_TEXT, printable=False)
    if comparison in (Comparison.LESS, Comparison.GREATER) and not _is_integer(raw):
        raise PolicyError(path, f"{comparison.value} compares with a whole number.")
    return _scalar(raw, path)


def _scalar(raw: Any, path: str) -> Scalar:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        return _text(raw, path, most=MAX_TEXT, printable=False)
    if _is_integer(raw) and abs(raw) <= MAX_INTEGER:
        return int(raw)
    raise PolicyError(path, "Give a text, a whole number below 2^53, true or false.")


def _patterns(raw: Any, path: str) -> tuple[str, ...]:
    """Exact names or globs, sorted and each once: their order means nothing."""
    found = set()
    for index, one in enumerate(_list(raw, path, least=1, most=MAX_LIST)):
        pattern = _text(one, f"{path}[{index}]", most=128)
        if not _NAME_CHARACTERS.issuperset(pattern):
            raise PolicyError(
                f"{path}[{index}]", "A name holds a-z, 0-9, _ and -; * stands for any part of it."
            )
        found.add(pattern)
    return tuple(sorted(found))


def _object(raw: Any, path: str) -> None:
    if not isinstance(raw, Mapping):
        raise PolicyError(path, "This must be an object.")


def _only_members(raw: Mapping[str, Any], path: str, known: Sequence[str]) -> None:
    for name in raw:
        if name not in known:
            where = f"{path}.{name}" if path else str(name)
            raise PolicyError(where, f"There is no such member here. Known: {', '.join(known)}.")


def _list(raw: Any, path: str, *, least: int = 0, most: int) -> Sequence[Any]:
    if not isinstance(raw, list | tuple):
        raise PolicyError(path, "This must be a list." if raw is not None else "This list is missing.")
    if not least <= len(raw) <= most:
        raise PolicyError(path, f"This list must hold {least} to {most} items.")
    return raw


def _word(raw: Mapping[str, Any], name: str, path: str, words: type[Words]) -> Words:
    given = raw.get(name)
    for word in words:
        if given == word.value:
            return word
    raise PolicyError(f"{path}.{name}", f"Give one of {', '.join(word.value for word in words)}.")


def _text(raw: Any, path: str, *, most: int, printable: bool = True) -> str:
    """A text of 1 to `most` characters. What people read on a card holds nothing invisible (rule 10)."""
    if not isinstance(raw, str) or not raw.strip():
        raise PolicyError(path, "Give a text that is not empty.")
    if len(raw) > most:
        raise PolicyError(path, f"This text is longer than {most} characters.")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in raw):
        raise PolicyError(path, "This text holds a NUL or half of a character pair.")
    if printable and not raw.isprintable():
        raise PolicyError(path, "This text holds a control character or an invisible one.")
    return raw


def _is_integer(raw: Any) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool)
