"""Evidence chains made in memory, written down here a second time so that the verifier is held against the format."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hermes_portal import canonical

ZEROS = "0" * 64
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))

Lines = list[bytes]


def public_key(key: Ed25519PrivateKey = KEY) -> str:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class MemoryChain:
    """Entries numbered from 1, each with a payload until it is erased."""

    def __init__(self, tenant: str = "demo") -> None:
        self.tenant = tenant
        self.entries: Lines = []
        self.payloads: list[bytes | None] = []

    def add(self, kind: str = "approval.approved", data: Any = None, **ids: str) -> int:
        seq = len(self.entries) + 1
        content = {"reason": f"reason {seq}"} if data is None else data
        payload = canonical.dumps(
            {
                "v": 1,
                "payload_of": seq,
                "tenant": self.tenant,
                "salt": sha256(b"salt %d" % seq),
                "data": content,
            }
        )
        entry = {
            "v": 1,
            "tenant": self.tenant,
            "seq": seq,
            "prev": sha256(self.entries[-1]) if self.entries else ZEROS,
            "at": f"2026-12-01T08:00:{seq % 60:02d}.000000Z",
            "kind": kind,
            "actor": {"kind": "user", "name": "rita"},
            "ids": ids,
            "payload_digest": sha256(payload),
        }
        self.entries.append(canonical.dumps(entry))
        self.payloads.append(payload)
        return seq

    def erase(self, seq: int) -> int:
        """As the portal does: the payload goes, and an entry says so."""
        self.payloads[seq - 1] = None
        return self.add("payload.erased", {"why": "retention"}, seq=str(seq))

    def lines(self, first: int = 1, last: int | None = None) -> Lines:
        found: Lines = []
        for index in range(first - 1, last or len(self.entries)):
            payload = self.payloads[index]
            found += [self.entries[index]] if payload is None else [self.entries[index], payload]
        return found

    def export(
        self,
        first: int = 1,
        last: int | None = None,
        *,
        key: Ed25519PrivateKey = KEY,
        erased_later: list[list[int]] | None = None,
        **changes: Any,
    ) -> Lines:
        """The lines of an honest export, the manifest last."""
        last = last or len(self.entries)
        body = self.lines(first, last)
        count = last - first + 1
        fields = {
            "v": 1,
            "portal": "0.1.0",
            "tenant": self.tenant,
            "since": None,
            "until": None,
            "first_seq": first,
            "last_seq": last,
            "first_prev": sha256(self.entries[first - 2]) if first > 1 else ZEROS,
            "head": sha256(self.entries[last - 1]),
            "entries": count,
            "payloads": len(body) - count,
            "erased_later": erased_later or [],
            "body_sha256": sha256(b"".join(line + b"\n" for line in body)),
            "exported_at": "2026-12-01T09:00:00.000000Z",
            "exported_by": "user:aude",
            "public_key": public_key(key),
            "key_id": sha256(public_key(key).encode())[:16],
            "redactor": "1",
            "endpoints": [],
            **changes,
        }
        return [*body, signed(fields, key)]


def signed(fields: dict[str, Any], key: Ed25519PrivateKey = KEY) -> bytes:
    signature = key.sign(canonical.dumps(fields)).hex()
    return canonical.dumps({"manifest": fields, "signature": signature})


def chain_of(count: int, tenant: str = "demo", data: Callable[[int], Any] | None = None) -> MemoryChain:
    chain = MemoryChain(tenant)
    for seq in range(1, count + 1):
        chain.add(data=data(seq) if data else None)
    return chain


def write(path: Path, lines: Lines) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path
