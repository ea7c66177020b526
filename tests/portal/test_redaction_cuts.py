"""Redaction of a text that arrives in pieces: cut anywhere, nothing readable comes out."""

import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_portal.redaction import MAX_INPUT, Redacted, StreamRedactor, redact, segments
from hermes_portal.redaction.stream import HOLD
from tests.portal.redaction_samples import KEY_BODY, OWN, PEM, PLAIN, SAMPLES, Sample

pytestmark = pytest.mark.once

SHORT = [sample for sample in SAMPLES if len(sample.text) <= 140]
LONG = [sample for sample in SAMPLES if len(sample.text) > 140]


def name(value: Sample | str) -> str:
    """A test id that shows where it starts."""
    return ascii(value[:40]) if isinstance(value, str) else f"{value.kind}: {value.text[:40]!a}"


def stream(*pieces: str, own: tuple[str, ...] = ()) -> str:
    """What comes out when these pieces go in."""
    redactor = StreamRedactor(own)
    return "".join([*(redactor.feed(piece) for piece in pieces), redactor.flush()])


def in_pieces(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of this many characters."""
    return (text[at : at + size] for at in range(0, len(text), size))


def leaks(sample: Sample, shown: str) -> list[str]:
    """Parts of the sample's secret that can still be read."""
    return [secret for secret in sample.secrets if secret in shown]


def between_lines(sample: Sample) -> str:
    """The sample on lines of its own."""
    return f"so it is\n{sample.text}\nand on it goes"


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_a_secret_cut_at_every_place_comes_out_as_in_the_whole_text(sample: Sample):
    text = between_lines(sample)
    whole = redact(text)
    assert leaks(sample, whole) == []
    for cut in range(1, len(text), max(1, len(text) // 150)):
        assert stream(text[:cut], text[cut:]) == whole, cut


@pytest.mark.parametrize("sample", SHORT, ids=name)
def test_a_secret_cut_at_two_places_leaves_nothing(sample: Sample):
    text = f"so\n{sample.text}\non"
    draw = random.Random(sample.text)
    for _ in range(60):
        one, two = sorted(draw.sample(range(1, len(text)), 2))
        shown = stream(text[:one], text[one:two], text[two:])
        assert leaks(sample, shown) == [], (one, two, shown)


@pytest.mark.parametrize("sample", SHORT, ids=name)
def test_a_secret_that_comes_letter_by_letter_leaves_nothing(sample: Sample):
    assert leaks(sample, stream(*between_lines(sample))) == []


@pytest.mark.parametrize("sample", LONG, ids=name)
def test_a_long_secret_that_comes_in_small_pieces_leaves_nothing(sample: Sample):
    for size in (1, 2, 5, 11, 63):
        assert leaks(sample, stream(*in_pieces(between_lines(sample), size))) == [], size


@pytest.mark.parametrize("sample", SHORT, ids=name)
def test_a_secret_at_the_very_end_leaves_nothing_however_it_is_cut(sample: Sample):
    for cut in range(1, len(sample.text)):
        assert leaks(sample, stream(sample.text[:cut], sample.text[cut:])) == [], cut


@pytest.mark.parametrize("size", [1, 3, 7, 40, 333, 4096])
def test_all_samples_in_one_stream_leave_nothing(size: int):
    text = "\n\n".join(sample.text for sample in SAMPLES)
    whole = redact(text)
    draw = random.Random(size)
    pieces, at = [], 0
    while at < len(text):
        length = draw.randint(1, size)
        pieces.append(text[at : at + length])
        at += length
    shown = stream(*pieces)
    for sample in SAMPLES:
        assert [secret for secret in leaks(sample, shown) if secret not in whole] == [], sample


@pytest.mark.parametrize("cut", range(1, len(OWN)))
def test_the_own_token_cut_anywhere_leaves_nothing(cut: int):
    shown = stream(f"a b {OWN[:cut]}", f"{OWN[cut:]} c d", own=(OWN,))
    assert shown == "a b [redacted:endpoint token] c d"


@pytest.mark.parametrize("separator", [" ", "\n", ":", ", 0x"])
def test_the_own_token_in_hex_cut_anywhere_leaves_nothing(separator: str):
    encoded = separator.join(f"{byte:02x}" for byte in OWN.encode())
    text = f"dump of it\n{encoded}\nend of it"
    for cut in range(1, len(text)):
        shown = stream(text[:cut], text[cut:], own=(OWN,))
        assert encoded[12:24] not in shown, cut


@pytest.mark.parametrize("text", PLAIN, ids=name)
def test_what_is_no_secret_comes_out_as_it_went_in(text: str):
    assert stream(*f"before {text} after") == f"before {text} after"


# ---------------------------------------------------------------------------------------- what is held


def test_ordinary_text_comes_out_word_by_word():
    redactor = StreamRedactor()
    out = redactor.feed("The agent has ")
    assert out == "The agent "
    assert isinstance(out, Redacted)
    words = ("finished", "its", "work", "and", "ran", "it", "all", "once", "more")
    out = Redacted("".join(redactor.feed(f"{word} ") for word in words))
    assert out == "has finished its work and ran it all once "
    assert redactor.held == len("more ")


def test_no_more_is_held_than_the_limit_whatever_comes():
    hostile = [
        'password="',
        "x" * 50,
        " ",
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "A" * 64 + "\n",
        "token ",
        "\n",
        '"',
    ]
    hostile += ["curl -u a:", ";", "\u200b" * 30, "68 6b ", '{"a":[1,2]},', "Cookie: a=b; ", "\t"]
    draw = random.Random(36)
    redactor = StreamRedactor([OWN])
    for _ in range(4000):
        redactor.feed(draw.choice(hostile))
        assert redactor.held <= HOLD


@pytest.mark.parametrize("size", [1, 17, 64, 1000])
def test_a_private_key_longer_than_the_limit_is_masked_to_its_end(size: int):
    body = "\n".join(KEY_BODY.split("\n")[:-1] * 8)
    text = f"cat key\n-----BEGIN RSA PRIVATE KEY-----\n{body}\nshort=\n-----END RSA PRIVATE KEY-----\nthen ls -la"
    assert len(text) > HOLD + 2000
    shown = stream(*in_pieces(text, size))
    assert shown.startswith("cat key\n[redacted:private key")
    assert shown.endswith("then ls -la")
    assert all(line[at : at + 8] not in shown for line in set(body.split("\n")) for at in range(0, 56, 8))


def test_what_follows_an_unfinished_private_key_is_shown_again():
    text = PEM[:700] * 1 + ("\n" + KEY_BODY.split("\n")[1]) * 80 + "\n\nThe key was cut off; run ls -la now. "
    shown = stream(*in_pieces(text, 50))
    assert KEY_BODY[70:90] not in shown
    assert shown.endswith("The key was cut off; run ls -la now. ")


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_a_token_without_end_is_masked_until_it_ends(size: int):
    shown = stream(*in_pieces("value " + "Zx81mQ0v" * 1500 + " and then done", size))
    assert "Zx81" not in shown
    assert shown.startswith("value [redacted:")
    assert shown.endswith(" and then done")


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_a_quoted_value_without_end_is_masked_to_the_end_of_its_line(size: int):
    text = 'x password="' + "hunter2 secretword " * 400 + '\n"and then done'
    shown = stream(*in_pieces(text, size))
    assert "hunter2" not in shown
    assert "secretword" not in shown
    assert 'x password="[redacted:password' in shown
    assert shown.endswith("and then done")


@pytest.mark.parametrize("size", [1, 50, 4096, 100_000])
def test_a_secret_right_behind_what_was_masked_for_its_length_is_found(size: int):
    text = "A1b2" * 2000 + " password is hunter2 and " + "A1b2" * 2000 + " password:\n  hunter3\n done"
    shown = stream(*in_pieces(text, size))
    assert "hunter" not in shown
    assert shown.endswith("done")


def test_long_json_without_blanks_is_given_out_and_its_secrets_are_not():
    member = '{"name":"x","n":[1,2,3],"token":"abcd1234","url":"https://u:hunter2@h/x"},'
    shown = stream(*in_pieces("[" + member * 400 + "0]", 100))
    assert "abcd1234" not in shown
    assert "hunter2" not in shown
    assert shown.count('"n":[1,2,3]') == 400


def test_a_long_blank_run_that_drips_in_is_marked():
    assert stream("a", *[" "] * 300, "b") == "a[300 spaces]b"
    assert stream("a", *["\n"] * 13, "b") == "a\n[12 blank lines]\nb"
    drowned = stream("a", *[" "] * 20_000, "rm -rf /")
    assert len(drowned) < 200
    assert drowned.endswith("rm -rf /")


@pytest.mark.parametrize("mark", ["[redacted:jwt]", "[12 blank lines]", "[U+202E]", "[300 spaces]"])
def test_an_imitated_mark_is_taken_apart_however_it_is_cut(mark: str):
    text = f"x {mark} y"
    for cut in range(1, len(text)):
        pieces = segments(stream(text[:cut], text[cut:]))
        assert [part for kind, part in pieces if kind != "text"] == ["[U+005B]"], cut


def test_a_cr_at_the_end_of_a_piece_waits_for_its_lf():
    assert stream("a b\r", "\nc d\r", "\n") == "a b\r\nc d\r\n"


def test_flush_starts_anew():
    redactor = StreamRedactor()
    assert redactor.feed("password is ") + redactor.flush() == "password is "
    assert redactor.feed("hunter2 ") + redactor.flush() == "hunter2 "
    assert redactor.flush() == ""


def test_what_is_held_does_not_show_in_its_repr():
    redactor = StreamRedactor([OWN])
    redactor.feed("password=hunter2")
    assert "hunter2" not in repr(redactor)
    assert OWN not in repr(redactor)


def test_a_pause_does_not_give_out_what_an_own_token_may_start_with():
    redactor = StreamRedactor([OWN, "done.with-it-9"])
    assert redactor.feed("All of it is fine.") + redactor.pause() == "All of it is fine."
    assert redactor.feed(" It is done.") + redactor.pause() == " It is "
    assert redactor.feed("with-it-9 and ") + redactor.flush() == "[redacted:endpoint token] and "


def test_one_piece_of_any_size_is_taken():
    text = "some words of text " * 120_000
    assert len(text) > MAX_INPUT
    assert stream(text) == text


def test_too_many_candidates_in_one_piece_mask_to_the_end_of_the_line():
    shown = stream("token=a1, " * 60_000 + "\nand on")
    assert "a1" not in shown
    assert shown.endswith("and on")


PIECES = st.sampled_from(
    [sample.text for sample in SHORT]
    + list(PLAIN[:20])
    + [
        "password",
        " is ",
        "=",
        ": ",
        " ",
        "\n",
        '"',
        "'",
        "\\",
        ";",
        "@",
        "://",
        "-u ",
        "mysql ",
        " -p",
        "Cookie: ",
    ]
    + [
        "Bearer ",
        "A" * 40,
        PEM[:300],
        PEM[300:],
        "\u200b",
        "[12 ",
        "spaces]",
        OWN,
        OWN[:13],
        "api ",
        "key",
        "echo ",
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=8).map("".join), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_a_stream_hides_all_that_the_whole_text_hides(text: str, sizes: list[int]):
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    shown, whole = stream(*pieces, own=(OWN,)), redact(text, own=[OWN])
    assert OWN not in shown
    hidden = {s for sample in SHORT for s in sample.secrets if len(s) >= 6 and s in text and s not in whole}
    assert {secret for secret in hidden if secret in shown} == set()


def test_a_stream_in_tiny_pieces_takes_linear_time():
    def cost(count: int) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            stream(*["token ", 'password="', "abc ", "d ", "e"] * count)
            best = min(best, time.process_time() - start)
        return best

    ratios = []
    for _ in range(5):
        ratios.append(cost(600) / cost(300))
        if ratios[-1] < 3:
            return
    pytest.fail(f"twice the text took {ratios} times as long")
