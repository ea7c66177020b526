"""The one clock: the database's. Every deadline is checked against it (rule 2).

A transition takes its lock first and reads the clock after it: an instant read before waiting for the lock once
approved a record a second after it had expired.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.db import connection

_shift = timedelta()


def now() -> datetime:
    """The present instant, timezone-aware, in UTC, with microseconds.

    PostgreSQL: clock_timestamp(), which moves inside a transaction. SQLite runs in this process, on this machine's
    clock; its own functions stop at milliseconds and compare as text, so the instant is read here.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            instant: datetime = cursor.fetchone()[0]
    else:
        instant = datetime.now(UTC)
    return instant.astimezone(UTC) + _shift


@contextmanager
def moved(by: timedelta) -> Iterator[None]:
    """For tests: the clock of this process, moved by `by`. The only seam through which time is changed."""
    global _shift
    before, _shift = _shift, _shift + by
    try:
        yield
    finally:
        _shift = before
