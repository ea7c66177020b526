"""A fake Hermes on a real socket: like 0.19.0 or 0.22 by default, misbehaving as scripted, counting
mutations.

    with FakeHermes() as hermes:
        hermes.script("POST", "/v1/runs", close())  # reads the whole POST, then closes without a reply
        run = hermes.run()  # a run that exists without having been started
        run.ask("rm -rf /srv/cache")  # approval.request on its stream
        run.complete("done")  # run.completed, and the stream ends as Hermes ends it
        assert len(hermes.mutations()) == 1

Workers are killed in tests, so it also runs as a process of its own and writes each mutation to a log, as a
JSON line, before it answers: `python -m tests.fake_hermes --port N --log FILE`; `FakeProcess` starts one.
What a test does to a `FakeRun` can be done over HTTP below `/_fake/` as well (see `_Handler.control`).
"""

from __future__ import annotations

import argparse
import base64
import gzip
import http.server
import json
import re
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Generation = Literal["0.19", "0.22"]
Fault = Literal["", "close", "reset", "half", "drip", "hang", "raw"]
Event = dict[str, Any]

KEY = "fake-hermes-key-0123456789"
BODY_LIMIT = 10_000_000
KEPT_FRAMES = 1000
TERMINAL = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.interrupted": "interrupted",
}
CHOICES = ("once", "session", "always", "deny")
ALIASES = {"approve": "once", "approved": "once", "allow": "once"}
SECURITY_HEADERS = (("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"))


# What a script can answer.


@dataclass(frozen=True)
class Answer:
    """One scripted answer.

    `effect` first lets the fake do what it would have done (start the run, release the command), and then
    this answer takes the place of its reply: a lost reply after a real effect. `delay` is seconds before
    anything is answered.
    """

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    fault: Fault = ""
    effect: bool = False
    every: float = 0.05
    plain: bool = False  # answer as by default, only later

    def after(self, delay: float) -> Answer:
        return replace(self, delay=delay)

    def with_effect(self) -> Answer:
        return replace(self, effect=True)


def reply(
    status: int = 200,
    value: object = None,
    *,
    body: bytes | None = None,
    content_type: str | None = "application/json; charset=utf-8",
    headers: tuple[tuple[str, str], ...] = (),
) -> Answer:
    """A whole reply: `value` as JSON, or `body` as it is. `content_type=None` leaves the header out."""
    data = body if body is not None else (b"" if value is None else json.dumps(value).encode())
    typed = () if content_type is None else (("Content-Type", content_type),)
    return Answer(status, data, (*typed, *headers))


def default(delay: float = 0.0) -> Answer:
    """What the fake would have answered anyway, `delay` seconds later."""
    return Answer(plain=True, delay=delay)


def close() -> Answer:
    """Reads the whole request, then closes the connection without a byte."""
    return Answer(fault="close")


def reset() -> Answer:
    """Reads the whole request, then resets the connection (RST)."""
    return Answer(fault="reset")


def half(value: object = None, status: int = 200) -> Answer:
    """Headers and half of the body, then closes."""
    return replace(reply(status, value or {"run_id": "run_" + "0" * 32}), fault="half")


def drip(value: object = None, *, every: float = 0.05, status: int = 200) -> Answer:
    """The whole reply, status line first, one byte every `every` seconds."""
    return replace(reply(status, value or {}), fault="drip", every=every)


def hang() -> Answer:
    """Reads the whole request and never answers."""
    return Answer(fault="hang")


def raw(data: bytes) -> Answer:
    """These bytes instead of an HTTP reply, then closes."""
    return Answer(body=data, fault="raw")


def redirect(url: str, status: int = 302) -> Answer:
    return reply(status, body=b"", headers=(("Location", url),))


def html(text: str = "<!doctype html><title>Sign in</title><form></form>", status: int = 200) -> Answer:
    return reply(status, body=text.encode(), content_type="text/html; charset=utf-8")


def gzipped(value: object, *, content_type: str = "application/json", status: int = 200) -> Answer:
    data = gzip.compress(json.dumps(value).encode())
    return reply(status, body=data, content_type=content_type, headers=(("Content-Encoding", "gzip"),))


