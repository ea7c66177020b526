"""The event stream decoder: any cut, any line end, hostile text, bounded memory (cases 15, 16, 18, 19; F6, F14)."""

import hashlib
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermes_portal.hermes.sse import MAX_FRAME, Comment, Decoder, Frame, FrameTooLarge, Tail

pytestmark = pytest.mark.once

SAMPLE = (
    "\ufeff: open\r\n\r\n"
    'id: 7\r\ndata: {"event":"message.delta","delta":"né \N{TEST TUBE} \u200fשלום"}\r\n\r\n'
    ": keepalive\n\n"
    "data: one\rdata: two\r\r"
    ": stream closed\n\n"
).encode()


def decode(chunks: Iterable[bytes]) -> tuple[list[Frame | Comment], Tail | None]:
    decoder = Decoder()
    items = [item for chunk in chunks for item in decoder.feed(chunk)]
    return items, decoder.flush()


def frames(*chunks: bytes) -> list[Frame]:
    return [item for item in decode(chunks)[0] if isinstance(item, Frame)]


def datas(*chunks: bytes) -> list[bytes]:
    return [frame.data for frame in frames(*chunks)]


# ------------------------------------------------------------------------------------------- cuts


def test_the_sample_is_read_whole():
    items, tail = decode([SAMPLE])
    assert [item.text for item in items] == [
        "open",
        '{"event":"message.delta","delta":"né \N{TEST TUBE} \u200fשלום"}',
        "keepalive",
        "one\ntwo",
        "stream closed",
    ]
    assert isinstance(items[1], Frame)
    assert items[1].id == "7"
    assert not items[1].decode_replaced
    assert tail is None


def test_a_cut_at_any_byte_changes_nothing():
    whole = decode([SAMPLE])
    for cut in range(len(SAMPLE) + 1):
        assert decode([SAMPLE[:cut], SAMPLE[cut:]]) == whole, cut


def test_one_byte_at_a_time_changes_nothing():
    assert decode(bytes([byte]) for byte in SAMPLE) == decode([SAMPLE])


def test_empty_chunks_change_nothing():
    assert decode([b"", SAMPLE[:1], b"", SAMPLE[1:], b""]) == decode([SAMPLE])


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_ends_a_line_wherever_it_is_cut(end):
    raw = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    for cut in range(len(raw) + 1):
        assert datas(raw[:cut], raw[cut:]) == [b"a\nb", b"c"]


def test_a_crlf_cut_in_two_is_one_line_end():
    assert datas(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]


def test_a_lone_cr_dispatches_without_waiting_for_the_next_byte():
    assert len(Decoder().feed(b"data: a\n\r")) == 1


# ------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    "separator",
    ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\0"],
    ids=lambda text: f"U+{ord(text):04X}",
)
def test_only_lf_and_cr_cut_a_line(separator):
    hostile = f'data: {{"delta":"x{separator}data: {{}}{separator}{separator}data: y"}}\n\n'
    (frame,) = frames(hostile.encode())
    assert frame.text == hostile[len("data: ") : -2]


def test_a_byte_that_is_not_utf8_is_replaced_and_flagged():
    (frame,) = frames(b'data: {"delta":"a\xffb"}\n\n')
    assert frame.text == '{"delta":"a\ufffdb"}'
    assert frame.decode_replaced
    assert frame.raw_sha256 == hashlib.sha256(b'{"delta":"a\xffb"}').hexdigest()


def test_the_digest_is_over_the_data_as_received():
    first, second = frames(b'data: {"a":\r\ndata: 1}\r\n\r\ndata:{"a":\ndata:1}\n\n')
    assert first.raw_sha256 == second.raw_sha256 == hashlib.sha256(b'{"a":\n1}').hexdigest()


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_one_leading_byte_order_mark_is_skipped(cut):
    raw = b"\xef\xbb\xbfdata: a\n\n"
    assert datas(raw[:cut], raw[cut:]) == [b"a"]


