"""How a sweep walks its rows: one that fails is logged and left, so that it does not hold up those behind it."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from django.db import InterfaceError, OperationalError
from django.db.models import Model

T = TypeVar("T", bound=Model)
log = logging.getLogger(__name__)


def each(rows: Iterable[T], step: Callable[[T], bool]) -> int:
    """Calls `step` for every row and counts those for which it was true. A database that is away ends the sweep."""
    done = 0
    for row in rows:
        try:
            done += step(row)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            log.exception("A sweep left %s %s as it is", row._meta.verbose_name, row.pk)
    return done
