"""Redaction of whole texts: what is masked, what stays, what becomes visible."""

import base64
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_portal import redaction
from hermes_portal.redaction import MAX_INPUT, Redacted, redact, redact_value, segments
from tests.portal.redaction_samples import OWN, PLAIN, SAMPLES, Sample

pytestmark = pytest.mark.once


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.kind}: {s.text[:40]!a}")
def test_a_secret_is_masked_and_nothing_of_it_is_left(sample: Sample):
    shown = redact(sample.text)
    assert "[redacted:" in shown
    assert [secret for secret in sample.secrets if secret in shown] == []
    assert sample.stays in shown


@pytest.mark.parametrize("text", PLAIN, ids=lambda t: ascii(t[:40]))
def test_what_is_no_secret_stays_as_it_is(text: str):
    assert redact(text) == text


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.kind}: {s.text[:40]!a}")
def test_redacting_again_changes_nothing(sample: Sample):
    once = redact(sample.text)
    assert redact(once) == once
    assert redact(Redacted(str(once))) == once


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.kind}: {s.text[:40]!a}")
def test_a_second_look_at_a_plain_copy_shows_no_more_than_the_first(sample: Sample):
    again = redact(str(redact(sample.text)))
    assert [secret for secret in sample.secrets if secret in again] == []


def test_secrets_are_masked_in_the_middle_of_other_text_too():
    for sample in SAMPLES:
        shown = redact(f"before it\n\n{sample.text}\n\nand after it")
        assert [secret for secret in sample.secrets if secret in shown] == [], sample
        assert shown.startswith("before it\n\n")
        assert shown.endswith("and after it"), sample


# ------------------------------------------------------------------------------------- imitated marks


@pytest.mark.parametrize(
    "text",
    [
        "[redacted:password]",
        "[Redacted:password]",
        "[U+202E]",
        "[U+200B ×3]",
        "[12 blank lines]",
        "[300 spaces]",
        "[9 tabs]",
    ],
)
def test_a_mark_that_the_provider_wrote_is_never_drawn_as_one_of_ours(text: str):
    shown = redact(f"echo {text} done")
    assert shown == f"echo [U+005B]{text[1:]} done"
    assert [part for kind, part in segments(shown) if kind != "text"] == ["[U+005B]"]


def test_a_mark_put_together_around_a_hidden_character_is_not_one_of_ours():
    shown = redact("[redac\u200bted:password] [U+\u00a0202E]")
    assert [part for kind, part in segments(shown) if kind != "text"] == ["[U+200B]", "[U+00A0]"]


def test_marks_in_redacted_text_are_kept_and_secrets_around_them_still_found():
    text = Redacted("[redacted:jwt] [U+202E] ghp_16C7e42F292c6912E7710c")
    assert redact(text) == "[redacted:jwt] [U+202E] [redacted:github token]"


def test_anything_built_from_redacted_text_is_plain_again():
    assert redact(f"{redact('password=hunter2')} [redacted:jwt]").endswith(" [U+005B]redacted:jwt]")


def test_a_second_round_with_the_endpoints_token_still_masks_it():
    assert redact(redact("x abc12345 y"), own=["abc12345"]) == "x [redacted:endpoint token] y"


# ----------------------------------------------------------------------------------- the own token


def _encodings(token: str) -> dict[str, str]:
    raw = token.encode()
    encoded = {
        "as it is": token,
        "hex": raw.hex(),
        "upper hex": raw.hex().upper(),
        "hex pairs": raw.hex(" "),
        "hex colons": raw.hex(":"),
        "hex escapes": "".join(f"\\x{b:02x}" for b in raw),
        "hex array": ", ".join(f"0x{b:02x}" for b in raw),
        "percent all": "".join(f"%{b:02X}" for b in raw),
        "percent some": token.replace("/", "%2F").replace("+", "%2b"),
        "percent twice": token.replace("/", "%252F").replace("+", "%252B"),
        "json all": "".join(f"\\u{b:04x}" for b in raw),
        "json slash": token.replace("/", "\\/"),
        "json twice": "".join(f"\\\\u{b:04X}" for b in raw),
        "entities": "".join(f"&#{b};" for b in raw),
        "hex entities": "".join(f"&#x{b:x};" for b in raw),
        "quoted printable": "".join(f"={b:02X}" for b in raw),
        "full width": "".join(chr(b + 0xFEE0) for b in raw),
        "zero width": "\u200b".join(token),
        "powershell": base64.b64encode(token.encode("utf-16-le")).decode(),
    }
    for offset in range(3):
        text = base64.b64encode(b"xyz"[:offset] + raw + b"tail").decode()
        encoded[f"base64 at {offset}"] = text
        encoded[f"url-safe base64 at {offset}"] = text.replace("+", "-").replace("/", "_").rstrip("=")
        text = base64.b64encode(b"xyz"[:offset] + raw).decode()
        encoded[f"base64 in lines at {offset}"] = "\n".join(text[i : i + 20] for i in range(0, len(text), 20))
    return encoded


