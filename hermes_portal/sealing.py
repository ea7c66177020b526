"""Encryption at rest (AES-256-GCM) with keys kept outside the database (rule 10).

A sealed value is bound to its table, tenant and revision as associated data, so that a blob that is copied to
another row does not open there. Its digest covers a random 32-byte nonce and the plain bytes, and the nonce is
sealed beside them: a plain SHA-256 of a text with a short secret in it can be guessed, this one cannot.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_NONCE = 32
_IV = 12


@dataclass(frozen=True, slots=True)
class Sealed:
    """`blob`: key id length, key id, IV, ciphertext. `digest`: SHA-256 of nonce and plain bytes, in hex."""

    blob: bytes
    digest: str


class CannotOpen(Exception):
    """The key is gone, the blob was changed, or it belongs to another row."""


@cache
def _keys(configured: str) -> dict[str, bytes]:
    """Key id to 32 bytes, the sealing key first. `PORTAL_KEYS` is "id:hex,id:hex", or one hex key with the id 1."""
    keys = {}
    for part in configured.split(","):
        name, _, value = part.strip().rpartition(":")
        try:
            key = bytes.fromhex(value)
        except ValueError:
            key = b""
        if len(key) != 32:
            raise ImproperlyConfigured(
                "PORTAL_KEYS must be 32-byte keys in hex, as id:hex,id:hex; the first one seals."
            )
        keys[name or "1"] = key
    return keys


def _bound(table: str, tenant: object, revision: int) -> bytes:
    return f"{table}\0{tenant}\0{revision}".encode()


def seal(plain: bytes, *, table: str, tenant: object, revision: int = 1) -> Sealed:
    """Encrypts `plain` for one table, tenant and revision."""
    name, key = next(iter(_keys(settings.PORTAL_KEYS).items()))
    nonce, iv = secrets.token_bytes(_NONCE), secrets.token_bytes(_IV)
    body = AESGCM(key).encrypt(iv, nonce + plain, _bound(table, tenant, revision))
    label = name.encode()
    return Sealed(bytes([len(label)]) + label + iv + body, hashlib.sha256(nonce + plain).hexdigest())


def unseal(blob: bytes | memoryview, *, table: str, tenant: object, revision: int = 1) -> bytes:
    """The plain bytes. Raises CannotOpen."""
    blob = bytes(blob)
    size = blob[0] if blob else 0
    name, rest = blob[1 : 1 + size].decode(errors="replace"), blob[1 + size :]
    key = _keys(settings.PORTAL_KEYS).get(name)
    if key is None:
        raise CannotOpen(f"There is no key {name!r} in PORTAL_KEYS.")
    try:
        return AESGCM(key).decrypt(rest[:_IV], rest[_IV:], _bound(table, tenant, revision))[_NONCE:]
    except InvalidTag as error:
        raise CannotOpen("The sealed value was changed, or it belongs to another row.") from error


def likeness(tenant: object, data: bytes) -> str:
    """A keyed digest to ask "same input before?" within one tenant. It never leaves the portal."""
    key = next(reversed(_keys(settings.PORTAL_KEYS).values()))
    scope = hmac.digest(key, f"likeness\0{tenant}".encode(), "sha256")
    return hmac.new(scope, data, "sha256").hexdigest()
