"""A text that another event interrupts: finished sentences stand before it, everything else waits."""

import pytest

from hermes_portal.redaction import StreamRedactor

pytestmark = pytest.mark.once


def paused(text: str, rest: str) -> tuple[str, str]:
    """What was given out up to the interruption, and all of it in the end."""
    stream = StreamRedactor()
    before = stream.feed(text) + stream.pause()
    return before, before + stream.feed(rest) + stream.flush()


@pytest.mark.parametrize("text", ["First a look at what is there.", "Shall I start?", "It took 12.", "Done."])
def test_the_last_word_of_a_sentence_stands_before_the_interruption(text: str) -> None:
    assert paused(text, "\n\nNext turn.") == (text, text + "\n\nNext turn.")


@pytest.mark.parametrize(
    "text",
    [
        "the password is swordfish.",  # a value after a name
        "now curl there.",  # an argument of a command
        "it is ghp_0123456789abcdefghij.",  # no plain word
        "it is hunter2",  # no end of a sentence
        "see eyJhbGciOi.",  # capitals inside: may be the first part of a token
    ],
)
def test_anything_else_waits(text: str) -> None:
    before, _ = paused(text, "\n\nNext turn.")
    assert not before.endswith(text.split()[-1])


SECRET = "the key: sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD and https://svc:hunter2@db.example/ stay."


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_that_an_interruption_cuts_leaves_nothing(cut: int) -> None:
    _, whole = paused(SECRET[:cut], SECRET[cut:])
    assert "hunter2" not in whole
    assert "abcdefghij" not in whole
    assert "sk-proj" not in whole


def test_what_follows_is_read_together_with_what_was_given_out() -> None:
    _, whole = paused("Done.", "token=swordfish99 and that is all of it for now, as far as I can tell.")
    assert whole.startswith("Done.token=[redacted:")
