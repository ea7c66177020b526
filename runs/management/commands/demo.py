"""`manage.py demo`: the whole portal beside a real Hermes with a scripted model, on this machine alone."""

import contextlib
import json
import logging
import os
import secrets
import select
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, call_command
from django.db import connection

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.models import Endpoint, Role, Tenant, User
from approvals.policy import load_document
from hermes_portal.hermes.errors import HermesError
from hermes_portal.processes import spawn
from hermes_portal.sandbox.sandbox import Sandbox, SandboxError
from runs import practice

TENANT, ENDPOINT = "demo", "hermes-demo"
PEOPLE = {
    "requester": (Role.REQUESTER,),
    "reviewer": (Role.REVIEWER,),
    "reviewer2": (Role.REVIEWER,),
    "auditor": (Role.AUDITOR,),
    "admin": (Role.ADMIN,),
}
WAIT = 300  # seconds that the demo's Hermes waits for an answer: time to look around
HOST, PORTS = "127.0.0.1", range(8000, 8020)


class Command(BaseCommand):
    help = "Runs the portal with a sandbox of its own: a real Hermes, a scripted model, practice runs and logins."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        directory = Path(os.environ.get("PORTAL_DEMO_DIR") or ".demo").resolve()
        if not settings.PORTAL_DEMO or directory / "portal" != settings.DATA_DIR:
            begin_again(directory)
        started = time.monotonic()
        logging.getLogger("approvals").setLevel(logging.WARNING)  # the welcome says what matters here
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.stdout.write("Starting a Hermes, its scripted model and the portal")
        self.stdout.flush()
        try:
            with Sandbox(
                directory=directory / "sandbox", approval_timeout=WAIT, warm=True, pace=0.04
            ) as sandbox:
                self.run_portal(directory, sandbox, started)
        except SandboxError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            pass
        self.stdout.write(
            "\nThe demo has ended, with every process that it started. make demo brings it back."
        )

    def run_portal(self, directory: Path, sandbox: Sandbox, started: float) -> None:
        call_command("migrate", verbosity=0)
        logins = load(directory, sandbox)
        bind = free_address()
        log = directory / "portal.log"
        with log.open("ab") as sink:
            portal = spawn(
                [sys.executable, "manage.py", "portal", "--bind", bind], cwd=settings.BASE_DIR, output=sink
            )
        try:
            await_health(bind, portal, log)
            start_practice(practice.FINISHED)
            start_practice(practice.WAITING)
            self.welcome(bind, logins, log, time.monotonic() - started)
            self.offer(portal, sandbox)
        finally:
            portal.send_signal(signal.SIGTERM)
            with contextlib.suppress(Exception):
                portal.wait(timeout=20)
            if portal.poll() is None:
                portal.kill()

    def welcome(self, bind: str, logins: dict[str, str], log: Path, seconds: float) -> None:
        lines = [
            "",
            f"  The portal is ready after {seconds:.0f} s:  http://{bind}/",
            "",
            *(f"    {name:<10} {password}" for name, password in logins.items()),
            "",
            "  What to try",
            "    1. Sign in as reviewer. A command waits in the queue: read it, give a reason, allow it once.",
            "    2. Watch the run go on, on its page. Start another practice run and deny that one.",
            "    3. Sign in as requester, start a run and ask for a stop of it. The scripted model knows these:",
            f"         {practice.WAITING:<36} one reviewer",
            f"         {'Clear the old log files.':<36} two reviewers",
            f"         {'Fix the permissions of the uploads.':<36} policy lets it only be denied",
            "    4. Sign in as auditor and export the evidence; then: .venv/bin/python approvals/verifier.py FILE",
            "",
            f"  A waiting command lapses after {WAIT // 60} minutes, when Hermes stops waiting.",
            f"  Enter starts a new practice run, Ctrl-C ends everything. Log: {log}",
            "",
        ]
        self.stdout.write("\n".join(lines))
        self.stdout.flush()

    def offer(self, portal: Any, sandbox: Sandbox) -> None:
        """A new practice run for each Enter, until the portal or the person ends it."""
        interactive = sys.stdin is not None and sys.stdin.isatty()
        while portal.poll() is None:
            if not interactive:
                time.sleep(0.5)
            elif select.select([sys.stdin], [], [], 0.5)[0]:
                if sys.stdin.readline() == "":
                    interactive = False
                    continue
                if not sandbox.servers[0].alive():
                    self.stdout.write("  Hermes has ended. Ctrl-C, then make demo, brings it back.")
                    continue
                start_practice(practice.WAITING)
                self.stdout.write("  A new practice run waits in the queue in a moment.")
        raise CommandError("The portal ended by itself; see portal.log in the demo's directory.")


