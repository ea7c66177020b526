"""The frame of every page: who is signed in, what waits, and how an error looks."""

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.crypto import constant_time_compare, salted_hmac

from approvals import access
from approvals.errors import Denied
from approvals.models import Approval, Membership, Role, User
from hermes_portal import clock
from hermes_portal.middleware import busy_response, is_busy, server_now_ms

HTMX = "HX-Request"


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context of base.html. Two queries for a signed-in person, none for a fragment."""
    page: dict[str, Any] = {
        "server_now": server_now_ms(),
        "poll_seconds": settings.PAGE_POLL_SECONDS,
        "demo": settings.PORTAL_DEMO,
    }
    user = getattr(request, "user", None)
    if not isinstance(user, User) or request.headers.get(HTMX) == "true":
        return page
    memberships = list(
        Membership.objects.filter(user=user).select_related("tenant").order_by("tenant__name", "role")
    )
    return page | {
        "me": user,
        "viewer": viewer_token(user),
        "my_tenants": sorted({row.tenant.name for row in memberships}),
        "my_roles": sorted({Role(row.role).label.lower() for row in memberships}),
        "may_audit": any(row.role == Role.AUDITOR for row in memberships),
        "may_start": any(row.role == Role.REQUESTER for row in memberships),
        "waiting": waiting(user),
    }


def waiting(user: User) -> int:
    """How many approvals wait in one's tenants; by time, so that what has run out is not counted (case 8)."""
    return access.scoped(Approval.objects.pending(clock.now()), user).count()


def unchanged(now: datetime) -> HttpResponse:
    """The answer to a poll when the page is up to date; it sets the page's clock right."""
    return HttpResponse(status=204, headers={"Portal-Now": str(int(now.timestamp() * 1000))})


def person(request: HttpRequest) -> User:
    """Who asks. Every page but sign-in and health is for signed-in people (middleware.SignedIn)."""
    assert isinstance(request.user, User)
    return request.user


# --- whose page this is (case 44) ----------------------------------------------------------------------------------


def viewer_token(user: User | AnonymousUser) -> str:
    """Names the person for whom a form was drawn."""
    return salted_hmac("approvals.viewer", str(user.pk)).hexdigest()[:32]


def is_other_viewer(request: HttpRequest) -> bool:
    """Was this form drawn for somebody else, who was signed in here before?"""
    drawn_for = request.POST.get("viewer", "")
    return bool(drawn_for) and not _is_token_of(request.user, drawn_for)


def _is_token_of(user: User | AnonymousUser, token: str) -> bool:
    return constant_time_compare(token, viewer_token(user))


def other_viewer(request: HttpRequest) -> HttpResponse:
    """409: the person changed under an open page. Nothing was done."""
    return problem(
        request,
        409,
        "Somebody else is signed in now",
        f"You are now signed in as {request.user.get_username()}. This page was opened by somebody else, so nothing "
        "was done. Load the page again.",
    )


class SameViewer:
    """A poll of a page that was drawn for somebody else is answered by drawing the page anew, whole (case 44).

    Its parts alone would put a form of the person who is signed in now below the name of the one before.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        drawn_for = request.headers.get("Portal-Viewer", "")
        if request.method == "GET" and drawn_for and not _is_token_of(request.user, drawn_for):
            return HttpResponse(status=204, headers={"HX-Refresh": "true"})
        return self.get_response(request)


# --- errors --------------------------------------------------------------------------------------------------------


def problem(request: HttpRequest, status: int, title: str, sentence: str) -> HttpResponse:
    """A page for an error; for htmx only its note, so that no page ends up inside a card (case 45)."""
    template = "errors/_note.html" if request.headers.get(HTMX) == "true" else "errors/page.html"
    context = {"status": status, "title": title, "sentence": sentence, "server_now": 0}
    return render(request, template, context, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return problem(
            request,
            413,
            "Too large",
            f"The form is larger than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes; the input may have "
            f"{settings.INPUT_LIMIT_BYTES:,}. Nothing was sent. Shorten it and try again.",
        )
    return problem(request, 400, "Not understood", "The request could not be read. Nothing was done.")


def forbidden(request: HttpRequest, exception: PermissionDenied) -> HttpResponse:
    sentence = exception.sentence if isinstance(exception, Denied) else "Your roles do not allow this."
    return problem(request, 403, "Not yours to do", sentence)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 with what to do. A sign-in in another tab renews the token, so the person may have changed too."""
    if is_other_viewer(request):
        return other_viewer(request)
    return problem(
        request,
        403,
        "This page is out of date",
        "You signed in again since it was opened, or cookies are blocked. Nothing was done. Load the page again.",
    )


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The same bytes for what does not exist and for what is somebody else's (rule 12)."""
    return problem(
        request, 404, "Not found", "There is nothing here, or it belongs to a tenant that you are not in."
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """Drawn without the database, which may be what failed."""
    if is_busy(sys.exc_info()[1]):
        return busy_response()
    return render(None, "500.html", status=500)
