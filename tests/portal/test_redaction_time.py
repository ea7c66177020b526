"""Redaction as a way to keep us busy: hostile texts cost time in proportion to their length (case 36)."""

import random
import time

import pytest

from hermes_portal.redaction import MAX_INPUT, redact, segments
from tests.portal.redaction_samples import OWN, SAMPLES

pytestmark = pytest.mark.once

#: Each is repeated to any length. The first ones are case 36, the others aim at one pattern each.
HOSTILE: tuple[str, ...] = (
    "a=",
    "a=b ",
    "key=value&",
    "A",
    '"',
    "'",
    "\"'`",
    '\\"',
    "-----BEGIN ",
    "eyJ",
    "eyJ.",
    "{[(",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAA ",
    "-----END PRIVATE KEY-----",
    "A" * 30 + "\n-----END PRIVATE KEY-----",
    "MII",
    "b3BlbnNzaC1rZXktdjEA ",
    "sk-",
    "ghp_",
    "AKIA",
    "a_live_",
    "A" * 40 + "1 ",
    "://",
    "://a:",
    "://a:b@",
    "%3A%2F%2F",
    ":",
    "@",
    "a@b:",
    "-",
    "-u ",
    "-u a:",
    "?key=",
    "&",
    "$1$",
    "password",
    "password ",
    "password is ",
    "password for a b ",
    'password="',
    "password=a ",
    "pass",
    "token",
    "key",
    "password','value':",
    "authorization: ",
    "authorization: digest a=b, ",
    "bearer ",
    "basic ",
    "cookie: ",
    "cookie: a=b; ",
    "mysql -p",
    "mysql ",
    "mysql -p ",
    "docker login -p ",
    "echo a|",
    "echo | sudo ",
    "htpasswd -b a b ",
    "<<<",
    "curl -b a=",
    " ",
    " " * 39 + "x",
    "\n",
    "\n ",
    "\t ",
    "\r",
    "\x00",
    "\x00\x01",
    "\u200b",
    "\u200b\u200c",
    "\u200ba",
    "\uff41",
    "\uff41b",
    "\ufb01",
    "\u65e5\u672c\u8a9e\u3002",
    "e\u0301",
    "\U0001f600\u200d",
    "\x1b[",
    "\x1b]",
    "\x1b[0m",
    "[",
    "[1 ",
    "[U+",
    "[redacted:",
    "[redacted:jwt]",
    "\\",
    "\\u0068",
    "%68",
    "68 ",
    "686b",
    OWN,
    OWN[:12],
    OWN[:11] + "x",
    "aGVsbG8gd29ybGQgYW5kIG1vcmUg",
    "aGVsbG8gd29ybGQgYW5kIG1vcmU= ",
)


def text_of(shape: str, length: int) -> str:
    """`shape` repeated to this length."""
    return (shape * (length // len(shape) + 1))[:length]


def cost(text: str) -> float:
    """CPU seconds of one redaction, the better of two."""
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        redact(text, own=[OWN])
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("shape", HOSTILE, ids=ascii)
def test_twice_the_text_takes_no_more_than_twice_the_time(shape: str):
    # A pattern that goes back over what it passed shows as 4; below that, noise is what differs.
    ratios = []
    for _ in range(6):
        ratios.append(cost(text_of(shape, 60_000)) / max(cost(text_of(shape, 30_000)), 0.0005))
        if ratios[-1] < 3:
            return
    pytest.fail(f"twice the text took {ratios} times as long")


@pytest.mark.parametrize("shape", HOSTILE, ids=ascii)
def test_long_hostile_texts_end_and_stay_within_the_limit(shape: str):
    shown = redact(text_of(shape, MAX_INPUT // 4), own=[OWN])
    assert len(shown) <= MAX_INPUT
    assert redact(shown, own=[OWN]) == shown


def test_nested_quotes_of_any_depth_end():
    text = "password="
    for depth in range(15):
        text += "\\" * depth + '"'
    shown = redact(text_of(text, 300_000))
    assert "".join(part for _, part in segments(shown)) == shown


def test_random_mixtures_of_hostile_pieces_take_no_longer_than_their_length_allows():
    draw = random.Random(36)
    pieces = [*HOSTILE, *(sample.text[:200] for sample in SAMPLES)]
    for _ in range(15):
        text = "".join(draw.choice(pieces) * draw.randint(1, 20) for _ in range(40))[:25_000]
        ratio = min(cost(text + text) / max(cost(text), 0.0005) for _ in range(2))
        assert ratio < 3, text[:200]
