"""Exports out of the database: what is written verifies, is recorded before it is read, and is there as a whole."""

import io
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as portal_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection

from approvals import evidence, export, triggers, verifier
from approvals.evidence import CLOCK, OPERATOR, Actor
from approvals.models import ChainHead, EvidenceEntry, EvidencePayload, Kind, Tenant
from hermes_portal import clock
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keys(settings: Any, tmp_path: Path) -> None:
    settings.PORTAL_SIGNING_KEY = "07" * 32
    settings.DATA_DIR = tmp_path / "data"
    settings.DATA_DIR.mkdir()


@pytest.fixture
def tenant() -> Tenant:
    return factories.tenant("acme")


def add(tenant: Tenant | None, count: int = 1, **data: Any) -> int:
    """Appends some entries; the number of the last one."""
    with evidence.chain(tenant) as chain:
        for _ in range(count):
            entry = chain.append(Kind.DATA_VIEWED, actor=CLOCK, data=data or {"why": "a test"})
    return entry.seq


def erase(tenant: Tenant, seq: int) -> None:
    with evidence.chain(tenant) as chain:
        chain.append(Kind.PAYLOAD_ERASED, actor=OPERATOR, data={}, seq=str(seq))
        EvidencePayload.objects.filter(entry__chain=chain.head, entry__seq=seq).delete()


def exported(path: Path, tenant: Tenant | None, **span: Any) -> verifier.Report:
    with path.open("wb") as out:
        export.write(export.start_export(tenant=tenant, actor=OPERATOR, **span), out)
    return verifier.verify(path, public_key=export.portal_signer().public_key)


@contextmanager
def unguarded() -> Iterator[None]:
    """As whoever owns the database could act: past the triggers."""
    triggers.remove(connection)
    yield
    triggers.install(connection)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evidence.jsonl"


def entries(path: Path) -> list[dict[str, Any]]:
    documents = (json.loads(line) for line in path.read_bytes().splitlines())
    return [document for document in documents if "prev" in document]


# --- the file --------------------------------------------------------------------------------------------------


def test_an_export_verifies_and_holds_every_entry_and_its_own(tenant: Tenant, path: Path):
    last = add(tenant, 5)
    report = exported(path, tenant)
    assert report.ok, report.problem
    assert (report.first_seq, report.last_seq, report.signature) == (1, last + 1, "valid")
    assert entries(path)[-1]["kind"] == Kind.EVIDENCE_EXPORTED
    assert entries(path)[-1]["actor"] == {"kind": "system", "name": "command line"}


def test_pages_join_without_a_seam(tenant: Tenant, path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "PAGE", 3)
    add(tenant, 10)
    report = exported(path, tenant)
    assert report.ok
    assert report.entries == ChainHead.objects.get(tenant=tenant).seq


def test_the_export_is_recorded_even_when_nobody_reads_it(tenant: Tenant):
    export.start_export(tenant=tenant, actor=Actor("user", "aude"))
    newest = EvidenceEntry.objects.filter(tenant=tenant).latest("seq")
    assert (newest.kind, newest.actor) == (Kind.EVIDENCE_EXPORTED, "user:aude")


