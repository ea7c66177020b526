"""A worker process whose own clock is wrong by some seconds; it tries one action.

python -m tests.approvals.skewed_worker DATABASE_NAME ACTION_ID SECONDS
"""

import datetime
import os
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from uuid import UUID

Instant = datetime.datetime
seconds_of_unix = time.time


def skew(seconds: float) -> None:
    """Shifts `datetime.now` and `time.time` in every module that is loaded; monotonic time stays."""
    by = datetime.timedelta(seconds=seconds)

    class Skewed(Instant):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Skewed":
            return super().now(tz) + by

    for module in ours():
        if getattr(module, "datetime", None) is Instant:
            module.datetime = Skewed  # type: ignore[attr-defined]
    time.time = lambda: seconds_of_unix() + seconds


def ours() -> Iterator[ModuleType]:
    rooms = ("hermes_portal", "approvals", "runs", "jobs")
    return (module for name, module in list(sys.modules.items()) if name.split(".")[0] in rooms)


def main(database: str, action_id: str, seconds: str) -> None:
    import django
    from django.conf import settings

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hermes_portal.settings")
    settings.DATABASES["default"]["NAME"] = database
    settings.CELERY_BROKER_URL = "memory://"
    django.setup()
    from approvals import execution

    skew(float(seconds))
    execution.execute(UUID(action_id))


if __name__ == "__main__":
    main(*sys.argv[1:])