@pytest.mark.parametrize(("name", "text"), _encodings(OWN).items(), ids=list(_encodings(OWN)))
def test_the_endpoints_own_token_is_masked_in_any_encoding(name: str, text: str):
    shown = redact(f"a {text} z", own=[OWN])
    assert shown.startswith("a ")
    assert shown.endswith(" z")
    body = shown[2:-2]
    for at in range(len(text) - 4):
        assert text[at : at + 5] not in body, (name, body)
    assert redact(shown, own=[OWN]) == shown


@pytest.mark.parametrize("token", ["abcdefgh", "pässwörd", "aaaaaaaa", "a.b*c+d?", "x" * 500, "\\\\\\\\////"])
def test_the_own_token_may_be_of_any_kind_from_eight_characters_on(token: str):
    assert redact(f"[{token}]", own=[token]) == "[[redacted:endpoint token]]"
    assert token not in redact(f"q={token}&r", own=[token])


@pytest.mark.parametrize("cut", range(12, len(OWN)))
def test_a_cut_own_token_is_masked_from_either_end(cut: int):
    assert redact(f"a {OWN[:cut]}", own=[OWN]) == "a [redacted:endpoint token]"
    assert redact(f"{OWN[-cut:]} z", own=[OWN]) == "[redacted:endpoint token] z"


def test_an_own_token_that_is_too_short_or_empty_is_not_looked_for():
    assert redact("an abc here", own=["abc", "", "   "]) == "an abc here"


def test_several_own_tokens_are_all_masked():
    shown = redact("old hermes-old-1 new hermes-new-2", own=["hermes-old-1", "hermes-new-2"])
    assert shown == "old [redacted:endpoint token] new [redacted:endpoint token]"


# --------------------------------------------------------------- a mask is no curtain for a command


@pytest.mark.parametrize(
    "text",
    [
        "echo 'password=\"' ; rm -rf / ; echo '\"'",
        "PASSWORD='x; rm -rf /' true",
        'password="x && reboot"',
        "password=`reboot now`",
        "password=x;rm${IFS}-rf${IFS}/",
        'password="$(reboot) "x',
        "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAA\nreboot\n-----END PRIVATE KEY-----",
    ],
)
def test_a_masked_value_that_could_run_says_so_or_is_shown(text: str):
    shown = redact(text)
    assert ", could be a command]" in shown or "rm -rf /" in shown or "reboot" in shown


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Cookie: a=b1c2; rm -rf /", "rm -rf /"),
        ("-----BEGIN PRIVATE KEY-----; rm -rf /", "; rm -rf /"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n; rm -rf /\n-----END PRIVATE KEY-----",
            "; rm -rf /",
        ),
        ("Authorization: Bearer abc123; rm -rf /", "; rm -rf /"),
        ("token=$(rm -rf /) x", "$(rm -rf /)"),
        ("https://u:p1ss@h/; rm -rf /", "; rm -rf /"),
        ("password=hunter2 rm -rf /", " rm -rf /"),
        ("password=hunter2|sh -c 'rm -rf /'", "rm -rf /"),
    ],
)
def test_a_command_beside_a_secret_stays_readable(text: str, stays: str):
    assert stays in redact(text)


