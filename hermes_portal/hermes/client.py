"""The one adapter through which the portal speaks to a Hermes API server. The only user of httpx.

A call opens a connection of its own, sends one request, and closes: no retry, no redirect, no cookie, no
proxy or netrc of the environment, no compression, nothing reused (case 43). What goes wrong is a leaf of
`errors`: everything before the first byte of the request is `NotSent`; everything after it without a
complete, readable answer is `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import httpcore
import httpx

from hermes_portal.hermes import replies
from hermes_portal.hermes.connections import Departure, GuardedAsyncBackend, GuardedBackend
from hermes_portal.hermes.errors import (
    Cancelled,
    ConnectFailed,
    HermesError,
    InvalidInput,
    NotAStream,
    ReplyIncomplete,
    ReplyLost,
    ReplyUndecodable,
    StreamSilent,
    from_status,
)
from hermes_portal.hermes.network import (
    CONNECT_SECONDS,
    Guard,
    Lookup,
    normalise_base_url,
    parse_networks,
    system_lookup,
)
from hermes_portal.hermes.replies import JSON_LIMIT
from hermes_portal.hermes.wire import (
    BODY_LIMIT,
    COMMON_HEADERS,
    METHODS,
    Call,
    Headers,
    Reply,
    Target,
    WireRequest,
    authorization,
    call_headers,
    check_path,
    job_path,
    raw_headers,
    run_path,
    utc_now,
    visible,
)

__all__ = [
    "AsyncStream",
    "Call",
    "Client",
    "Reply",
    "Target",
    "WireRequest",
    "job_path",
    "run_path",
    "utc_now",
]

FRAMING_LIMIT = 1024 * 1024
"""Bytes that headers and chunk framing may add to a reply."""

ERROR_LIMIT = 64 * 1024
"""Bytes of an answer that is read where a stream was expected."""

STREAM_HEADERS_SECONDS = 30.0
"""Connecting and receiving the headers of an event stream; an unknown run takes Hermes 1 s."""

IDLE_SECONDS = 90.0
"""Silence after which a stream counts as lost: three of the 30 s keepalives of 0.19."""

HEALTH_SECONDS = 10.0
READ_SECONDS = 30.0
"""Spec runs, shared AIP contract: provider timeout of status reads."""

BROKEN_OFF = re.compile(r"disconnected|closed connection")


@lru_cache(maxsize=1)
def default_tls() -> ssl.SSLContext:
    """Certificates are verified against the packaged authorities and those that this machine trusts."""
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


class _Transport(httpx.HTTPTransport):
    """httpx's transport over connections of the guard, for one request."""

    def __init__(self, backend: httpcore.NetworkBackend, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, trust_env=False, retries=0)
        # httpx has no argument for a network backend; its transport is this pool and a mapping of exceptions.
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=1,
            max_keepalive_connections=0,
            retries=0,
            network_backend=backend,
        )


class _AsyncTransport(httpx.AsyncHTTPTransport):
    """As `_Transport`, for one event stream."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, trust_env=False, retries=0)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=1,
            max_keepalive_connections=0,
            retries=0,
            network_backend=backend,
        )


class AsyncStream:
    """An open event stream: iterate over it for the bytes as they arrive. It ends when Hermes ends it.

    Raises StreamSilent after the idle limit and ReplyLost when the connection breaks.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.headers = replies.kept(response.headers)
        self._response = response
        self._chunks = response.aiter_raw()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._chunks)
        except httpx.ReadTimeout as exc:
            raise StreamSilent from exc
        except httpx.HTTPError as exc:
            raise ReplyLost(str(exc), sentence="The stream broke off. The run's status is read.") from exc

    async def aclose(self) -> None:
        """Close the connection. Hermes notices only when it next writes (contract 0.19 (c) 4)."""
        await self._response.aclose()


