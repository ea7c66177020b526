"""A whole portal as it is served: `manage.py portal` as a child, in a directory and on a database of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg

from hermes_portal.processes import Known, spawn
from hermes_portal.sandbox.sandbox import healthy
from tests.services import free_port

Found = TypeVar("Found")
PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds until the portal answers, on a busy machine; usually a few
SCALED = {"PORTAL_EXECUTE_WORKERS": "2", "PORTAL_STREAM_WORKERS": "2"}
# One Python for many commands: each of them goes through manage.py's own parser all the same.
RUN_COMMANDS = (
    "import json, sys\n"
    "from django.core.management import execute_from_command_line as run\n"
    "for line in json.load(sys.stdin): run(['manage.py', *line])\n"
)


def until(look: Callable[[], Found | None], why: Callable[[], str], patience: float = PATIENCE) -> Found:
    """Looks again and again until something true is found; fails with `why`."""
    limit = time.monotonic() + patience
    while not (found := look()):
        if time.monotonic() > limit:
            raise AssertionError(why())
        time.sleep(0.05)
    return found


class Portal:
    """A portal with its own data directory. Everything that a user would call is called the way a user would."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = directory / "output"
        self.environment = own_environment() | {"PORTAL_DATA_DIR": str(directory / "data")} | environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; `await_answer` waits for it."""
        command = [sys.executable, "manage.py", "portal", "--bind", self.url.removeprefix("http://")]
        with self.log.open("ab") as output:
            self.process = spawn(command, env=self.environment, cwd=PROJECT, output=output)

    def await_answer(self) -> None:
        until(self.answers, self.output)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output()
        return healthy(f"{self.url}/healthz")

    def output(self) -> str:
        """What the supervisor and its children printed."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)  # a second signal ends everything at once
            self.process.wait(timeout=20)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One `manage.py` command beside the running portal."""
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command,
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def manage_all(self, *lines: Sequence[str]) -> str:
        """Several of them, in order, in one process."""
        done = self.run_python(RUN_COMMANDS, json.dumps(lines))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_python(self, code: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env=self.environment | {"DJANGO_SETTINGS_MODULE": "hermes_portal.settings"},
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def pids(self, service: str) -> list[Known]:
        """The processes of a service, as the supervisor names them, that live now: `streams` means each of them."""
        found = re.findall(rf"^portal +{service}[-0-9]* started, pid (\d+)$", self.output(), re.MULTILINE)
        return [known for known in (Known.of(int(pid)) for pid in found) if known.birth]


def own_environment() -> dict[str, str]:
    """The caller's, without what was set for this process alone, and with databases of its own where it has some."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO_", "PORTAL_")) or name.startswith("PORTAL_TEST_")
    }
    if "DATABASE_URL" in kept:
        kept |= SCALED | {"DATABASE_URL": fresh_database(kept["DATABASE_URL"])}
    # Redis keeps sixteen databases; the tests of the same suite use the first two.
    for name, number in (("REDIS_URL", 4), ("CELERY_BROKER_URL", 5)):
        if kept.get(name, "").startswith("redis:"):
            kept[name] = urlunsplit(urlsplit(kept[name])._replace(path=f"/{number}"))
    return kept


def fresh_database(address: str) -> str:
    """One more database on that server; it goes away with the server."""
    name = f"walk_{secrets.token_hex(4)}"
    with psycopg.connect(address, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
    return urlunsplit(urlsplit(address)._replace(path=f"/{name}"))


def secret_file(directory: Path, name: str, text: str) -> str:
    """A file for the owner alone, as the commands want it."""
    path = directory / name
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


@contextlib.contextmanager
def running(directory: Path, **environment: str) -> Iterator[Portal]:
    """A started portal, not awaited yet: whoever needs it starts other things beside it meanwhile."""
    portal = Portal(directory, **environment)
    portal.start()
    try:
        yield portal
    finally:
        portal.stop()


def entries(export: Path) -> list[dict[str, Any]]:
    """The entry bodies of an evidence export."""
    lines = [json.loads(line) for line in export.read_text().splitlines()]
    return [line for line in lines if "kind" in line]
