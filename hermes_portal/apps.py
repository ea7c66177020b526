"""The project as an app, for its management commands and template tags."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "hermes_portal"
    verbose_name = "Hermes approval portal"
