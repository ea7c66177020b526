"""manage.py member: gives an account roles in a tenant, and makes the account if there is none."""

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandParser
from django.db import transaction

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.management.refusals import secret_in, tenant_called, told_as_command_errors
from approvals.models import Role, User


class Command(BaseCommand):
    """Idempotent: roles that are held already and a password that is the present one change nothing."""

    help = "Gives an account roles in a tenant. Roles never imply each other."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        adds = commands.add_parser("add", help="add roles; those that are held already stay")
        adds.add_argument("username", metavar="USERNAME", help="a-z, 0-9 and @.+_-, in lower case")
        adds.add_argument("--tenant", required=True, metavar="SLUG")
        adds.add_argument(
            "--role", required=True, nargs="+", action="extend", choices=Role.values, dest="roles", metavar="ROLE",
            help=f"one or more of {', '.join(Role.values)}",
        )  # fmt: skip
        adds.add_argument(
            "--password-file", type=Path, metavar="PATH", help="without it a new account cannot sign in yet"
        )

    def handle(self, *args: Any, username: str, tenant: str, roles: list[str], **options: Any) -> None:
        path: Path | None = options["password_file"]
        password = secret_in(path) if path else None
        owner = tenant_called(tenant)
        with told_as_command_errors(), transaction.atomic():
            user, done = self._account(username, password)
            before = setup.roles(user, owner)
            after = setup.set_roles(user=user, tenant=owner, roles=[*before, *roles], by=OPERATOR)
        gained = [role.value for role in after if role not in before]
        if gained:
            done.append(f"gave the role {', '.join(gained)} in {owner.slug}")
        held = ", ".join(role.value for role in after)
        self.stdout.write(
            f"{username}: {'; '.join(done) or 'nothing was changed'}. Roles in {owner.slug}: {held}."
        )
        if not user.has_usable_password():
            self.stdout.write("Nobody can sign in to this account yet: call this again with --password-file.")

    def _account(self, username: str, password: str | None) -> tuple[User, list[str]]:
        """The account and what was done to have it so."""
        user = User.objects.filter(username=username).first()
        if user is None:
            return setup.add_user(username, password, by=OPERATOR), ["made the account"]
        if password is None or user.check_password(password):
            return user, []
        return setup.change_user(user=user, password=password, by=OPERATOR), ["replaced the password"]
