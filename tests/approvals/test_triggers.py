"""The database refuses what no code of the portal ever does: rewriting evidence, and forbidden transitions."""
# ruff: noqa: S608 - the tables named here are the portal's own

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from approvals import evidence, triggers
from approvals.evidence import CLOCK, OPERATOR
from approvals.models import (
    Action,
    Approval,
    ChainHead,
    Decision,
    EvidenceEntry,
    EvidencePayload,
    Execution,
    Kind,
    PolicyRevision,
    Tenant,
)
from hermes_portal import clock
from hermes_portal.transitions import Guarded
from tests import factories
from tests.factories import Cast

pytestmark = pytest.mark.django_db
ENTRIES, PAYLOADS, HEADS = "approvals_evidenceentry", "approvals_evidencepayload", "approvals_chainhead"


def refused(sql: str, *parameters: Any) -> str:
    """Runs a statement that must fail; gives back what the database said."""
    with pytest.raises(IntegrityError) as told, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)
    return str(told.value)


def run(sql: str, *parameters: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


@pytest.fixture
def acme() -> Tenant:
    """A tenant whose chain has three entries."""
    tenant = factories.tenant()
    for _ in range(2):
        with evidence.chain(tenant) as chain:
            chain.append(Kind.CHECKPOINT, actor=CLOCK, data={"head": "x"})
    return tenant


def columns(table: str, **replaced: str) -> str:
    """Every column of a table for an INSERT ... SELECT, some replaced by SQL."""
    model = next(one for one in apps.get_models() if one._meta.db_table == table)
    names = [str(one.column) for one in model._meta.local_concrete_fields]
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(replaced.get(name, f'"{name}"') for name in names)
    return f'INTO "{table}" ({quoted}) SELECT {values} FROM "{table}"'


# --- evidence is append-only --------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "says"), [(ENTRIES, "append-only"), (PAYLOADS, "never changed")])
def test_evidence_cannot_be_updated(acme: Tenant, table: str, says: str):
    assert says in refused(f"UPDATE {table} SET body = body")


def test_an_entry_cannot_be_deleted(acme: Tenant):
    assert "append-only" in refused(f"DELETE FROM {ENTRIES} WHERE seq = 2")


def test_a_head_cannot_be_deleted(acme: Tenant):
    assert "never removed" in refused(f"DELETE FROM {HEADS} WHERE name = 'acme'")


@pytest.mark.sqlite
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE"])
def test_replacing_an_entry_by_its_id_is_refused(acme: Tenant, verb: str):
    assert "append-only" in refused(f"{verb} {columns(ENTRIES, kind='seq')} WHERE seq = 2")


@pytest.mark.sqlite
def test_replacing_an_entry_by_its_number_is_refused(acme: Tenant):
    assert "append-only" in refused(f"INSERT OR REPLACE {columns(ENTRIES, id='NULL')} WHERE seq = 2")


@pytest.mark.sqlite
def test_an_update_that_would_replace_is_refused(acme: Tenant):
    assert "append-only" in refused(f"UPDATE OR REPLACE {ENTRIES} SET seq = 1 WHERE seq = 2")


@pytest.mark.sqlite
def test_replacing_a_payload_is_refused(acme: Tenant):
    assert "written once" in refused(f"INSERT OR REPLACE {columns(PAYLOADS)}")


def test_an_upsert_of_an_entry_is_refused(acme: Tenant):
    sql = f"INSERT {columns(ENTRIES)} WHERE seq = 2 ON CONFLICT (id) DO UPDATE SET kind = 'run.gap'"
    assert "append-only" in refused(sql)


@pytest.mark.parametrize("seq", [0, 2, 3, 5, 100])
def test_an_entry_without_the_next_number_is_refused(acme: Tenant, seq: int):
    assert "append-only" in refused(f"INSERT {columns(ENTRIES, id='999999', seq=str(seq))} WHERE seq = 3")


def test_the_next_entry_is_accepted(acme: Tenant):
    with evidence.chain(acme) as chain:
        chain.append(Kind.CHECKPOINT, actor=CLOCK)
    assert ChainHead.objects.get(tenant=acme).seq == 4


def test_a_head_cannot_step_back(acme: Tenant):
    assert "only moves on" in refused(f"UPDATE {HEADS} SET seq = 1 WHERE name = 'acme'")


def test_a_head_cannot_be_given_another_digest(acme: Tenant):
    assert "only moves on" in refused(f"UPDATE {HEADS} SET digest = %s WHERE name = 'acme'", "f" * 64)


def test_a_head_cannot_move_onto_an_entry_that_is_not_there(acme: Tenant):
    assert "only moves on" in refused(f"UPDATE {HEADS} SET seq = seq + 1 WHERE name = 'acme'")


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "table", [ENTRIES, PAYLOADS, HEADS, "approvals_decision", "approvals_policyrevision"]
)
def test_truncate_is_refused(table: str):
    said = refused(f"TRUNCATE {table} CASCADE")
    assert "append-only" in said or "never" in said


# --- a payload is erased only with an entry that says so ----------------------------------------------------


