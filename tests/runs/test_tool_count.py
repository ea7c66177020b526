"""That no tool runs any more is only concluded from a count that is whole: it lets a waiting request go."""

import json
import time
from typing import Any

import pytest

from runs.reading import Caps, Control, Reading

pytestmark = pytest.mark.once
RUN = "run_" + "a" * 32


def frame(kind: str, **members: Any) -> bytes:
    return (
        b"data: " + json.dumps({"event": kind, "run_id": RUN, "timestamp": 1.0} | members).encode() + b"\n\n"
    )


def asks() -> bytes:
    return frame("approval.request", command="rm -rf /srv", description="d", choices=["once", "deny"])


def last_end(*frames: bytes) -> bool:
    """Whether the last frame, the end of a tool, is taken as proof that none runs."""
    reading = Reading(RUN, own=[], next_ordinal=0, caps=Caps(10**6, 1000))
    items = [item for data in frames for item in reading.feed(data, time.monotonic())]
    ends = [item for item in items if isinstance(item, Control) and item.event.kind == "tool.completed"]
    return ends[-1].none_running


def test_the_end_of_the_only_tool_is_proof() -> None:
    assert last_end(frame("tool.started", tool="terminal"), asks(), frame("tool.completed", tool="terminal"))


def test_the_end_of_one_of_two_is_not() -> None:
    started = frame("tool.started", tool="terminal")
    assert not last_end(started, started, asks(), frame("tool.completed", tool="terminal"))


def test_the_end_of_a_tool_that_never_began_is_not() -> None:
    started = frame("tool.started", tool="terminal")
    assert not last_end(started, asks(), frame("tool.completed", tool="other"))


def test_after_a_tool_event_that_could_not_be_read_nothing_is() -> None:
    started = frame("tool.started", tool="terminal")
    unreadable = b'data: {"event":"tool.started","tool":"terminal","x":NaN}\n\n'
    ended = frame("tool.completed", tool="terminal")
    assert not last_end(started, unreadable, asks(), ended)
    assert not last_end(unreadable, asks(), started, ended)
