"""Pages by key: the rows behind a cursor, in constant time however far back they lie."""

from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from django.db.models import Model, Q, QuerySet

M = TypeVar("M", bound=Model)


def position(cursor: str) -> tuple[datetime, UUID] | None:
    """The `<instant>,<id>` of a cursor, in UTC; None, the beginning, for one that cannot be read."""
    at, _, key = cursor.partition(",")
    try:
        instant, identity = datetime.fromisoformat(at), UUID(key)
        return (instant.astimezone(UTC), identity) if instant.tzinfo else None
    except (ValueError, OverflowError):  # at the ends of the calendar a time with an offset has none in UTC
        return None


def older(rows: QuerySet[M], cursor: str) -> QuerySet[M]:
    """Rows created before a cursor."""
    if (begins := position(cursor)) is None:
        return rows
    instant, identity = begins
    return rows.filter(Q(created_at__lt=instant) | Q(created_at=instant, id__lt=identity))
