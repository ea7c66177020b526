"""Connections to a checked address, and the time limits of one call. The only user of httpcore beside the client."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from hermes_portal.hermes.errors import AddressRefused, ConnectFailed, DeadlineExpired, ReplyUndecodable
from hermes_portal.hermes.network import CONNECT_SECONDS, Guard


class Departure:
    """The time limits of one request, and whether any byte of it has left.

    `limit` and `send_until` are instants of `time.monotonic()`. The whole call ends at `limit`; the first
    byte may leave only before `send_until`.
    """

    def __init__(self, *, limit: float, send_until: float | None = None) -> None:
        self.limit = limit
        self.send_until = limit if send_until is None else min(limit, send_until)
        self.left = False

    def remaining(self) -> float:
        """Seconds until the call is cut; zero or less when it is over."""
        return self.limit - time.monotonic()

    def check(self) -> None:
        """Raises DeadlineExpired if the first byte may not leave any more."""
        if time.monotonic() >= self.send_until:
            raise DeadlineExpired

    def leave(self) -> None:
        """Called right before each write to the socket: the last moment at which "not sent" can still be
        decided."""
        if not self.left:
            self.check()
            self.left = True


class GuardedBackend(httpcore.NetworkBackend):
    """Opens the connections of blocking requests: checked addresses only, everything inside the call's
    limit."""

    def __init__(self, guard: Guard, departure: Departure, *, receive_limit: int) -> None:
        self._guard = guard
        self._departure = departure
        self._receive_limit = receive_limit

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """A stream to the first checked address that accepts. Raises leaves of NotSent."""
        until = min(self._departure.send_until, time.monotonic() + CONNECT_SECONDS)
        failure: OSError | None = None
        for address in self._guard.resolve(host, port, timeout=until - time.monotonic()):
            self._departure.check()
            try:
                sock = socket.create_connection(
                    (str(address), port), timeout=max(until - time.monotonic(), 0.001)
                )
            except OSError as exc:
                failure = exc
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return SocketStream(sock, self._departure, connect_until=until, receive_limit=self._receive_limit)
        self._departure.check()
        raise ConnectFailed(str(failure)) from failure

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Never: an endpoint is an address of a network."""
        raise AddressRefused


class SocketStream(httpcore.NetworkStream):
    """One guarded connection of a blocking request.

    Each read and write gets only what is left of the whole call, so that a peer that drips one byte now and
    then cannot stretch it. `receive_limit` bounds all bytes received, headers and framing included.
    """

    def __init__(
        self, sock: socket.socket, departure: Departure, *, connect_until: float, receive_limit: int
    ) -> None:
        self._sock = sock
        self._departure = departure
        self._connect_until = connect_until
        self._receive_limit = receive_limit
        self._received = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._sock.settimeout(self._seconds())
            data = self._sock.recv(max_bytes)
        except TimeoutError as exc:
            raise httpcore.ReadTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpcore.ReadError(str(exc)) from exc
        self._received += len(data)
        if self._received > self._receive_limit:
            raise ReplyUndecodable(f"more than {self._receive_limit} bytes")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        while rest:
            self._departure.leave()
            try:
                self._sock.settimeout(self._seconds())
                rest = rest[self._sock.send(rest) :]
            except TimeoutError as exc:
                raise httpcore.WriteTimeout(str(exc)) from exc
            except OSError as exc:
                # httpcore goes on to read: a server may answer (413) and close before it took the whole body.
                raise httpcore.WriteError(str(exc)) from exc

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """The stream inside TLS. Raises ConnectFailed (a certificate for another name, for instance)."""
        try:
            self._sock.settimeout(max(self._connect_until - time.monotonic(), 0.001))
            secure = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname)
        except (OSError, ValueError) as exc:
            self._sock.close()
            self._departure.check()
            raise ConnectFailed(str(exc), sentence=f"{ConnectFailed.says} TLS failed.") from exc
        return SocketStream(
            secure, self._departure, connect_until=self._connect_until, receive_limit=self._receive_limit
        )

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._sock, ssl.SSLSocket):
            return self._sock
        return None

    def _seconds(self) -> float:
        seconds = self._departure.remaining()
        if seconds <= 0:
            raise TimeoutError("the call's time is over")
        return seconds


class GuardedAsyncBackend(httpcore.AsyncNetworkBackend):
    """Opens the connections of event streams: checked addresses only. Time limits are the caller's."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception | None = None
        for address in await self._guard.aresolve(host, port):
            try:
                return await self._inner.connect_tcp(str(address), port, timeout=timeout)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failure = exc
        raise ConnectFailed(str(failure)) from failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never: an endpoint is an address of a network."""
        raise AddressRefused
