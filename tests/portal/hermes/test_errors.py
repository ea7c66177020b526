"""The error tree of the provider client: what each leaf says about whether anything was changed."""

import pickle
from datetime import UTC, datetime

import pytest

from hermes_portal.hermes import errors
from hermes_portal.hermes.errors import (
    HermesError,
    InvalidInput,
    NotSent,
    OutcomeUnknown,
    Refused,
    from_status,
)

pytestmark = pytest.mark.once

LEAVES = list(HermesError.leaves())


def made(kind: type[HermesError], detail: str = "") -> HermesError:
    return InvalidInput("run_id", detail=detail) if kind is InvalidInput else kind(detail)


def test_every_leaf_has_a_code_and_a_sentence_of_its_own():
    assert len({leaf.code for leaf in LEAVES}) == len(LEAVES)
    assert len({leaf.says for leaf in LEAVES}) == len(LEAVES)


@pytest.mark.parametrize(
    ("branch", "changed"), [(NotSent, "no"), (Refused, "refused"), (OutcomeUnknown, "unknown")]
)
def test_a_branch_answers_whether_anything_was_changed(branch, changed):
    assert {leaf.changed for leaf in branch.leaves()} == {changed}


def test_only_the_event_stream_has_a_leaf_outside_the_three_branches():
    outside = [leaf for leaf in LEAVES if not issubclass(leaf, NotSent | Refused | OutcomeUnknown)]
    assert outside == [errors.NotAStream]


@pytest.mark.parametrize("leaf", LEAVES)
def test_provider_text_shows_in_no_representation_of_an_error(leaf):
    error = made(leaf, "password=hunter2")
    assert error.detail == "password=hunter2"
    assert "hunter2" not in str(error) + repr(error) + f"{error.args}"


@pytest.mark.parametrize("leaf", LEAVES)
def test_an_error_survives_the_way_between_processes(leaf):
    error = made(leaf, "text of the provider")
    error.retry_after = 3.0
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is leaf
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("status", "leaf"),
    [
        (400, errors.BadRequest),
        (401, errors.CredentialRefused),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (413, errors.TooLarge),
        (429, errors.Saturated),
        (501, errors.Unsupported),
    ],
)
def test_the_contracts_refusals_are_definitive(status, leaf):
    error = from_status(status, detail="why", reason="code", retry_after=1.0)
    assert type(error) is leaf
    assert (error.status, error.detail, error.reason, error.retry_after) == (status, "why", "code", 1.0)


def test_a_503_is_definitive_only_if_hermes_says_that_it_drains():
    assert type(from_status(503, reason="gateway_draining")) is errors.Draining
    assert type(from_status(503)) is errors.ServerFault
    assert type(from_status(503, reason="overloaded")) is errors.ServerFault


def test_every_other_status_proves_nothing():
    others = set(range(100, 600)) - set(errors.DEFINITIVE)
    assert {from_status(status).changed for status in others} == {"unknown"}
    assert {type(from_status(status)) for status in range(300, 400)} == {errors.Redirected}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1.0),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("100000000", 300.0),
        ("9" * 5000, 300.0),
        ("Tue, 01 Dec 2026 08:00:30 GMT", 30.0),
        ("Tue, 01 Dec 2026 07:00:00 GMT", 0.0),
        ("Wed, 01 Dec 2100 08:00:00 GMT", 300.0),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_and_capped_at_five_minutes(text, seconds):
    assert errors.retry_after_seconds(text, datetime(2026, 12, 1, 8, tzinfo=UTC)) == seconds


def test_a_long_text_is_cut_between_words_so_that_no_half_secret_is_left():
    secret = "sk-" + "a" * 40
    text = "x " * 2040 + secret + " end"
    assert len(text) > errors.DETAIL_LIMIT
    kept = from_status(400, detail=text).detail
    assert len(kept) <= errors.DETAIL_LIMIT
    assert "sk-" not in kept
    assert errors.bounded("a" * 5000) == ""
    assert errors.bounded("short") == "short"
