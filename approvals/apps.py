"""The approvals app."""

from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "approvals"

    def ready(self) -> None:
        from django.db.models.signals import post_migrate

        from approvals import checks, triggers  # noqa: F401  (checks register themselves)

        post_migrate.connect(triggers.install_after_migrate, sender=self)
