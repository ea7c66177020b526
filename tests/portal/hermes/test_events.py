"""Events of a run: kinds of both contracts, bad frames that stop nothing, and strictly read requests (case 24)."""

import json
from typing import Any

import pytest

from hermes_portal.hermes import events
from hermes_portal.hermes.events import ApprovalRequest, Event, MalformedRequest, Unparsed
from hermes_portal.hermes.sse import Decoder, Frame

pytestmark = pytest.mark.once

RUN = "run_0123456789abcdef0123456789abcdef"
OTHER = "run_ffffffffffffffffffffffffffffffff"


def frame(data: str | bytes, *, frame_id: str | None = None) -> Frame:
    raw = data if isinstance(data, bytes) else data.encode()
    head = b"" if frame_id is None else b"id: " + frame_id.encode() + b"\n"
    (item,) = Decoder().feed(head + b"data: " + raw + b"\n\n")
    assert isinstance(item, Frame)
    return item


def parse(frame_id: str | None = None, **members: Any) -> Event | Unparsed:
    whole = {"event": "tool.started", "run_id": RUN, "timestamp": 1796101329.25, **members}
    return events.parse_event(frame(json.dumps(whole), frame_id=frame_id), run_id=RUN)


def event(**members: Any) -> Event:
    parsed = parse(**members)
    assert isinstance(parsed, Event)
    return parsed


def unparsed(data: str | bytes) -> Unparsed:
    parsed = events.parse_event(frame(data), run_id=RUN)
    assert isinstance(parsed, Unparsed)
    return parsed


def line(text: str) -> str:
    """A frame's JSON with the common members and one more piece of raw text."""
    return f'{{"event": "message.delta", "run_id": "{RUN}", "timestamp": 1, {text}}}'


# ------------------------------------------------------------------------------------------ events


def test_an_event_is_its_kind_its_time_and_its_own_members():
    raw = line('"delta": "hi"')
    parsed = events.parse_event(frame(raw), run_id=RUN)
    assert parsed == Event("message.delta", 1.0, None, {"delta": "hi"}, frame(raw).raw_sha256, 0, False)


@pytest.mark.parametrize("kind", [*sorted(events.KNOWN), "run.stopping", "something.new", "é" * 64])
def test_every_kind_is_kept_known_or_not(kind):
    assert event(event=kind, future={"x": [1]}).members == {"future": {"x": [1]}}


@pytest.mark.parametrize("kind", [None, "", 5, ["x"], "x" * 129])
def test_a_kind_that_is_no_name_is_kept_as_unparsed(kind):
    parsed = parse(event=kind)
    assert isinstance(parsed, Unparsed)
    assert parsed.reason == "bad_kind"


@pytest.mark.parametrize("run_id", [OTHER, RUN.upper(), RUN + "\n", None, 7, [RUN]])
def test_an_event_of_another_run_is_never_ours(run_id):
    parsed = parse(event="run.completed", run_id=run_id)
    assert isinstance(parsed, Unparsed)
    assert parsed.reason == "other_run"


@pytest.mark.parametrize("value", ["1796101329", -1, 1e20, None, True, [1], 253402300800])
def test_a_senseless_time_is_no_time_and_the_event_stays(value):
    assert event(timestamp=value).timestamp is None


@pytest.mark.parametrize(("value", "expected"), [(0, 0.0), (1, 1.0), (1796101329.5, 1796101329.5)])
def test_a_sensible_time_is_a_float(value, expected):
    seen = event(timestamp=value).timestamp
    assert (seen, type(seen)) == (expected, float)


@pytest.mark.parametrize(
    ("seq", "frame_id", "expected"),
    [
        (0, "0", 0),
        (12, "12", 12),
        (12, None, 12),
        (12, "13", None),
        (12, "", None),
        (12, "012", None),
        (None, "12", None),
        (-1, "-1", None),
        (True, "1", None),
        ("3", "3", None),
        (1.0, "1", None),
    ],
)
def test_a_sequence_number_counts_only_if_it_agrees_with_its_frame(seq, frame_id, expected):
    assert event(seq=seq, frame_id=frame_id).seq == expected


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("run.completed", "completed"),
        ("run.failed", "failed"),
        ("run.cancelled", "cancelled"),
        ("run.interrupted", "interrupted"),
        ("run.stopping", None),
        ("approval.responded", None),
    ],
)
def test_only_four_kinds_end_a_run(kind, state):
    assert event(event=kind).terminal == state


def test_text_and_control_share_no_kind_and_all_that_acts_is_control():
    assert not events.TEXT & events.CONTROL
    assert {"tool.started", "tool.completed", "approval.request", "run.failed"} <= events.CONTROL


# -------------------------------------------------------------------------------------- bad frames


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (line('"usage": {"x": NaN}'), "not_finite"),
        (line('"usage": {"x": Infinity}'), "not_finite"),
        (line('"usage": {"x": 1e999}'), "number_too_large"),
        (line(f'"x": {"9" * 5000}'), "number_too_large"),
        (line(f'"x": {"[" * 10_000}{"]" * 10_000}'), "too_deep"),
        (line('"event": "run.completed"'), "duplicate_key"),
        (line('"delta": "a\x0bdata: x"'), "not_json"),
        (line('"delta": "a\x1eb"'), "not_json"),
        ("<html>", "not_json"),
        ("", "not_json"),
        ("[1]", "not_an_object"),
        ("null", "not_an_object"),
        ('"run.completed"', "not_an_object"),
        ("{}", "bad_kind"),
    ],
)
def test_a_bad_frame_is_kept_whole_with_its_reason_and_digest(data, reason):
    assert unparsed(data) == Unparsed(reason, frame(data).raw_sha256, data)


