"""The sandbox's scripted model: what a prompt makes it do, turn by turn."""

import pytest

from hermes_portal.sandbox.model import Call, Step, next_turn, read_script, turns_of, verdict_on

pytestmark = pytest.mark.once


def asked(prompt, *results, tools=True):
    """The turn for a prompt after so many tool calls, each with its result."""
    messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": prompt}]
    for result in results:
        messages.append({"role": "assistant", "tool_calls": [{"id": "call_1"}]})
        messages.append({"role": "tool", "content": result})
    return next_turn({"messages": messages, "tools": [{}] if tools else []}, "/scratch")


def commands(turn):
    return [call.arguments["command"] for call in turn.calls]


def said(turn):
    return [step.argument for step in turn.steps]


def test_each_run_line_is_a_turn_of_its_own():
    script = "say: first\nrun: ls\nsay: then\nrun: rm -rf {scratch}/x\nsay: last"
    assert (said(asked(script)), commands(asked(script))) == (["first"], ["ls"])
    assert (said(asked(script, "ok")), commands(asked(script, "ok"))) == (["then"], ["rm -rf /scratch/x"])
    assert (said(asked(script, "ok", "ok")), commands(asked(script, "ok", "ok"))) == (["last"], [])


def test_also_joins_the_turn_of_the_call_above_it():
    assert commands(asked("run: one\nalso: two\nalso: three")) == ["one", "two", "three"]


def test_two_run_lines_in_a_row_are_two_turns():
    assert [len(turn.calls) for turn in turns_of(read_script("run: one\nrun: two"))] == [1, 1, 0]


def test_a_quoted_argument_is_a_json_string():
    assert read_script(r'run: "a\nb\u202e"') == (Step("run", "a\nb\u202e"),)
    assert read_script('say: "not" json "at all"') == (Step("say", '"not" json "at all"'),)


def test_any_other_tool_is_called_with_its_json_arguments():
    turn = asked('tool: write_file {"path": "a", "content": "b"}')
    assert turn.calls == (Call("write_file", {"path": "a", "content": "b"}),)


def test_the_newest_user_message_is_the_script():
    messages = [
        {"role": "user", "content": "run: old"},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "tool", "content": "done"},
        {"role": "user", "content": [{"type": "text", "text": "run: new"}]},
    ]
    assert commands(next_turn({"messages": messages, "tools": [{}]})) == ["new"]


def test_what_is_said_at_the_end_depends_on_whether_a_call_was_refused():
    script = "run: rm -rf /x\nallowed: it is gone\nrefused: it is still there"
    assert said(asked(script, "exit code 0")) == ["it is gone"]
    assert said(asked(script, "BLOCKED: User denied this command")) == ["it is still there"]


def test_report_speaks_the_last_result():
    assert said(asked("run: ls\nreport:", "a.csv")) == ["a.csv"]


@pytest.mark.parametrize(
    ("prompt", "dangerous"),
    [
        ("Rebuild the yearly report", "rm -rf /scratch/reports/2026/build"),
        ("Please tidy the logs a little", "find /scratch/logs -name '*.log' -delete"),
        ("Fix the permissions of the uploads", "chmod -R 777 /scratch/uploads"),
    ],
)
def test_a_plain_request_becomes_a_story_that_looks_first_and_acts_second(prompt, dangerous):
    assert commands(asked(prompt))[0] != dangerous
    assert commands(asked(prompt, "looked")) == [dangerous]
    assert said(asked(prompt, "looked", "done")) != said(asked(prompt, "looked", "BLOCKED"))


def test_a_harmless_story_ends_without_asking_for_anything_dangerous():
    assert commands(asked("Count the rows")) == ["wc -l reports/2026/*.csv"]
    assert asked("Count the rows", "1842").calls == ()


def test_any_other_sentence_gets_a_polite_answer_and_no_call():
    turn = asked("Log in to my account")  # neither "logs" nor "count"
    assert turn.calls == ()
    assert said(turn) == ["I read your request and had nothing to run for it: Log in to my account"]


def test_a_request_of_hermes_own_never_plays_the_script():
    assert asked("run: rm -rf /x", tools=False).calls == ()


def test_the_review_of_a_command_is_decided_by_a_word_in_it():
    words = ("x looks-harmless", "x looks-hostile", "x")
    assert [verdict_on(word) for word in words] == ["APPROVE", "DENY", "ESCALATE"]