# ------------------------------------------------------------------------- hidden and blank characters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a[U+202E]b"),
        ("a\x00b", "a[U+0000]b"),
        ("a\x1b[31mb", "a[U+001B][31mb"),
        ("a\u200b\u200b\u200bb", "a[U+200B ×3]b"),
        ("a\u200b\u200cb", "a[U+200B][U+200C]b"),
        ("\ufeffa", "[U+FEFF]a"),
        ("a\U000e0041b", "a[U+E0041]b"),
        ("a\ufe0fb", "a[U+FE0F]b"),
        ("a\U000e0100b", "a[U+E0100]b"),
        ("a\u2028b\u2029c\x85d", "a[U+2028]b[U+2029]c[U+0085]d"),
        ("a\u00a0b\u3000c", "a[U+00A0]b[U+3000]c"),
        ("a\u00adb", "a[U+00AD]b"),
        ("a\ud83db", "a[U+D83D]b"),
        ("a\ue000b", "a[U+E000]b"),
        ("a\rb", "a[U+000D]b"),
        ("a\r\nb\tc\n", "a\r\nb\tc\n"),
        ("a\x7fb", "a[U+007F]b"),
        ("a\u3164b\u2800c", "a[U+3164]b[U+2800]c"),
        ("👩\u200d👩", "👩[U+200D]👩"),
        ("a" + " " * 300 + "b", "a[300 spaces]b"),
        ("a" + " " * 39 + "b", "a" + " " * 39 + "b"),
        ("a" + "\t" * 9 + "b", "a[9 tabs]b"),
        ("a" + " \t" * 22 + "b", "a[44 blanks]b"),
        ("a" + "\n" * 13 + "b", "a\n[12 blank lines]\nb"),
        ("a\n\n\n\nb", "a\n\n\n\nb"),
        ("a" + "\n \t" * 12 + "\nb", "a\n[12 blank lines]\nb"),
        ("a" + "\r\n" * 9 + "b", "a\r\n[8 blank lines]\nb"),
    ],
)
def test_hidden_characters_and_long_blank_runs_become_visible(text: str, shown: str):
    assert redact(text) == shown
    assert redact(redact(text)) == shown


def test_ordinary_letters_of_any_script_stay():
    text = "naïve Ünïcödé, 日本語, العربية, עברית, हिन्दी, ไทย, 😀, e\u0301"
    assert redact(text) == text


# ------------------------------------------------------------------------------------------- segments


def test_segments_tell_text_masks_and_marks_apart_and_lose_nothing():
    shown = redact("rm\u202e x\npassword=hunter2 y" + " " * 50)
    assert segments(shown) == [
        ("text", "rm"),
        ("mark", "[U+202E]"),
        ("text", " x\npassword="),
        ("masked", "[redacted:password]"),
        ("text", " y"),
        ("mark", "[50 spaces]"),
    ]
    assert segments("") == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.kind}: {s.text[:40]!a}")
def test_every_kind_of_mask_is_a_segment(sample: Sample):
    shown = redact(sample.text)
    pieces = segments(shown)
    assert "".join(part for _, part in pieces) == shown
    assert shown.count("[redacted:") == sum(kind == "masked" for kind, _ in pieces)


# ------------------------------------------------------------------------------------------ JSON values


def test_a_value_is_walked_with_names_texts_and_what_secret_names_hold():
    value = {
        "password": "x",
        "apiKey": ["a", {"b": "c"}],
        "Authorization": "Bearer x",
        "set-cookie": "sid=1",
        "db_pass": 12345678,
        "note": "password is hunter2",
        "ghp_16C7e42F292c6912E7710c": 1,
        "usage": {"input_tokens": 12, "output_tokens": None, "tokens": 5},
        "session_id": "s-1",
        "idempotency_key": "k-1",
        "token": None,
        "secret": False,
        "env": [{"name": "API_KEY", "value": "v1"}, {"name": "PATH", "value": "/bin"}],
        "deep": ({"client_secret": "y"},),
        "ref": {"token": "$TOKEN"},
    }
    assert redact_value(value) == {
        "password": "[redacted:password]",
        "apiKey": ["[redacted:api key]", {"b": "[redacted:api key]"}],
        "Authorization": "[redacted:authorization]",
        "set-cookie": "[redacted:cookie]",
        "db_pass": "[redacted:password]",
        "note": "password is [redacted:password]",
        "[redacted:github token]": 1,
        "usage": {"input_tokens": 12, "output_tokens": None, "tokens": 5},
        "session_id": "s-1",
        "idempotency_key": "k-1",
        "token": None,
        "secret": False,
        "env": [{"name": "API_KEY", "value": "[redacted:api key]"}, {"name": "PATH", "value": "/bin"}],
        "deep": [{"client_secret": "[redacted:secret]"}],
        "ref": {"token": "$TOKEN"},
    }