def test_a_bad_frame_between_two_good_ones_stops_nothing():
    good = line('"delta": "x"')
    bad = line('"x": NaN')
    stream = f"data: {good}\n\ndata: {bad}\n\ndata: {good}\n\n"
    parsed = [
        events.parse_event(item, run_id=RUN)
        for item in Decoder().feed(stream.encode())
        if isinstance(item, Frame)
    ]
    assert [type(item) for item in parsed] == [Event, Unparsed, Event]


@pytest.mark.parametrize(
    ("text", "members", "count"),
    [
        (r'"preview": "a\u0000b"', {"preview": "a\ufffdb"}, 1),
        (r'"k\u0000": 1', {"k\ufffd": 1}, 1),
        (r'"delta": "\ud83d"', {"delta": "\ufffd"}, 1),
        (r'"delta": "\\u0000"', {"delta": r"\u0000"}, 0),
        ('"delta": "\u2028\u2029\u0085"', {"delta": "\u2028\u2029\u0085"}, 0),
        (r'"delta": "\u2028\u2029\u0085"', {"delta": "\u2028\u2029\u0085"}, 0),
    ],
)
def test_unstorable_characters_are_replaced_and_counted_others_kept(text, members, count):
    parsed = events.parse_event(frame(line(text)), run_id=RUN)
    assert isinstance(parsed, Event)
    assert (parsed.members, parsed.sanitised) == (members, count)


def test_a_delta_cannot_smuggle_in_a_second_event():
    text = json.dumps({"event": "run.completed", "run_id": RUN, "timestamp": 1})
    delta = f"x\u2028data: {text}\u2028\u2028"
    raw = json.dumps({"event": "message.delta", "run_id": RUN, "delta": delta}, ensure_ascii=False)
    (item,) = Decoder().feed(f"data: {raw}\n\n".encode())
    assert isinstance(item, Frame)
    parsed = events.parse_event(item, run_id=RUN)
    assert isinstance(parsed, Event)
    assert (parsed.kind, parsed.members) == ("message.delta", {"delta": delta})


def test_bytes_that_are_not_utf8_keep_the_event_and_flag_it():
    raw = line('"delta": "a?b"').encode().replace(b"?", b"\xff")
    parsed = events.parse_event(frame(raw), run_id=RUN)
    assert isinstance(parsed, Event)
    assert parsed.members == {"delta": "a\ufffdb"}
    assert parsed.decode_replaced


# ---------------------------------------------------------------------------------------- requests

OLD = {
    "command": "rm -rf /tmp/scratch",
    "pattern_key": "delete in root path",
    "pattern_keys": ["delete in root path"],
    "description": "delete in root path",
    "allow_permanent": True,
    "choices": ["once", "session", "always", "deny"],
}
NEW = {**OLD, "allow_session": True, "request_id": "791edb1ab0d14207bbe3a5ca032f4e46"}


def request(**members: Any) -> ApprovalRequest:
    return events.parse_request(event(event="approval.request", **members))


def test_a_request_of_the_older_line_has_no_id():
    assert request(**OLD) == ApprovalRequest(
        command="rm -rf /tmp/scratch",
        description="delete in root path",
        pattern_key="delete in root path",
        pattern_keys=("delete in root path",),
        choices=("once", "session", "always", "deny"),
        allow_permanent=True,
        smart_denied=False,
        request_id=None,
    )


def test_a_request_of_the_newer_line_carries_its_id():
    assert request(**NEW).request_id == "791edb1ab0d14207bbe3a5ca032f4e46"


def test_the_request_in_a_status_is_read_alike():
    assert events.request_of(NEW) == request(**NEW)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (["once", "deny"], ("once", "deny")),
        (["deny", "always", "once"], ("once", "always", "deny")),
        (["once", "Once", " deny", "approve", "allow", "forever", ""], ("once",)),
        (["once", "once"], ("once",)),
        (["yes"], ()),
        ([], ()),
    ],
)
def test_only_canonical_choices_that_were_offered_remain(choices, expected):
    assert request(**{**OLD, "choices": choices}).choices == expected


def test_a_choice_that_a_flag_forbids_is_not_offered():
    assert request(**{**NEW, "allow_permanent": False}).choices == ("once", "session", "deny")
    assert request(**{**NEW, "allow_session": False}).choices == ("once", "always", "deny")


def test_flags_that_are_missing_follow_the_choices():
    bare = request(choices=["once", "deny"])
    assert bare == ApprovalRequest("", "", "", (), ("once", "deny"), False, False, None)
    assert request(choices=["always"]).allow_permanent
    assert request(choices=["once"], pattern_key="x").pattern_keys == ("x",)


def test_a_smart_denied_request_says_so():
    smart = {**OLD, "allow_permanent": False, "smart_denied": True, "choices": ["once", "deny"]}
    assert request(**smart).smart_denied


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("command", 5),
        ("command", ["rm"]),
        ("description", {}),
        ("pattern_key", False),
        ("pattern_keys", "x"),
        ("pattern_keys", [1]),
        ("choices", "once"),
        ("choices", [["once"]]),
        ("choices", None),
        ("allow_permanent", "false"),
        ("allow_session", 1),
        ("smart_denied", "no"),
        ("request_id", 5),
        ("request_id", ""),
        ("request_id", " "),
        ("request_id", "a b"),
        ("request_id", " a"),
        ("request_id", "a\n"),
        ("request_id", "é"),
        ("request_id", "x" * 257),
    ],
)
def test_a_request_with_an_odd_member_cannot_be_answered(member, value):
    with pytest.raises(MalformedRequest) as caught:
        request(**{**NEW, member: value})
    assert caught.value.member == member


def test_only_an_approval_request_is_a_request():
    with pytest.raises(MalformedRequest):
        events.parse_request(event(event="approval.responded", **OLD))