def provider_error(
    status: int, message: str, code: str | None = None, kind: str = "invalid_request_error", **headers: str
) -> Answer:
    """An error in the shape of the run routes."""
    return reply(
        status,
        {"error": {"message": message, "type": kind, "param": None, "code": code}},
        headers=tuple((name.replace("_", "-"), value) for name, value in headers.items()),
    )


@dataclass(frozen=True)
class Seen:
    """One request as it arrived. `at` is Unix seconds; `peer` the client's port (a fresh one per
    connection)."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    at: float
    peer: int

    def json(self) -> Any:
        return json.loads(self.body)

    def as_line(self) -> str:
        return json.dumps(
            {
                "method": self.method,
                "path": self.path,
                "query": self.query,
                "headers": self.headers,
                "body": base64.b64encode(self.body).decode(),
                "at": self.at,
                "peer": self.peer,
            }
        )

    @classmethod
    def from_line(cls, line: str) -> Seen:
        members = json.loads(line)
        return cls(**{**members, "body": base64.b64decode(members["body"])})


@dataclass
class _Rule:
    method: str
    pattern: re.Pattern[str]
    answers: deque[Answer]
    forever: bool


# A run.


@dataclass
class FakeRun:
    """One run: what its status says, what waits for approval, and the frames of its event stream.

    `released` lists what was let through or denied, as (command, choice), in order: the proof of *which*
    command an answer reached.
    """

    run_id: str
    generation: Generation = "0.19"
    session_id: str = ""
    model: Any = "hermes-agent"
    status: str = "running"
    last_event: str | None = None
    extra: Event = field(default_factory=dict)
    pending: list[Event] = field(default_factory=list)
    released: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False
    gone: bool = False
    stopped: bool = False
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    subscribers: int = 0
    subscriptions: int = 0
    end_comment: bool = True
    _frames: deque[tuple[int, bytes]] = field(default_factory=deque)
    _seq: int = 0
    _cut: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    # What a test does to it.

    def emit(self, event: Event, *, end: bool = True) -> Event:
        """Put an event on the stream (run id and timestamp are filled in) and move the status as Hermes
        would.

        A terminal event also ends the stream, unless `end` is False.
        """
        with self._changed:
            full: Event = {"run_id": self.run_id, "timestamp": time.time(), **event}
            kind = str(full.get("event", ""))
            if kind == "approval.request":
                full = self._request(full)
            if self.generation == "0.22":
                full.setdefault("seq", self._seq)
            self._settle(kind, full)
            self._push(self._frame(full))
        if kind in TERMINAL and end:
            self.end()
        return full

    def emit_raw(self, data: bytes) -> None:
        """Put these bytes on the stream as they are."""
        with self._changed:
            self._push(data)

    def ask(self, command: str = "rm -rf /tmp/fake-hermes-scratch", **members: Any) -> Event:
        """A dangerous command stops at an approval; returns the whole event."""
        return self.emit(
            {
                "event": "approval.request",
                "command": command,
                "description": "recursive delete",
                "pattern_key": "recursive delete",
                "pattern_keys": ["recursive delete"],
                "allow_permanent": True,
                "choices": list(CHOICES),
                **members,
            }
        )

    def complete(self, output: str = "done") -> Event:
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return self.emit({"event": "run.completed", "output": output, "usage": usage})

    def expire_approval(self) -> None:
        """Hermes' own wait ends: the oldest request is gone, without an event of its own; the status
        stays."""
        with self._changed:
            self.pending.pop(0)
        status = self.status
        self.emit({"event": "tool.completed", "tool": "terminal", "duration": 1.0, "error": True})
        self.status = status

    def end(self, *, comment: bool = True) -> None:
        """Hermes closes the stream in good order, with its end comment unless told otherwise."""
        with self._changed:
            self.ended = True
            self.end_comment = comment
            self._changed.notify_all()

    def cut(self) -> None:
        """The connections of all present subscribers break (RST). The stream itself has not ended."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def wait_for_subscriber(self, count: int = 1, timeout: float = 5.0) -> None:
        """Wait until that many subscriptions were opened in all. Raises AssertionError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.subscriptions >= count, timeout):
                raise AssertionError(f"{self.subscriptions} subscriptions to {self.run_id}, expected {count}")

    # What Hermes does with it.

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL.values()

    def public(self) -> Event:
        """The status object."""
        value: Event = {
            "object": "hermes.run",
            "run_id": self.run_id,
            "status": self.status,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "session_id": self.session_id or self.run_id,
            "model": self.model,
            **self.extra,
        }
        if self.last_event is not None:
            value["last_event"] = self.last_event
        if self.generation == "0.22" and self.status == "waiting_for_approval" and self.pending:
            value["approval"] = self.pending[-1]
        return value

    def answer(self, choice: str, *, everything: bool, request_id: str | None) -> int:
        """Release the oldest pending request (or the named one, or all); returns how many. 0 means none
        waits."""
        with self._changed:
            if request_id is not None and self.generation == "0.22":
                chosen = [item for item in self.pending if item.get("request_id") == request_id]
            else:
                chosen = self.pending[:] if everything else self.pending[:1]
            for item in chosen:
                self.pending.remove(item)
                self.released.append((str(item.get("command")), choice))
            if not chosen:
                return 0
            self.status = "running"  # even if others still wait, and over "stopping" too
        event: Event = {"event": "approval.responded", "choice": choice, "resolved": len(chosen)}
        if request_id is not None and self.generation == "0.22":
            event["request_id"] = request_id
        self.emit(event)
        return len(chosen)

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self.status = "stopping"
            self.last_event = "run.stopping"
            self.updated_at = time.time()

    def frames(
        self, last_id: int | None, closed: Callable[[], bool], keepalive: float = 30.0
    ) -> Iterator[bytes | None]:
        """What one subscriber is sent; None asks the caller to break the connection."""
        with self._changed:
            self.subscribers += 1
            self.subscriptions += 1
            cut = self._cut
            self._changed.notify_all()
        position = -1 if last_id is None else last_id
        try:
            if self.generation == "0.22":
                yield b": open\n\n"
                yield from self._truncation(last_id)
            quiet_since = time.monotonic()
            while True:
                found, over = self._await_next(position, cut)
                if self._cut != cut:
                    yield None
                    return
                if found is not None:
                    position, data = found
                    quiet_since = time.monotonic()
                    yield data
                elif over:
                    break
                elif closed():
                    return
                elif time.monotonic() - quiet_since >= keepalive:
                    quiet_since = time.monotonic()
                    yield b": keepalive\n\n"
            if self.end_comment:
                yield b": stream closed\n\n"
        finally:
            with self._changed:
                self.subscribers -= 1
                if self.generation == "0.19":
                    self.gone = True  # the queue goes with its reader: the next subscription is a 404

    def _await_next(self, position: int, cut: int) -> tuple[tuple[int, bytes] | None, bool]:
        """The next frame, or None after a moment; and whether the stream had ended by then."""
        with self._changed:
            found = self._next(position)
            if found is None and not self.ended and self._cut == cut:
                self._changed.wait(0.05)
                found = self._next(position)
            return found, self.ended

    def _next(self, position: int) -> tuple[int, bytes] | None:
        if self.generation == "0.19":
            return self._frames.popleft() if self._frames else None  # one queue, whoever reads it
        return next((frame for frame in self._frames if frame[0] > position), None)

    def _truncation(self, last_id: int | None) -> Iterator[bytes]:
        with self._changed:
            oldest = self._frames[0][0] if self._frames else 0
        if oldest > (0 if last_id is None else last_id + 1):
            event: Event = {"event": "replay.truncated", "run_id": self.run_id, "timestamp": time.time()}
            event["oldest_retained_seq"] = oldest
            if last_id is not None:
                event["requested_seq"] = last_id
            yield b"data: " + json.dumps(event).encode() + b"\n\n"

    def _push(self, data: bytes) -> None:
        self._frames.append((self._seq, data))
        self._seq += 1
        if self.generation == "0.22" and len(self._frames) > KEPT_FRAMES:
            self._frames.popleft()
        self._changed.notify_all()

    def _frame(self, event: Event) -> bytes:
        line = f"id: {event['seq']}\n" if self.generation == "0.22" else ""
        return f"{line}data: {json.dumps(event)}\n\n".encode()

    def _request(self, event: Event) -> Event:
        if self.generation == "0.22":
            event.setdefault("request_id", uuid.uuid4().hex)
            event.setdefault("allow_session", True)
        self.pending.append(event)
        return event

    def _settle(self, kind: str, event: Event) -> None:
        self.updated_at = time.time()
        if kind != "message.delta":
            self.last_event = kind
        if kind == "approval.request":
            self.status = "waiting_for_approval"
        if kind in TERMINAL:
            self.status = TERMINAL[kind]
            self.pending.clear()
            kept = ("output", "usage", "error", "completed", "partial", "interrupted", "runtime")
            self.extra = {name: event[name] for name in kept if name in event}


# The server.


class FakeHermes:
    """The fake itself: a context manager with `url` and `key`. Everything on it may be used from any
    thread."""

    def __init__(
        self,
        *,
        generation: Generation = "0.19",
        key: str = KEY,
        host: str = "127.0.0.1",
        port: int = 0,
        max_runs: int = 10,
        log: Path | None = None,
        tls: ssl.SSLContext | None = None,
        not_found_delay: float = 0.0,
        keepalive: float | None = None,
        notices_disconnects: bool = True,
    ) -> None:
        """`max_runs` 0 means no cap. `not_found_delay` is the 1.0 s that 0.19 waits for an unknown stream;
        `keepalive` the seconds of silence between comments. Without `notices_disconnects` a closed reader is
        noticed only at the next event, which it swallows: a quick re-subscription on 0.19 then hangs, as on
        the real one.
        """
        self.generation: Generation = generation
        self.key = key
        self.max_runs = max_runs
        self.draining = False
        self.not_found_delay = not_found_delay
        self.keepalive = keepalive or (30.0 if generation == "0.19" else 10.0)
        self.notices_disconnects = notices_disconnects
        self.on_start: Callable[[FakeRun], None] = lambda run: None
        self.requests: list[Seen] = []
        self.runs: dict[str, FakeRun] = {}
        self.keyed: dict[str, tuple[str, str]] = {}
        self.stopping = threading.Event()
        self.lock = threading.RLock()
        self._rules: list[_Rule] = []
        self._log = log
        self._server = _Server((host, port), self, tls)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="fake-hermes", daemon=True
        )
        scheme = "https" if tls else "http"
        self.port: int = self._server.server_address[1]
        self.url = f"{scheme}://{host}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the port and every connection, as a killed process would."""
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.close_connections()

    def script(self, method: str, pattern: str, *answers: Answer, forever: bool = False) -> None:
        """Answer the next requests of `method` whose path matches the whole regular expression `pattern`.

        Answers are used in order, one per request; then the default behaviour is back, unless `forever`
        repeats the last one.
        """
        with self.lock:
            self._rules = [
                rule for rule in self._rules if (rule.method, rule.pattern.pattern) != (method, pattern)
            ]
            self._rules.append(_Rule(method, re.compile(pattern), deque(answers), forever))

    def run(self, run_id: str | None = None) -> FakeRun:
        """The run with this id; made, as a running one, if there is none. Without an id: a new run."""
        with self.lock:
            run_id = run_id or f"run_{uuid.uuid4().hex}"
            if run_id not in self.runs:
                self.runs[run_id] = FakeRun(run_id, self.generation)
            return self.runs[run_id]

    def forget(self, run_id: str) -> None:
        """As after a restart: the run is not known any more."""
        with self.lock:
            self.runs.pop(run_id, None)

    def mutations(self, pattern: str = r".*") -> list[Seen]:
        """The requests seen so far that could change something, oldest first, whose whole path matches
        `pattern`."""
        with self.lock:
            return [seen for seen in self.requests if is_mutation(seen) and re.fullmatch(pattern, seen.path)]

    @property
    def connections(self) -> int:
        """How many connections were accepted since the start."""
        return self._server.accepted

    # For the handler.

    def note(self, seen: Seen) -> None:
        with self.lock:
            self.requests.append(seen)
            if self._log is not None and is_mutation(seen):
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(seen.as_line() + "\n")

    def scripted(self, method: str, path: str) -> Answer | None:
        with self.lock:
            for rule in self._rules:
                if rule.method == method and rule.answers and rule.pattern.fullmatch(path):
                    return (
                        rule.answers[0] if rule.forever and len(rule.answers) == 1 else rule.answers.popleft()
                    )
        return None


