"""All patterns over one text: where the secrets are, what kind, and what a stream must not cut apart."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .assignments import assignments
from .commands import commands
from .own import own_tokens
from .requests import addresses, cookies, headers, queries, user_flags
from .shadow import Shadow, shadow
from .tokens import encoded, private_keys, shapes, words
from .values import COMMAND, Span, Work

#: Candidates that one text may hold. Each costs a few microseconds, so that this bounds the time too.
WORK_LIMIT = 20_000

Family = Callable[[Shadow, Work], Iterator[Span]]

#: In order of how much a match says: where two overlap, the earlier one names the kind.
_FAMILIES: tuple[Family, ...] = (
    private_keys,
    words,
    shapes,
    addresses,
    headers,
    cookies,
    user_flags,
    commands,
    queries,
    assignments,
)


class Found(NamedTuple):
    """A stretch to mask, and the larger one that belongs to it, in places of the original text."""

    start: int
    end: int
    kind: str
    zone_start: int
    zone_end: int


def scan(text: str, *, own: Sequence[str] = (), ours: bool = False, work: Work | None = None) -> list[Found]:
    """The secrets of `text`, in order and apart from each other.

    `ours`: the marks in it were written by us. WorkLimit when it holds more candidates than one text may.
    """
    work = work or Work(WORK_LIMIT)
    twin = shadow(text, ours=ours)
    ranked = list(_mapped(twin, own, work))
    if twin.hidden:  # hidden characters can split a secret, or glue it to a word: look at both readings
        ranked += _mapped(shadow(text, ours=ours, gap=" "), own, work)
    return _apart(ranked)


def _mapped(twin: Shadow, own: Sequence[str], work: Work) -> Iterator[tuple[int, Found]]:
    for rank, span in _ranked(twin, own, work):
        yield (
            rank,
            Found(
                twin.origin(span.start),
                twin.origin_end(span.end),
                span.kind,
                twin.origin(max(0, span.zone_start)),
                twin.origin_end(min(len(twin.text), max(span.end, span.zone_end))),
            ),
        )


def _ranked(twin: Shadow, own: Sequence[str], work: Work) -> Iterator[tuple[int, Span]]:
    for span in own_tokens(twin, own, work):
        yield 0, span
    for rank, family in enumerate(_FAMILIES, start=1):
        for span in family(twin, work):
            yield rank, span
    yield from _inside_base64(twin, own, work)


def _inside_base64(twin: Shadow, own: Sequence[str], work: Work) -> Iterator[tuple[int, Span]]:
    """Words that are base64 of a text with a secret in it: masked whole, one level deep."""
    for start, end, plain in encoded(twin):
        work.spend()
        inner = shadow(plain, ours=False)
        families: Iterable[Iterator[Span]] = (
            own_tokens(inner, own, work),
            *(f(inner, work) for f in _FAMILIES),
        )
        kind = next((span.kind for family in families for span in family), None)
        if kind:
            kind = "encoded " + kind.removesuffix(COMMAND) + (COMMAND if " " in plain.strip() else "")
            yield len(_FAMILIES) + 1, Span(start, end, kind, start, end)


def _apart(ranked: list[tuple[int, Found]]) -> list[Found]:
    """Overlapping stretches as one, named by the most telling of them."""
    ranked.sort(key=lambda item: (item[1].start, item[1].end))
    merged: list[tuple[int, Found]] = []
    for rank, found in ranked:
        if found.end <= found.start:
            continue
        if not merged or found.start >= merged[-1][1].end:
            merged.append((rank, found))
            continue
        last_rank, last = merged[-1]
        kind = found.kind if rank < last_rank else last.kind
        if found.kind.endswith(COMMAND) and found.end > last.end and not kind.endswith(COMMAND):
            kind += COMMAND
        merged[-1] = (
            min(rank, last_rank),
            Found(
                last.start,
                max(last.end, found.end),
                kind,
                min(last.zone_start, found.zone_start),
                max(last.zone_end, found.zone_end),
            ),
        )
    return [found for _, found in merged]