def erase(tenant: Tenant, seq: int, says: str | None = None) -> int:
    with evidence.chain(tenant) as chain:
        if says is not None:
            chain.append(Kind.PAYLOAD_ERASED, actor=OPERATOR, data={"why": '"ids":{"seq":"1"}'}, seq=says)
        own = EvidenceEntry.objects.get(chain__tenant=tenant, seq=seq)
        return run(f"DELETE FROM {PAYLOADS} WHERE entry_id = %s", own.pk)


def test_a_payload_is_erased_straight_after_the_entry_that_names_it(acme: Tenant):
    assert erase(acme, 2, says="2") == 1
    assert not EvidencePayload.objects.filter(entry__chain__tenant=acme, entry__seq=2).exists()


@pytest.mark.parametrize("says", [None, "1", "3", "22", "02"])
def test_a_payload_is_not_erased_without_an_entry_that_names_it(acme: Tenant, says: str | None):
    with pytest.raises(IntegrityError), transaction.atomic():
        erase(acme, 2, says=says)


def test_an_erasure_in_another_chain_counts_for_nothing(acme: Tenant):
    other = factories.tenant("other")
    with evidence.chain(other) as chain:
        chain.append(Kind.PAYLOAD_ERASED, actor=OPERATOR, seq="2")
    with pytest.raises(IntegrityError), transaction.atomic():
        erase(acme, 2)


def test_an_erasure_counts_once_and_only_at_once(acme: Tenant):
    with evidence.chain(acme) as chain:
        chain.append(Kind.PAYLOAD_ERASED, actor=OPERATOR, seq="2")
        chain.append(Kind.CHECKPOINT, actor=CLOCK)
    with pytest.raises(IntegrityError), transaction.atomic():
        erase(acme, 2)


def test_an_erased_payload_cannot_be_put_back(acme: Tenant):
    erase(acme, 2, says="2")
    own = EvidenceEntry.objects.get(chain__tenant=acme, seq=2)
    with pytest.raises(IntegrityError, match="written once"), transaction.atomic():
        EvidencePayload.objects.create(entry=own, body=b"{}")


# --- immutable rows -----------------------------------------------------------------------------------------


@pytest.fixture
def revision(acme: Tenant) -> PolicyRevision:
    return factories.policy(acme, factories.require("run_start"))


@pytest.mark.parametrize("sql", ["UPDATE {} SET reason = 'x'", "DELETE FROM {}"])
def test_a_policy_revision_is_never_changed(revision: PolicyRevision, sql: str):
    assert "never changed" in refused(sql.format("approvals_policyrevision"))


def test_saving_a_policy_revision_again_is_refused(revision: PolicyRevision):
    revision.rules = {"version": 1, "rules": []}
    with pytest.raises(IntegrityError), transaction.atomic():
        revision.save()


@pytest.mark.sqlite
def test_a_policy_revision_cannot_be_replaced_by_its_number(revision: PolicyRevision):
    other = "'" + "0" * 32 + "'"
    assert "never changed" in refused(f"INSERT OR REPLACE {columns('approvals_policyrevision', id=other)}")


@pytest.fixture
def decision(cast: Cast) -> Decision:
    return Decision.objects.create(
        tenant=cast.acme,
        approval=an_approval(cast),
        by=cast.reviewer,
        requester=cast.requester,
        verdict=Decision.Verdict.APPROVE,
        reason="Fine.",
        seen="0" * 64,
        created_at=clock.now(),
    )


@pytest.mark.parametrize("sql", ["UPDATE {} SET verdict = 'deny'", "DELETE FROM {}"])
def test_a_decision_is_never_changed(decision: Decision, sql: str):
    assert "never changed" in refused(sql.format("approvals_decision"))


# --- transitions --------------------------------------------------------------------------------------------


def an_approval(cast: Cast, status: str = Approval.Status.PENDING) -> Approval:
    now = clock.now()
    return Approval.objects.create(
        tenant=cast.acme,
        endpoint=cast.endpoint,
        operation="run_stop",
        requester=cast.requester,
        reason="It loops.",
        title="Stop a run",
        subject=f"action:{status}",
        subject_digest="0" * 64,
        status=status,
        created_at=now,
        effective_at=now + timedelta(minutes=15),
        needs={"": {"approvers": 1}},
        endpoint_revision=1,
        credential_revision=1,
    )


def an_execution(cast: Cast, status: str = Execution.Status.CLAIMED) -> Execution:
    now = clock.now()
    digests = dict.fromkeys(("input_digest", "input_likeness", "wire_digest", "snapshot_digest"), "0" * 64)
    action = Action.objects.create(
        tenant=cast.acme,
        endpoint=cast.endpoint,
        operation="run_start",
        requester=cast.requester,
        reason="Nightly report.",
        title="Start a run",
        subject="run",
        lane="run:1",
        needs_approval=False,
        created_at=now,
        send_before=now + timedelta(minutes=15),
        input=b"",
        input_shown={},
        wire=b"",
        snapshot=b"",
        snapshot_shown={},
        endpoint_revision=1,
        credential_revision=1,
        verdict={},
        **digests,
    )
    return Execution.objects.create(
        action=action,
        tenant=cast.acme,
        lane="run:1",
        status=status,
        lease_until=now,
        worker="test",
        claimed_at=now,
    )


