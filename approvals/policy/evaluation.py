"""Holds the rules of a tenant against the facts of one action."""

from collections.abc import Callable, Mapping, Sequence

from approvals.policy.facts import Facts, Reader, holds
from approvals.policy.rules import ALWAYS, Condition, Effect, Rule, Ruleset, any_glob, speaks_of_always
from approvals.policy.verdicts import Finding, Match, NearMiss, Need, Verdict
from hermes_portal.hermes.capabilities import CONTRACTS
from hermes_portal.redaction import redact


def evaluate(ruleset: Ruleset, facts: Facts, *, mask: Callable[[str], str] = redact) -> Verdict:
    """What the rules say of one action.

    `mask` makes a fact showable; give one that knows the endpoint's own token. A condition whose fact is
    there but cannot be compared counts as met for `forbid` and `require` and as not met for `allow`: doubt
    tightens.
    """
    floor = Need(1 if facts.contract_needs_approval else 0)
    if facts.operation not in CONTRACTS:
        return Verdict(f"The operation {facts.operation!r} is not known to this portal.", floor, floor)
    reader = Reader(facts, mask)
    matched: list[Match] = []
    near: list[NearMiss] = []
    fits: dict[tuple[str, ...], bool] = {}  # many rules name the same operations and endpoints
    for number, rule in enumerate(ruleset.rules, start=1):
        for patterns, name in ((rule.operations, facts.operation), (rule.endpoints, facts.endpoint_id)):
            key = (name, *patterns)
            if key not in fits:
                fits[key] = any_glob(patterns, name)
            if not fits[key]:
                break
        else:
            _judge(number, rule, reader, matched, near)
    approvers = max([floor.approvers, *(match.rule.approvers for match in matched)])
    return Verdict(_forbidden(facts, matched), Need(approvers), floor, tuple(matched), tuple(near))


def _judge(number: int, rule: Rule, reader: Reader, matched: list[Match], near: list[NearMiss]) -> None:
    """Adds the rule to the matches, to the near misses or to neither."""
    failed: Condition | None = None
    doubtful: list[Condition] = []
    for condition in rule.when:
        held = holds(condition, reader.fact(condition.field))
        if held is None and rule.effect != Effect.ALLOW:
            doubtful.append(condition)
        elif not held:
            if failed is not None:
                return
            failed = condition
    if failed is not None:
        near.append(NearMiss(number, rule, Finding(failed, reader.shown(failed.field))))
        return
    findings = (Finding(one, reader.shown(one.field), one not in doubtful) for one in rule.when)
    matched.append(Match(number, rule, tuple(findings)))


def _forbidden(facts: Facts, matched: Sequence[Match]) -> str | None:
    for match in matched:
        if match.rule.effect == Effect.FORBID:
            return match.rule.message
    if _asks_for_always(facts) and not any(_permits_always(match.rule) for match in matched):
        return (
            "The choice “always” is forbidden until a rule of this tenant allows it: it would let every later"
            " run and caller of that server use this class of command unasked."
        )
    return None


def _asks_for_always(facts: Facts) -> bool:
    if facts.operation != "run_approval":
        return False
    prompt = facts.state.get("prompt")
    chosen = prompt.get("choice") if isinstance(prompt, Mapping) else None
    return ALWAYS in (chosen, facts.input.get("choice"))


def _permits_always(rule: Rule) -> bool:
    return rule.effect == Effect.ALLOW and speaks_of_always(rule)
