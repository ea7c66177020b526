"""Runs a few commands as children: restarts what ends, forwards signals, and leaves nothing behind.

One thread and one loop: children are forked by the thread that stays (see processes.py), their output is read here
and printed line by line behind their names. Standard library only; what the children are is portal.py's business.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hermes_portal.processes import spawn

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LINE_LIMIT = 64 * 1024  # bytes; a longer line is printed in pieces


@dataclass(frozen=True)
class Service:
    """One command to keep running; `name` stands before each line it prints."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds."""

    first_delay: float = 0.5  # before the first restart; doubles with each one that follows
    longest_delay: float = 30.0
    steady: float = 30.0  # a child that lived this long starts again without the delays of before
    grace: float = 20.0  # between the request to end and SIGKILL

    def delay(self, failures: int) -> float:
        """The wait before the restart that follows so many failures in a row (1 is the first)."""
        return float(min(self.longest_delay, self.first_delay * 2 ** min(failures - 1, 30)))


def say(name: str, text: str) -> None:
    """Print one line behind a name; a reader that went away is no reason to stop serving."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        print(f"{name:<10} {text}", flush=True)  # noqa: T201 - the terminal of manage.py portal


class Running:
    """A child that was started: its process, what it prints, when it began."""

    def __init__(self, service: Service, cwd: Path) -> None:
        self.name = service.name
        reading, writing = os.pipe()
        try:
            environment = os.environ | service.environment | {"PYTHONUNBUFFERED": "1"}
            self.process = spawn(service.command, env=environment, cwd=cwd, output=writing)
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.output = reading
        self.partial = b""
        self.began = time.monotonic()

    def kill(self) -> None:
        """SIGKILL to the child and its process group, such as gunicorn's workers."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> bool:
        """Whether it ended. It is not collected by this, so its number cannot become somebody else's."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def collect(self) -> int:
        """Take its exit code. Whatever it left behind is killed before: an orphaned web worker would keep the
        port that the next one needs."""
        self.kill()
        os.close(self.output)
        return self.process.wait()

    def read(self) -> list[str] | None:
        """The lines that became complete; None at the end of the output."""
        try:
            raw = os.read(self.output, LINE_LIMIT)
        except BlockingIOError:
            return []
        *whole, self.partial = (self.partial + raw).split(b"\n")
        if not raw or len(self.partial) > LINE_LIMIT:
            whole, self.partial = [*whole, self.partial], b""
        lines = [line.decode("utf-8", "replace") for line in whole if line]
        return lines if raw or lines else None


@dataclass
class Place:
    """Where one service runs, or waits to run again."""

    service: Service
    child: Running | None = None
    failures: int = 0  # ends in a row, without a steady life in between
    due: float = 0.0  # monotonic instant of the next start


class Supervisor:
    """Keeps services running until a SIGTERM, SIGINT or SIGHUP arrives; a second one kills them at once.

    To be run by the main thread, which alone receives signals.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        cwd: Path,
        patience: Patience | None = None,
        say: Callable[[str, str], None] = say,
    ) -> None:
        self.places = [Place(service) for service in services]
        self.patience = patience or Patience()
        self.cwd, self.say = cwd, say
        self.selector = selectors.DefaultSelector()
        self.requests = 0  # how often we were asked to end
        self.deadline: float | None = None  # monotonic instant after which patience is over

    def run(self) -> int:
        """Serve until told to end. Returns 0, or 1 when children had to be killed."""
        with self.selector, self.signals():
            while not self.requests or self.running():
                self.start_due()
                self.listen()
                self.collect_ended()
                if self.requests:
                    self.end()
        return int(self.requests > 1 or self.overdue())

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Signals only count and wake the loop; everything else happens in it."""
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        before: dict[int, Any] = {
            number: signal.signal(number, self.note) for number in (*STOPPING, signal.SIGCHLD)
        }
        wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self.selector.register(woken, selectors.EVENT_READ, woken)
        try:
            yield
        finally:
            for child in self.running():  # none, unless the loop itself failed
                child.kill()
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            waker.close()
            woken.close()

    def note(self, number: int, _: FrameType | None) -> None:
        self.requests += number in STOPPING

    def running(self) -> list[Running]:
        return [place.child for place in self.places if place.child]

    def start_due(self) -> None:
        """Start every service whose time has come."""
        for place in self.places:
            if not self.requests and place.child is None and place.due <= time.monotonic():
                place.child = Running(place.service, self.cwd)
                self.selector.register(place.child.output, selectors.EVENT_READ, place.child)
                self.say("portal", f"{place.service.name} started, pid {place.child.process.pid}")

    def listen(self) -> None:
        """Sleep until a child prints, a signal arrives or something is due; print what was printed."""
        for key, _ in self.selector.select(self.pause()):
            if isinstance(key.data, Running):
                self.repeat(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    key.data.recv(4096)

    def pause(self) -> float | None:
        """Seconds until something is due; None while only a signal or a line can change anything."""
        instants = [place.due for place in self.places if place.child is None and not self.requests]
        instants += [self.deadline] if self.deadline is not None else []
        return max(0.0, min(instants) - time.monotonic()) if instants else None

    def repeat(self, child: Running) -> bool:
        """Print what a child printed; False when there is nothing more for now."""
        lines = child.read()
        for line in lines or ():
            self.say(child.name, line)
        if lines is None:
            self.selector.unregister(child.output)
        return bool(lines)

    def collect_ended(self) -> None:
        """Take note of the children that ended, and when each starts again."""
        for place in self.places:
            child = place.child
            if not child or not child.ended():
                continue
            while child.output in self.selector.get_map() and self.repeat(child):
                pass
            if child.output in self.selector.get_map():
                self.selector.unregister(child.output)
            code, lived = child.collect(), time.monotonic() - child.began
            place.child = None
            place.failures = 1 if lived >= self.patience.steady else place.failures + 1
            delay = self.patience.delay(place.failures)
            place.due = time.monotonic() + delay
            outlook = "" if self.requests else f"; it starts again in {delay:.1f} s"
            self.say("portal", f"{child.name} {ending(code)} after {lived:.1f} s{outlook}")

    def end(self) -> None:
        """Carry out a request to end: ask once; insist when asked again or when the grace is over."""
        if self.deadline is None:
            self.deadline = time.monotonic() + self.patience.grace
            self.say("portal", "ending; a second signal ends everything at once")
            for child in self.running():
                child.process.send_signal(signal.SIGTERM)
        if self.requests > 1 or self.overdue():
            for child in self.running():
                child.kill()

    def overdue(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def free_or_reason(host: str, port: int, seconds: float = 3.0) -> str:
    """Why the address cannot be served, or "" when it can.

    Waits a little for it: the workers of a web server whose supervisor was killed need a moment to notice.
    """
    limit = time.monotonic() + seconds
    while reason := bind_error(host, port):
        if time.monotonic() >= limit:
            return f"{host}:{port} cannot be served: {reason}."
        time.sleep(0.1)
    return ""


def bind_error(host: str, port: int) -> str:
    """What the kernel says to this address; "" when it gives it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""
