"""Strict JSON: what is refused, what is replaced, what stays as it was (case 24, F15)."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_portal.hermes.strictjson import MAX_DEPTH, StrictJSONError, loads

pytestmark = pytest.mark.once

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=12,
)


def reason_of(raw: bytes | str, **limits: int) -> str:
    with pytest.raises(StrictJSONError) as caught:
        loads(raw, **limits)
    return caught.value.reason


def test_a_document_comes_with_the_digest_of_its_bytes():
    raw = b' {"a": [1, 2.5, true, null, "x"]}\n'
    parsed = loads(raw)
    assert parsed.value == {"a": [1, 2.5, True, None, "x"]}
    assert parsed.sha256 == hashlib.sha256(raw).hexdigest()
    assert parsed.sanitised == 0


@settings(max_examples=50, deadline=None)
@given(JSON_VALUES, st.booleans())
def test_every_honest_document_reads_as_the_standard_library_reads_it(value, ascii_only):
    assert loads(json.dumps(value, ensure_ascii=ascii_only).encode()).value == value


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(word):
    assert reason_of(f'{{"usage": {{"x": {word}}}}}') == "not_finite"


@pytest.mark.parametrize(
    "number",
    [
        "1e999",
        "-1e999",
        "9223372036854775808",
        "-9223372036854775809",
        "9" * 5000,
        "1" + "0" * 30,
        "0." + "3" * 200,
    ],
)
def test_absurd_numbers_are_refused(number):
    assert reason_of(f'{{"x": {number}}}') == "number_too_large"


def test_the_largest_and_smallest_integers_of_a_database_are_kept():
    assert loads("[9223372036854775807, -9223372036854775808]").value == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    "raw",
    [
        '{"event": "message.delta", "event": "run.completed"}',
        '[{"deep": {"a": 1, "a": 1}}]',
        r'{"a": 1, "\u0061": 2}',
        r'{"a\u0000": 1, "a\ud83d": 2}',
    ],
    ids=["top", "nested", "escaped", "only after replacement"],
)
def test_duplicate_keys_are_refused(raw):
    assert reason_of(raw) == "duplicate_key"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 10_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_absurd_depth_is_refused_without_recursion(depth, opening, closing):
    assert reason_of(opening * depth + "1" + closing * depth) == "too_deep"


def test_the_deepest_allowed_document_is_read():
    assert reason_of("[" * 65 + "]" * 65) == "too_deep"
    assert loads("[" * 64 + "]" * 64).value is not None
    assert reason_of("[[1]]", max_depth=1) == "too_deep"


@pytest.mark.parametrize(
    "text",
    ["[" * 200, '"[{' * 100, '\\"[[[' * 50, "\\" * 51 + "[" * 100, "}]" * 90],
    ids=["open", "quoted", "escaped quotes", "backslashes", "closing"],
)
def test_brackets_inside_strings_are_not_depth(text):
    assert loads(json.dumps({"a": text, "b": [text]})).value == {"a": text, "b": [text]}


def test_a_wide_document_is_not_a_deep_one():
    rows = [{"id": n} for n in range(1000)]
    assert loads(json.dumps(rows)).value == rows


def test_a_flood_of_quotes_and_backslashes_is_read_in_linear_time():
    # Quadratic reading of these would take minutes, so the test ending at all is the assertion on time.
    assert reason_of('[{"' + '\\"' * 2_000_000, max_bytes=5_000_000) == "not_json"
    assert reason_of("[" * 65 + '"' * 4_000_000, max_bytes=5_000_000) == "too_deep"


@pytest.mark.parametrize(
    ("raw", "value", "count"),
    [
        (r'{"preview": "a\u0000b"}', {"preview": "a\ufffdb"}, 1),
        (r'{"k\u0000": 1}', {"k\ufffd": 1}, 1),
        (r'{"delta": "\ud83d"}', {"delta": "\ufffd"}, 1),
        (r'["\udd2a\ud83e", {"x": ["\u0000"]}]', ["\ufffd\ufffd", {"x": ["\ufffd"]}], 3),
        (r'"\uD83E\uDDEA"', "\N{TEST TUBE}", 0),
        (r'"literal \\u0000 and \\ud83d"', r"literal \u0000 and \ud83d", 0),
    ],
    ids=["NUL", "NUL in a key", "half a pair", "swapped halves", "whole pair", "only looks like one"],
)
def test_what_no_database_can_hold_is_replaced_visibly_and_counted(raw, value, count):
    parsed = loads(raw)
    assert (parsed.value, parsed.sanitised) == (value, count)
    json.dumps(parsed.value, ensure_ascii=False).encode()


def test_a_text_that_holds_half_a_pair_itself_is_treated_alike():
    parsed = loads('"\ud83d"')
    assert (parsed.value, parsed.sanitised) == ("\ufffd", 1)


@pytest.mark.parametrize("raw", [b'"\xff"', b'"\xed\xa0\xbd"', b'"\xc0\xaf"'])
def test_bytes_that_are_not_utf8_are_refused(raw):
    assert reason_of(raw) == "not_utf8"


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "  ",
        "{",
        "nul",
        "{} {}",
        "[1,]",
        "{'a': 1}",
        "<html>",
        "\ufeff{}",
        '"a\nb"',
        '"a\x0bb"',
        '"a\x1eb"',
    ],
)
def test_what_is_not_json_is_refused(raw):
    assert reason_of(raw) == "not_json"


@pytest.mark.parametrize("raw", ['"abcdefgh"', b'"abcdefgh"', '"\u00e9\u00e9\u00e9\u00e9"'])
def test_the_size_limit_counts_bytes(raw):
    assert reason_of(raw, max_bytes=9) == "too_large"
    assert len(loads(raw, max_bytes=10).value) >= 4
