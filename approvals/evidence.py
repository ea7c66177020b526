"""Appends to a tenant's hash chain. No state changes outside of `chain`: no evidence, no act (rule 4)."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from approvals.models import ChainHead, Endpoint, EvidenceEntry, EvidencePayload, Kind, Tenant, User
from hermes_portal import canonical, clock, redaction

SYSTEM = "system"
PAYLOAD_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Actor:
    """Who caused an entry: a user, a worker, the provider or the system itself."""

    kind: str
    name: str

    @classmethod
    def user(cls, user: User) -> "Actor":
        return cls("user", user.get_username())

    @classmethod
    def provider(cls, endpoint: Endpoint) -> "Actor":
        return cls("provider", endpoint.endpoint_id)


WORKER = Actor("worker", "portal")
CLOCK = Actor("system", "clock")
OPERATOR = Actor("system", "command line")


def timestamp(instant: datetime) -> str:
    """RFC 3339 in UTC with microseconds."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class Chain:
    """A locked chain head, the instant read after the lock, and the way to append."""

    head: ChainHead
    tenant: Tenant | None
    now: datetime
    entries: list[EvidenceEntry] = field(default_factory=list)

    def append(
        self, kind: Kind, *, actor: Actor, data: dict[str, Any] | None = None, **ids: UUID | str | None
    ) -> EvidenceEntry:
        """Adds one entry. `ids` are written as text; action, approval and run can be searched for.

        Raises ValueError when the data has no canonical form or exceeds 64 KiB: then nothing happens at all.
        """
        name, seq = self.head.name, self.head.seq + 1
        payload = canonical.dumps(
            {"v": 1, "payload_of": seq, "tenant": name, "salt": secrets.token_hex(32), "data": data or {}}
        )
        if len(payload) > PAYLOAD_LIMIT:
            raise ValueError(f"The evidence of {kind} would be larger than 64 KiB.")
        named = {key: str(value) for key, value in ids.items() if value is not None}
        body = canonical.dumps(
            {
                "v": 1,
                "tenant": name,
                "seq": seq,
                "prev": self.head.digest,
                "at": timestamp(self.now),
                "kind": str(kind),
                "actor": {"kind": actor.kind, "name": actor.name},
                "ids": named,
                "payload_digest": canonical.sha256(payload),
            }
        )
        entry = EvidenceEntry.objects.create(
            chain=self.head,
            tenant=self.tenant,
            seq=seq,
            at=self.now,
            kind=kind,
            actor=f"{actor.kind}:{actor.name}",
            action_id=named.get("action"),
            approval_id=named.get("approval"),
            run_id=named.get("run"),
            body=body,
            digest=canonical.sha256(body),
        )
        EvidencePayload.objects.create(entry=entry, body=payload)
        self.head.seq, self.head.digest = seq, entry.digest
        self.head.save(update_fields=["seq", "digest"])
        self.entries.append(entry)
        return entry


@contextmanager
def chain(tenant: Tenant | None, *, durable: bool = False) -> Iterator[Chain]:
    """A transaction that holds the tenant's chain head; `None` is the system chain.

    One order of locks everywhere: chain head, run, action, approval, execution.
    """
    with transaction.atomic(durable=durable):
        if tenant is None:
            ChainHead.objects.get_or_create(name=SYSTEM)
            head = ChainHead.objects.select_for_update().get(name=SYSTEM)
        else:
            head = ChainHead.objects.select_for_update().get(tenant=tenant)
        yield Chain(head, tenant, clock.now())


def open_chain(tenant: Tenant) -> None:
    """Creates the chain of a new tenant."""
    ChainHead.objects.create(name=tenant.slug, tenant=tenant)


def provenance(endpoint: Endpoint) -> dict[str, Any]:
    """What every intent and result entry names: who spoke to what, in which revisions."""
    seen = endpoint.seen
    return {
        "portal": settings.PORTAL_REVISION,
        "redactor": redaction.VERSION,
        "endpoint": endpoint.endpoint_id,
        "tenant": endpoint.tenant.slug,
        "endpoint_revision": endpoint.revision,
        "credential_revision": endpoint.credential_revision,
        "hermes_version": seen.version,
        "features": {name: bool(value) for name, value in seen.features.items()},
    }
