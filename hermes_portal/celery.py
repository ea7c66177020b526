"""The Celery application. Messages are nudges: the database is the only truth (rule 11)."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hermes_portal.settings")

app = Celery("hermes_portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