def test_nothing_is_exported_when_the_export_cannot_be_recorded(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*args: Any, **more: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(EvidenceEntry.objects, "create", refuse)
    with pytest.raises(OSError, match="disk full"):
        export.start_export(tenant=tenant, actor=OPERATOR)


def test_entries_written_while_it_is_read_are_not_in_it(tenant: Tenant, path: Path):
    add(tenant, 3)
    running = export.start_export(tenant=tenant, actor=OPERATOR)
    last = ChainHead.objects.get(tenant=tenant).seq
    add(tenant, 3)
    with path.open("wb") as out:
        manifest = export.write(running, out)
    assert manifest["last_seq"] == last
    assert verifier.verify(path).ok


def test_the_manifest_names_who_when_and_every_endpoint_of_the_tenant(tenant: Tenant, path: Path):
    factories.endpoint(tenant, "ops")
    factories.endpoint(factories.tenant("other"), "theirs")
    manifest = exported(path, tenant).manifest
    assert (manifest["tenant"], manifest["exported_by"]) == ("acme", "system:command line")
    assert manifest["portal"] == portal_settings.PORTAL_REVISION
    assert [one["endpoint"] for one in manifest["endpoints"]] == ["ops"]
    assert set(manifest["endpoints"][0]) == {
        "endpoint",
        "endpoint_revision",
        "credential_revision",
        "hermes_version",
        "features",
    }


def test_only_the_tenants_own_entries_are_in_it(tenant: Tenant, path: Path):
    add(factories.tenant("other"), 3, why="belongs to others")
    add(tenant, 2)
    exported(path, tenant)
    assert {entry["tenant"] for entry in entries(path)} == {"acme"}
    assert b"belongs to others" not in path.read_bytes()


def test_the_system_chain_can_be_exported(path: Path):
    add(None, 2)
    report = exported(path, None)
    assert report.ok
    assert report.tenant == "system"


def test_awkward_texts_come_out_as_they_were_hashed(tenant: Tenant, path: Path):
    for text in ("\u2028", "né vs ne\u0301", "\x00", "=1+1", '"prev":"', "🧪", "a\nb"):
        add(tenant, 1, why=text, nested={"\ufb33": 1, "\U0001f600": [True, None]})
    assert exported(path, tenant).ok


# --- spans -----------------------------------------------------------------------------------------------------


def test_since_and_until_cut_a_stretch_without_holes(tenant: Tenant, path: Path):
    before = add(tenant, 2)
    with clock.moved(timedelta(hours=1)):
        start = clock.now()
        middle = add(tenant, 3)
    with clock.moved(timedelta(hours=2)):
        end = clock.now()
        add(tenant, 2)
        report = exported(path, tenant, since=start, until=end)
    assert report.ok
    assert (report.first_seq, report.last_seq) == (before + 1, middle)
    assert report.manifest["since"] == evidence.timestamp(start)


def test_a_span_in_which_nothing_happened_is_an_export_too(tenant: Tenant, path: Path):
    add(tenant)
    future = clock.now() + timedelta(days=1)
    report = exported(path, tenant, since=future)
    assert report.ok
    assert report.entries == 0


def test_an_earlier_export_is_an_anchor_for_a_later_one(tenant: Tenant, tmp_path: Path):
    add(tenant, 3)
    earlier, later = tmp_path / "earlier.jsonl", tmp_path / "later.jsonl"
    exported(earlier, tenant)
    add(tenant, 3)
    exported(later, tenant)
    assert verifier.verify(later, anchor=earlier).anchored


# --- erasure ---------------------------------------------------------------------------------------------------


def test_an_erased_payload_is_accounted_for(tenant: Tenant, path: Path):
    seq = add(tenant, 3, secret="forget me")
    add(tenant, 1)
    for each in range(seq - 2, seq + 1):
        erase(tenant, each)
    report = exported(path, tenant)
    assert report.ok, report.problem
    assert report.erased == 3
    assert b"forget me" not in path.read_bytes()


def test_an_erasure_after_the_span_is_named_in_the_manifest(tenant: Tenant, path: Path):
    seq = add(tenant, 3)
    end = clock.now()
    with clock.moved(timedelta(hours=1)):
        erase(tenant, seq)
        report = exported(path, tenant, until=end)
    assert report.ok, report.problem
    assert report.manifest["erased_later"] == [[seq, seq]]


def test_a_payload_that_vanished_without_an_erasure_is_found(tenant: Tenant, path: Path):
    seq = add(tenant, 3)
    with unguarded():
        EvidencePayload.objects.filter(entry__tenant=tenant, entry__seq=seq).delete()
    report = exported(path, tenant)
    assert report.problem is not None
    assert (report.problem.code, report.problem.seq) == ("payload_missing", seq)


# --- checkpoints -----------------------------------------------------------------------------------------------


def points() -> list[dict[str, Any]]:
    return [json.loads(line) for line in export.checkpoint_file().read_bytes().splitlines()]


def test_a_checkpoint_is_signed_once_per_growth_and_kept_outside_of_the_database(tenant: Tenant):
    last = add(tenant, 2)
    assert export.checkpoint() == 1
    assert export.checkpoint() == 0
    (point,) = points()
    assert point["checkpoint"]["seq"] == last
    assert stat.S_IMODE(export.checkpoint_file().stat().st_mode) == 0o600
    add(tenant)
    assert export.checkpoint() == 1
    assert len(points()) == 2


def test_the_file_of_checkpoints_is_an_anchor(tenant: Tenant, path: Path):
    add(tenant, 2)
    export.checkpoint()
    add(tenant, 2)
    exported(path, tenant)
    assert verifier.verify(path, anchor=export.checkpoint_file()).anchored
    forged = points()[0]
    forged["checkpoint"]["head"] = "1" * 64
    export.checkpoint_file().write_bytes(verifier.canonical(forged) + b"\n")
    report = verifier.verify(path, anchor=export.checkpoint_file())
    assert report.problem is not None
    assert report.problem.code == "rewritten"


# --- the commands ----------------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> str:
    out = io.StringIO()
    call_command("evidence", *map(str, arguments), stdout=out)
    return out.getvalue()


def test_the_commands_export_and_verify(tenant: Tenant, path: Path):
    add(tenant, 3)
    assert "Wrote" in command("export", "--tenant", "acme", "--out", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = command("verify", path)
    assert said.startswith("OK: entries 1 to")
    assert "the pinned key" in said
    assert "Warning" not in said


def test_the_command_names_the_first_bad_entry_and_its_exit_code_tells(tenant: Tenant, path: Path):
    add(tenant, 3, why="good")
    command("export", "--tenant", "acme", "--out", path)
    path.write_bytes(path.read_bytes().replace(b"good", b"evil", 1))
    bad = next(entry["seq"] for entry in entries(path) if entry["kind"] == Kind.DATA_VIEWED)
    with pytest.raises(CommandError, match=rf"BAD: entry {bad}, line \d+: payload_edited") as caught:
        command("verify", path)
    assert caught.value.returncode == verifier.BAD


def test_an_export_of_another_portal_is_not_taken_for_ones_own(tenant: Tenant, path: Path, settings: Any):
    command("export", "--tenant", "acme", "--out", path)
    theirs = command("key").strip()
    settings.PORTAL_SIGNING_KEY = "08" * 32
    with pytest.raises(CommandError, match="key"):
        command("verify", path)
    assert "OK" in command("verify", path, "--public-key", theirs)


def test_dates_are_whole_days_and_instants_need_an_offset(tenant: Tenant, path: Path):
    add(tenant, 2)
    today = f"{clock.now():%Y-%m-%d}"
    command("export", "--tenant", "acme", "--since", today, "--until", today, "--out", path)
    assert verifier.verify(path).entries >= 2
    for wrong in ("yesterday", "2026-12-01T08:00:00", "2026-13-01"):
        with pytest.raises(CommandError, match="since"):
            command("export", "--tenant", "acme", "--since", wrong, "--out", path)


def test_an_unknown_tenant_and_a_missing_directory_are_said_so_and_leave_no_entry(tenant: Tenant, path: Path):
    before = EvidenceEntry.objects.count()
    with pytest.raises(CommandError, match="no tenant nobody"):
        command("export", "--tenant", "nobody", "--out", path)
    with pytest.raises(CommandError, match="no directory"):
        command("export", "--tenant", "acme", "--out", path.parent / "nowhere" / "file")
    assert EvidenceEntry.objects.count() == before


def test_an_export_that_breaks_off_leaves_the_old_file_and_no_other(
    tenant: Tenant, path: Path, monkeypatch: pytest.MonkeyPatch
):
    path.write_text("the old file")

    def breaks(*args: Any) -> Iterator[export.Stored]:
        yield b'{"seq":1,"prev":"","kind":""}', None
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_stored", breaks)
    with pytest.raises(CommandError, match="No space left"):
        command("export", "--tenant", "acme", "--out", path)
    assert path.read_text() == "the old file"
    assert [one.name for one in path.parent.iterdir() if one.name != "data"] == [path.name]


def test_a_signing_key_that_is_none_names_its_setting(settings: Any):
    settings.PORTAL_SIGNING_KEY = "short"
    with pytest.raises(ImproperlyConfigured, match="PORTAL_SIGNING_KEY"):
        export.portal_signer()


def test_the_private_key_shows_in_no_representation():
    assert "07" * 32 not in repr(export.portal_signer())


def test_a_changed_row_is_found_in_the_export_that_holds_it(tenant: Tenant, path: Path):
    seq = add(tenant, 4) - 2
    entry = EvidenceEntry.objects.get(tenant=tenant, seq=seq)
    body = bytes(entry.body).replace(b'"data.viewed"', b'"run.started"')
    with unguarded():
        EvidenceEntry.objects.filter(pk=entry.pk).update(body=body)
    report = exported(path, tenant)
    assert report.problem is not None
    assert (report.problem.code, report.problem.seq) == ("edited", seq)