def test_a_second_byte_order_mark_is_part_of_a_field_name():
    assert datas(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", b"data: b\n\n") == [b"b"]
    assert datas(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [b"a"]


# ----------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data:a\n\n", b"a"),
        (b"data: a\n\n", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"data:\ta\n\n", b"\ta"),
        (b"data: a: b\n\n", b"a: b"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data\ndata\n\n", b"\n"),
        (b"data: a\n: between\ndata: b\n\n", b"a\nb"),
        (b"unknown: x\ndata: a\nnocolon\n\n", b"a"),
    ],
)
def test_data_is_what_the_standard_says(raw, data):
    assert datas(raw) == [data]


@pytest.mark.parametrize(
    "raw", [b"event: ping\n\n", b"id: 4\n\n", b"retry: 5\n\n", b"\n\n\n", b"Data: a\n\n", b" data: a\n\n"]
)
def test_a_frame_without_data_gives_nothing(raw):
    assert decode([raw]) == ([], None)


def test_event_id_and_retry_belong_to_their_own_frame():
    first, second = frames(b"event: ping\nid: 4\nretry: 250\ndata: a\n\ndata: b\n\n")
    assert (first.event, first.id, first.retry) == ("ping", "4", 250)
    assert (second.event, second.id, second.retry) == ("", None, None)


def test_the_last_id_outlives_its_frame_for_a_resume():
    assert Decoder().last_event_id is None
    decoder = Decoder()
    decoder.feed(b"id: 4\ndata: a\n\ndata: b\n\n")
    assert decoder.last_event_id == "4"
    decoder.feed(b"id: 5\n\n")
    assert decoder.last_event_id == "5"
    decoder.feed(b"id: 6\0\ndata: c\n\nid: 7\n")
    assert decoder.last_event_id == "5"


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"1x", "٣".encode(), b"9" * 5000])
def test_a_retry_that_is_no_number_is_ignored(value):
    assert frames(b"retry: " + value + b"\ndata: a\n\n")[0].retry is None


def test_comments_come_out_even_inside_a_frame():
    items, tail = decode([b": keepalive\n\n:\ndata: a\n:no space\n\n: stream closed\n\n"])
    assert [item.text for item in items] == ["keepalive", "", "no space", "a", "stream closed"]
    assert tail is None


# ------------------------------------------------------------------------------------------- tails


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"event":"run.completed"}',
        b'data: {"event":"run.completed"}\n',
        b'data: {"event":"run.compl',
        "data: né \N{TEST TUBE}".encode()[:-2],
        b"id: 5\n",
        b": keepal",
        b"\xef\xbb",
    ],
)
def test_an_unfinished_end_is_reported_and_never_dispatched(raw):
    items, tail = decode([raw])
    assert items == []
    assert tail == Tail(raw, "ended_mid_frame")


def test_a_line_end_and_a_lone_cr_finish_a_frame():
    items, tail = decode([b'data: {"event":"run.completed"}\n\r'])
    assert len(items) == 1
    assert tail is None


def test_the_tail_is_reported_once():
    decoder = Decoder()
    decoder.feed(b"data: a")
    assert decoder.flush() is not None
    assert decoder.flush() is None


# ------------------------------------------------------------------------------------------- sizes


