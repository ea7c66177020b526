"""Policy: what is parsed, what is refused, and what follows from rules and facts (rule 5)."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approvals.policy import (
    MAX_RULES,
    Effect,
    Facts,
    Need,
    PolicyError,
    Ruleset,
    Verdict,
    evaluate,
    explain,
    explain_near,
    load_document,
    matches_glob,
    parse_rules,
    stricter,
)
from hermes_portal import canonical
from hermes_portal.hermes.capabilities import CONTRACTS

pytestmark = pytest.mark.once
EXAMPLE = Path(__file__).parents[2] / "docs" / "policy-example.toml"


def rule(effect: str = "require", **members: Any) -> dict[str, Any]:
    """A rule that matches everything it can, unless told otherwise."""
    base: dict[str, Any] = {"name": "A rule", "operations": ["*"], "effect": effect}
    if effect == "forbid":
        base["message"] = "No."
    return base | members


def condition(field: str, comparison: str, *value: Any) -> dict[str, Any]:
    return {"field": field, "is": comparison} | ({"value": value[0]} if value else {})


def rules(*documents: dict[str, Any]) -> Ruleset:
    named = [
        document | {"name": f"{document['name']} {index}"} for index, document in enumerate(documents, 1)
    ]
    return parse_rules({"rules": named})


def facts(operation: str = "run_approval", **members: Any) -> Facts:
    given: dict[str, Any] = {
        "endpoint_id": "build-1",
        "contract_needs_approval": CONTRACTS[operation].approval if operation in CONTRACTS else True,
        "requester": "remy",
        "roles": ("requester",),
        "input": {"run_id": "run_" + "a" * 32, "choice": "once", "resolve_all": False},
        "state": {"prompt": {"command": "rm -rf /srv/cache", "pattern_key": "rm_rf", "choice": "once"}},
    }
    return Facts(operation=operation, **given | members)


def judge(*documents: dict[str, Any], **members: Any) -> Verdict:
    return evaluate(rules(*documents), facts(**members), mask=str)


def holds(one: dict[str, Any], **members: Any) -> bool:
    return bool(judge(rule(when=[one]), **members).matched)


# --- the floor -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", list(CONTRACTS))
def test_without_rules_the_contracts_floor_holds(operation: str):
    verdict = evaluate(Ruleset(), facts(operation))
    assert verdict.forbidden is None
    assert verdict.need == Need(1 if CONTRACTS[operation].approval else 0)


def test_exactly_eight_operations_need_an_approver_by_contract():
    needing = {name for name in CONTRACTS if evaluate(Ruleset(), facts(name)).need.approvers}
    assert needing == {"run_approval", "run_stop"} | {
        f"job_{verb}" for verb in ("create", "update", "delete", "pause", "resume", "run")
    }


def test_an_operation_that_is_not_known_is_forbidden_whatever_the_rules_say():
    verdict = judge(rule("allow"), operation="run_everything")
    assert verdict.forbidden is not None
    assert verdict.need.approvers == 1


def test_allow_cannot_loosen_what_the_contract_asks_for():
    verdict = judge(rule("allow"), operation="run_stop", state={})
    assert verdict.need == Need(1)


def test_allow_does_not_lower_what_another_rule_requires():
    assert judge(rule("allow"), rule(approvers=2), operation="run_start").need == Need(2)


# --- effects ---------------------------------------------------------------------------------------------------


def test_several_requirements_add_up_to_the_strictest():
    assert judge(rule(approvers=2), rule(approvers=3), rule(approvers=1)).need == Need(3)


def test_a_requirement_reaches_operations_whose_contract_asks_for_nothing():
    assert judge(rule(), operation="run_start").need == Need(1)


def test_forbid_beats_everything_and_its_sentence_is_shown():
    verdict = judge(rule("allow"), rule("forbid", message="Not on Fridays."), rule(approvers=2))
    assert verdict.forbidden == "Not on Fridays."
    assert verdict.need == Need(2)


def test_a_rule_for_another_operation_or_endpoint_does_not_match():
    other = rule("forbid", operations=["run_stop"]), rule("forbid", endpoints=["prod-*"])
    assert judge(*other).forbidden is None
    assert judge(*other, endpoint_id="prod-7").forbidden == "No."


def test_all_conditions_of_a_rule_have_to_hold():
    both = [condition("prompt.command", "contains", "rm"), condition("prompt.choice", "equals", "session")]
    assert judge(rule(when=both, approvers=2)).need == Need(1)
    session = {"prompt": {"command": "rm x", "choice": "session"}}
    assert judge(rule(when=both, approvers=2), state=session).need == Need(2)


# --- always ----------------------------------------------------------------------------------------------------

ALWAYS = {"prompt": {"command": "ls /srv", "choice": "always"}}
PERMIT = rule("allow", operations=["run_approval"], when=[condition("prompt.choice", "equals", "always")])


def test_always_is_forbidden_until_a_rule_says_otherwise():
    assert "forbidden until a rule" in str(judge(state=ALWAYS).forbidden)
    assert "forbidden until a rule" in str(judge(rule(approvers=2), state=ALWAYS).forbidden)


def test_always_in_the_input_alone_is_noticed_too():
    assert judge(input={"choice": "always"}, state={}).forbidden is not None


def test_always_that_a_rule_permits_still_needs_one_approver():
    verdict = judge(PERMIT, state=ALWAYS)
    assert verdict.forbidden is None
    assert verdict.need == Need(1)


@pytest.mark.parametrize(
    "weak",
    [
        rule("allow"),
        rule("allow", when=[condition("prompt.choice", "glob", "*")]),
        rule("allow", when=[condition("prompt.choice", "contains", "a")]),
        rule("require", when=[condition("prompt.choice", "equals", "always")]),
        rule("allow", operations=["run_*"], when=[condition("prompt.command", "equals", "always")]),
    ],
)
def test_a_rule_that_does_not_name_always_does_not_permit_it(weak: dict[str, Any]):
    assert judge(weak, state=ALWAYS).forbidden is not None


def test_a_permission_for_always_holds_only_where_its_other_conditions_hold():
    narrow = PERMIT | {"when": [*PERMIT["when"], condition("prompt.command", "glob", "ls *")]}
    assert judge(narrow, state=ALWAYS).forbidden is None
    other = {"prompt": {"command": "dropdb billing", "choice": "always"}}
    assert judge(narrow, state=other).forbidden is not None


def test_forbid_beats_a_permission_for_always():
    assert judge(PERMIT, rule("forbid"), state=ALWAYS).forbidden == "No."


# --- conditions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comparison", "value", "fact", "expected"),
    [
        ("equals", "a", "a", True),
        ("equals", "a", "A", False),
        ("equals", 1, 1, True),
        ("equals", 1, True, False),
        ("equals", True, 1, False),
        ("equals", True, True, True),
        ("equals", 1, 1.0, True),
        ("equals", "1", 1, False),
        ("equals", "a", ["a"], False),
        ("in", ["a", "b"], "b", True),
        ("in", ["a", "b"], "c", False),
        ("in", ["a", 1], ["x", 1], True),
        ("in", [1], [True], False),
        ("contains", "rm", "xrmx", True),
        ("contains", "rm", ["ls", "rm -r"], True),
        ("contains", "rm", [{"role": "user", "content": "please rm it"}], True),
        ("contains", "rm", [{"rm": "ls"}], False),
        ("contains", 2, [1, 2], True),
        ("contains", 2, 2, False),
        ("contains", True, [1], False),
        ("glob", "rm *", "rm -rf /", True),
        ("glob", "rm *", "sudo rm -rf /", False),
        ("glob", "*rm*", [{"content": [{"text": "rm"}]}], True),
        ("less", 5, 4, True),
        ("less", 5, 5, False),
        ("less", 5, 4.5, True),
        ("greater", 5, 6, True),
        ("greater", 5, 5, False),
    ],
)
def test_a_comparison(comparison: str, value: Any, fact: Any, expected: bool):
    assert (
        holds(condition("prompt.command", comparison, value), state={"prompt": {"command": fact}}) is expected
    )


@pytest.mark.parametrize("comparison", ["equals", "in", "contains", "glob", "less", "greater"])
@pytest.mark.parametrize("prompt", [{}, {"command": None}])
def test_a_fact_that_is_absent_meets_no_comparison(comparison: str, prompt: dict[str, Any]):
    value: Any = {"in": ["x"], "less": 1, "greater": 1}.get(comparison, "*")
    assert not holds(condition("prompt.command", comparison, value), state={"prompt": prompt})
    assert holds(condition("prompt.command", "absent"), state={"prompt": prompt})


def test_a_fact_that_is_there_is_not_absent():
    assert not holds(condition("prompt.command", "absent"), state={"prompt": {"command": ""}})


def test_dotted_fields_reach_into_the_input():
    deep = condition("input.body.instructions", "equals", "deep")
    assert holds(deep, operation="run_start", input={"body": {"instructions": "deep"}})
    assert not holds(deep, operation="run_start", input={"body": "instructions"})
    assert not holds(deep, operation="run_start", input={})


def test_the_requester_is_a_fact():
    assert holds(condition("requester.username", "equals", "remy"))
    assert holds(condition("requester.roles", "in", ["requester"]))
    assert not holds(condition("requester.roles", "in", ["admin"]))


def test_state_can_never_pose_as_input_or_requester():
    posing = {"input": {"run_id": "forged"}, "requester": {"username": "forged"}}
    assert not holds(condition("input.run_id", "equals", "forged"), state=posing)
    assert not holds(condition("requester.username", "equals", "forged"), state=posing)


@pytest.mark.parametrize("fact", ["12", True, [12], {"n": 12}, float("nan")])
def test_what_cannot_be_compared_tightens_and_never_loosens(fact: Any):
    doubtful = [condition("prompt.command", "greater", 5)]
    state = {"prompt": {"command": fact, "choice": "always"}}
    assert judge(rule(when=doubtful, approvers=3), state=state).need == Need(3)
    assert judge(rule("forbid", when=doubtful), state=state).forbidden == "No."
    permit = PERMIT | {"when": [*PERMIT["when"], *doubtful]}
    assert "until a rule" in str(judge(permit, state=state).forbidden)
    (match,) = judge(rule(when=doubtful), state=state).matched
    assert match.findings[0].judged is False


def test_a_text_cannot_hide_in_depth():
    fact: Any = "rm"
    for _ in range(5000):
        fact = [fact]
    assert holds(condition("prompt.command", "contains", "rm"), state={"prompt": {"command": fact}})


# --- globs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("*", "a\nb", True),
        ("a*", "a", True),
        ("a*", "ba", False),
        ("*a", "ba", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("ab*ba", "aba", False),
        ("*ab*ab*", "abab", True),
        ("*ab*ab*", "aab", False),
        ("a**b", "ab", True),
        ("rm -?", "rm -f", False),
        ("rm -?", "rm -?", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("A", "a", False),
    ],
)
def test_a_glob(pattern: str, text: str, expected: bool):
    assert matches_glob(pattern, text) is expected


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_glob_agrees_with_its_definition(pattern: str, text: str):
    def fits(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "*":
            return any(fits(p[1:], t[at:]) for at in range(len(t) + 1))
        return bool(t) and t[0] == p[0] and fits(p[1:], t[1:])

    assert matches_glob(pattern, text) is fits(pattern, text)


@pytest.mark.parametrize("pattern", ["*a" * 100 + "*b", "*" * 500 + "b", "a*" * 200 + "b", "*aaaaab*" * 50])
def test_no_glob_and_no_text_make_it_slow(pattern: str):
    """Linear: a pattern that would take a backtracking matcher years. The bound is generous, the machine is shared."""
    started = time.process_time()
    matches_glob(pattern, "a" * 1_000_000)
    assert time.process_time() - started < 2


# --- near misses -----------------------------------------------------------------------------------------------


def test_a_rule_that_fails_on_exactly_one_condition_is_a_near_miss_with_the_fact():
    two = [condition("prompt.command", "contains", "rm"), condition("prompt.choice", "equals", "session")]
    verdict = judge(rule(when=two))
    (miss,) = verdict.near
    assert (miss.number, miss.finding.condition.field, miss.finding.fact) == (1, "prompt.choice", "“once”")
    assert explain_near(verdict) == ["Rule “A rule 1” would match if the choice is “session”; it is “once”."]


def test_a_rule_that_fails_on_two_conditions_or_is_about_something_else_is_no_near_miss():
    two = [condition("prompt.command", "contains", "dropdb"), condition("prompt.choice", "equals", "session")]
    assert judge(rule(when=two), rule(operations=["run_stop"]), rule(endpoints=["prod"])).near == ()


# --- what people see -------------------------------------------------------------------------------------------


def test_the_card_reads_in_plain_sentences():
    delete = rule(name="Commands that delete", when=[condition("prompt.command", "contains", "rm -rf")])
    assert explain(judge(delete)) == [
        "Needs 1 reviewer other than the requester.",
        "Rule “Commands that delete 1” asks for it: the command contains “rm -rf”.",
    ]
    assert explain(judge()) == [
        "Needs 1 reviewer other than the requester.",
        "The operation's contract asks for it, whatever the rules say.",
    ]
    assert explain(judge(operation="run_start")) == [
        "Needs no approval.",
        "No rule of this tenant speaks about it, and its contract asks for no approval.",
    ]
    assert explain(judge(rule(approvers=2), rule())) == [
        "Needs 2 different reviewers other than the requester.",
        "Rule “A rule 1” asks for it: it holds for every such action.",
        "Rule “A rule 2” matches too and asks for 1 reviewer: it holds for every such action.",
    ]
    assert explain(judge(rule("forbid", message="Not today."))) == [
        "Forbidden: Not today.",
        "Rule “A rule 1” forbids it: it holds for every such action.",
    ]


def test_facts_are_masked_before_they_are_cut_and_a_mark_is_never_cut():
    def mask(text: str) -> str:
        return text.replace("hunter2", "[redacted:password]")

    one = rules(rule(when=[condition("prompt.command", "contains", "curl")]))
    for padding in range(150, 230):
        command = "curl " + "x" * padding + " hunter2 tail"
        shown = (
            evaluate(one, facts(state={"prompt": {"command": command}}), mask=mask)
            .matched[0]
            .findings[0]
            .fact
        )
        assert "hunter" not in shown
        assert shown.count("[") == shown.count("]")


def test_a_very_long_fact_is_named_by_its_length():
    state = {"prompt": {"command": "rm " + "x" * 10_000}}
    (match,) = judge(rule(when=[condition("prompt.command", "contains", "rm")]), state=state).matched
    assert match.findings[0].fact == "a text of 10,003 characters"


def test_the_stored_form_fits_into_evidence_four_times_whatever_the_rules_are():
    many = [
        rule(
            name="🧪" * 70 + str(number),
            approvers=number % 20 + 1,
            when=[condition("prompt.command", "contains", "漢" * at) for at in range(1, 11)],
        )
        for number in range(500)
    ]
    missing = [condition("prompt.command", "absent")]
    many += [rule(name=f"near {number}", when=missing) for number in range(499)]
    state = {"prompt": {"command": "漢" * 3900, "choice": "once"}}
    verdict = evaluate(parse_rules({"rules": many}), facts(state=state), mask=str)
    stored = verdict.as_json()
    assert len(canonical.dumps([stored] * 4)) < 64 * 1024
    assert stored["matched"][0]["approvers"] == stored["approvers"] == 20
    assert len(stored["matched"]) + stored["matched_left_out"] == 500
    assert len(stored["near"]) + stored["near_left_out"] == 499


def test_the_stored_form_has_a_canonical_form_whatever_the_provider_sent():
    state = {"prompt": {"command": 1e300, "pattern_key": float("inf"), "choice": "once"}}
    two = [condition("prompt.command", "greater", 5), condition("prompt.pattern_key", "greater", 5)]
    canonical.dumps(
        judge(rule(when=two), rule(when=[condition("prompt.command", "less", 5)]), state=state).as_json()
    )


def test_stricter_compares_needs():
    assert stricter(Need(2), Need(1))
    assert not stricter(Need(1), Need(1))
    assert not stricter(Need(1), Need(2))


# --- documents -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"rule": []}, "rule"),
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"rules": {}}, "rules"),
        ({"rules": [1]}, "rules[0]"),
        ({"rules": [rule(name="")]}, "rules[0].name"),
        ({"rules": [rule(name="a\nb")]}, "rules[0].name"),
        ({"rules": [rule(name="a\u202eb")]}, "rules[0].name"),
        ({"rules": [rule(name="a" * 81)]}, "rules[0].name"),
        ({"rules": [rule(), rule()]}, "rules[1].name"),
        ({"rules": [rule(effect="permit")]}, "rules[0].effect"),
        ({"rules": [rule() | {"effect": None}]}, "rules[0].effect"),
        ({"rules": [rule(operations=None)]}, "rules[0].operations"),
        ({"rules": [rule(operations=[])]}, "rules[0].operations"),
        ({"rules": [rule(operations="*")]}, "rules[0].operations"),
        ({"rules": [rule(operations=["*", "run_fly"])]}, "rules[0].operations[1]"),
        ({"rules": [rule(operations=["RUN_STOP"])]}, "rules[0].operations[0]"),
        ({"rules": [rule(endpoints=["Prod"])]}, "rules[0].endpoints[0]"),
        ({"rules": [rule(endpoints=["pro[dx]"])]}, "rules[0].endpoints[0]"),
        ({"rules": [rule(approvers=0)]}, "rules[0].approvers"),
        ({"rules": [rule(approvers=True)]}, "rules[0].approvers"),
        ({"rules": [rule(approvers=1.5)]}, "rules[0].approvers"),
        ({"rules": [rule(approvers=21)]}, "rules[0].approvers"),
        ({"rules": [rule("forbid", approvers=1)]}, "rules[0].approvers"),
        ({"rules": [rule("forbid", message="")]}, "rules[0].message"),
        ({"rules": [rule(message="Why")]}, "rules[0].message"),
        ({"rules": [rule(regex="^a")]}, "rules[0].regex"),
        ({"rules": [rule(when={})]}, "rules[0].when"),
        ({"rules": [rule(when=[condition("prompt.command", "equals", "x")] * 11)]}, "rules[0].when"),
        ({"rules": [rule(when=[condition("prompt.comand", "equals", "x")])]}, "rules[0].when[0].field"),
        ({"rules": [rule(when=[condition("input", "equals", "x")])]}, "rules[0].when[0].field"),
        ({"rules": [rule(when=[condition("input..a", "equals", "x")])]}, "rules[0].when[0].field"),
        ({"rules": [rule(when=[condition("input.nothing", "equals", "x")])]}, "rules[0].when[0].field"),
        (
            {"rules": [rule(operations=["run_start"], when=[condition("input.job_id", "equals", "x")])]},
            "rules[0].when[0].field",
        ),
        ({"rules": [rule(when=[condition("prompt.command", "matches", "x")])]}, "rules[0].when[0].is"),
        ({"rules": [rule(when=[condition("prompt.command", "equals")])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "equals", 1.5)])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "equals", 2**53)])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "equals", None)])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "equals", "\ud83d")])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "in", [])])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "in", "abc")])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "in", ["a", []])])]}, "rules[0].when[0].value[1]"),
        ({"rules": [rule(when=[condition("prompt.command", "glob", 1)])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "less", "1")])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "absent", "x")])]}, "rules[0].when[0].value"),
        ({"rules": [rule(when=[condition("prompt.command", "contains", "")])]}, "rules[0].when[0].value"),
        ({"rules": [rule("allow", operations=["run_stop"])]}, "rules[0].effect"),
        ({"rules": [rule("allow", operations=["job_p*", "run_approval"])]}, "rules[0].effect"),
    ],
)
def test_what_is_not_known_is_refused_with_its_place(document: dict[str, Any], path: str):
    with pytest.raises(PolicyError) as caught:
        parse_rules(document)
    assert caught.value.path == path
    assert caught.value.sentence.endswith(".")


def test_a_policy_has_at_most_a_thousand_rules():
    many = [rule(name=f"rule {number}") for number in range(MAX_RULES + 1)]
    assert len(parse_rules({"rules": many[:-1]}).rules) == MAX_RULES
    with pytest.raises(PolicyError):
        parse_rules({"rules": many})


def test_the_canonical_form_reads_back_to_the_same_rules_and_the_same_bytes():
    parsed = parse_rules(load_document(EXAMPLE.read_bytes(), EXAMPLE.name))
    stored = json.loads(canonical.dumps(parsed.canonical()))
    assert parse_rules(stored) == parsed
    assert canonical.dumps(parse_rules(stored).canonical()) == canonical.dumps(parsed.canonical())


def test_ways_to_write_the_same_rules_have_one_canonical_form():
    short = parse_rules({"rules": [rule(operations=["run_stop", "run_approval"])]})
    long = parse_rules(
        {
            "version": 1,
            "rules": [
                rule(
                    operations=["run_approval", "run_stop", "run_stop"], endpoints=["*"], when=[], approvers=1
                )
            ],
        }
    )
    assert short.canonical() == long.canonical()


def test_toml_and_json_say_the_same():
    toml = load_document(EXAMPLE.read_bytes(), "policy.TOML")
    assert load_document(json.dumps(toml).encode(), "policy.json") == toml


@pytest.mark.parametrize(
    ("raw", "name", "says"),
    [
        (b"", "policy.yaml", "must end in"),
        (b"", "policy", "must end in"),
        (b"\xff", "policy.toml", "UTF-8"),
        (b"a = \nb = 1", "policy.toml", "line 1"),
        (b"{", "policy.json", "line 1"),
        (b"[]", "policy.json", "must be an object"),
        (b'{"rules": [], "rules": []}', "policy.json", "twice"),
        (b"[" * 100_000, "policy.json", "nested"),
        (b" " * (1024 * 1024 + 1), "policy.json", "larger"),
        (b'{"version": ' + b"1" * 5000 + b"}", "policy.json", "valid JSON"),
    ],
)
def test_a_file_that_is_no_document_is_refused_with_a_sentence(raw: bytes, name: str, says: str):
    with pytest.raises(PolicyError, match=says):
        load_document(raw, name)


def test_json_numbers_that_policy_does_not_use_are_refused():
    document = load_document(b'{"version": NaN}', "policy.json")
    with pytest.raises(PolicyError):
        parse_rules(document)


# --- the example -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Callable[..., Verdict]:
    ruleset = parse_rules(load_document(EXAMPLE.read_bytes(), EXAMPLE.name))
    return lambda *arguments, **members: evaluate(ruleset, facts(*arguments, **members), mask=str)


def test_the_example_does_what_it_says(example: Callable[..., Verdict]):
    def prompt(command: str, choice: str) -> dict[str, Any]:
        return {"prompt": {"command": command, "choice": choice}}

    assert example(state=prompt("rm -rf /srv/cache", "once")).need == Need(2)
    assert example(state=prompt("ls /srv", "once")).need == Need(1)
    assert example(state=prompt("ls /srv", "session")).need == Need(2)
    assert example(state=prompt("ls /srv", "always")).forbidden is None
    assert example(state=prompt("dropdb billing", "always")).forbidden is not None
    assert "audited" in str(example("run_start", endpoint_id="payroll-2", state={}, input={}).forbidden)
    assert example("run_start", state={}, input={"body": {"input": "hello"}}).need == Need(0)
    assert example("run_start", state={}, input={"body": {"instructions": "be bold"}}).need == Need(1)
    assert example("run_stop", requester="temp-7", state={}).forbidden is not None


# --- properties ------------------------------------------------------------------------------------------------

FIELDS = st.sampled_from(
    ["prompt.command", "prompt.choice", "prompt.choices", "requester.username", "requester.roles"]
)
TEXTS = st.sampled_from(["a", "b", "always", "once", "requester", "*a*", "1"])
CONDITIONS = st.one_of(
    st.builds(condition, FIELDS, st.sampled_from(["equals", "contains", "glob"]), TEXTS),
    st.builds(condition, FIELDS, st.just("in"), st.lists(TEXTS, min_size=1, max_size=3)),
    st.builds(condition, FIELDS, st.sampled_from(["less", "greater"]), st.integers(-2, 2)),
    st.builds(condition, FIELDS, st.just("absent")),
)
WHEN = st.lists(CONDITIONS, max_size=3)
ONE_RULE = st.one_of(
    st.builds(lambda when, approvers: rule(when=when, approvers=approvers), WHEN, st.integers(1, 4)),
    st.builds(lambda when: rule("forbid", when=when), WHEN),
    st.builds(lambda when: rule("allow", when=when), WHEN),
)
VALUES = st.one_of(st.none(), TEXTS, st.integers(-3, 3), st.booleans(), st.lists(TEXTS, max_size=2))
ALL_FACTS = st.builds(
    lambda operation, prompt, requester: facts(operation, state={"prompt": prompt}, requester=requester),
    st.sampled_from(sorted(CONTRACTS)),
    st.fixed_dictionaries({"command": VALUES, "choice": VALUES, "choices": VALUES}),
    TEXTS,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ONE_RULE, max_size=6), ALL_FACTS)
def test_the_need_is_never_below_the_floor_and_forbid_always_wins(
    documents: list[dict[str, Any]], one: Facts
):
    verdict = evaluate(rules(*documents), one, mask=str)
    assert verdict.need.approvers >= (1 if one.contract_needs_approval else 0)
    forbidding = any(match.rule.effect == Effect.FORBID for match in verdict.matched)
    assert verdict.forbidden is not None or not forbidding
    assert explain(verdict)
    canonical.dumps(verdict.as_json())


@settings(max_examples=300, deadline=None)
@given(st.lists(ONE_RULE, max_size=6), ALL_FACTS, st.randoms(use_true_random=False))
def test_the_order_of_the_rules_changes_nothing(documents: list[dict[str, Any]], one: Facts, random: Any):
    ordered = rules(*documents)
    shuffled = list(ordered.rules)
    random.shuffle(shuffled)
    first, second = evaluate(ordered, one, mask=str), evaluate(Ruleset(tuple(shuffled)), one, mask=str)
    assert (first.forbidden is None, first.need) == (second.forbidden is None, second.need)
    assert {match.rule.name for match in first.matched} == {match.rule.name for match in second.matched}
    assert {miss.rule.name for miss in first.near} == {miss.rule.name for miss in second.near}


@settings(max_examples=300, deadline=None)
@given(st.lists(ONE_RULE, max_size=5), ONE_RULE, ALL_FACTS)
def test_one_more_rule_never_loosens_except_a_permission_for_always(
    documents: list[dict[str, Any]], more: dict[str, Any], one: Facts
):
    before = evaluate(rules(*documents), one, mask=str)
    after = evaluate(rules(*documents, more), one, mask=str)
    assert after.need >= before.need
    if before.forbidden is not None and after.forbidden is None:
        assert more["effect"] == "allow"
        assert "until a rule" in before.forbidden
