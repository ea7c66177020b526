"""Exports of a tenant's evidence: JSON lines of the stored bytes, streamed, ending in a signed manifest.

The format is described in docs/evidence.md and checked by approvals/verifier.py. Rows are read in pages by their
number, each page a query of its own: no transaction stays open while a slow reader takes the file (case 47).
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from approvals import evidence
from approvals.evidence import CLOCK, Actor
from approvals.models import ChainHead, Endpoint, EvidenceEntry, Kind, Tenant
from approvals.verifier import Stretches
from hermes_portal import canonical, redaction

VERSION = 1
PAGE = 200  # an entry and its payload hold at most about 68 KiB: 14 MB in memory

Stored = tuple[bytes, bytes | None]
"""The stored bytes of an entry, and of its payload unless that was erased."""
ErasedLater = Callable[[list[list[int]]], list[list[int]]]
"""Of these stretches of entries without payload: the parts that an entry after the exported ones accounts for."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The portal's Ed25519 key. Its public half is what an auditor pins."""

    _private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, seed: str) -> "Signer":
        """`seed`: 32 bytes in hex. Raises ValueError."""
        return cls(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))

    @property
    def public_key(self) -> str:
        """64 hex digits."""
        return self._public().hex()

    @property
    def key_id(self) -> str:
        """A short name for the key: the first 16 hex digits of the public key's SHA-256."""
        return hashlib.sha256(self._public()).hexdigest()[:16]

    def sign(self, message: bytes) -> str:
        """The signature in hex (128 digits)."""
        return self._private.sign(message).hex()

    def _public(self) -> bytes:
        return self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def portal_signer() -> Signer:
    """The signer of this portal. Raises ImproperlyConfigured naming the setting."""
    try:
        return Signer.from_seed(settings.PORTAL_SIGNING_KEY)
    except ValueError as error:
        raise ImproperlyConfigured("PORTAL_SIGNING_KEY must be 32 bytes in hex (64 digits).") from error


# --- the file --------------------------------------------------------------------------------------------------


def _none_erased_later(gone: list[list[int]]) -> list[list[int]]:
    return []


@dataclass(slots=True)
class Export:
    """One export: iterate over it once for its lines; afterwards `manifest` holds what was signed."""

    entries: Iterable[Stored]
    fields: Mapping[str, Any]
    signer: Signer
    erased_later: ErasedLater = _none_erased_later
    manifest: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        tally = _Tally()
        for body, payload in self.entries:
            tally.count(body, payload)
            lines = body + b"\n" if payload is None else body + b"\n" + payload + b"\n"
            digest.update(lines)
            yield lines
        self.manifest = {
            **self.fields,
            **tally.fields(),
            "v": VERSION,
            "erased_later": self.erased_later(tally.gone.pairs()),
            "body_sha256": digest.hexdigest(),
            "public_key": self.signer.public_key,
            "key_id": self.signer.key_id,
        }
        signature = self.signer.sign(canonical.dumps(self.manifest))
        yield canonical.dumps({"manifest": self.manifest, "signature": signature}) + b"\n"


@dataclass(slots=True)
class _Tally:
    """What the manifest says about the entries, counted while they pass."""

    entries: int = 0
    payloads: int = 0
    first: dict[str, Any] = field(default_factory=dict)
    last_seq: int | None = None
    last_body: bytes = b""
    gone: Stretches = field(default_factory=Stretches)

    def count(self, body: bytes, payload: bytes | None) -> None:
        entry = json.loads(body)
        self.first = self.first or entry
        self.last_seq, self.last_body = entry["seq"], body
        self.entries += 1
        if payload is None:
            self.gone.add(entry["seq"])
        else:
            self.payloads += 1
        if entry["kind"] == Kind.PAYLOAD_ERASED:
            self.gone.remove(int(entry["ids"]["seq"]))

    def fields(self) -> dict[str, Any]:
        return {
            "entries": self.entries,
            "payloads": self.payloads,
            "first_seq": self.first.get("seq"),
            "first_prev": self.first.get("prev"),
            "last_seq": self.last_seq,
            "head": canonical.sha256(self.last_body) if self.entries else None,
        }


def write_export(
    entries: Iterable[Stored], manifest_fields: Mapping[str, Any], signer: Signer, out: BinaryIO
) -> dict[str, Any]:
    """Writes one export to `out` and returns its manifest."""
    return write(Export(entries, manifest_fields, signer), out)


def write(export: Export, out: BinaryIO) -> dict[str, Any]:
    """Writes the lines to `out` and returns the manifest."""
    for lines in export:
        out.write(lines)
    return export.manifest


# --- out of the database ---------------------------------------------------------------------------------------


