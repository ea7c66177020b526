#!/usr/bin/env python3
"""Verifies an evidence export: one file, standard library only, no network, constant memory.

    python verifier.py FILE [--public-key HEX] [--anchor EARLIER] [--chain-only]

An auditor can take this file away from the portal and run it with any Python from 3.9 on; docs/evidence.md
describes the format that it checks. It imports nothing of the portal on purpose: what one side gets
wrong, the other side finds.

Exit codes: 0 everything holds; 1 the evidence is bad (the first bad entry is named); 2 the file cannot be
read; 3 the chain holds, but the signature could not be checked (the package `cryptography` is not
installed).
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    CAN_CHECK_SIGNATURES = True
except ImportError:  # the chain is checked without it, and the report says so
    CAN_CHECK_SIGNATURES = False

VERSION = 1
NO_PREVIOUS = "0" * 64
MAX_LINE = 16 * 1024 * 1024
MAX_INTEGER = 2**53 - 1
BAD, UNREADABLE, SIGNATURE_UNCHECKED = 1, 2, 3

ENTRY_MEMBERS = {"v", "tenant", "seq", "prev", "at", "kind", "actor", "ids", "payload_digest"}
PAYLOAD_MEMBERS = {"v", "payload_of", "tenant", "salt", "data"}
MANIFEST_MEMBERS = {
    "v",
    "portal",
    "tenant",
    "since",
    "until",
    "first_seq",
    "last_seq",
    "first_prev",
    "head",
    "entries",
    "payloads",
    "erased_later",
    "body_sha256",
    "exported_at",
    "exported_by",
    "public_key",
    "key_id",
    "redactor",
    "endpoints",
}
HEX64 = re.compile(r"[0-9a-f]{64}\Z")
INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z\Z")
# What tells a damaged line's nature; a quote inside a text is escaped, so no text can imitate these.
ENTRY_MARKS = (b'{"actor":', b',"payload_digest":"', b',"prev":"', b',"kind":"', b',"ids":{')
PAYLOAD_MARKS = (b'{"data":', b',"payload_of":', b',"salt":"')
MANIFEST_MARKS = (b'{"manifest":{', b'},"signature":"', b'"body_sha256":"')


# --- what was found -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """The first thing that is wrong.

    `code`: edited, missing, inserted, swapped, cut, rewritten (an entry); payload_edited, payload_missing,
    payload_misplaced, payload_kept (the payload of an entry); manifest, signature, key, anchor, version
    (the file). `seq` is the entry's number, None when it is about the file; `line` counts from 1, None
    where no line is to blame.
    """

    code: str
    sentence: str
    seq: int | None = None
    line: int | None = None


@dataclass
class Report:
    """What a verification found. `signature` is valid, invalid, unchecked or absent."""

    problem: Problem | None = None
    tenant: str = ""
    first_seq: int | None = None
    last_seq: int | None = None
    first_prev: str | None = None
    head: str | None = None
    entries: int = 0
    payloads: int = 0
    erased: int = 0
    signature: str = "absent"
    public_key: str = ""
    pinned: bool = False
    anchored: bool = False
    warnings: list[str] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was found; whether the signature could be checked is `signature`."""
        return self.problem is None

    @property
    def exit_code(self) -> int:
        if self.problem is not None:
            return BAD
        return SIGNATURE_UNCHECKED if self.signature == "unchecked" else 0


class Unreadable(Exception):
    """A file or an option that cannot be used at all; exit code 2."""


class _Stop(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.sentence)
        self.problem = problem


def _stop(code: str, sentence: str, *, seq: int | None = None, line: int | None = None) -> NoReturn:
    raise _Stop(Problem(code, sentence, seq, line))


