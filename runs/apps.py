"""The runs app. Registers its operations with approvals, and its hub with Celery, when Django starts."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"

    def ready(self) -> None:
        from hermes_portal.celery import app
        from runs import bootstep, operations

        operations.register()
        bootstep.install(app)