def feed_for_ever(decoder: Decoder, chunk: bytes) -> None:
    """Two gibibytes are as good as endless: a decoder that took them all fails the test that expects an error."""
    for _ in range(2**31 // len(chunk)):
        decoder.feed(chunk)


@pytest.mark.parametrize("start", [b"data: ", b": ", b"id: ", b"", b"data: x\n: "])
def test_a_line_that_never_ends_is_cut_off_in_bounded_memory(start):
    decoder = Decoder()
    chunk = b"A" * 65536
    decoder.feed(start)
    tracemalloc.start()
    try:
        with pytest.raises(FrameTooLarge):
            feed_for_ever(decoder, chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MAX_FRAME
    tail = decoder.flush()
    assert tail is not None
    assert tail.reason == "frame_too_large"
    assert len(tail.raw) <= MAX_FRAME


def test_lines_without_a_blank_line_are_one_frame_and_count_together():
    decoder = Decoder()
    with pytest.raises(FrameTooLarge):
        feed_for_ever(decoder, b"data: 12345\n" * 100)


def test_a_finished_frame_over_the_cap_is_refused_too():
    with pytest.raises(FrameTooLarge):
        Decoder().feed(b"data: " + b"A" * (9 * MAX_FRAME) + b"\n\n")


def test_a_frame_of_exactly_the_cap_passes():
    line = b"data: " + b"A" * (MAX_FRAME - 7) + b"\n"
    assert len(frames(line + b"\n")) == 1
    with pytest.raises(FrameTooLarge):
        Decoder().feed(line.replace(b"\n", b"A\n"))


def test_frames_before_the_one_too_large_are_handed_out_first():
    decoder = Decoder(max_frame=32)
    items = decoder.feed(b"data: a\n\n: c\ndata: " + b"A" * 40 + b"\n\ndata: b\n\n")
    assert [item.text for item in items] == ["a", "c"]
    with pytest.raises(FrameTooLarge):
        decoder.feed(b"data: d\n\n")
    with pytest.raises(FrameTooLarge):
        decoder.feed(b"\n\n")
    tail = decoder.flush()
    assert tail is not None
    assert tail.reason == "frame_too_large"


def test_many_small_frames_in_one_chunk_are_not_one_large_frame():
    raw = b'data: {"event":"message.delta"}\n\n' * 120_000
    assert len(raw) > MAX_FRAME
    assert len(frames(raw)) == 120_000


def test_many_comments_are_not_one_large_frame():
    decoder = Decoder()
    decoder.feed(b"data: a\n")
    for _ in range(20):
        assert len(decoder.feed(b": keepalive\n" * 5000)) == 5000
    assert [item.text for item in decoder.feed(b"\n")] == ["a"]


# ------------------------------------------------------------------------------- a second opinion


def lines_of(raw: bytes) -> tuple[list[bytes], bytes]:
    """Complete lines and the rest, found by walking byte by byte over the whole stream."""
    lines, line, position = [], b"", 0
    while position < len(raw):
        byte = raw[position : position + 1]
        position += 1
        if byte in (b"\n", b"\r"):
            if raw[position - 1 : position + 1] == b"\r\n":
                position += 1
            lines.append(line)
            line = b""
        else:
            line += byte
    return lines, line


def reference(raw: bytes) -> tuple[list[tuple[object, ...]], bool]:
    """The same stream read slowly and another way: all lines first, then blocks, then the last value of a field."""
    lines, rest = lines_of(raw[3:] if raw[:3] == b"\xef\xbb\xbf" else raw)
    items: list[tuple[object, ...]] = []
    block: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if line[:1] == b":":
            items.append((replaced(value),))
        elif line:
            block.append((name, value))
        else:
            data = [value for name, value in block if name == b"data"]
            events = ["", *(replaced(value) for name, value in block if name == b"event")]
            ids = [None, *(replaced(value) for name, value in block if name == b"id" and b"\0" not in value)]
            waits = [None, *(int(value) for name, value in block if name == b"retry" and digits(value))]
            if data:
                items.append((b"\n".join(data), events[-1], ids[-1], waits[-1]))
            block = []
    return items, bool(block or rest)


def replaced(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def digits(value: bytes) -> bool:
    return 0 < len(value) <= 12 and set(value) <= set(b"0123456789")


PIECES = st.sampled_from(
    [
        *(b"\n", b"\r", b"\r\n", b"\n\n"),
        *(b"data", b"data: ", b"event:", b"id: ", b"retry: ", b": ", b":", b" "),
        *(
            b"7",
            b"x",
            b"\0",
            b"\xff",
            b"\xef\xbb\xbf",
            "\u2028".encode(),
            "\x85".encode(),
            b"\x0b",
            b'{"a": 1}',
        ),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PIECES, max_size=40).map(b"".join),
    st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=6),
)
@example(b"data: a\r\ndata\r\r\n: c\rid: 7\ndata", [1])
def test_a_slow_reader_written_another_way_agrees(raw, sizes):
    decoder, position = Decoder(), 0
    chunks: list[bytes] = []
    while position < len(raw):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(raw[position : position + size])
        position += size
    items = [item for chunk in chunks for item in decoder.feed(chunk)]
    seen = [
        (item.text,) if isinstance(item, Comment) else (item.data, item.event, item.id, item.retry)
        for item in items
    ]
    assert (seen, decoder.flush() is not None) == reference(raw)
