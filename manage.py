#!/usr/bin/env python
"""Django's command line for the Hermes approval portal."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hermes_portal.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:  # a sentence that names the variable; its traceback would bury it
        sys.exit(f"The portal does not start: {error}")


if __name__ == "__main__":
    main()
