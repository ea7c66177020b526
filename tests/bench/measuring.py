"""One stack, measured: a portal under its supervisor, a fake provider in this process, a person's browser.

Runs as a process of its own per stack, because Django is configured once: `python -m tests.bench.measuring COUNT`.
Prints one JSON object: the name of each series and its seconds.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import django

PROJECT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 90.0  # seconds for anything to happen
WARM_UP = 2  # repetitions that are not counted: imports, first connections, empty caches

Series = dict[str, list[float]]


@contextmanager
def portal(port: int) -> Iterator[None]:
    """`manage.py portal` as anybody starts it. Raises RuntimeError with its output when it does not serve."""
    log = Path(os.environ["PORTAL_DATA_DIR"]) / "output"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "portal", "--bind", f"127.0.0.1:{port}"],
            cwd=PROJECT,
            stdout=output,
            stderr=output,
        )
    try:
        limit = time.monotonic() + PATIENCE
        while not serves(port):
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"The portal does not serve:\n{log.read_text(errors='replace')}")
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def serves(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until(what: Callable[[], Any], pause: float = 0.02) -> Any:
    """Waits for something true. Raises RuntimeError when it does not come."""
    limit = time.monotonic() + PATIENCE
    while not (value := what()):
        if time.monotonic() > limit:
            raise RuntimeError("It did not happen; the portal's output is in PORTAL_DATA_DIR/output.")
        time.sleep(pause)
    return value


class Browser:
    """A signed-in person on one kept connection."""

    def __init__(self, port: int, user: Any) -> None:
        from django.conf import settings
        from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
        from django.contrib.sessions.backends.db import SessionStore

        session = SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.save()
        self._cookies = {settings.SESSION_COOKIE_NAME: session.session_key}
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._link.connect()
        assert self._link.sock is not None
        self._link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path: str) -> str:
        return self._ask("GET", path, None)

    def post(self, path: str, fields: dict[str, str]) -> str:
        return self._ask("POST", path, urlencode(fields))

    def _ask(self, method: str, path: str, body: str | None) -> str:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._link.request(method, path, body, headers)
        answer = self._link.getresponse()
        text = answer.read().decode()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path} answered {answer.status}:\n{text[:2000]}")
        for cookie in answer.headers.get_all("Set-Cookie") or ():
            name, _, value = cookie.split(";")[0].partition("=")
            self._cookies[name] = value
        return text


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of the page's forms."""
    return {
        name: unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
    }


def measure(count: int) -> Series:
    """`count` repetitions of everything, references between them so that they share the machine's moods."""
    from tests import factories
    from tests.fake_hermes import KEY, FakeHermes
    from tests.services import free_port

    port = free_port()
    with FakeHermes(max_runs=0) as hermes, portal(port):
        desk = factories.cast(
            base_url=hermes.url, token=KEY, allow_networks=("127.0.0.0/8",), approval_wait=900
        )
        browser = Browser(port, desk.reviewer)
        table_for_reference()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answers:
            answers.bind(("127.0.0.1", 0))
            answers.settimeout(PATIENCE)
            series: Series = {"card": [], "insert": [], "click": [], "task": []}
            for number in range(WARM_UP + count):
                found = {
                    "insert": insert(number),
                    "task": task(answers),
                    **repetition(number, desk, hermes, browser),
                }
                if number >= WARM_UP:
                    for name, seconds in found.items():
                        series[name].append(seconds)
            return series


def repetition(number: int, desk: Any, hermes: Any, browser: Browser) -> dict[str, float]:
    """A run that stops at a command; its card; the click; the end of the run."""
    from approvals import services
    from approvals.models import Approval
    from runs.models import Run

    action = services.request(
        user=desk.requester,
        endpoint=desk.endpoint,
        operation="run_start",
        raw={"body": {"input": f"Repetition {number}"}},
        reason="A measurement.",
        key=f"bench-{number}",
    ).action
    run_id = until(lambda: Run.objects.get(action=action).provider_run_id)
    fake = hermes.run(run_id)
    fake.wait_for_subscriber(timeout=PATIENCE)
    fake.emit({"event": "message.delta", "delta": "I will clean up.\n"})
    until(lambda: Run.objects.get(action=action).next_ordinal)

    began = time.monotonic()
    fake.ask(f"rm -rf /srv/cache/{number}")
    waiting = Approval.objects.filter(operation="run_approval", status="pending")
    card = until(waiting.first, pause=0.0005)
    committed = time.monotonic() - began

    until(lambda: Run.objects.get(action=action).read_through_at)
    fields = hidden(browser.get(f"/approvals/{card.pk}/"))
    fields |= {"choice": "once", "reason": "Looks right."}
    clicked = time.time()
    browser.post(f"/approvals/{card.pk}/decide/", fields)
    (answer,) = until(lambda: hermes.mutations(rf"/v1/runs/{run_id}/approval"))
    until(lambda: fake.released)
    fake.complete()
    until(lambda: Run.objects.get(action=action).status == Run.Status.COMPLETED)
    return {"card": committed, "click": answer.at - clicked}


def table_for_reference() -> None:
    """A table as plain as one can be."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bench_row (id integer PRIMARY KEY, text varchar(200))")


def insert(number: int) -> float:
    """Seconds of one transaction that inserts one short row and commits."""
    from django.db import connection, transaction

    began = time.monotonic()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO bench_row VALUES (%s, %s)", [number, "x" * 100])
    return time.monotonic() - began


def task(answers: socket.socket) -> float:
    """Seconds of an empty task: published, run by the worker that sends answers, and heard of here."""
    from celery import current_app

    began = time.monotonic()
    port = answers.getsockname()[1]
    current_app.send_task("tests.bench.tasks.empty", args=(port,), queue="execute", retry=False)
    answers.recv(16)
    return time.monotonic() - began


def main(count: str) -> None:
    django.setup()
    import hermes_portal.celery  # noqa: F401 - its configuration is that of this process

    sys.stdout.write(json.dumps(measure(int(count))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