def start_export(
    *, tenant: Tenant | None, actor: Actor, since: datetime | None = None, until: datetime | None = None
) -> Export:
    """An export of one tenant, or of the system chain for None; `since` is inclusive, `until` exclusive.

    The export is an entry itself. It is appended and committed before any row is read: an export that nobody recorded
    cannot exist (rule 4), and one without `until` contains its own entry as the last one.
    """
    with evidence.chain(tenant, durable=True) as chain:
        span = {"since": _instant(since), "until": _instant(until)}
        signer = portal_signer()
        entry = chain.append(
            Kind.EVIDENCE_EXPORTED,
            actor=actor,
            data={**span, "key_id": signer.key_id, "portal": settings.PORTAL_REVISION},
        )
        head, exported_at = chain.head, chain.now
    first, last = _span(head, entry.seq, since, until)
    fields = {
        "portal": settings.PORTAL_REVISION,
        "redactor": redaction.VERSION,
        "tenant": head.name,
        **span,
        "exported_at": evidence.timestamp(exported_at),
        "exported_by": f"{actor.kind}:{actor.name}",
        "endpoints": [_endpoint(endpoint) for endpoint in _endpoints(tenant)],
    }
    return Export(_stored(head, first, last), fields, signer, lambda gone: _erased_after(head, last, gone))


def _instant(instant: datetime | None) -> str | None:
    return evidence.timestamp(instant) if instant is not None else None


def _span(head: ChainHead, newest: int, since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """First and last number; always a stretch without holes, whatever the clocks did. Empty when last < first."""
    entries = EvidenceEntry.objects.filter(chain=head, seq__lte=newest)
    first, last = 1, newest
    if since is not None:
        first = (
            entries.filter(at__gte=since).order_by("seq").values_list("seq", flat=True).first() or newest + 1
        )
    if until is not None:
        last = entries.filter(at__lt=until).order_by("-seq").values_list("seq", flat=True).first() or 0
    return first, last


def _stored(head: ChainHead, first: int, last: int) -> Iterator[Stored]:
    after = first - 1
    while after < last:
        page = list(
            EvidenceEntry.objects.filter(chain=head, seq__gt=after, seq__lte=last)
            .select_related("payload")
            .order_by("seq")[:PAGE]
        )
        if not page:
            return
        for entry in page:
            payload = getattr(entry, "payload", None)
            yield bytes(entry.body), bytes(payload.body) if payload else None
        after = page[-1].seq


def _erased_after(head: ChainHead, last: int, gone: list[list[int]]) -> list[list[int]]:
    """Payloads of the exported entries whose erasure was recorded after the last of them."""
    erased = Stretches()
    if gone:
        later = EvidenceEntry.objects.filter(chain=head, seq__gt=last, kind=Kind.PAYLOAD_ERASED)
        for body in later.order_by("seq").values_list("body", flat=True).iterator(chunk_size=PAGE):
            seq = int(json.loads(bytes(body))["ids"]["seq"])
            if any(low <= seq <= high for low, high in gone):
                erased.add(seq)
    return erased.pairs()


def _endpoints(tenant: Tenant | None) -> Iterable[Endpoint]:
    return (
        Endpoint.objects.filter(tenant=tenant).select_related("seen", "tenant").order_by("endpoint_id")
        if tenant
        else ()
    )


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    """What the manifest says of a server: in which revisions it is configured, and what it showed."""
    seen = getattr(endpoint, "seen", None)
    return {
        "endpoint": endpoint.endpoint_id,
        "endpoint_revision": endpoint.revision,
        "credential_revision": endpoint.credential_revision,
        "hermes_version": seen.version if seen else "",
        "features": {name: bool(value) for name, value in seen.features.items()} if seen else {},
    }


# --- checkpoints -----------------------------------------------------------------------------------------------


def checkpoint() -> int:
    """Signs the head of every chain that grew since its last checkpoint; returns how many were signed.

    The signed heads go into the chain and, one line each, into a file outside of the database: who can rewrite the
    whole database cannot make its new chain agree with a copy of that file (case 48). The verifier takes it as
    --anchor; operations ship it elsewhere.
    """
    signed = 0
    for known in ChainHead.objects.filter(seq__gt=0).select_related("tenant").order_by("name"):
        with evidence.chain(known.tenant, durable=True) as chain:
            newest = EvidenceEntry.objects.get(chain=chain.head, seq=chain.head.seq)
            if newest.kind == Kind.CHECKPOINT:
                continue
            document = _signed_head(chain.head, chain.now, portal_signer())
            # Before the commit, on purpose: the line is true either way, and a checkpoint in the chain has its line.
            _append_line(checkpoint_file(), canonical.dumps(document))
            chain.append(Kind.CHECKPOINT, actor=CLOCK, data=document)
            signed += 1
    return signed


def checkpoint_file() -> Path:
    """Where signed heads are kept outside of the database."""
    return Path(settings.DATA_DIR) / "checkpoints.jsonl"


def _signed_head(head: ChainHead, at: datetime, signer: Signer) -> dict[str, Any]:
    said = {
        "v": VERSION,
        "tenant": head.name,
        "seq": head.seq,
        "head": head.digest,
        "at": evidence.timestamp(at),
        "public_key": signer.public_key,
        "key_id": signer.key_id,
    }
    return {"checkpoint": said, "signature": signer.sign(canonical.dumps(said))}


def _append_line(path: Path, line: bytes) -> None:
    """One write with O_APPEND: lines of several workers never mix. Durable when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
