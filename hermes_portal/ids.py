"""UUID version 7 (RFC 9562, 5.7): addresses that sort by creation."""

import secrets
import time
from uuid import UUID


def uuid7() -> UUID:
    """48 bits of Unix milliseconds, then 74 random bits. Order within a millisecond is random."""
    milliseconds = time.time_ns() // 1_000_000
    random = secrets.randbits(74)
    value = milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | (random & ((1 << 62) - 1))
    return UUID(int=value)