MAKERS: dict[type[Guarded], Any] = {Approval: an_approval, Execution: an_execution}
PAIRS = [
    pytest.param(model, before, after, id=f"{model.__name__}: {before} to {after}")
    for model in MAKERS
    for before, after in product(model.Status.values, repeat=2)
]


@pytest.mark.parametrize(("model", "before", "after"), PAIRS)
def test_sql_moves_a_status_exactly_along_the_transitions(
    cast: Cast, model: type[Guarded], before: str, after: str
):
    row = MAKERS[model](cast, before)
    table, key = model._meta.db_table, model._meta.pk.column
    sql = f'UPDATE {table} SET status = %s WHERE "{key}" = %s'
    value = model._meta.pk.get_db_prep_value(row.pk, connection)
    if after == before or after in model.MOVES.get(before, ()):
        assert run(sql, after, value) == 1
    else:
        assert "docs/states.md" in refused(sql, after, value)


@pytest.mark.parametrize("model", [Approval, Execution])
def test_a_row_of_a_state_machine_cannot_be_deleted(cast: Cast, model: type[Guarded]):
    MAKERS[model](cast)
    assert "never removed" in refused(f"DELETE FROM {model._meta.db_table}")


@pytest.mark.sqlite
def test_a_closed_approval_cannot_be_replaced_by_an_open_one(cast: Cast):
    an_approval(cast, Approval.Status.DENIED)
    assert "never removed" in refused(
        f"INSERT OR REPLACE {columns('approvals_approval', closed_why='title')}"
    )


def test_every_state_machine_is_guarded():
    guarded = {guard.table for guard in triggers.guards(connection.vendor) if guard.column == "status"}
    machines = {one._meta.db_table for one in apps.get_models() if issubclass(one, Guarded)}
    assert guarded == machines
    assert {Approval._meta.db_table, Execution._meta.db_table} <= machines


# --- keeping them in place ----------------------------------------------------------------------------------


def test_nothing_is_missing_after_migrating():
    assert triggers.missing(connection) == []


def test_a_dropped_guard_is_reported_and_put_back(acme: Tenant):
    guard = triggers.guards(connection.vendor)[0]
    run(guard.drop(connection.vendor))
    assert triggers.missing(connection) == [guard.name]
    triggers.install(connection)
    assert triggers.missing(connection) == []


def test_an_altered_guard_is_reported_and_put_back(acme: Tenant):
    name = f"guard_{ENTRIES}_update"
    weak = triggers.Guard(ENTRIES, "update", "never", "NEW.seq < 0")
    run(weak.drop(connection.vendor))
    for statement in weak.create(connection.vendor):
        run(statement)
    assert triggers.missing(connection) == [name]
    triggers.install(connection)
    assert refused(f"UPDATE {ENTRIES} SET body = body")


@pytest.mark.postgresql
def test_a_disabled_guard_is_reported_and_put_back():
    name = f"guard_{ENTRIES}_delete"
    run(f"ALTER TABLE {ENTRIES} DISABLE TRIGGER {name}")
    assert triggers.missing(connection) == [name]
    triggers.install(connection)
    assert triggers.missing(connection) == []


def test_a_guard_of_an_earlier_version_is_dropped(acme: Tenant):
    old = triggers.Guard(ENTRIES, "update", "old", column="kind")
    for statement in old.create(connection.vendor):
        run(statement)
    triggers.install(connection)
    assert old.name not in triggers._present(connection)


def test_installing_twice_changes_nothing(django_assert_num_queries: Any):
    with django_assert_num_queries(2):  # which tables there are, which guards there are
        triggers.install(connection)


def test_removing_lifts_every_guard(acme: Tenant):
    triggers.remove(connection)
    assert len(triggers.missing(connection)) == len(triggers.guards(connection.vendor))
    triggers.install(connection)


class TestMigrations:
    """What happens around a migration that remakes a table."""

    @pytest.mark.sqlite
    @pytest.mark.django_db(transaction=True)
    def test_a_table_can_be_remade_while_the_guards_are_lifted(self):
        config = apps.get_app_config("approvals")
        factories.tenant()
        triggers.remove_before_migrate(sender=config, using="default", plan=[(None, False)])
        with connection.schema_editor() as editor:
            editor._remake_table(EvidenceEntry)  # type: ignore[attr-defined]
        triggers.install_after_migrate(using="default")
        assert triggers.missing(connection) == []
        assert EvidenceEntry.objects.count() == 1

    def test_a_migrate_with_nothing_to_do_leaves_the_guards_alone(self):
        config = apps.get_app_config("approvals")
        triggers.remove_before_migrate(sender=config, using="default", plan=[])
        assert triggers.missing(connection) == []


@pytest.mark.django_db(transaction=True)
def test_a_flush_is_refused_while_the_guards_stand():
    factories.tenant()
    with pytest.raises(CommandError):
        call_command("flush", interactive=False, verbosity=0)
    assert Tenant.objects.count() == 1
