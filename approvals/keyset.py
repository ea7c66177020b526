"""Pages by key: the rows behind a cursor, in constant time however far back they lie."""

from datetime import datetime
from typing import TypeVar
from uuid import UUID

from django.db.models import Model, Q, QuerySet

M = TypeVar("M", bound=Model)


def older(rows: QuerySet[M], cursor: str) -> QuerySet[M]:
    """Rows created before `<instant>,<id>`; a cursor that cannot be read is the beginning."""
    at, _, key = cursor.partition(",")
    try:
        instant, identity = datetime.fromisoformat(at), UUID(key)
    except ValueError:
        return rows
    if instant.tzinfo is None:
        return rows
    return rows.filter(Q(created_at__lt=instant) | Q(created_at=instant, id__lt=identity))
