"""manage.py tenant: adds a tenant, lists the tenants."""

from typing import Any

from django.core.management import BaseCommand, CommandParser

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.management.refusals import told_as_command_errors
from approvals.models import Tenant


class Command(BaseCommand):
    """Idempotent: adding a tenant that is there changes nothing."""

    help = "Adds a tenant, the isolation boundary to which everything else belongs, or lists them."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        adds = commands.add_parser("add", help="add a tenant")
        adds.add_argument("slug", metavar="SLUG", help="a-z, 0-9 and -; never changed later")
        adds.add_argument("--name", default="", help="for people; the slug unless given")
        commands.add_parser("list", help="list the tenants")

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        if command == "list":
            for tenant in Tenant.objects.order_by("slug"):
                self.stdout.write(f"{tenant.slug}\t{tenant.name}")
            return
        slug = options["slug"]
        there = Tenant.objects.filter(slug=slug).exists()
        with told_as_command_errors():
            tenant = setup.add_tenant(slug=slug, name=options["name"], by=OPERATOR)
        if there:
            self.stdout.write(
                f"The tenant {tenant.slug} ({tenant.name}) was there already. Nothing was changed."
            )
        else:
            self.stdout.write(f"Added the tenant {tenant.slug} ({tenant.name}).")
