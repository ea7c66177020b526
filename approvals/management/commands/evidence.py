"""manage.py evidence: exports a tenant's evidence to a file, verifies such a file, shows the public key."""

import os
import tempfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from approvals import export, verifier
from approvals.evidence import OPERATOR, SYSTEM
from approvals.models import Tenant


class Command(BaseCommand):
    help = "Exports the evidence of a tenant, verifies an export, or shows the key that signs exports."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        writes = commands.add_parser("export", help="write the evidence of one tenant to a file")
        writes.add_argument(
            "--tenant", required=True, metavar="SLUG", help=f"or {SYSTEM}, for what has no tenant"
        )
        writes.add_argument("--since", type=_from, metavar="TIME", help="date or RFC 3339 instant, inclusive")
        writes.add_argument("--until", type=_to, metavar="TIME", help="instant, exclusive, or the last date")
        writes.add_argument("--out", required=True, type=Path, metavar="FILE")
        reads = commands.add_parser(
            "verify", help="find any edit, deletion, insertion, swap or cut in an export"
        )
        reads.add_argument("file", type=Path, metavar="FILE")
        reads.add_argument("--public-key", metavar="HEX", help="the signing key; this portal's unless given")
        reads.add_argument("--anchor", type=Path, metavar="FILE", help="an earlier export, or its last line")
        commands.add_parser("key", help="show the public key that auditors pin")

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        if command == "export":
            self._export(options["tenant"], options["since"], options["until"], options["out"])
        elif command == "verify":
            self._verify(options["file"], options["public_key"], options["anchor"])
        else:
            self.stdout.write(export.portal_signer().public_key)

    def _export(self, slug: str, since: datetime | None, until: datetime | None, out: Path) -> None:
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None and slug != SYSTEM:
            raise CommandError(f"There is no tenant {slug}.")
        if not out.parent.is_dir():
            raise CommandError(f"There is no directory {out.parent}.")
        running = export.start_export(tenant=tenant, actor=OPERATOR, since=since, until=until)
        try:
            manifest = _write_whole(running, out)
        except OSError as error:
            raise CommandError(f"{out} cannot be written: {error.strerror}.") from error
        self.stdout.write(
            f"Wrote {out}: {manifest['entries']} entries, {manifest['payloads']} payloads, "
            f"signed with the key {manifest['public_key']}."
        )
        self.stdout.write(f"Verify it with: python manage.py evidence verify {out}")

    def _verify(self, path: Path, public_key: str | None, anchor: Path | None) -> None:
        pinned = public_key or export.portal_signer().public_key
        try:
            report = verifier.verify(path, public_key=pinned, anchor=anchor)
        except verifier.Unreadable as error:
            raise CommandError(str(error), returncode=verifier.UNREADABLE) from error
        first, *rest = verifier.lines(report)
        if not report.ok:
            raise CommandError("\n".join([first, *rest]), returncode=report.exit_code)
        self.stdout.write("\n".join([first, *rest]))


def _write_whole(running: export.Export, out: Path) -> dict[str, Any]:
    """Writes beside the target and renames: the file is there as a whole or not at all, for its owner only."""
    descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")  # mode 0600
    unfinished = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            manifest = export.write(running, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return manifest


def _from(text: str) -> datetime:
    return _moment(text, days=0)


def _to(text: str) -> datetime:
    return _moment(text, days=1)


def _moment(text: str, *, days: int) -> datetime:
    """An instant with an offset, or a date: its start (days=0) or its end (days=1) in UTC. Raises ValueError."""
    if len(text) == len("2026-12-01"):
        day = date.fromisoformat(text) + timedelta(days=days)
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("an instant needs an offset, such as Z")
    return instant.astimezone(UTC)
