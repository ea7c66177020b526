"""The chain under many writers, out of a real database: no fork, no hole, and what comes out verifies (case 48)."""

import hashlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import Error, connection, connections

from approvals import evidence, export, services, triggers, verifier
from approvals.evidence import CLOCK, OPERATOR, WORKER
from approvals.models import Approval, ChainHead, Decision, EvidenceEntry, EvidencePayload, Kind, Tenant
from hermes_portal import clock
from tests import factories
from tests.approvals.conftest import approve
from tests.factories import Cast

pytestmark = pytest.mark.django_db(transaction=True)
ZEROS = "0" * 64

# Texts and numbers that two writers of JSON may write in two ways.
AWKWARD: tuple[dict[str, Any], ...] = (
    {"b": 1, "a": 2, "é": "composed", "e\u0301": "decomposed"},
    {"text": "né 🧪 \u200f שלום \u2028 \x7f \\u0000", "": "empty key"},
    {"big": 2**53 - 1, "small": -(2**53) + 1, "none": None, "yes": True, "nested": [[], {}, [{"x": []}]]},
    {"ﬀ": "ligature", "\U00010000": "astral", "\uffee": "above the surrogates"},
)


@pytest.fixture
def tenants(transactional_db: None) -> tuple[Tenant, Tenant]:
    return factories.tenant("acme"), factories.tenant("other")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Path:
    settings.PORTAL_SIGNING_KEY = "07" * 32
    monkeypatch.setattr(export, "PAGE", 50)
    return tmp_path / "evidence.jsonl"


def writers(count: int, write: Callable[[int], None]) -> list[BaseException]:
    """That many threads with connections of their own, released together; what they failed with."""
    barrier = threading.Barrier(count)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET lock_timeout = '120s'")
            barrier.wait(60)
            write(number)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            failed.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    return failed


