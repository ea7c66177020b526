"""A worker process for the kill tests: tries one action and dies by SIGKILL at a named point of the ledger.

python -m tests.approvals.ledger_worker DATABASE_NAME ACTION_ID POINT
"""

import os
import signal
import sys
from uuid import UUID


def main(database: str, action_id: str, deadly: str) -> None:
    import django
    from django.conf import settings

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hermes_portal.settings")
    settings.DATABASES["default"]["NAME"] = database
    settings.CELERY_BROKER_URL = "memory://"
    django.setup()
    from approvals import execution

    def die(point: str) -> None:
        if point == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    execution.reached = die
    execution.execute(UUID(action_id))


if __name__ == "__main__":
    main(*sys.argv[1:])
