"""The Hermes approval portal: people decide what an agent server may do."""

from hermes_portal.celery import app as celery_app

__version__ = "0.1.0"
__all__ = ["celery_app"]
