"""/healthz: is the database there, and does approved work get done. No sign-in, and nothing about anybody."""

from django.db import DatabaseError
from django.db.models import Min
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from approvals.execution import sendable
from hermes_portal import clock

SLOW_SECONDS = 120  # an action that may be sent and was not for this long: no worker is alive


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 when the portal can work; 503 when the database is away or nobody works off what may be sent."""
    try:
        now = clock.now()
        oldest = sendable(now).aggregate(oldest=Min("created_at"))["oldest"]
    except DatabaseError:
        return JsonResponse({"status": "no database"}, status=503)
    age = round((now - oldest).total_seconds(), 1) if oldest else 0.0
    slow = age > SLOW_SECONDS
    return JsonResponse(
        {"status": "slow" if slow else "ok", "queue_age_seconds": age}, status=503 if slow else 200
    )
