"""The facts of one action, how a condition is held against them, and how people see them."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from approvals.policy.rules import Comparison, Condition, matches_glob

SHOWN = 200  # characters of a fact in a sentence
READ_FOR_SHOWING = 4000  # a longer text is named by its length: nothing is cut before it is redacted
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Facts:
    """What policy may know of one asked-for action.

    `input` is the canonical input, `state` what the provider showed, by root: {"prompt": {"command": ...}}.
    For `run_approval` the caller asks once per offered choice and puts it at `prompt.choice`.
    """

    operation: str
    endpoint_id: str
    contract_needs_approval: bool
    requester: str
    roles: Collection[str] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


def _same(left: Any, right: Any) -> bool:
    """Equal and of one kind: `true` is not 1, a text is never a number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return (
        type(left) in (int, float, str) and isinstance(left, str) == isinstance(right, str) and left == right
    )


def _any_text(fact: Any, test: Callable[[str], bool]) -> bool:
    """Whether a text, or any text inside a list or an object at any depth, passes.

    A run's input may be a text or a list of messages; a rule about its words must not be dodged by the other form.
    """
    left = [fact]
    while left:
        one = left.pop()
        if isinstance(one, str):
            if test(one):
                return True
        elif isinstance(one, Mapping):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return False


def _items(fact: Any) -> Sequence[Any]:
    return fact if isinstance(fact, list | tuple) else (fact,)


def _in(fact: Any, values: Any) -> bool:
    return any(_same(one, allowed) for one in _items(fact) for allowed in values)


def _contains(fact: Any, value: Any) -> bool:
    if isinstance(value, str):
        return value in fact if isinstance(fact, str) else _any_text(fact, lambda text: value in text)
    return isinstance(fact, list | tuple) and any(_same(one, value) for one in fact)


def _looks_like(fact: Any, pattern: Any) -> bool:
    return _any_text(fact, lambda text: matches_glob(pattern, text))


def _less(fact: Any, value: Any) -> bool | None:
    return bool(fact < value) if _is_number(fact) else None


def _greater(fact: Any, value: Any) -> bool | None:
    return bool(fact > value) if _is_number(fact) else None


def _is_number(fact: Any) -> bool:
    return isinstance(fact, int | float) and not isinstance(fact, bool) and fact == fact  # NaN is none


_COMPARE: dict[Comparison, Callable[[Any, Any], bool | None]] = {
    Comparison.EQUALS: _same,
    Comparison.IN: _in,
    Comparison.CONTAINS: _contains,
    Comparison.GLOB: _looks_like,
    Comparison.LESS: _less,
    Comparison.GREATER: _greater,
}


def holds(condition: Condition, fact: Any) -> bool | None:
    """Whether the condition holds; None when the fact is there but cannot be judged (a text with `less`)."""
    compare = _COMPARE.get(condition.comparison)
    absent = fact is _MISSING or fact is None
    if compare is None or absent:
        return absent and compare is None
    return compare(fact, condition.value)


class Reader:
    """Reads the facts by field, each at most once, and keeps the redacted form that people will see."""

    def __init__(self, facts: Facts, mask: Callable[[str], str]) -> None:
        self._roots: dict[str, Any] = {
            **facts.state,
            "input": facts.input,
            "requester": {"username": facts.requester, "roles": sorted(facts.roles)},
        }
        self._mask = mask
        self._facts: dict[str, Any] = {}
        self._shown: dict[str, str] = {}

    def fact(self, name: str) -> Any:
        if name not in self._facts:
            found: Any = self._roots
            for step in name.split("."):
                found = found.get(step, _MISSING) if isinstance(found, Mapping) else _MISSING
            self._facts[name] = found
        return self._facts[name]

    def shown(self, name: str) -> str:
        if name not in self._shown:
            self._shown[name] = _show(self.fact(name), self._mask)
        return self._shown[name]


def _show(fact: Any, mask: Callable[[str], str]) -> str:
    """A fact for people: redacted, on one line, at most 200 characters, never cut before masking."""
    if fact is _MISSING or fact is None:
        return "absent"
    if isinstance(fact, bool):
        return "true" if fact else "false"
    if isinstance(fact, int | float):
        return str(fact)
    try:
        text = fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False, default=str)
    except RecursionError:
        return "a list or object nested too deeply to show"
    if len(text) > READ_FOR_SHOWING:
        kind = "text" if isinstance(fact, str) else "list or object"
        return f"a {kind} of {len(text):,} characters"
    masked = " ".join(mask(text).split())
    if len(masked) <= SHOWN:
        return f"“{masked}”"
    cut = masked[:SHOWN]
    if "[" in cut and "]" not in cut[cut.rindex("[") :]:  # never end inside a mark such as [redacted:kind]
        cut = cut[: cut.rindex("[")]
    return f"“{cut}…”"
