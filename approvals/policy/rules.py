"""What a policy consists of: rules, their conditions, and the fields that conditions may read."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Scalar = str | int | bool

VERSION = 1
ALWAYS = "always"

# Members that a condition may read; a misspelt one would silently never match, so the list is closed.
# `input.` is followed by any member of the operation's input.
STATE_FIELDS = {
    "prompt.command": "the command",
    "prompt.description": "Hermes' description",
    "prompt.pattern_key": "Hermes' pattern",
    "prompt.pattern_keys": "Hermes' patterns",
    "prompt.choice": "the choice",
    "prompt.choices": "the offered choices",
    "prompt.allow_permanent": "the offer to remember the answer",
    "prompt.smart_denied": "the refusal by Hermes' own check",
}
REQUESTER_FIELDS = {"requester.username": "the requester", "requester.roles": "the requester's roles"}


class Effect(StrEnum):
    FORBID = "forbid"
    REQUIRE = "require"
    ALLOW = "allow"


class Comparison(StrEnum):
    EQUALS = "equals"
    IN = "in"
    CONTAINS = "contains"
    GLOB = "glob"
    LESS = "less"
    GREATER = "greater"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of one fact. `value` is a tuple for `in` and None for `absent`."""

    field: str
    comparison: Comparison
    value: Scalar | tuple[Scalar, ...] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """All of its conditions hold, or it does not match."""

    name: str
    operations: tuple[str, ...]
    endpoints: tuple[str, ...]
    when: tuple[Condition, ...]
    effect: Effect
    approvers: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ruleset:
    """The rules of a tenant, in the order in which they were written."""

    rules: tuple[Rule, ...] = ()

    def canonical(self) -> dict[str, Any]:
        """The one form that is stored and hashed; `parse_rules` reads it back to an equal ruleset."""
        return {"version": VERSION, "rules": [canonical_rule(rule) for rule in self.rules]}


def canonical_rule(rule: Rule) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": rule.name,
        "operations": list(rule.operations),
        "endpoints": list(rule.endpoints),
        "when": [_canonical_condition(condition) for condition in rule.when],
        "effect": rule.effect.value,
    }
    if rule.effect == Effect.REQUIRE:
        document["approvers"] = rule.approvers
    if rule.effect == Effect.FORBID:
        document["message"] = rule.message
    return document


def _canonical_condition(condition: Condition) -> dict[str, Any]:
    document: dict[str, Any] = {"field": condition.field, "is": condition.comparison.value}
    if condition.comparison != Comparison.ABSENT:
        value = condition.value
        document["value"] = list(value) if isinstance(value, tuple) else value
    return document


def matches_glob(pattern: str, text: str) -> bool:
    """Whether the whole text fits; `*` stands for any characters or none, every other character for itself.

    Case matters. Each part between stars is looked for once, leftmost first, so the time is linear: no
    pattern and no text can make it backtrack (case 36). `?` and `[` are ordinary: they are common in
    commands.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    last = rest.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in rest:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def any_glob(patterns: tuple[str, ...], text: str) -> bool:
    return any(matches_glob(pattern, text) for pattern in patterns)


def speaks_of_always(rule: Rule) -> bool:
    """Whether the rule names the choice "always" itself; a glob over all choices is no decision about it."""
    for condition in rule.when:
        if condition.field not in ("prompt.choice", "input.choice"):
            continue
        named = condition.value if isinstance(condition.value, tuple) else (condition.value,)
        if condition.comparison in (Comparison.EQUALS, Comparison.IN) and ALWAYS in named:
            return any_glob(rule.operations, "run_approval")
    return False
