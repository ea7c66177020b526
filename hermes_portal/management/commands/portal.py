"""manage.py portal: migrates, then serves the portal with everything it needs as supervised children."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from hermes_portal.supervisor import Patience, Service, Supervisor, free_or_reason

# One number for all portals that share a PostgreSQL database: whoever holds its lock migrates.
MIGRATION_LOCK = 0x4865726D6573  # "Hermes"
CELERY = (sys.executable, "-m", "celery", "--quiet", "--app", "hermes_portal")


class Command(BaseCommand):
    help = "Serve the portal: migrations, web server, workers and timer, under one supervisor."

    def add_arguments(self, parser: ArgumentParser) -> None:
        default = settings.PORTAL_BIND
        parser.add_argument(
            "--bind", default=default, metavar="HOST:PORT", help=f"address to serve ({default})"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        host, port = address_of(options["bind"])
        os.umask(0o077)  # what is written under the data directory is the owner's alone
        with alone_in(settings.DATA_DIR):
            services = plan(host, port)
            if any(service.name == "web" for service in services) and (reason := free_or_reason(host, port)):
                raise CommandError(f"{reason} Name another address with --bind HOST:PORT.")
            with migration_lock():
                call_command("migrate", interactive=False, verbosity=0)
            connection.close()  # the children have connections of their own
            self.stdout.write(f"portal     serving http://{options['bind']}/ (data in {settings.DATA_DIR})")
            patience = Patience(grace=settings.PORTAL_STOP_SECONDS)
            code = Supervisor(services, cwd=settings.BASE_DIR, patience=patience).run()
        sys.exit(code)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; IPv6 hosts stand in brackets. Raises CommandError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise CommandError(
            f"--bind (or PORTAL_BIND) must look like 127.0.0.1:8000 or [::1]:8000, not {text!r}."
        )
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the data directory: a second supervisor in it would double the timer and write over its files.

    The kernel lets go when this process ends in whatever way. Raises CommandError when another one holds it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "portal.pid"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text().strip() or "unknown"
            raise CommandError(
                f"A portal runs in {directory} already (pid {holder}). "
                f"Stop it, or give this one a directory of its own: PORTAL_DATA_DIR."
            ) from None
        write_pid(file)
        yield


def write_pid(file: IO[str]) -> None:
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


@contextlib.contextmanager
def migration_lock() -> Iterator[None]:
    """Portals that start at once against one PostgreSQL migrate one after the other.

    SQLite needs none: its file lives in the data directory, which alone_in() holds.
    """
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        # This session may wait as long as the other one migrates; connection.close() ends it afterwards.
        cursor.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])


def plan(host: str, port: int) -> list[Service]:
    """What to run here. A number of 0 leaves that part to another machine."""
    services = []
    if web := settings.PORTAL_WEB_WORKERS:
        services.append(web_service(host, port, web))
    for number in range(1, settings.PORTAL_EXECUTE_WORKERS + 1):
        threads = settings.PORTAL_EXECUTE_THREADS
        services.append(worker_service("execute", number, "execute,default", threads))
    for number in range(1, settings.PORTAL_STREAM_WORKERS + 1):
        services.append(worker_service("streams", number, "streams", 2))
    if settings.PORTAL_BEAT:
        services.append(beat_service())
    if not services:
        raise CommandError("Nothing to serve: every PORTAL_..._WORKERS is 0 and PORTAL_BEAT is false.")
    return services


def role(name: str) -> dict[str, str]:
    """What a child may know about its part."""
    return {"PORTAL_ROLE": name}


def web_service(host: str, port: int, workers: int) -> Service:
    """gunicorn with threads. It keeps connections longer than pages wait between two polls, so that a poll costs
    no handshake; it opens no control socket, which would lie in the home directory that two portals share."""
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    command = [sys.executable, "-m", "gunicorn", "--no-control-socket", "--worker-class", "gthread"]
    command += ["--bind", bind, "--workers", str(workers)]
    command += ["--threads", str(settings.PORTAL_WEB_THREADS)]
    command += ["--keep-alive", str(max(10, int(settings.PAGE_POLL_SECONDS * 2) + 1))]
    command += ["--graceful-timeout", "5", "--timeout", "60", "--log-level", "warning"]
    if Path("/dev/shm").is_dir():  # noqa: S108 - a heartbeat file that must not wait for a disk
        command += ["--worker-tmp-dir", "/dev/shm"]  # noqa: S108
    return Service("web", (*command, "hermes_portal.wsgi"), role("web"))


def worker_service(name: str, number: int, queues: str, threads: int) -> Service:
    """A Celery worker with threads. It neither looks for other workers nor tells them about itself: messages are
    only nudges here, and the embedded broker would keep that talk as files."""
    label = f"{name}-{number}"
    command = ["worker", "--queues", queues, "--pool", "threads", "--concurrency", str(threads)]
    command += ["--hostname", f"{label}@%h", "--loglevel", "WARNING"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    # Celery warns root, because of a serializer that runs code. Here only JSON is accepted, and a container is root.
    quiet = {"PYTHONWARNINGS": "ignore:You're running the worker"}
    return Service(label, (*CELERY, *command), role(name) | quiet)


def beat_service() -> Service:
    """The timer: it only wakes sweeps that may run any number of times."""
    schedule = settings.DATA_DIR / "beat-schedule"
    return Service(
        "beat", (*CELERY, "beat", "--schedule", str(schedule), "--loglevel", "WARNING"), role("beat")
    )