def test_members_whose_masked_names_are_alike_are_all_kept():
    value = {"ghp_16C7e42F292c6912E7710c": 1, "ghp_26C7e42F292c6912E7710c": 2}
    assert redact_value(value) == {"[redacted:github token]": 1, "[redacted:github token] (2)": 2}
    assert len(redact_value({"secret": value})["secret"]) == 2


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["curl", "-u", "admin:hunter2", "https://x"],
            ["curl", "-u", "admin:[redacted:password]", "https://x"],
        ),
        (["tool", "--password", "hunter"], ["tool", "--password", "[redacted:password]"]),
        (["mysql", "-phunter", "main"], ["mysql", "-p[redacted:password]", "main"]),
        (["X-Api-Key", "abc"], ["X-Api-Key", "[redacted:api key]"]),
        (["rm", "-rf", "/srv"], ["rm", "-rf", "/srv"]),
        (["token", "$TOKEN"], ["token", "$TOKEN"]),
    ],
)
def test_a_list_that_is_a_command_line_is_read_as_one(words: list[str], shown: list[str]):
    assert redact_value(words) == shown


def test_the_own_token_is_removed_from_names_and_values():
    shown = json.dumps(redact_value({OWN: [OWN, {"x": f"a{OWN}b"}]}, own=[OWN]))
    assert OWN not in shown
    assert shown.count("[redacted:endpoint token]") == 3


def test_a_value_nested_without_end_is_cut_and_masked():
    value: object = "password=hunter2"
    for _ in range(500):
        value = [value]
    assert "hunter2" not in str(redact_value(value))
    held: object = "x"
    for _ in range(500):
        held = {"password": held}
    assert "nested too deep" in str(redact_value(held))


# --------------------------------------------------------------------------------------------- limits


def test_text_over_the_limit_is_replaced_whole():
    assert redact("a" * (MAX_INPUT + 1)) == "[redacted:too large to show safely]"
    assert redact("a " * (MAX_INPUT // 2)) == "a " * (MAX_INPUT // 2)


@pytest.mark.parametrize(
    "text", ["\x00\x01" * (MAX_INPUT // 2), "\u200b\u200c" * 100_000, "[1 tabs]" * 131_000]
)
def test_what_would_grow_over_the_limit_is_replaced_whole_and_stays_so(text: str):
    assert redact(text) == "[redacted:too large to show safely]"
    assert redact(redact(text)) == redact(text)


def test_more_secrets_than_a_text_may_hold_mask_all_of_it():
    assert redact("token=abc1 " * 90_000) == "[redacted:too many secrets to show safely]"


def test_the_version_is_a_text():
    assert isinstance(redaction.VERSION, str)
    assert redaction.VERSION


# ------------------------------------------------------------------------------------------- properties

FRAGMENTS = st.sampled_from(
    [sample.text for sample in SAMPLES if len(sample.text) < 200]
    + list(PLAIN[:30])
    + [
        "password",
        "token",
        "is",
        "=",
        ":",
        " ",
        "\n",
        '"',
        "'",
        "\\",
        "\\n",
        ";",
        "|",
        "&",
        "$(",
        ")",
        "@",
        "://",
        "/",
        ",",
    ]
    + [
        "-u ",
        "mysql ",
        " -p",
        "Cookie: ",
        "Bearer ",
        "eyJ",
        "sk-",
        "[",
        "]",
        "redacted:",
        "U+",
        "\u200b",
        "\u202e",
        "<",
        ">",
    ]
    + [
        "Authorization: ",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "A" * 40,
        "key",
        "secret",
        "{",
        "}",
        "%3A",
    ]
    + [
        " " * 45,
        "\n" * 7,
        OWN,
        OWN[:9],
        "x",
        "1",
        "hunter2",
        ".",
        "echo ",
        " | sudo -S",
        "\ue000",
        "\x1b[0m",
        "，",
        "＝",
    ]
)
TEXTS = st.one_of(
    st.lists(FRAGMENTS, max_size=14).map("".join),
    st.text(max_size=80),
    st.text(alphabet=st.characters(codec="utf-8", min_codepoint=0x20, max_codepoint=0x7E), max_size=120),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_redaction_is_idempotent_for_any_text(text: str):
    once = redact(text, own=[OWN])
    assert redact(once, own=[OWN]) == once
    assert OWN not in once


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_nothing_hidden_is_left_in_any_text(text: str):
    shown = redact(text)
    assert shown.replace("\t", "").replace("\r\n", "").replace("\n", "").isprintable() or any(
        not c.isprintable() and c not in "\t\r\n" and ord(c) > 0x7F for c in shown
    )
    assert "".join(part for _, part in segments(shown)) == shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, TEXTS)
def test_the_own_token_never_survives_between_any_texts(before: str, after: str):
    assert OWN not in redact(before + OWN + after, own=[OWN])
