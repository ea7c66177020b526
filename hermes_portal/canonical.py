"""Canonical JSON (RFC 8785) and SHA-256: the bytes that are hashed are the bytes that are stored and sent.

Own documents hold no floats and integers under 2**53; what a provider sends enters as text or as a digest.
"""

import hashlib

import rfc8785


def dumps(document: object) -> bytes:
    """Canonical bytes.

    Raises ValueError for what has no canonical form: NaN, integers of 2**53 and more, lone surrogates, other types.
    """
    try:
        return rfc8785.dumps(document)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from error


def sha256(data: bytes) -> str:
    """SHA-256 as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def digest(document: object) -> str:
    """SHA-256 of a document's canonical bytes."""
    return sha256(dumps(document))
