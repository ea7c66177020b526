"""What policy says of one action, in a form to keep and in sentences."""

import json
from dataclasses import dataclass
from typing import Any

from approvals.policy.facts import SHOWN
from approvals.policy.rules import REQUESTER_FIELDS, STATE_FIELDS, Comparison, Condition, Effect, Rule

# Bytes kept with an action, per list: four choices of a prompt fit an evidence payload of 64 KiB together.
KEEP_MATCHED, KEEP_SENTENCES, KEEP_NEAR = 10_000, 2_500, 1_500
SAID = 10  # rules that `explain` names one by one


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """How many different reviewers, none of them the requester, have to approve."""

    approvers: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition beside the fact it was held against, redacted and bounded for people."""

    condition: Condition
    fact: str
    judged: bool = True


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that matched. `number` counts the rules of the revision from 1."""

    number: int
    rule: Rule
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A rule for this operation and endpoint that failed on exactly one condition."""

    number: int
    rule: Rule
    finding: Finding


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy says of one action. `forbidden` is the sentence for the requester, else None."""

    forbidden: str | None
    need: Need
    floor: Need
    matched: tuple[Match, ...] = ()
    near: tuple[NearMiss, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The form kept with an action and in the evidence, at most 16 KiB: no floats, every fact redacted.

        The rules that decided come first; how many no longer fitted is counted.
        """
        matched = _fitting([_match_as_json(match) for match in self.deciding_first()], KEEP_MATCHED)
        near = _fitting([_near_miss_as_json(miss) for miss in self.near], KEEP_NEAR)
        return {
            "forbidden": self.forbidden,
            "approvers": self.need.approvers,
            "floor": self.floor.approvers,
            "sentences": _fitting(explain(self), KEEP_SENTENCES),
            "matched": matched,
            "matched_left_out": len(self.matched) - len(matched),
            "near": near,
            "near_left_out": len(self.near) - len(near),
        }

    def deciding_first(self) -> list[Match]:
        """The matches: forbids, then requirements from the strictest down, then allows."""
        return sorted(
            self.matched, key=lambda match: (match.rule.effect != Effect.FORBID, -match.rule.approvers)
        )


def _fitting(items: list[Any], most: int) -> list[Any]:
    """The first items that fit into `most` bytes together."""
    for index, item in enumerate(items):
        most -= len(json.dumps(item, ensure_ascii=False).encode())
        if most < 0:
            return items[:index]
    return items


def _match_as_json(match: Match) -> dict[str, Any]:
    return {
        "number": match.number,
        "rule": match.rule.name,
        "effect": match.rule.effect.value,
        "approvers": match.rule.approvers,
        "facts": [_finding_as_json(finding) for finding in match.findings],
    }


def _near_miss_as_json(miss: NearMiss) -> dict[str, Any]:
    head = {"number": miss.number, "rule": miss.rule.name, "effect": miss.rule.effect.value}
    return head | _finding_as_json(miss.finding)


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = {
        "field": finding.condition.field,
        "is": finding.condition.comparison.value,
        "fact": finding.fact,
    }
    return found if finding.judged else found | {"judged": False}


def stricter(new: Need, old: Need) -> bool:
    """Whether `new` asks for more than `old`: then what was approved under `old` is stale (rule 3)."""
    return new.approvers > old.approvers


def explain(verdict: Verdict) -> list[str]:
    """Plain sentences for the card: what is needed, and which rules ask for it, those that decided first."""
    if verdict.forbidden is not None:
        forbids = [match for match in verdict.matched if match.rule.effect == Effect.FORBID]
        return [
            f"Forbidden: {verdict.forbidden}",
            *(_because(match, "forbids it") for match in forbids[:SAID]),
        ]
    said = [_need_sentence(verdict.need)]
    matches = verdict.deciding_first()
    said += [_because(match, _part_of(match.rule, verdict.need)) for match in matches[:SAID]]
    if len(matches) > SAID:
        said.append(f"{len(matches) - SAID} more rules match and ask for no more than that.")
    if verdict.need.approvers and not any(match.rule.effect == Effect.REQUIRE for match in matches):
        said.append("The operation's contract asks for it, whatever the rules say.")
    elif not matches:
        said.append("No rule of this tenant speaks about it, and its contract asks for no approval.")
    return said


def _part_of(rule: Rule, need: Need) -> str:
    if rule.effect == Effect.ALLOW:
        return "allows it"
    if rule.approvers == need.approvers:
        return "asks for it"
    return f"matches too and asks for {_reviewers(rule.approvers)}"


def explain_near(verdict: Verdict) -> list[str]:
    """One sentence per near miss: which rule, and the one fact that kept it from matching."""
    return [
        f"Rule “{miss.rule.name}” would match if {_condition_words(miss.finding.condition)}; "
        f"it is {miss.finding.fact}."
        for miss in verdict.near
    ]


def _need_sentence(need: Need) -> str:
    if need.approvers == 0:
        return "Needs no approval."
    return f"Needs {_reviewers(need.approvers)} other than the requester."


def _reviewers(count: int) -> str:
    return "1 reviewer" if count == 1 else f"{count} different reviewers"


def _because(match: Match, verb: str) -> str:
    if not match.findings:
        return f"Rule “{match.rule.name}” {verb}: it holds for every such action."
    words = [
        _condition_words(finding.condition)
        if finding.judged
        else f"{_label(finding.condition.field)} cannot be compared ({finding.fact})"
        for finding in match.findings[:3]
    ]
    if len(match.findings) > 3:
        words.append(f"{len(match.findings) - 3} more conditions hold")
    return f"Rule “{match.rule.name}” {verb}: {', and '.join(words)}."


_VERBS = {
    Comparison.EQUALS: "is",
    Comparison.IN: "is one of",
    Comparison.CONTAINS: "contains",
    Comparison.GLOB: "looks like",
    Comparison.LESS: "is less than",
    Comparison.GREATER: "is greater than",
    Comparison.ABSENT: "is absent",
}


def _condition_words(condition: Condition) -> str:
    words = f"{_label(condition.field)} {_VERBS[condition.comparison]}"
    if condition.comparison == Comparison.ABSENT:
        return words
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    more = f" or one of {len(values) - 5} more" if len(values) > 5 else ""
    return f"{words} {', '.join(_quoted(value) for value in values[:5])}{more}"


def _label(name: str) -> str:
    return (
        STATE_FIELDS.get(name) or REQUESTER_FIELDS.get(name) or f"the input's {name.removeprefix('input.')}"
    )


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    return f"“{value}”" if len(value) <= SHOWN + 1 else f"“{value[:SHOWN]}…”"