def is_mutation(seen: Seen) -> bool:
    return seen.method not in ("GET", "HEAD", "OPTIONS") and not seen.path.startswith("/_fake/")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], hermes: FakeHermes, tls: ssl.SSLContext | None) -> None:
        super().__init__(address, _Handler)
        self.hermes = hermes
        self.tls = tls
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.accepted += 1
        if self.tls is not None:
            connection.settimeout(5)
            try:
                connection = self.tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                raise
            connection.settimeout(None)
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a traceback; anything else is a bug of the fake."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "FakeHermes"
    disable_nagle_algorithm = True
    server: _Server

    def __getattr__(self, name: str) -> Callable[[], None]:
        # http.server looks for do_GET, do_POST and so on: every method goes the same way.
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: `requests` is the log."""

    @property
    def hermes(self) -> FakeHermes:
        return self.server.hermes

    def answer(self) -> None:
        seen = self.read_request()
        if seen.path.startswith("/_fake/"):
            self.send(self.control(seen))
            return
        self.hermes.note(seen)
        answer = self.hermes.scripted(seen.method, seen.path) or default()
        if answer.delay and self.hermes.stopping.wait(answer.delay):
            self.close_connection = True
            return
        if answer.plain:
            natural = self.natural(seen)
            if natural is not None:
                self.send(natural)
            return
        if answer.effect:
            self.natural(seen)
        self.send(answer)

    def read_request(self) -> Seen:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        # A body over the limit is refused from its length alone, as Hermes does.
        body = self.rfile.read(length) if length <= BODY_LIMIT else b""
        headers = {name.lower(): value for name, value in self.headers.items()}
        if "transfer-encoding" in headers or length > BODY_LIMIT:
            self.close_connection = True
        return Seen(self.command, path, query, headers, body, time.time(), self.client_address[1])

    # Sending.

    def send(self, answer: Answer) -> None:
        if answer.fault == "hang":
            self.hermes.stopping.wait()
        if answer.fault in ("hang", "close"):
            self.close_connection = True
            return
        if answer.fault == "reset":
            self.reset()
            return
        whole = answer.body if answer.fault == "raw" else self.bytes_of(answer)
        if answer.fault == "half":
            self.wfile.write(whole[: len(whole) - len(answer.body) // 2])
        elif answer.fault == "drip":
            for byte in whole:
                if self.hermes.stopping.wait(answer.every):
                    break
                self.wfile.write(bytes([byte]))
        else:
            self.wfile.write(whole)
        if answer.fault:
            self.close_connection = True

    def bytes_of(self, answer: Answer) -> bytes:
        names = {name.lower() for name, _ in answer.headers}
        lines = [f"HTTP/1.1 {answer.status} {self.responses.get(answer.status, ('Odd',))[0]}"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        if not names & {"content-length", "transfer-encoding"} and answer.status != 204:
            lines.append(f"Content-Length: {len(answer.body)}")
        body = b"" if self.command == "HEAD" else answer.body
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8") + body

    def reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    # The behaviour of Hermes.

    def natural(self, seen: Seen) -> Answer | None:
        """Hermes' own answer; None if it was sent already (an event stream)."""
        if "origin" in seen.headers or seen.method == "OPTIONS":
            return reply(403, body=b"", content_type=None)
        if seen.path in ("/health", "/v1/health"):
            return reply(200, {"status": "ok", "platform": "hermes-agent", "version": self.version})
        if seen.headers.get("authorization") != f"Bearer {self.hermes.key}":
            return self.unauthorized()
        if seen.method == "GET" and seen.path == "/v1/capabilities":
            return reply(200, self.capabilities())
        if seen.path == "/v1/runs":
            if seen.method == "POST":
                return self.start_run(seen)
            return reply(405, body=b"405: Method Not Allowed", content_type="text/plain; charset=utf-8")
        match = re.fullmatch(r"/v1/runs/([^/]+)(?:/(events|approval|stop))?", seen.path)
        if match is None:
            return reply(404, body=b"404: Not Found", content_type="text/plain; charset=utf-8")
        run = self.hermes.runs.get(match[1])
        if run is None:
            if match[2] == "events":
                self.hermes.stopping.wait(self.hermes.not_found_delay)
            return self.run_not_found(match[1])
        return self.on_run(seen, run, match[2] or "")

    def on_run(self, seen: Seen, run: FakeRun, operation: str) -> Answer | None:
        match seen.method, operation:
            case "GET", "":
                return self.json_reply(200, run.public())
            case "GET", "events":
                return self.events(seen, run)
            case "POST", "approval":
                return self.approve(seen, run)
            case "POST", "stop":
                return self.stop_run(run)
        return reply(405, body=b"405: Method Not Allowed", content_type="text/plain; charset=utf-8")

    @property
    def version(self) -> str:
        return "0.19.0" if self.hermes.generation == "0.19" else "0.22.2"

    def json_reply(self, status: int, value: object, *headers: tuple[str, str]) -> Answer:
        return reply(status, value, headers=(*SECURITY_HEADERS, *headers))

    def unauthorized(self) -> Answer:
        error = {
            "message": "Invalid API key",
            "type": "invalid_request_error",
            "code": "invalid_api_key",
        }
        if self.hermes.generation == "0.22":
            error |= {"type": "gateway_auth_error", "code": "gateway_auth_failed"}
        return self.json_reply(401, {"error": error})

    def run_not_found(self, run_id: str) -> Answer:
        return provider_error(404, f"Run not found: {run_id}", "run_not_found")

    def capabilities(self) -> Event:
        features: Event = {
            "run_submission": True,
            "run_status": True,
            "run_events_sse": True,
            "run_stop": True,
            "run_approval_response": True,
            "approval_events": True,
            "jobs_admin": False,
        }
        if self.hermes.generation == "0.22":
            features["runs_idempotency"] = {"supported": True, "durable": True, "retention_seconds": 86400}
            features["run_steer"] = True
        return {"object": "hermes.api_server.capabilities", "platform": "hermes-agent", "features": features}

    def start_run(self, seen: Seen) -> Answer:
        refusal = self.refuse_start(seen)
        if refusal is not None:
            return refusal
        body = json.loads(seen.body)
        with self.hermes.lock:
            known = self.known_start(seen)
            if known is not None:
                return known
            if 0 < self.hermes.max_runs <= sum(not run.terminal for run in self.hermes.runs.values()):
                text = f"Too many concurrent runs (max {self.hermes.max_runs})"
                return provider_error(429, text, "rate_limit_exceeded", "rate_limit_error", Retry_After="1")
            run = self.hermes.run()
            run.session_id = str(body.get("session_id") or "")
            run.model = body.get("model", "hermes-agent")
            self.remember_start(seen, run)
        self.hermes.on_start(run)
        value: Event = {"run_id": run.run_id, "status": "started"}
        if self.hermes.generation == "0.22":
            value["replayed"] = False
        session_key = seen.headers.get("x-hermes-session-key")
        echoed = () if session_key is None else (("X-Hermes-Session-Key", session_key),)
        return self.json_reply(202, value, *echoed)

    def refuse_start(self, seen: Seen) -> Answer | None:
        if self.hermes.draining:
            text = "Gateway is draining; not accepting new runs"
            return provider_error(503, text, "gateway_draining", Retry_After="1")
        if len(seen.headers.get("x-hermes-session-key", "")) > 256:
            error = {"message": "Session key too long", "type": "invalid_request_error"}
            return self.json_reply(400, {"error": error})
        if int(seen.headers.get("content-length", "0")) > BODY_LIMIT:
            return provider_error(413, "Request body too large", "body_too_large")
        try:
            body = json.loads(seen.body)
        except ValueError:
            return provider_error(400, "Invalid JSON")
        if not isinstance(body, dict):
            return self.crashed()
        return self.refuse_input(body.get("input"))

    def refuse_input(self, value: object) -> Answer | None:
        if not value:
            return provider_error(400, "Missing 'input' field")
        if isinstance(value, str):
            return None
        if not isinstance(value, list):
            return provider_error(400, "No user message found in input")
        if not isinstance(value[-1], dict):
            return self.crashed()
        if not value[-1].get("content"):
            return provider_error(400, "No user message found in input")
        return None

    def crashed(self) -> Answer:
        self.close_connection = True
        return reply(
            500,
            body=b"500 Internal Server Error\n\nServer got itself in trouble",
            content_type="text/plain; charset=utf-8",
            headers=(("Connection", "close"),),
        )

    def start_key(self, seen: Seen) -> str:
        return seen.headers.get("idempotency-key", "").strip() if self.hermes.generation == "0.22" else ""

    def fingerprint(self, seen: Seen) -> str:
        session_key = seen.headers.get("x-hermes-session-key")
        return json.dumps([json.loads(seen.body), session_key], sort_keys=True)

    def remember_start(self, seen: Seen, run: FakeRun) -> None:
        if key := self.start_key(seen):
            self.hermes.keyed[key] = (self.fingerprint(seen), run.run_id)

    def known_start(self, seen: Seen) -> Answer | None:
        """0.22: the same key and body answer the first run, another body is a conflict."""
        key = self.start_key(seen)
        if not key or key not in self.hermes.keyed:
            return None
        fingerprint, run_id = self.hermes.keyed[key]
        if fingerprint != self.fingerprint(seen):
            return provider_error(409, "Idempotency key reused", "idempotency_key_conflict")
        value = {"run_id": run_id, "status": self.hermes.run(run_id).status, "replayed": True}
        return self.json_reply(202, value, ("Idempotency-Replayed", "true"))

    def approve(self, seen: Seen, run: FakeRun) -> Answer:
        try:
            body = json.loads(seen.body)
        except ValueError:
            return provider_error(400, "Invalid JSON")
        if not isinstance(body, dict):
            return self.crashed()
        request_id = body.get("request_id") if self.hermes.generation == "0.22" else None
        if request_id is not None and not (
            isinstance(request_id, str) and 1 <= len(request_id.strip()) <= 256
        ):
            return provider_error(400, "Invalid request_id", "invalid_approval_request")
        choice = str(body.get("choice", "")).strip().lower()
        choice = ALIASES.get(choice, choice)
        if choice not in CHOICES:
            return provider_error(400, "Invalid choice", "invalid_approval_choice")
        if run.terminal:
            return provider_error(409, "Run has no active approval session", "approval_not_active")
        everything = any(_truthy(body.get(name)) for name in ("all", "resolve_all"))
        resolved = run.answer(
            choice, everything=everything, request_id=request_id.strip() if request_id else None
        )
        if not resolved:
            return provider_error(409, "No pending approval", "approval_not_pending")
        value = {
            "object": "hermes.run.approval_response",
            "run_id": run.run_id,
            "choice": choice,
            "resolved": resolved,
        }
        return self.json_reply(200, value)

    def stop_run(self, run: FakeRun) -> Answer:
        if run.terminal:
            if self.hermes.generation == "0.19":
                return self.run_not_found(run.run_id)
            return self.json_reply(200, run.public())
        run.stop()
        return self.json_reply(200, {"run_id": run.run_id, "status": "stopping"})

    def events(self, seen: Seen, run: FakeRun) -> Answer | None:
        if run.gone:
            self.hermes.stopping.wait(self.hermes.not_found_delay)
            return self.run_not_found(run.run_id)
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
            b"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for data in run.frames(self.last_id(seen), self.is_client_gone, self.hermes.keepalive):
            if data is None:
                self.reset()
                return None
            self.write_chunk(data)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def write_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def last_id(self, seen: Seen) -> int | None:
        if self.hermes.generation == "0.19":
            return None
        query = urllib.parse.parse_qs(seen.query).get("last_seq", [""])[0]
        text = (seen.headers.get("last-event-id") or query).strip()
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None

    def is_client_gone(self) -> bool:
        if self.hermes.stopping.is_set():
            return True
        if not self.hermes.notices_disconnects:
            return False
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            return len(self.connection.recv(1, socket.MSG_PEEK)) == 0
        except OSError:
            return True

    # The remote control of a fake that runs as a process.

    def control(self, seen: Seen) -> Answer:
        """`POST /_fake/runs/ID/emit|raw|ask|complete|end|cut|expire`, `POST /_fake/script|set`, `GET
        /_fake/runs/ID`.

        `script` takes {"method", "pattern", "answers": [members of Answer, body as text], "forever"}; `set`
        takes {"draining", "max_runs", "key"}.
        """
        if seen.path == "/_fake/script":
            return self.control_script(seen.json())
        if seen.path == "/_fake/set":
            for name, value in seen.json().items():
                if name not in ("draining", "max_runs", "key"):
                    return reply(400, {"error": name})
                setattr(self.hermes, name, value)
            return reply(200, {})
        match = re.fullmatch(r"/_fake/runs/(run_[0-9a-f]{32})(?:/([a-z]+))?", seen.path)
        if match is None:
            return reply(404, {})
        run = self.hermes.run(match[1])
        if match[2] is None:
            value = {"status": run.public(), "pending": run.pending, "released": run.released}
            return reply(200, value | {"subscriptions": run.subscriptions})
        acts: dict[str, Callable[[], object]] = {
            "emit": lambda: run.emit(seen.json()),
            "ask": lambda: run.ask(**seen.json()),
            "raw": lambda: run.emit_raw(seen.body),
            "complete": lambda: run.complete(**seen.json()),
            "end": run.end,
            "cut": run.cut,
            "expire": run.expire_approval,
        }
        if match[2] not in acts:
            return reply(404, {})
        return reply(200, acts[match[2]]() or {})

    def control_script(self, wanted: Event) -> Answer:
        answers = [
            Answer(
                **{
                    **members,
                    "body": members.get("body", "").encode(),
                    "headers": tuple((name, value) for name, value in members.get("headers", ())),
                }
            )
            for members in wanted["answers"]
        ]
        self.hermes.script(wanted["method"], wanted["pattern"], *answers, forever=bool(wanted.get("forever")))
        return reply(200, {})


