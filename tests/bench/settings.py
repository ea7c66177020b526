"""The portal's settings, with one more task for its workers: the empty one that a click is compared with."""

from hermes_portal.settings import *  # noqa: F403 - all of them

CELERY_IMPORTS = ("tests.bench.tasks",)
