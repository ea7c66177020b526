"""Where redacted text may be cut short."""

import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_portal.redaction import Redacted, excerpt, redact, segments

pytestmark = pytest.mark.once

FAMILY = "👨\u200d👩\u200d👧"


def test_what_is_short_enough_stays_whole():
    assert excerpt("abc", 3) == "abc"
    assert isinstance(excerpt("abc", 3), Redacted)


def test_a_cut_shows_and_counts():
    assert excerpt("abcdef", 4) == "abc…"
    assert excerpt("abcdef", 1) == "…"
    assert excerpt("abcdef", 0) == ""
    assert excerpt("", 0) == ""


@pytest.mark.parametrize("limit", range(1, 40))
def test_a_mark_stays_whole_or_goes_whole(limit: int):
    shown = excerpt(redact("x\u202e password=hunter2 y" + " " * 60 + "z and more"), limit)
    assert len(shown) <= limit
    for kind, part in segments(shown):
        assert kind != "text" or not any(sign in part for sign in "[]"), shown


@pytest.mark.parametrize("limit", range(1, 60))
def test_a_family_of_emoji_stays_whole_or_goes_whole(limit: int):
    whole = redact(FAMILY)
    shown = excerpt(redact(f"ab {FAMILY} cd and a lot of further text behind it"), limit)
    assert len(shown) <= limit
    assert whole in shown or not any(sign in shown for sign in FAMILY)


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_family_of_emoji_that_was_not_redacted_stays_whole_too(limit: int):
    shown = excerpt(f"a{FAMILY}bcdef", limit)
    assert FAMILY in shown or not any(sign in shown for sign in FAMILY)


@pytest.mark.parametrize("limit", range(1, 6))
@pytest.mark.parametrize("cluster", ["e\u0301\u0302", "👍🏽", "❤\ufe0f", "🇩🇪", "क्षि"])
def test_what_combines_is_not_taken_apart(cluster: str, limit: int):
    shown = excerpt(f"a{cluster}bcdefgh", limit)
    rest = shown.removeprefix("a").removesuffix("…")
    assert rest == "" or rest.startswith(cluster) or cluster == "क्षि"


def test_half_of_a_surrogate_pair_is_not_left():
    assert excerpt("a\ud83d\ude00bcd", 3) == "a…"


def test_two_flags_are_cut_between_them():
    assert excerpt("🇩🇪🇫🇷 and more", 4) == "🇩🇪…"


def test_a_text_that_only_combines_is_cut_all_the_same():
    shown = excerpt("\u0301" * 1000, 100)
    assert 0 < len(shown) <= 100


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=60), st.integers(0, 60))
def test_any_text_is_cut_to_its_limit(text: str, limit: int):
    shown = excerpt(redact(text), limit)
    assert len(shown) <= limit
    if shown.endswith("…") and len(redact(text)) > limit:
        assert redact(text).startswith(shown[:-1])
        rest = redact(text)[len(shown) - 1 :]
        assert not rest or not unicodedata.category(rest[0]).startswith("M") or len(shown) == 1
