"""manage.py policy: puts the rules in a TOML or JSON file in force for a tenant."""

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.management.refusals import tenant_called, told_as_command_errors
from approvals.policy import PolicyError, load_document


class Command(BaseCommand):
    """Idempotent: rules equal to those in force change nothing."""

    help = "Puts the rules in a file in force as the next policy revision of a tenant."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        loads = commands.add_parser("load", help="load a file; docs/policy.md says what it holds")
        loads.add_argument("file", type=Path, metavar="FILE", help="its name ends in .toml or .json")
        loads.add_argument("--tenant", required=True, metavar="SLUG")
        loads.add_argument("--reason", default="", metavar="TEXT", help="why; evidence keeps it")

    def handle(self, *args: Any, file: Path, tenant: str, reason: str, **options: Any) -> None:
        owner = tenant_called(tenant)
        before = setup.policy_in_force(owner)
        try:
            document = load_document(file.read_bytes(), file.name)
        except OSError as error:
            raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
        except PolicyError as error:
            raise CommandError(f"{file}: {error}") from error
        with told_as_command_errors():
            after = setup.load_policy(
                tenant=owner, document=document, reason=reason or f"Loaded from {file.name}.", by=OPERATOR
            )
        if after == before:
            said = f"revision {after.number} says this already. Nothing was changed."
        else:
            rules = _rules(len(after.rules["rules"]))
            said = f"revision {after.number} is in force, {rules}, SHA-256 {after.digest}."
        self.stdout.write(f"{owner.slug}: {said}")


def _rules(count: int) -> str:
    return "1 rule" if count == 1 else f"{count} rules"