class Client:
    """Speaks to one endpoint. Holds no connection, so it can be made per call and shared between threads."""

    def __init__(
        self, target: Target, *, lookup: Lookup = system_lookup, tls: ssl.SSLContext | None = None
    ) -> None:
        self.target = target
        self._base_url = normalise_base_url(target.base_url)
        self._guard = Guard(parse_networks(target.allow_networks), lookup)
        self._tls = tls

    # Requests with one reply.

    def send(
        self,
        request: WireRequest,
        call: Call,
        *,
        send_until: float | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> Reply:
        """Send one request, once, and return its complete 2xx reply.

        `send_until` is an instant of `time.monotonic()`, checked right before the request line is written.
        The call as a whole ends after `request.timeout` seconds or at `call.deadline` (by `now`), whichever
        is earlier.

        Raises leaves of NotSent, Refused or OutcomeUnknown, nothing else but what ends the process.
        """
        headers = call_headers(self.target, call, request.session_key)
        budget = min(request.timeout, (call.deadline - now()).total_seconds())
        departure = Departure(limit=time.monotonic() + budget, send_until=send_until)
        return self._exchange(request, headers, departure)

    def get(
        self, path: str, call: Call, *, timeout: float = READ_SECONDS, required: tuple[str, ...] = ()
    ) -> Reply:
        """A read on a person's or the portal's behalf."""
        return self.send(WireRequest("GET", path, None, timeout, required), call)

    def run_status(self, run_id: str, call: Call) -> dict[str, Any]:
        """The provider's status object of a run. NotFound with reason `run_not_found` if it does not know
        it."""
        reply = self.get(run_path(run_id), call, required=("run_id", "status"))
        if reply.value["run_id"] != run_id:
            raise ReplyIncomplete(sentence="Hermes answered about another run. Nothing is concluded from it.")
        status: dict[str, Any] = reply.value
        return status

    def health(self) -> dict[str, Any]:
        """What `/health` says. It needs no token, so none is sent."""
        return self._read("/health", {}, ("status",))

    def capabilities(self) -> dict[str, Any]:
        """What `/v1/capabilities` says. A wrong token shows here without changing anything."""
        return self._read("/v1/capabilities", authorization(self.target), ())

    def _read(self, path: str, headers: Headers, required: tuple[str, ...]) -> dict[str, Any]:
        departure = Departure(limit=time.monotonic() + HEALTH_SECONDS)
        reply = self._exchange(WireRequest("GET", path, None, HEALTH_SECONDS, required), headers, departure)
        value: dict[str, Any] = reply.value
        return value

    def _exchange(self, request: WireRequest, headers: Headers, departure: Departure) -> Reply:
        wire = self._wire(request, headers)
        departure.check()
        backend = GuardedBackend(self._guard, departure, receive_limit=2 * JSON_LIMIT + FRAMING_LIMIT)
        try:
            with (
                httpx.Client(
                    transport=_Transport(backend, self._tls or default_tls()),
                    trust_env=False,
                    follow_redirects=False,
                    timeout=None,  # noqa: S113 - the backend bounds every step by the call's one limit
                ) as http,
                closing(http.send(wire, stream=True)) as response,
            ):
                return _reply(response, request.required)
        except HermesError:
            raise
        except Exception as exc:  # noqa: BLE001 - becomes the leaf that says what is known
            _interrupted(exc, departure)

    def _wire(self, request: WireRequest, headers: Headers) -> httpx.Request:
        if request.method not in METHODS:
            raise InvalidInput("method", "Hermes has no such operation.")
        check_path(request.path)
        fields: Headers = {**COMMON_HEADERS, "Accept": "application/json", **headers}
        if request.method != "GET":
            body = request.body or b""
            if len(body) > BODY_LIMIT:
                raise InvalidInput("body", "The input is larger than Hermes accepts (10,000,000 bytes).")
            fields["Content-Length"] = str(len(body))
            if request.body is not None:
                fields["Content-Type"] = "application/json"
        elif request.body is not None:
            raise InvalidInput("body", "A read carries no body.")
        return httpx.Request(
            request.method,
            self._base_url + request.path,
            headers=raw_headers(fields),
            content=request.body,
            extensions={"timeout": httpx.Timeout(None).as_dict()},
        )

    # The event stream.

    @asynccontextmanager
    async def stream(
        self, run_id: str, call: Call, *, last_event_id: str | None = None, idle: float = IDLE_SECONDS
    ) -> AsyncIterator[AsyncStream]:
        """Open a run's event stream and give its bytes; one subscriber per run (rule 8).

        It has no total timeout; `idle` seconds of silence end it. A charset in the content type is ignored:
        the frames are UTF-8 whatever it says (case 16 d).

        Raises NotAStream, NotSent leaves, or the leaf of the status (CredentialRefused, NotFound and so on).
        """
        wire = self._stream_request(run_id, call, last_event_id, idle)
        async with httpx.AsyncClient(
            transport=_AsyncTransport(GuardedAsyncBackend(self._guard), self._tls or default_tls()),
            trust_env=False,
            follow_redirects=False,
        ) as http:
            response = await _opened(http, wire)
            async with aclosing(response):
                await _expect_stream(response)
                yield AsyncStream(response)

    def _stream_request(
        self, run_id: str, call: Call, last_event_id: str | None, idle: float
    ) -> httpx.Request:
        fields: Headers = {
            **COMMON_HEADERS,
            "Accept": "text/event-stream",
            **call_headers(self.target, call),
        }
        if last_event_id is not None:
            fields["Last-Event-ID"] = visible("last_event_id", last_event_id, 128)
        return httpx.Request(
            "GET",
            self._base_url + run_path(run_id, "events"),
            headers=raw_headers(fields),
            extensions={"timeout": httpx.Timeout(CONNECT_SECONDS, read=idle).as_dict()},
        )


# Reading replies.


def _interrupted(exc: Exception, departure: Departure) -> NoReturn:
    """The leaf for anything that broke the call off, a task's soft time limit among it (case 43)."""
    told = f"{type(exc).__name__}: {exc}"
    if not departure.left:
        departure.check()
        if isinstance(exc, httpx.TransportError):
            raise ConnectFailed(told) from exc
        raise Cancelled(told) from exc
    if isinstance(exc, httpx.RemoteProtocolError) and not BROKEN_OFF.search(str(exc)):
        raise ReplyUndecodable(told) from exc
    raise ReplyLost(told) from exc


def _reply(response: httpx.Response, required: tuple[str, ...]) -> Reply:
    if replies.is_encoded(response.headers):
        raise ReplyUndecodable("compressed though identity was asked for", status=response.status_code)
    if 300 <= response.status_code < 400:
        raise from_status(response.status_code)
    return replies.complete(response.status_code, response.headers, _bounded_body(response), required)


def _bounded_body(response: httpx.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    for chunk in response.iter_raw():
        size += len(chunk)
        if size > JSON_LIMIT:
            raise ReplyUndecodable(f"more than {JSON_LIMIT} bytes", status=response.status_code)
        chunks.append(chunk)
    return b"".join(chunks)


async def _opened(http: httpx.AsyncClient, wire: httpx.Request) -> httpx.Response:
    try:
        async with asyncio.timeout(STREAM_HEADERS_SECONDS):
            return await http.send(wire, stream=True)
    except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
        raise ConnectFailed(str(exc)) from exc
    except (httpx.HTTPError, TimeoutError) as exc:
        raise ReplyLost(
            f"{type(exc).__name__}: {exc}",
            sentence="Hermes did not open the event stream. The status is read.",
        ) from exc


async def _expect_stream(response: httpx.Response) -> None:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (
        response.status_code == 200
        and media_type == "text/event-stream"
        and not replies.is_encoded(response.headers)
    ):
        return
    if 300 <= response.status_code < 400:
        raise from_status(response.status_code)
    body = await _beginning(response)
    if response.status_code < 300:
        raise NotAStream(body.decode("utf-8", "replace"), status=response.status_code)
    raise replies.failure(response.status_code, response.headers, body)


async def _beginning(response: httpx.Response) -> bytes:
    """As much of the body as an error needs; what breaks off is what there is."""
    body = bytearray()
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= ERROR_LIMIT:
                    break
    except (httpx.HTTPError, TimeoutError):
        pass
    return bytes(body[:ERROR_LIMIT])