# --- canonical JSON -----------------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """The canonical bytes (RFC 8785). Raises ValueError for what has none: NaN, lone surrogates, other types."""
    return _canonical(value).encode("utf-8")


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        # RFC 8785, 3.2.3: members are sorted by UTF-16 code units, not by code points
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_canonical(name)}:{_canonical(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, float):
        return _canonical_float(value)
    if isinstance(value, int) and not _readable(value):
        raise ValueError("an integer that not every reader of JSON can hold")
    return json.dumps(value, ensure_ascii=False)


def _readable(value: int) -> bool:
    """Below 2**53, or how RFC 8785 writes a large float that has no fraction."""
    return abs(value) <= MAX_INTEGER or (abs(value) < 10**21 and _canonical_float(float(value)) == str(value))


def _canonical_float(value: float) -> str:
    """RFC 8785, 3.2.2.3: as ECMAScript writes it. Entries hold no such numbers; what a server reports may."""
    if not math.isfinite(value):
        raise ValueError("not a number that JSON knows")
    if value == 0:
        return "0"
    sign, figures, exponent = Decimal(repr(value)).as_tuple()
    digits = "".join(map(str, figures)).rstrip("0")
    count, point = len(digits), len(figures) + int(exponent)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        fraction = f".{digits[1:]}" if count > 1 else ""
        text = f"{digits[0]}{fraction}e{point - 1:+d}"
    return f"-{text}" if sign else text


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object of a line in canonical form; None when the bytes are anything else."""
    try:
        value = json.loads(line.decode("utf-8"))
        if isinstance(value, dict) and canonical(value) == line:
            return value
    except (ValueError, RecursionError):
        pass
    return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- stretches of entry numbers -----------------------------------------------------------------------------


class Stretches:
    """A set of entry numbers, kept as stretches: memory grows with the holes, not with the entries."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, seq: int) -> bool:
        at = bisect.bisect_right(self._firsts, seq) - 1
        return at >= 0 and seq <= self._lasts[at]

    def add(self, seq: int) -> None:
        if seq in self:
            return
        at = bisect.bisect_right(self._firsts, seq)
        left = at > 0 and self._lasts[at - 1] == seq - 1
        right = at < len(self._firsts) and self._firsts[at] == seq + 1
        if left and right:
            self._lasts[at - 1] = self._lasts.pop(at)
            del self._firsts[at]
        elif left:
            self._lasts[at - 1] = seq
        elif right:
            self._firsts[at] = seq
        else:
            self._firsts.insert(at, seq)
            self._lasts.insert(at, seq)

    def remove(self, seq: int) -> None:
        if seq not in self:
            return
        at = bisect.bisect_right(self._firsts, seq) - 1
        first, last = self._firsts[at], self._lasts[at]
        rest = [pair for pair in ((first, seq - 1), (seq + 1, last)) if pair[0] <= pair[1]]
        self._firsts[at : at + 1] = [pair[0] for pair in rest]
        self._lasts[at : at + 1] = [pair[1] for pair in rest]

    def pairs(self) -> list[list[int]]:
        return [[first, last] for first, last in zip(self._firsts, self._lasts)]  # noqa: B905 (3.9)

    def first_outside(self, known: list[list[int]]) -> int | None:
        """The smallest number that none of the `known` stretches (sorted, apart) covers."""
        for first, last in self.pairs():
            at = first
            for low, high in known:
                if low <= at <= high:
                    at = high + 1
            if at <= last:
                return at
        return None


# --- reading lines ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    line: int
    seq: int
    prev: str
    tenant: str
    digest: str
    kind: str
    ids: dict[str, Any]
    has_payload: bool = False
    misplaced: int | None = None  # the payload behind this entry says that it belongs to that one
    flaw: Problem | None = None  # wrong by itself, unless its links show something worse


@dataclass(frozen=True)
class _Manifest:
    line: int
    fields: dict[str, Any]
    signature: str
    body_sha256: str  # of the bytes before the manifest, as read


class _Lines:
    """Lines with their numbers, one line of look-ahead, and the digest of everything before the current one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.number = 0
        self.current = b""
        self._next = self._file.readline(MAX_LINE + 1)

    def at_end(self) -> bool:
        return not self._next

    @property
    def following(self) -> bytes:
        """The next line without its line feed."""
        return self._next[:-1] if self._next.endswith(b"\n") else self._next

    @property
    def following_is_whole(self) -> bool:
        return self._next.endswith(b"\n")

    def advance(self) -> None:
        if self.number:
            self._sha256.update(self.current + b"\n")
        self.number += 1
        self.current, self._next = self.following, self._file.readline(MAX_LINE + 1)

    def body_sha256(self) -> str:
        """The digest of all bytes before the current line."""
        return self._sha256.hexdigest()


def _nature(line: bytes) -> str:
    """Which kind of line this was meant to be, from what is left of its marks; empty when nothing is left."""
    best, highest = "", 0.0
    for nature, marks in (("entry", ENTRY_MARKS), ("payload", PAYLOAD_MARKS), ("manifest", MANIFEST_MARKS)):
        score = sum(mark in line for mark in marks) / len(marks)
        score += 0.3 * line.startswith(marks[0][:3]) + 0.3 * line.startswith(marks[0])
        if score > highest:
            best, highest = nature, score
    return best


def _damaged(line: bytes) -> str:
    if line.endswith(b"\r"):
        return "its line end was converted (the file must be copied as binary)"
    return "its bytes are not the canonical form in which evidence is written"


def _first_seq(line: bytes, following: bytes) -> int | None:
    """The number of a damaged first entry, from what it or the line behind it still shows."""
    neighbour = _parse(following)
    if neighbour is not None and _is_entry(neighbour):
        return int(neighbour["seq"]) - 1
    shown = re.search(rb'"seq":([1-9][0-9]{0,15})[,}]', line + following) or re.search(
        rb'"payload_of":([1-9][0-9]{0,15}),"salt":"[0-9a-f]{64}"', following
    )
    if shown:
        return int(shown[1])
    return 1 if NO_PREVIOUS[1:].encode() in line + following else None


class _Items:
    """Entries, each with its payload, and at last the manifest. Raises _Stop for what is neither."""

    def __init__(self, file: BinaryIO) -> None:
        self._lines = _Lines(file)
        self._last = 0  # number of the last entry read
        self.payloads = 0

    def __iter__(self) -> Iterator[_Entry | _Manifest]:
        while not self._lines.at_end():
            self._advance()
            nature = self._nature_here()
            if nature == "manifest":
                yield self._manifest()
                if not self._lines.at_end():
                    _stop("inserted", "There are lines behind the manifest.", line=self._lines.number + 1)
                return
            if nature == "payload":
                self._orphan()
            yield self._entry()
        sentence = f"The file ends {self._after()} without its manifest: it was cut."
        _stop("cut", sentence, seq=self._last + 1, line=self._lines.number + 1)

    def _advance(self) -> None:
        line = self._lines.number + 1
        if not self._lines.following_is_whole:
            seq = None if _nature(self._lines.following) == "manifest" else self._last + 1
            if len(self._lines.following) > MAX_LINE:
                _stop("edited", f"Line {line} is longer than {MAX_LINE} bytes.", seq=seq, line=line)
            _stop("cut", f"Line {line} has no end: the file was cut inside it.", seq=seq, line=line)
        self._lines.advance()

    def _after(self) -> str:
        return f"after entry {self._last}" if self._last else "before the first entry"

    def _entry(self) -> _Entry:
        line, number = self._lines.current, self._lines.number
        document = _parse(line)
        if document is None or not _is_entry(document):
            seq = self._last + 1 if self._last else _first_seq(line, self._lines.following)
            _refuse_version(document, seq, number)
            why = _damaged(line) if document is None else "its members are not those of an entry"
            _stop(
                "edited",
                f"{f'Entry {seq}' if seq else 'The first entry here'} was edited: {why}.",
                seq=seq,
                line=number,
            )
        self._last = document["seq"]
        entry = _Entry(
            line=number,
            seq=document["seq"],
            prev=document["prev"],
            tenant=document["tenant"],
            digest=_sha256(line),
            kind=document["kind"],
            ids=document["ids"],
        )
        if self._lines.at_end() or _nature(self._lines.following) not in ("payload", ""):
            return entry
        self._advance()
        if self._nature_here() != "payload":
            self._not_even_a_payload()
        return self._with_payload(entry, document["payload_digest"])

    def _nature_here(self) -> str:
        """Of the current line; of a fragment without any mark, what it and the line behind it were together."""
        return (
            _nature(self._lines.current) or _nature(self._lines.current + self._lines.following) or "payload"
        )

    def _not_even_a_payload(self) -> NoReturn:
        """A fragment where a payload or the next entry should begin."""
        if self._nature_here() == "manifest":
            self._manifest()
        seq, number = self._last + 1, self._lines.number
        _stop("edited", f"Entry {seq} was edited: it was broken into several lines.", seq=seq, line=number)

    def _with_payload(self, entry: _Entry, digest: str) -> _Entry:
        """The entry, with what the line behind it says."""
        line, number, seq = self._lines.current, self._lines.number, entry.seq
        document = _parse(line)
        belongs_to = document.get("payload_of") if document else None
        if _sha256(line) != digest:
            if _number(belongs_to) and belongs_to != seq:
                return replace(entry, misplaced=belongs_to)
            why = _damaged(line) if document is None else "its digest is not the one that the entry holds"
            _stop("payload_edited", f"The payload of entry {seq} was edited: {why}.", seq=seq, line=number)
        self.payloads += 1
        if document is None or not _is_payload(document):
            _refuse_version(document, seq, number)
            sentence = f"The payload of entry {seq} is not in the known form."
            _stop("payload_edited", sentence, seq=seq, line=number)
        if belongs_to != seq:
            sentence = f"Entry {belongs_to} was edited: it says it is number {seq}."
            _stop("edited", sentence, seq=belongs_to, line=entry.line)
        if document["tenant"] != entry.tenant:
            sentence = (
                f"Entry {seq} says that it belongs to {entry.tenant!r}, its payload {document['tenant']!r}."
            )
            return replace(entry, has_payload=True, flaw=Problem("edited", sentence, seq, entry.line))
        return replace(entry, has_payload=True)

    def _orphan(self) -> NoReturn:
        """A payload that follows no entry of its own."""
        document, number = _parse(self._lines.current), self._lines.number
        belongs_to = document.get("payload_of") if document else None
        if _number(belongs_to, self._last + 1):
            sentence = f"Entry {belongs_to} is missing; its payload is there."
            _stop("missing", sentence, seq=belongs_to, line=number)
        sentence = f"A payload stands {self._after()} that belongs to no entry here: inserted."
        _stop("payload_misplaced", sentence, seq=self._last or 1, line=number)

    def _manifest(self) -> _Manifest:
        line, number = self._lines.current, self._lines.number
        document = _parse(line)
        fields = document.get("manifest") if document else None
        if document is None or set(document) != {"manifest", "signature"} or not isinstance(fields, dict):
            _stop("manifest", f"The manifest was edited: {_damaged(line)}.", line=number)
        _refuse_version(fields, None, number)
        if not _is_manifest(fields) or not isinstance(document["signature"], str):
            sentence = "The manifest was edited: its members are not those of a manifest."
            _stop("manifest", sentence, line=number)
        return _Manifest(number, fields, document["signature"], self._lines.body_sha256())


def _refuse_version(document: dict[str, Any] | None, seq: int | None, line: int) -> None:
    version = document.get("v") if document else None
    if _number(version, VERSION + 1):
        sentence = (
            f"Line {line} says version {version}; this verifier knows {VERSION}: edited, or too new for it."
        )
        _stop("version", sentence, seq=seq, line=line)


def _number(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _hex64(value: Any) -> bool:
    return isinstance(value, str) and HEX64.match(value) is not None


def _is_entry(document: dict[str, Any]) -> bool:
    return (
        set(document) == ENTRY_MEMBERS
        and document["v"] == VERSION
        and isinstance(document["tenant"], str)
        and _number(document["seq"])
        and _hex64(document["prev"])
        and isinstance(document["at"], str)
        and INSTANT.match(document["at"]) is not None
        and isinstance(document["kind"], str)
        and isinstance(document["actor"], dict)
        and isinstance(document["ids"], dict)
        and _hex64(document["payload_digest"])
    )


def _is_payload(document: dict[str, Any]) -> bool:
    return (
        set(document) == PAYLOAD_MEMBERS
        and document["v"] == VERSION
        and _number(document["payload_of"])
        and isinstance(document["tenant"], str)
        and _hex64(document["salt"])
        and isinstance(document["data"], dict)
    )


def _is_manifest(fields: dict[str, Any]) -> bool:
    empty = fields.get("entries") == 0
    return (
        set(fields) == MANIFEST_MEMBERS
        and fields["v"] == VERSION
        and isinstance(fields["tenant"], str)
        and _number(fields["entries"], 0)
        and _number(fields["payloads"], 0)
        and all(
            fields[name] is None if empty else _number(fields[name]) for name in ("first_seq", "last_seq")
        )
        and all(fields[name] is None if empty else _hex64(fields[name]) for name in ("first_prev", "head"))
        and _hex64(fields["body_sha256"])
        and isinstance(fields["public_key"], str)
        and _are_stretches(fields["erased_later"])
    )


def _are_stretches(value: Any) -> bool:
    """[[first, last], ...] in rising order."""
    if not isinstance(value, list):
        return False
    last = 0
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_number, pair))):
            return False
        if not last < pair[0] <= pair[1]:
            return False
        last = pair[1]
    return True


# --- the chain ----------------------------------------------------------------------------------------------


def _judge(before: _Entry | None, entry: _Entry, after: _Entry | _Manifest) -> None:
    """Holds one entry against its neighbours; raises _Stop naming the first bad one.

    `before` is known to be good as far as its own links go. When two neighbours disagree, the next one is the
    witness: an entry whose digest is confirmed by its successor was not edited.
    """
    seq, follows = entry.seq, after if isinstance(after, _Entry) else None
    if before is None:
        _judge_first(entry, follows)
    else:
        _judge_link(before, entry, follows, confirmed=_confirms(after, entry))
    if entry.misplaced is not None:
        if entry.misplaced == seq + 1 and follows is not None and follows.seq == seq + 2:
            sentence = f"Entry {seq + 1} is missing; its payload is there."
            _stop("missing", sentence, seq=seq + 1, line=entry.line + 1)
        sentence = f"The payload behind entry {seq} says it is entry {entry.misplaced}'s: swapped or edited."
        _stop("payload_misplaced", sentence, seq=seq, line=entry.line + 1)
    if entry.flaw is not None:
        raise _Stop(entry.flaw)
    if before is not None and before.tenant != entry.tenant:
        sentence = (
            f"Entry {seq} belongs to the tenant {entry.tenant!r}, the one before it to {before.tenant!r}."
        )
        _stop("edited", sentence, seq=seq, line=entry.line)


def _confirms(after: _Entry | _Manifest, entry: _Entry) -> bool:
    known = after.prev if isinstance(after, _Entry) else after.fields["head"]
    return bool(known == entry.digest)


def _judge_first(entry: _Entry, follows: _Entry | None) -> None:
    if entry.seq == 1 and entry.prev != NO_PREVIOUS:
        _stop("edited", "Entry 1 was edited: a first entry follows nothing.", seq=1, line=entry.line)
    if follows is None or follows.seq > entry.seq:
        return
    if entry.prev == follows.digest:
        sentence = f"Entries {follows.seq} and {entry.seq} were swapped."
        _stop("swapped", sentence, seq=follows.seq, line=entry.line)
    if follows.seq == 1 or entry.prev == follows.prev:
        sentence = f"An entry with the number {entry.seq} was inserted before entry {follows.seq}."
        _stop("inserted", sentence, seq=entry.seq, line=entry.line)
    seq = follows.seq - 1
    _stop("edited", f"Entry {seq} was edited: it says it is number {entry.seq}.", seq=seq, line=entry.line)


def _judge_link(before: _Entry, entry: _Entry, follows: _Entry | None, *, confirmed: bool) -> None:
    expected = before.seq + 1
    linked = entry.prev == before.digest
    if entry.seq == expected and linked:
        return
    line = entry.line
    if follows is not None and follows.prev == before.digest and follows.seq == expected:
        if entry.prev == follows.digest:
            sentence = f"Entries {expected} and {entry.seq} were swapped."
            _stop("swapped", sentence, seq=expected, line=line)
        sentence = f"An entry with the number {entry.seq} was inserted before entry {expected}."
        _stop("inserted", sentence, seq=entry.seq, line=line)
    if linked:
        sentence = f"Entry {expected} was edited: it says it is number {entry.seq}."
        _stop("edited", sentence, seq=expected, line=line)
    if entry.seq == expected:
        if confirmed:
            sentence = f"Entry {before.seq} was edited: entry {entry.seq} follows another text of it."
            _stop("edited", sentence, seq=before.seq, line=before.line)
        sentence = f"Entry {expected} was edited: its links fit neither neighbour."
        _stop("edited", sentence, seq=expected, line=line)
    if entry.seq > expected:
        _judge_hole(entry, follows, expected)
    if entry.seq == before.seq and entry.prev == before.prev:
        sentence = f"Two entries have the number {entry.seq}; the chain goes on from the second: inserted."
        _stop("inserted", sentence, seq=before.seq, line=before.line)
    sentence = f"Entry {entry.seq} stands where entry {expected} belongs: inserted or swapped."
    _stop("inserted", sentence, seq=entry.seq, line=line)


def _judge_hole(entry: _Entry, follows: _Entry | None, expected: int) -> NoReturn:
    if follows is not None and follows.seq <= entry.seq:
        sentence = f"Entry {entry.seq} stands where entry {expected} belongs: swapped."
        _stop("swapped", sentence, seq=expected, line=entry.line)
    last = entry.seq - 1
    which = f"Entry {expected} is" if last == expected else f"Entries {expected} to {last} are"
    _stop("missing", f"{which} missing: deleted.", seq=expected, line=entry.line)


class _Payloads:
    """Which payloads are gone, and which of those an erasure entry accounts for."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._gone = Stretches()
        self._erased = Stretches()

    def see(self, entry: _Entry) -> None:
        if not entry.has_payload:
            self._gone.add(entry.seq)
        if entry.kind != "payload.erased":
            return
        target = _erased_seq(entry.ids.get("seq"))
        if target is None:
            sentence = f"Entry {entry.seq} erases a payload, but names none."
            _stop("edited", sentence, seq=entry.seq, line=entry.line)
        first = self._report.first_seq or entry.seq
        if target in self._gone and target != entry.seq:
            self._gone.remove(target)
            self._erased.add(target)
            self._report.erased += 1
        elif first <= target and target not in self._erased:
            sentence = (
                f"Entry {entry.seq} says that the payload of entry {target} was erased, but it is there."
            )
            _stop("payload_kept", sentence, seq=target)

    def settle(self, later: list[list[int]]) -> None:
        """At the end. `later`: stretches that were erased after this file's last entry, as the manifest says."""
        seq = self._gone.first_outside(later)
        if seq is not None:
            sentence = f"The payload of entry {seq} is missing and no entry says that it was erased."
            _stop("payload_missing", sentence, seq=seq)
        count = sum(last - first + 1 for first, last in self._gone.pairs())
        if count:
            self._report.erased += count
            self._report.warnings.append(
                f"{count} payloads were erased after the last entry of this file; only the portal's signature "
                "says so. A later export holds the entries that prove it."
            )


def _erased_seq(named: Any) -> int | None:
    """The number of the entry whose payload an erasure names; identifiers are written as text."""
    return int(named) if isinstance(named, str) and re.fullmatch("[1-9][0-9]{0,15}", named) else None


# --- the manifest -------------------------------------------------------------------------------------------


def _judge_manifest(manifest: _Manifest, report: Report, payloads: _Payloads) -> None:
    """Holds the whole file against its manifest; raises _Stop.

    `body_sha256` is the witness: where it fits the bytes that were read, what disagrees is the manifest itself.
    """
    fields, line = manifest.fields, manifest.line
    seen = {
        "tenant": report.tenant,
        "entries": report.entries,
        "payloads": report.payloads,
        "first_seq": report.first_seq,
        "last_seq": report.last_seq,
        "first_prev": report.first_prev,
        "head": report.head,
    }
    wrong = [name for name, value in seen.items() if fields[name] != value]
    whole = fields["body_sha256"] == manifest.body_sha256
    if whole and wrong:
        found = f"{wrong[0]} is {fields[wrong[0]]!r}, the file's is {seen[wrong[0]]!r}"
        _stop("manifest", f"The manifest was edited: {found}.", line=line)
    if not whole:
        _judge_ends(fields, report)
    payloads.settle(fields["erased_later"])
    if not whole:
        _stop(
            "manifest", "The manifest does not fit the bytes of the file: one of them was edited.", line=line
        )


def _judge_ends(fields: dict[str, Any], report: Report) -> None:
    """The bytes are not those that were exported: names the entry where the file and its manifest part."""
    first, last, head = fields["first_seq"], fields["last_seq"], fields["head"]
    if first is None or report.first_seq is None or report.last_seq is None:
        return
    if first < report.first_seq:
        _stop("missing", f"Entry {first} is missing: the file was cut at its beginning.", seq=first)
    if last > report.last_seq:
        seq = report.last_seq + 1
        _stop("cut", f"Entries {seq} to {last} are missing: the file was cut at its end.", seq=seq)
    if last < report.last_seq:
        _stop("inserted", f"Entry {last + 1} was added behind the last one of the manifest.", seq=last + 1)
    if head != report.head:
        sentence = (
            f"Entry {report.last_seq} is not the head of the manifest: it was edited, or the chain was written "
            "anew from some earlier entry on (an earlier export given with --anchor tells)."
        )
        _stop("edited", sentence, seq=report.last_seq)


def _judge_signature(manifest: _Manifest, report: Report, pinned: str | None) -> None:
    key = manifest.fields["public_key"]
    report.public_key = key
    if pinned is not None and key != pinned:
        sentence = f"The export was signed with the key {key}, not with the pinned one."
        _stop("key", sentence, line=manifest.line)
    report.pinned = pinned is not None
    if not report.pinned:
        report.warnings.append(
            "The portal's key was not pinned: this shows who signed, not that it was your portal. Compare the "
            "public key with the one you were given, or use --public-key."
        )
    if not CAN_CHECK_SIGNATURES:
        report.signature = "unchecked"
        report.warnings.append(
            "The signature was NOT checked: the Python package cryptography is not installed. "
            "Install it, or use --chain-only to accept the chain alone."
        )
        return
    try:
        public = Ed25519PublicKey.from_public_bytes(_hex(key, 32))
        public.verify(_hex(manifest.signature, 64), canonical(manifest.fields))
    except (ValueError, InvalidSignature):
        report.signature = "invalid"
        sentence = "The signature does not fit the manifest: the manifest was edited."
        _stop("signature", sentence, line=manifest.line)
    report.signature = "valid"


def _hex(text: str, size: int) -> bytes:
    """Bytes in the one spelling that the portal writes; another one is an edit like any other."""
    if len(text) != 2 * size or set(text) - set("0123456789abcdef"):
        raise ValueError(text)
    return bytes.fromhex(text)


# --- an earlier export --------------------------------------------------------------------------------------


class _Anchor:
    """What was said earlier: after entry n the head was h. What came before that cannot change any more.

    Said by an earlier export, by its last line alone, or by a file of checkpoints (of any number of tenants).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, dict[int, str]] = {}
        last = b""
        with _open(path) as file:
            for line in iter(lambda: file.readline(MAX_LINE + 1), b""):
                last = line
                if line.startswith(b'{"checkpoint":'):
                    self._learn_checkpoint(line)
        if not self.known:
            self._learn_manifest(last)

    def _learn_checkpoint(self, line: bytes) -> None:
        said = (_parse(line.rstrip(b"\r\n")) or {}).get("checkpoint")
        if isinstance(said, dict) and _number(said.get("seq")) and _hex64(said.get("head")):
            self.known.setdefault(str(said.get("tenant")), {})[said["seq"]] = said["head"]

    def _learn_manifest(self, line: bytes) -> None:
        document = _parse(line.rstrip(b"\r\n")) or {}
        fields = document.get("manifest", document)
        if not isinstance(fields, dict) or not _is_manifest(fields) or not fields["entries"]:
            raise Unreadable(
                f"{self._path} holds no export with entries, no manifest of one and no checkpoints."
            )
        known = {fields["last_seq"]: fields["head"]}
        if fields["first_seq"] > 1:
            known[fields["first_seq"] - 1] = fields["first_prev"]
        self.known[fields["tenant"]] = known

    def check(self, tenant: str, seq: int, digest: str, path: Path) -> bool:
        """Whether `seq` was a point to compare. Raises _Stop when the digest is another one."""
        known = self.known.get(tenant, {})
        if seq not in known:
            return False
        if known[seq] == digest:
            return True
        first = self._first_difference(path)
        if first is not None:
            sentence = f"Entry {first} is not the one of the earlier export: the history was written anew."
            _stop("rewritten", sentence, seq=first)
        sentence = f"Another entry {seq} was known earlier: the history was written anew, here or before."
        _stop("rewritten", sentence, seq=seq)

    def _first_difference(self, path: Path) -> int | None:
        """The first entry that the two files hold differently, when the earlier export is there as a whole."""
        with _open(self._path) as old, _open(path) as new:
            ours = _digests(new)
            theirs = next(ours, None)
            for seq, digest in _digests(old):
                while theirs is not None and theirs[0] < seq:
                    theirs = next(ours, None)
                if theirs is not None and theirs[0] == seq and theirs[1] != digest:
                    return seq
        return None


def _digests(file: BinaryIO) -> Iterator[tuple[int, str]]:
    for line in iter(lambda: file.readline(MAX_LINE + 1), b""):
        body = line.rstrip(b"\n")
        document = _parse(body) if _nature(body) == "entry" else None
        if document is not None and _is_entry(document):
            yield document["seq"], _sha256(body)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}.") from error


# --- the whole ----------------------------------------------------------------------------------------------


def verify(path: str | Path, *, public_key: str | None = None, anchor: str | Path | None = None) -> Report:
    """Verifies one export and names the first thing that is wrong.

    `public_key` (64 hex digits) pins the portal's signing key; `anchor` is an earlier export, or its last
    line alone, kept where the portal cannot reach. Raises Unreadable when a file or an option cannot be
    used.
    """
    path = Path(path)
    if public_key is not None:
        public_key = public_key.strip().lower()
        if not _hex64(public_key):
            raise Unreadable("A public key has 64 hex digits.")
    earlier = _Anchor(Path(anchor)) if anchor is not None else None
    report = Report()
    try:
        with _open(path) as file:
            manifest = _follow(_Items(file), report, earlier, path)
        _judge_signature(manifest, report, public_key)
    except _Stop as stop:
        report.problem = stop.problem
    return report


def _follow(items: _Items, report: Report, earlier: _Anchor | None, path: Path) -> _Manifest:
    """Walks along the chain to its manifest; raises _Stop at the first thing that is wrong."""
    payloads = _Payloads(report)
    walk = iter(items)
    before: _Entry | None = None
    item = next(walk)
    while isinstance(item, _Entry):
        after = next(walk)
        _judge(before, item, after)
        if before is None:
            report.tenant, report.first_seq, report.first_prev = item.tenant, item.seq, item.prev
            report.anchored = earlier is not None and earlier.check(
                item.tenant, item.seq - 1, item.prev, path
            )
        report.entries += 1
        report.last_seq, report.head = item.seq, item.digest
        if earlier is not None and earlier.check(item.tenant, item.seq, item.digest, path):
            report.anchored = True
        payloads.see(item)
        before, item = item, after
    report.manifest, report.payloads = item.fields, items.payloads
    report.tenant = report.tenant or item.fields["tenant"]
    _judge_manifest(item, report, payloads)
    next(walk, None)  # reads on to see that nothing follows
    _judge_anchor(report, earlier)
    return item


def _judge_anchor(report: Report, earlier: _Anchor | None) -> None:
    if earlier is None:
        return
    known = earlier.known.get(report.tenant)
    if known is None:
        _stop("anchor", f"The anchor says nothing about the tenant {report.tenant!r}.")
    last = max(known)
    if report.last_seq is not None and report.last_seq < last:
        sentence = (
            f"Entry {last} was known earlier, this file ends after entry {report.last_seq}: it was cut, or it "
            "is an export of an older span."
        )
        _stop("cut", sentence, seq=report.last_seq + 1)
    if not report.anchored:
        _stop("anchor", "The anchor and this export meet in no entry, so nothing could be compared.")


# --- the command line ---------------------------------------------------------------------------------------


def lines(report: Report) -> list[str]:
    """The report for people, one line each."""
    said = []
    problem = report.problem
    if problem is not None:
        where = f"entry {problem.seq}" if problem.seq is not None else "the file"
        at = f", line {problem.line}" if problem.line is not None else ""
        said.append(f"BAD: {where}{at}: {problem.code}. {problem.sentence}")
        if report.entries:
            said.append(f"Up to then {report.entries} entries were read, the last one was {report.last_seq}.")
        return said
    span = f"entries {report.first_seq} to {report.last_seq}" if report.entries else "no entries"
    said.append(
        f"OK: {span} of tenant {report.tenant}: {report.entries} entries, {report.payloads} payloads, "
        f"{report.erased} erased. The chain is whole."
    )
    said.append(f"Head: {report.head or 'none'}")
    pinned = "the pinned key" if report.pinned else "key"
    said.append(f"Signature: {report.signature}, {pinned} {report.public_key}")
    if report.anchored:
        said.append("Anchor: what was known earlier is contained unchanged.")
    said += [f"Warning: {warning}" for warning in report.warnings]
    return said


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verifies an evidence export of the portal.")
    parser.add_argument("file", help="the export (JSON lines)")
    parser.add_argument("--public-key", metavar="HEX", help="the portal's public key, 64 hex digits")
    parser.add_argument("--anchor", metavar="FILE", help="an earlier export, its last line, or checkpoints")
    parser.add_argument("--chain-only", action="store_true", help="exit 0 where no signature can be checked")
    options = parser.parse_args(arguments)
    try:
        report = verify(options.file, public_key=options.public_key, anchor=options.anchor)
    except Unreadable as error:
        sys.stderr.write(f"{error}\n")
        return UNREADABLE
    for line in lines(report):
        sys.stdout.write(f"{line}\n")
    if report.exit_code == SIGNATURE_UNCHECKED and options.chain_only:
        return 0
    return report.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