def _truthy(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes", "on"))


# As a process of its own.


class FakeProcess:
    """A fake in another process, for tests that kill workers: `url`, `key`, `mutations()`, `call()`."""

    def __init__(self, log: Path, *, generation: Generation = "0.19", port: int = 0) -> None:
        self.log = log
        self.key = KEY
        self._generation: Generation = generation
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "tests.fake_hermes",
            "--port",
            str(self._port),
            "--log",
            str(self.log),
        ]
        self._process = subprocess.Popen(
            [*command, "--generation", self._generation],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def mutations(self) -> list[Seen]:
        """What the log says, oldest first; it is written before each answer."""
        if not self.log.exists():
            return []
        return [Seen.from_line(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def call(self, path: str, value: object = None) -> Any:
        """POST `value` to a `/_fake/` address (GET if it is None) and return the JSON of the answer."""
        data = None if value is None else json.dumps(value).encode()
        with urllib.request.urlopen(self.url + path, data, timeout=10) as response:  # noqa: S310 - our own
            return json.loads(response.read())


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line printed is the address."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--generation", choices=("0.19", "0.22"), default="0.19")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    ending = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: ending.set())
    hermes = FakeHermes(
        generation=options.generation, key=options.key, host=options.host, port=options.port, log=options.log
    )
    with hermes:
        sys.stdout.write(hermes.url + "\n")
        sys.stdout.flush()
        ending.wait()


if __name__ == "__main__":
    main()