def test_many_writers_make_one_chain_that_verifies(tenants: tuple[Tenant, Tenant], small_pages: Path) -> None:
    """16 writers of 60 entries each on PostgreSQL; SQLite has one writer at a time, so fewer make the same point."""
    acme, other = tenants
    many, each = (16, 60) if connection.vendor == "postgresql" else (6, 20)
    before = ChainHead.objects.get(tenant=acme).seq
    beside = ChainHead.objects.get(tenant=other).seq

    def write(number: int) -> None:
        for turn in range(each):
            with evidence.chain(acme) as chain:
                chain.append(
                    Kind.DATA_VIEWED, actor=WORKER, data={"by": number, "turn": turn} | awkward(turn)
                )
            if turn % 10 == 0:
                with evidence.chain(other) as chain:
                    chain.append(Kind.DATA_VIEWED, actor=CLOCK, data={"by": number})

    assert writers(many, write) == []
    assert ChainHead.objects.get(tenant=acme).seq == before + many * each
    assert ChainHead.objects.get(tenant=other).seq == beside + many * (each // 10)
    for tenant in tenants:
        follow(tenant)
        with small_pages.open("wb") as out:
            export.write(export.start_export(tenant=tenant, actor=OPERATOR), out)
        report = verifier.verify(small_pages, public_key=export.portal_signer().public_key)
        assert report.ok, report.problem
        assert report.entries == ChainHead.objects.get(tenant=tenant).seq


def awkward(turn: int) -> dict[str, Any]:
    return AWKWARD[turn % len(AWKWARD)]


def follow(tenant: Tenant) -> None:
    """The chain as its rows tell it: no hole, each digest that of the stored bytes and the next one's prev."""
    previous, expected = ZEROS, 1
    for entry in EvidenceEntry.objects.filter(tenant=tenant).order_by("seq").select_related("payload"):
        body = json.loads(bytes(entry.body))
        assert (entry.seq, body["seq"], body["prev"]) == (expected, expected, previous)
        assert entry.digest == hashlib.sha256(bytes(entry.body)).hexdigest()
        assert body["payload_digest"] == hashlib.sha256(bytes(entry.payload.body)).hexdigest()
        assert body["at"] == evidence.timestamp(entry.at)
        previous, expected = entry.digest, expected + 1
    head = ChainHead.objects.get(tenant=tenant)
    assert (head.seq, head.digest) == (expected - 1, previous)


def test_a_writer_that_fails_leaves_no_hole_for_the_others(tenants: tuple[Tenant, Tenant]) -> None:
    acme, _ = tenants
    before = ChainHead.objects.get(tenant=acme).seq

    def write(number: int) -> None:
        for turn in range(8):
            try:
                with evidence.chain(acme) as chain:
                    chain.append(Kind.DATA_VIEWED, actor=WORKER, data={"by": number})
                    if (turn + number) % 2:
                        raise LookupError("rolled back")
            except LookupError:
                continue

    assert writers(4, write) == []
    assert ChainHead.objects.get(tenant=acme).seq == before + 16
    follow(acme)


def test_the_instants_of_a_chain_never_run_backwards(tenants: tuple[Tenant, Tenant]) -> None:
    """The clock is read after the lock, so whoever waited for the lock writes the later instant."""
    acme, _ = tenants

    def write(number: int) -> None:
        for _ in range(10):
            with evidence.chain(acme) as chain:
                chain.append(Kind.DATA_VIEWED, actor=WORKER, data={})

    assert writers(4, write) == []
    instants = list(EvidenceEntry.objects.filter(tenant=acme).order_by("seq").values_list("at", flat=True))
    assert instants == sorted(instants)


def test_an_instant_without_a_fraction_keeps_its_six_digits(
    tenants: tuple[Tenant, Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, _ = tenants
    whole = datetime(2100, 1, 1, 12, 0, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: whole)
    with evidence.chain(acme) as chain:
        entry = chain.append(Kind.DATA_VIEWED, actor=WORKER, data={})
    assert json.loads(bytes(entry.body))["at"] == "2100-01-01T12:00:00.000000Z"
    follow(acme)


@pytest.mark.parametrize(
    "data", [{"x": float("nan")}, {"x": float("inf")}, {"x": 2**53}, {"x": "\ud83d"}, {"x": b""}]
)
def test_what_has_no_canonical_form_is_not_written_and_changes_nothing(
    tenants: tuple[Tenant, Tenant], data: dict[str, Any]
) -> None:
    acme, _ = tenants
    before = ChainHead.objects.get(tenant=acme).seq
    with pytest.raises((ValueError, TypeError)), evidence.chain(acme) as chain:
        chain.append(Kind.DATA_VIEWED, actor=WORKER, data=data)
    assert ChainHead.objects.get(tenant=acme).seq == before
    follow(acme)


# --- past the guards, as whoever owns the database could act


@pytest.mark.parametrize("damage", ["edit", "delete", "swap", "cut", "cut and grown again"])
def test_damage_in_the_database_is_named_by_its_first_bad_entry(
    tenants: tuple[Tenant, Tenant], small_pages: Path, damage: str
) -> None:
    acme, _ = tenants
    for number in range(12):
        with evidence.chain(acme) as chain:
            chain.append(Kind.DATA_VIEWED, actor=WORKER, data={"number": number})
    anchor = small_pages.with_name("earlier.jsonl")
    with anchor.open("wb") as out:
        export.write(export.start_export(tenant=acme, actor=OPERATOR), out)
    triggers.remove(connection)
    bad = DAMAGES[damage](acme)
    triggers.install(connection)
    with small_pages.open("wb") as out:
        export.write(export.start_export(tenant=acme, actor=OPERATOR), out)
    key = export.portal_signer().public_key
    report = verifier.verify(small_pages, public_key=key, anchor=anchor)
    assert not report.ok
    assert report.problem is not None
    assert report.problem.seq == bad


def edit(tenant: Tenant) -> int:
    entry = EvidenceEntry.objects.get(tenant=tenant, seq=6)
    EvidenceEntry.objects.filter(pk=entry.pk).update(body=bytes(entry.body).replace(b"portal", b"portaI"))
    return 6


def delete(tenant: Tenant) -> int:
    EvidencePayload.objects.filter(entry__tenant=tenant, entry__seq=6).delete()
    EvidenceEntry.objects.filter(tenant=tenant, seq=6).delete()
    return 6


def swap(tenant: Tenant) -> int:
    """Bodies, digests and payloads of two rows change places."""
    one, two = (EvidenceEntry.objects.select_related("payload").get(tenant=tenant, seq=seq) for seq in (6, 9))
    for to, source in ((one, two), (two, one)):
        EvidenceEntry.objects.filter(pk=to.pk).update(body=bytes(source.body), digest=source.digest)
        EvidencePayload.objects.filter(pk=to.pk).update(body=bytes(source.payload.body))
    return 6


def cut(tenant: Tenant) -> int:
    """The tail goes and the head is set back; only what is kept outside can tell. The export is entry 9 then."""
    gone = EvidenceEntry.objects.filter(tenant=tenant, seq__gt=8)
    EvidencePayload.objects.filter(entry__in=gone).delete()
    gone.delete()
    last = EvidenceEntry.objects.get(tenant=tenant, seq=8)
    ChainHead.objects.filter(tenant=tenant).update(seq=8, digest=last.digest)
    return 10


def cut_and_grown(tenant: Tenant) -> int:
    """A tail of the same length in the place of the true one, every link sound."""
    cut(tenant)
    for _ in range(8):
        with evidence.chain(tenant) as chain:
            chain.append(Kind.DATA_VIEWED, actor=WORKER, data={})
    return 9


DAMAGES = {"edit": edit, "delete": delete, "swap": swap, "cut": cut, "cut and grown again": cut_and_grown}


# --- no evidence, no act (rule 4, case 14)


def test_case_14_a_decision_whose_evidence_the_database_refuses_is_no_decision(
    desk: Cast, governed: Callable[..., Approval]
) -> None:
    approval = governed()
    head = ChainHead.objects.get(tenant=desk.acme)
    refuse_payloads()
    try:
        with pytest.raises(Error):
            approve(approval, desk.reviewer)
    finally:
        allow_payloads()
    approval.refresh_from_db()
    assert approval.status == Approval.Status.PENDING
    assert not Decision.objects.exists()
    assert ChainHead.objects.get(tenant=desk.acme).seq == head.seq
    services.decide(
        approval=approval,
        user=desk.reviewer,
        verdict="approve",
        reason="Again.",
        seen=services.seen_digest(approval),
    )
    follow(desk.acme)


def refuse_payloads() -> None:
    """The next payloads cannot be stored, as with a full disk."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no room'; END $$"
            )
            cursor.execute(
                "CREATE TRIGGER no_room BEFORE INSERT ON approvals_evidencepayload "
                "FOR EACH ROW EXECUTE FUNCTION no_room()"
            )
        else:
            cursor.execute(
                "CREATE TRIGGER no_room BEFORE INSERT ON approvals_evidencepayload "
                "BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )


def allow_payloads() -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("DROP TRIGGER no_room ON approvals_evidencepayload")
            cursor.execute("DROP FUNCTION no_room()")
        else:
            cursor.execute("DROP TRIGGER no_room")
