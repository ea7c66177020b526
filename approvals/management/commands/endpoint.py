"""manage.py endpoint: connects a Hermes to a tenant, brings it into line, looks whether it answers."""

import argparse
import os
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.management.refusals import secret_in, tenant_called, told_as_command_errors
from approvals.models import Endpoint, EndpointStatus


class Command(BaseCommand):
    """Idempotent: the same call again changes nothing; another one changes what it names, with evidence."""

    help = "Connects a Hermes API server to a tenant, or looks whether it answers."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        adds = commands.add_parser("add", help="connect a server, or bring a connected one into line")
        adds.add_argument("endpoint_id", metavar="ENDPOINT_ID", help="a-z, 0-9, _ and -; never changed later")
        adds.add_argument("--tenant", required=True, metavar="SLUG", help="for ever: it cannot be moved")
        adds.add_argument(
            "--base-url", required=True, metavar="URL", help="with /p/PROFILE where a profile is meant"
        )
        token = adds.add_mutually_exclusive_group(required=True)
        token.add_argument("--token-file", type=Path, metavar="PATH")
        token.add_argument(
            "--token-env", metavar="NAME", help="the environment variable that holds the token"
        )
        adds.add_argument(
            "--approval-wait", type=_seconds, metavar="SECONDS",
            help=f"approvals.timeout of that Hermes; {setup.USUAL_WAIT} unless given",
        )  # fmt: skip
        adds.add_argument(
            "--allow-network", action="append", dest="networks", metavar="CIDR",
            help="a private network that may be reached; repeat it. Replaces the list; none unless given",
        )  # fmt: skip
        checks = commands.add_parser("check", help="read its health and capabilities, changing nothing")
        checks.add_argument("endpoint_id", metavar="ENDPOINT_ID")

    def handle(self, *args: Any, command: str, endpoint_id: str, **options: Any) -> None:
        with told_as_command_errors():
            name = setup.clean_endpoint_id(endpoint_id)
            if command == "check":
                self._check(name)
            else:
                self._add(name, options)

    def _add(self, name: str, options: dict[str, Any]) -> None:
        tenant = tenant_called(options["tenant"])
        before = Endpoint.objects.filter(endpoint_id=name).select_related("tenant").first()
        if before is not None and before.tenant != tenant:
            raise CommandError(
                f"The endpoint {name} belongs to the tenant {before.tenant.slug} and cannot be moved. "
                "Connect the server under another endpoint id and another profile path, or disable it there first."
            )
        endpoint = setup.add_endpoint(
            tenant=tenant,
            endpoint_id=name,
            base_url=options["base_url"],
            token=_token(options["token_file"], options["token_env"]),
            approval_wait=options["approval_wait"],
            allow_networks=options["networks"],
            by=OPERATOR,
        )
        self.stdout.write(f"{name}: {_done(before, endpoint)}.")
        self.stdout.write(f"Look whether it answers: manage.py endpoint check {name}")

    def _check(self, name: str) -> None:
        endpoint = Endpoint.objects.filter(endpoint_id=name).select_related("tenant").first()
        if endpoint is None:
            raise CommandError(f"There is no endpoint {name}. Add it: manage.py endpoint add {name} --help")
        seen = setup.check_endpoint(endpoint, by=OPERATOR)
        if seen.health != EndpointStatus.Health.OK:
            raise CommandError(f"{name}: {seen.get_health_display().lower()}. {seen.detail}")
        shown = ", ".join(sorted(feature for feature, there in seen.features.items() if there)) or "none"
        self.stdout.write(
            f"{name}: answers. Hermes {seen.version or 'of unknown version'}. Features: {shown}."
        )


def _done(before: Endpoint | None, after: Endpoint) -> str:
    if before is None:
        return f"connected to {after.tenant.slug}"
    done = []
    if after.revision != before.revision:
        done.append(f"changed, now revision {after.revision}")
    if after.credential_revision != before.credential_revision:
        done.append(f"token replaced, now credential revision {after.credential_revision}")
    return "; ".join(done) or "was there already, nothing was changed"


def _token(path: Path | None, variable: str | None) -> str:
    if path is not None:
        return secret_in(path)
    value = os.environ.get(variable or "")
    if value is None:
        raise CommandError(f"The environment variable {variable} is not set. It must hold the token.")
    return value


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError("give a whole number of seconds")
    return int(text)
