"""What holds for every response: sealed headers, sign-in, and a sentence when the database is busy."""

from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.db import OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme

from hermes_portal import clock

GetResponse = Callable[[HttpRequest], HttpResponseBase]

# One policy for every page, admin included: nothing inline, nothing from elsewhere, never in a frame.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=(), clipboard-read=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}
OPEN_PATHS: Final = ("/accounts/", "/healthz", "/static/")
# What SQLite says of a disk that is full, broken or read-only.
UNWRITABLE: Final = ("disk is full", "disk I/O error", "readonly database")
BUSY_SENTENCE: Final = "The database is busy. Nothing was changed. Load the page again in a moment."


class SealedResponses:
    """Outermost: every answer carries the headers, and only static files may be stored."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        if not request.path_info.startswith(settings.STATIC_URL):
            response.headers["Cache-Control"] = "no-store"
            patch_vary_headers(response, ("HX-Request", "Cookie"))
        return response


class SignedIn:
    """Every page but sign-in, health and static files needs a session.

    A fragment is never answered with a login form: htmx gets 401 and is told to load the sign-in page whole (case 44).
    The way back after sign-in is a page that was read, never the target of a POST. An address that holds a NUL, which
    PostgreSQL cannot even look for, is one that does not exist.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(OPEN_PATHS) or request.user.is_authenticated:
            if "\0" in request.path_info or "%00" in request.META.get("QUERY_STRING", ""):
                raise Http404("Not found.")
            return self.get_response(request)
        back = _way_back(request)
        target = settings.LOGIN_URL + (f"?{urlencode({'next': back})}" if back else "")
        if request.headers.get("HX-Request") == "true":
            return HttpResponse(status=401, headers={"HX-Redirect": target})
        if "text/html" not in request.headers.get("Accept", "text/html") and request.accepts(
            "application/json"
        ):
            return JsonResponse({"error": "Sign in first."}, status=401)
        return HttpResponseRedirect(target)


def _way_back(request: HttpRequest) -> str:
    """A local path that was being read, or nothing."""
    if request.headers.get("HX-Request") == "true":
        try:
            parts = urlsplit(request.headers.get("HX-Current-URL", ""))
        except ValueError:  # a bracket that begins no IPv6 address
            return ""
        path = parts.path + (f"?{parts.query}" if parts.query else "")
    else:
        path = request.get_full_path() if request.method in ("GET", "HEAD") else ""
    return path if path and url_has_allowed_host_and_scheme(path, allowed_hosts=None) else ""


class DatabaseBusy:
    """A lock that could not be had in time is 503 with a sentence, never a stack of errors."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return busy_response() if is_busy(exception) else None


def is_busy(error: BaseException | None) -> bool:
    """A lock timeout, a cancelled statement, a deadlock, or SQLite's "database is locked"."""
    if not isinstance(error, OperationalError):
        return False
    state = getattr(error.__cause__, "sqlstate", None)
    if connection.vendor == "postgresql":
        return (
            state is None
            or state in ("55P03", "57014", "40P01", "40001")
            or state.startswith(("08", "53", "57"))
        )
    return any(word in str(error) for word in ("locked", "busy", *UNWRITABLE))


def busy_response() -> HttpResponse:
    """The page is drawn without a request, so that it asks the database nothing."""
    return HttpResponse(
        render_to_string("503.html", {"sentence": BUSY_SENTENCE}), status=503, headers={"Retry-After": "2"}
    )


def server_now_ms() -> int:
    """The server's clock for portal.js, in milliseconds since 1970."""
    return int(clock.now().timestamp() * 1000)
