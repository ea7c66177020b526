"""ASGI entry, for hosts that serve Django this way; the portal itself runs on WSGI."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hermes_portal.settings")

application = get_asgi_application()
