"""The jobs app. It registers no operation yet, so every job mutation is refused as unknown (rule 5)."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