def begin_again(directory: Path) -> None:
    """Runs this command anew with the demo's own settings, which are read before a command can set them."""
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "REDIS_URL", "PORTAL_MODE"):
        os.environ.pop(name, None)
    os.environ.update(
        PORTAL_DEMO_DIR=str(directory), PORTAL_DATA_DIR=str(directory / "portal"), PORTAL_DEMO="true"
    )
    os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - the same command line


def free_address() -> str:
    wanted = os.environ.get("PORTAL_DEMO_BIND")
    if wanted:
        return wanted
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return f"{HOST}:{port}"
    raise CommandError(
        f"Every port from {PORTS.start} to {PORTS.stop - 1} is taken. Set PORTAL_DEMO_BIND=HOST:PORT."
    )


def load(directory: Path, sandbox: Sandbox) -> dict[str, str]:
    """The demo's tenant, people, endpoint and policy; the same ones when they are there already."""
    tenant = Tenant.objects.filter(slug=TENANT).first() or setup.add_tenant(
        slug=TENANT, name="Support operations", by=OPERATOR
    )
    logins = passwords(directory / "logins.json")
    for name, roles in {**PEOPLE, practice.ACCOUNT: (Role.REQUESTER,)}.items():
        user = User.objects.filter(username=name).first() or setup.add_user(name, logins.get(name))
        setup.set_roles(user=user, tenant=tenant, roles=roles, by=OPERATOR)
    server = sandbox.servers[0]
    setup.add_endpoint(
        tenant=tenant,
        endpoint_id=ENDPOINT,
        base_url=server.url,
        token=server.key,
        approval_wait=WAIT,
        allow_networks=["127.0.0.0/8"],
        by=OPERATOR,
    )
    if not tenant.policy_revisions.exists():
        path = settings.BASE_DIR / "hermes_portal/sandbox/policy.toml"
        setup.load_policy(
            tenant=tenant,
            document=load_document(path.read_bytes(), path.name),
            author=None,
            reason="The demo's first policy.",
            by=OPERATOR,
        )
    with contextlib.suppress(HermesError):
        setup.check_endpoint(Endpoint.objects.get(endpoint_id=ENDPOINT), by=OPERATOR)
    connection.close()
    return logins


def passwords(path: Path) -> dict[str, str]:
    """Made once, kept for the owner only, so that the second start prints the same ones."""
    kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if set(kept) != set(PEOPLE):
        kept = {name: secrets.token_urlsafe(9) for name in PEOPLE}
        path.touch(mode=0o600)
        path.write_text(json.dumps(kept, indent=2))
    return kept


def start_practice(prompt: str) -> None:
    practice.start(Endpoint.objects.get(endpoint_id=ENDPOINT), prompt, by="the terminal")
    connection.close()


def await_health(bind: str, portal: Any, log: Path) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if portal.poll() is not None:
            raise CommandError(f"The portal did not start. The last lines of {log}:\n" + tail(log))
        if answers(f"http://{bind}/healthz"):
            return
        time.sleep(0.1)
    raise CommandError(f"The portal did not answer within a minute; see {log}.")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:  # noqa: S310 - our own address
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
