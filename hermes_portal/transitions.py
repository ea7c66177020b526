"""State machines as data: a status moves by one conditional UPDATE, and its row count says who won."""

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q


class Conflict(Exception):
    """Somebody or something was first, or the state does not allow it. Shown as 409 with `sentence`."""

    def __init__(self, sentence: str, *, code: str = "conflict") -> None:
        super().__init__(sentence)
        self.sentence, self.code = sentence, code


class Guarded(models.Model):
    """A row whose status changes only along MOVES; the database settles races."""

    MOVES: ClassVar[dict[str, tuple[str, ...]]]
    Status: ClassVar[type[models.TextChoices]]
    status: "models.CharField[str, str]"

    class Meta:
        abstract = True

    @classmethod
    def sources(cls, to: str) -> list[str]:
        """The states from which `to` may be reached."""
        return [state for state, targets in cls.MOVES.items() if to in targets]

    def moves_to(self, to: str, *guards: Q, **changes: object) -> bool:
        """Tries the move; true when this call won it. The row is fresh afterwards either way."""
        states = Q(status__in=self.sources(to))
        won = (
            type(self)
            ._default_manager.filter(states, *guards, pk=self.pk)
            .update(**{"status": to, **changes})
        )
        self.refresh_from_db()
        return bool(won)

    def move(self, to: str, *guards: Q, **changes: object) -> Self:
        """The raising twin of `moves_to`.

        Raises Conflict naming the state in which the row was found.
        """
        if not self.moves_to(to, *guards, **changes):
            noun = self._meta.verbose_name
            raise Conflict(
                f"This {noun} is {self.Status(self.status).label.lower()} by now.", code=f"is_{self.status}"
            )
        return self
