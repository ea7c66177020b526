"""How the set-up commands say no, and how they find what they are told to change."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import CommandError

from approvals.errors import Denied, Invalid
from approvals.models import Tenant


@contextmanager
def told_as_command_errors() -> Iterator[None]:
    """A service's refusal becomes the command's: the sentence, and exit code 1."""
    try:
        yield
    except Invalid as error:
        raise CommandError(" ".join(error.errors.values())) from error
    except Denied as error:
        raise CommandError(error.sentence) from error


def tenant_called(slug: str) -> Tenant:
    """The tenant, or a CommandError that says how to list and add them."""
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise CommandError(
            f"There is no tenant {slug}. manage.py tenant list shows them, manage.py tenant add {slug} adds it."
        )
    return tenant


def secret_in(path: Path) -> str:
    """What a file holds, without the line's end. Never shown."""
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not text.") from error
