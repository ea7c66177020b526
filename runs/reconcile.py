"""The sweep over runs. Reading and polling belong to the hubs; this only makes what time has ended look so."""

from datetime import timedelta

from django.db.models import Exists, OuterRef

from hermes_portal import clock
from runs import prompts
from runs.models import Hub, Run

FORGOTTEN = timedelta(days=1)


def sweep() -> int:
    """Lapses prompts whose wait is over, and forgets hubs that ended long ago. Returns how many prompts lapsed."""
    lapsed = prompts.lapse_overdue()
    owns = Run.objects.filter(hub=OuterRef("pk"))
    Hub.objects.filter(~Exists(owns), lease_until__lt=clock.now() - FORGOTTEN).delete()
    return lapsed
