"""System checks of the portal: keys, durations, the mode it runs in, the database's guards and the sealed tokens.

`manage.py check` runs the first two, `check --deploy` adds the mode, `check --database default` what needs a
database. What is wrong in the database is a warning and never an error: `migrate` runs these checks first, and it is
the cure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name for it
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from approvals import triggers
from hermes_portal import sealing

Given = Sequence[AppConfig] | None


@register(Tags.security)
def keys_are_readable(app_configs: Given, **kwargs: Any) -> list[CheckMessage]:
    """Nothing can be asked for, exported or signed without them, so it shows at the start."""
    found: list[CheckMessage] = []
    try:
        sealing.seal(b"", table="check", tenant="")
    except ImproperlyConfigured as error:
        found.append(
            Error(
                str(error),
                hint="Set PORTAL_KEYS, or PORTAL_KEYS_FILE to a file that holds it.",
                id="approvals.E001",
            )
        )
    if not _is_key(settings.PORTAL_SIGNING_KEY):
        found.append(
            Error(
                "PORTAL_SIGNING_KEY is not a 32-byte key in hex.",
                hint="Make one: python -c 'import secrets; print(secrets.token_hex(32))'.",
                id="approvals.E002",
            )
        )
    return found


def _is_key(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == 32
    except ValueError:
        return False


@register(Tags.compatibility)
def durations_fit_together(app_configs: Given, **kwargs: Any) -> list[CheckMessage]:
    """Settings that are fine one by one, and together would refuse every answer or steal live work."""
    rules = (
        (
            settings.HUB_POLL_SECONDS + settings.HUB_BATCH_SECONDS >= settings.ALIVE_SECONDS,
            "PORTAL_ALIVE_SECONDS is not longer than PORTAL_HUB_POLL_SECONDS and PORTAL_HUB_BATCH_SECONDS together.",
            "No stream would ever count as alive, and no answer would be sent (rule 6). Make it at least twice that.",
            "approvals.E003",
        ),
        (
            settings.HUB_LEASE_SECONDS < 4 * settings.HUB_POLL_SECONDS,
            "PORTAL_HUB_LEASE_SECONDS is shorter than four times PORTAL_HUB_POLL_SECONDS.",
            "A busy hub would lose its runs to another one. Make the lease longer (rule 8).",
            "approvals.E004",
        ),
        (
            settings.LEASE_SECONDS <= settings.SWEEP_SECONDS,
            "PORTAL_LEASE_SECONDS is not longer than PORTAL_SWEEP_SECONDS.",
            "A sweep would take claimed work from a worker that is alive. Make the lease longer.",
            "approvals.E005",
        ),
    )
    return [Error(says, hint=hint, id=name) for broken, says, hint, name in rules if broken]


@register(Tags.security, deploy=True)
def fit_for_production(app_configs: Given, **kwargs: Any) -> list[CheckMessage]:
    """What production mode may be told otherwise on purpose, said once."""
    if not settings.PRODUCTION:
        return [
            Warning(
                "PORTAL_MODE is embedded: keys were made on this machine and lie beside the data.",
                hint="Set PORTAL_MODE=production with keys of its own (docs/operations.md).",
                id="approvals.W001",
            )
        ]
    engine = settings.DATABASES["default"]["ENGINE"]
    filesystem = settings.CELERY_BROKER_URL.startswith("filesystem:")
    postgres = engine == "django.db.backends.postgresql"
    rules = (
        (
            settings.DEBUG,
            "DEBUG is on: error pages would show what is sealed.",
            "Leave it off.",
            "approvals.W002",
        ),
        (
            not settings.HTTPS,
            "PORTAL_HTTPS is off: sign-ins and decisions cross the network in clear.",
            "Only behind a proxy that ends TLS on this machine. Set PORTAL_BEHIND_PROXY and PORTAL_HTTPS otherwise.",
            "approvals.W003",
        ),
        (
            postgres and filesystem,
            "The database is PostgreSQL and the queue is a directory of this machine.",
            "Workers elsewhere would get no message and wait for the sweep. Set CELERY_BROKER_URL to a Redis.",
            "approvals.W004",
        ),
        (
            not postgres and not filesystem,
            "The queue is shared and the database is SQLite, which serves one machine.",
            "Set DATABASE_URL to a PostgreSQL before a second machine runs workers.",
            "approvals.W005",
        ),
    )
    return [Warning(says, hint=hint, id=name) for broken, says, hint, name in rules if broken]


@register(Tags.database)
def guards_stand(
    app_configs: Given, databases: Iterable[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Without them a slip can rewrite evidence. SQLite drops them when a table is remade."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        names = triggers.missing(connections[alias])
        if names:
            found.append(
                Warning(
                    f"Guards are missing in the database {alias!r}: {', '.join(names)}.",
                    hint="manage.py migrate puts them back. Then find out who removed them: verify the evidence.",
                    id="approvals.W006",
                )
            )
    return found


@register(Tags.database)
def tokens_open(
    app_configs: Given, databases: Iterable[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """After a restore or a rotation: does PORTAL_KEYS still hold the key of every endpoint's token?"""
    endpoints = apps.get_model("approvals", "Endpoint")
    shut: list[str] = []
    for alias in databases or ():
        if endpoints._meta.db_table not in connections[alias].introspection.table_names():
            continue
        for endpoint in endpoints._default_manager.using(alias).order_by("endpoint_id"):
            try:
                endpoint.open_token()
            except sealing.CannotOpen:
                shut.append(endpoint.endpoint_id)
            except ImproperlyConfigured:
                return []  # approvals.E001 says it
    if not shut:
        return []
    return [
        Warning(
            f"The tokens of these endpoints cannot be opened with PORTAL_KEYS: {', '.join(shut)}.",
            hint="Add the key they were sealed with to PORTAL_KEYS, or give each endpoint a new token.",
            id="approvals.W007",
        )
    ]
