"""Database triggers: what is append-only stays so, and a status moves only along MOVES, whoever writes the SQL.

The portal's own code never needs them; they stand in the way of a slip in a shell, a script or a later migration.
They are made from the models, for SQLite (3.35 and newer) and PostgreSQL (14 and newer) alike. The owner of a
table can still drop it: against that, chain heads are anchored outside (docs/operations.md).

Each trigger is called guard_<table>_<event>. `post_migrate` puts missing ones back, because SQLite drops them
silently whenever it remakes a table; approvals/checks.py reports what is missing.
"""
# ruff: noqa: S608 - the names in these statements come from the models, never from outside

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import AppConfig, apps
from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.signals import pre_migrate
from django.dispatch import receiver

from hermes_portal.transitions import Guarded

PREFIX = "guard_"


@dataclass(frozen=True, slots=True)
class Guard:
    """One trigger: before `event` on `table`, refuse with `says` if `when` holds; without `when`, always.

    `when` is SQL over NEW and OLD that both databases read. `column` narrows an update to statements that set it.
    """

    table: str
    event: str
    says: str
    when: str = ""
    column: str = ""

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.table}_{self.event}{'_of_' + self.column if self.column else ''}"

    @property
    def _timing(self) -> str:
        column = f' OF "{self.column}"' if self.column else ""
        return f'BEFORE {self.event.upper()}{column} ON "{self.table}"'

    def create(self, vendor: str) -> list[str]:
        """The statements that make it."""
        if vendor == "sqlite":
            return [self.body(vendor)]
        each = "STATEMENT" if self.event == "truncate" else "ROW"
        return [
            f'CREATE OR REPLACE FUNCTION "{self.name}"() RETURNS trigger LANGUAGE plpgsql AS $${self.body(vendor)}$$',
            f'CREATE OR REPLACE TRIGGER "{self.name}" {self._timing} FOR EACH {each} EXECUTE FUNCTION "{self.name}"()',
        ]

    def body(self, vendor: str) -> str:
        """What the database keeps as the text of the trigger, and by which a changed one is told from ours."""
        if vendor == "sqlite":
            when = f" WHEN {self.when}" if self.when else ""
            return f"CREATE TRIGGER \"{self.name}\" {self._timing}{when} BEGIN SELECT RAISE(ABORT, '{self.says}'); END"
        refuse = f"RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = '{self.says}';"
        if not self.when:
            return f" BEGIN {refuse} END; "
        row = "OLD" if self.event == "delete" else "NEW"
        return f" BEGIN IF {self.when} THEN {refuse} END IF; RETURN {row}; END; "

    def drop(self, vendor: str) -> str:
        return _drop(self.name, vendor)


def _drop(name: str, vendor: str) -> str:
    return (
        f'DROP TRIGGER IF EXISTS "{name}"'
        if vendor == "sqlite"
        else f'DROP FUNCTION IF EXISTS "{name}"() CASCADE'
    )


# --- what is guarded ----------------------------------------------------------------------------------------


def guards(vendor: str) -> list[Guard]:
    """Every trigger of the installed apps."""
    found = [*_entries(), *_payloads(vendor), *_heads(vendor)]
    for name in ("PolicyRevision", "Decision"):
        found += _immutable(apps.get_model("approvals", name))
    for model in apps.get_models():
        if issubclass(model, Guarded):
            found += _state_machine(model)
    return [guard for guard in found if vendor == "postgresql" or guard.event != "truncate"]


def _table(name: str) -> str:
    return str(apps.get_model("approvals", name)._meta.db_table)


def _noun(model: type[models.Model]) -> str:
    return str(model._meta.verbose_name)


def _entries() -> Iterator[Guard]:
    """An entry follows its predecessor by exactly one and is never touched again.

    The check on INSERT also stops SQLite's INSERT OR REPLACE, which walks past triggers on UPDATE and DELETE.
    """
    table = _table("EvidenceEntry")
    last = f'(SELECT MAX(seq) FROM "{table}" WHERE chain_id = NEW.chain_id)'
    yield Guard(
        table,
        "insert",
        "evidence is append-only: an entry has the next number of its chain and an id of its own",
        f'NEW.seq <> COALESCE({last}, 0) + 1 OR EXISTS (SELECT 1 FROM "{table}" WHERE id = NEW.id)',
    )
    yield from _kept(table, "evidence is append-only", ("update", "delete", "truncate"))


def _payloads(vendor: str) -> Iterator[Guard]:
    """A payload is erased only straight after the entry that says so, and never changed or put back.

    Straight after: the newest entry of its chain is a payload.erased whose ids are {"seq": <the payload's number>}.
    Both happen in one transaction, one payload at a time. Ids are canonical JSON, so no other text can look the same.
    """
    table, entries = _table("EvidencePayload"), _table("EvidenceEntry")
    names_it = (
        """INSTR(CAST(said.body AS TEXT), '"ids":{"seq":"' || own.seq || '"}') > 0"""
        if vendor == "sqlite"
        else """POSITION(CONVERT_TO('"ids":{"seq":"' || own.seq || '"}', 'UTF8') IN said.body) > 0"""
    )
    newest = f'said.seq = (SELECT MAX(seq) FROM "{entries}" WHERE chain_id = own.chain_id)'
    erased = (
        f'SELECT 1 FROM "{entries}" own JOIN "{entries}" said ON said.chain_id = own.chain_id AND {newest} '
        f"WHERE own.id = OLD.entry_id AND said.kind = 'payload.erased' AND {names_it}"
    )
    says = "an evidence payload is only erased, and only straight after the entry that says so"
    yield Guard(table, "delete", says, f"NOT EXISTS ({erased})")
    later = (
        f'SELECT 1 FROM "{entries}" own JOIN "{entries}" next ON next.chain_id = own.chain_id AND next.seq > own.seq '
        "WHERE own.id = NEW.entry_id"
    )
    yield Guard(
        table,
        "insert",
        "an evidence payload is written once, with its entry",
        f'EXISTS (SELECT 1 FROM "{table}" WHERE entry_id = NEW.entry_id) OR EXISTS ({later})',
    )
    yield from _kept(table, "an evidence payload is never changed", ("update", "truncate"))


def _heads(vendor: str) -> Iterator[Guard]:
    """A chain's head moves by one, onto an entry that is there."""
    table, entries = _table("ChainHead"), _table("EvidenceEntry")
    same = "IS" if vendor == "sqlite" else "IS NOT DISTINCT FROM"
    lands = f'SELECT 1 FROM "{entries}" WHERE chain_id = NEW.name AND seq = NEW.seq AND digest = NEW.digest'
    step = f"NEW.name = OLD.name AND NEW.tenant_id {same} OLD.tenant_id AND NEW.seq = OLD.seq + 1 AND EXISTS ({lands})"
    yield Guard(table, "update", "the head of a chain only moves on to the next entry", f"NOT ({step})")
    yield from _kept(table, "the head of a chain is never removed", ("delete", "truncate"))


def _immutable(model: type[models.Model]) -> Iterator[Guard]:
    """A row that is written once."""
    says = f"a {_noun(model)} is never changed or removed"
    yield _no_replacing(model, says)
    yield from _kept(model._meta.db_table, says, ("update", "delete", "truncate"))


def _state_machine(model: type[Guarded]) -> Iterator[Guard]:
    """The status moves along MOVES, and the row stays: a removed ledger row could be sent a second time (rule 1)."""
    table, noun = model._meta.db_table, _noun(model)
    moves = " OR ".join(
        f"(OLD.status = '{state}' AND NEW.status IN ({', '.join(repr(str(target)) for target in targets)}))"
        for state, targets in model.MOVES.items()
    )
    yield Guard(
        table,
        "update",
        f"a {noun} does not move that way: its transitions are listed in docs/states.md",
        f"NEW.status <> OLD.status AND NOT ({moves})",
        "status",
    )
    says = f"a {noun} is never removed or replaced"
    yield _no_replacing(model, says)
    yield from _kept(table, says, ("delete", "truncate"))


def _kept(table: str, says: str, events: tuple[str, ...]) -> Iterator[Guard]:
    for event in events:
        yield Guard(table, event, says)


def _no_replacing(model: type[models.Model], says: str) -> Guard:
    """Refuses an INSERT whose primary key or unique columns are taken, so that REPLACE cannot remove the row there."""
    table = model._meta.db_table
    taken = (
        " AND ".join(f'"{column}" = NEW."{column}"' for column in columns)
        for columns in _unique_columns(model)
    )
    there = " OR ".join(f'EXISTS (SELECT 1 FROM "{table}" WHERE {same})' for same in taken)
    return Guard(table, "insert", says, there)


def _unique_columns(model: type[models.Model]) -> Iterator[list[str]]:
    columns = {field.name: str(field.column) for field in model._meta.local_concrete_fields}
    for field in model._meta.local_concrete_fields:
        if field.unique:
            yield [columns[field.name]]
    for constraint in model._meta.constraints:
        if isinstance(constraint, models.UniqueConstraint) and constraint.condition is None:
            yield [columns[name] for name in constraint.fields]


# --- keeping them in place ----------------------------------------------------------------------------------


def missing(connection: BaseDatabaseWrapper) -> list[str]:
    """The names of triggers that should be there and are not, or are switched off or altered."""
    present = _present(connection)
    return [
        guard.name
        for guard in _wanted(connection)
        if present.get(guard.name) != guard.body(connection.vendor)
    ]


def install(connection: BaseDatabaseWrapper) -> None:
    """Creates what is missing and drops guards of an earlier version. Changes nothing where all is well."""
    present, wanted = _present(connection), {guard.name: guard for guard in _wanted(connection)}
    statements = [_drop(name, connection.vendor) for name in present if name not in wanted]
    for name, guard in wanted.items():
        if present.get(name) != guard.body(connection.vendor):
            statements += [guard.drop(connection.vendor), *guard.create(connection.vendor)]
    _run(connection, statements)


def remove(connection: BaseDatabaseWrapper) -> None:
    """Drops every guard: for migrations, and for tests that empty the tables or play the attacker."""
    _run(connection, [_drop(name, connection.vendor) for name in _present(connection)])


def _run(connection: BaseDatabaseWrapper, statements: list[str]) -> None:
    if statements:
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def _wanted(connection: BaseDatabaseWrapper) -> list[Guard]:
    """The guards of tables that exist, which is not all of them half-way through the first migrations."""
    tables = set(connection.introspection.table_names())
    evidence = {_table("EvidenceEntry"), _table("EvidencePayload"), _table("ChainHead")}
    if not evidence <= tables:
        tables -= evidence  # they look into each other
    return [guard for guard in guards(connection.vendor) if guard.table in tables]


def _present(connection: BaseDatabaseWrapper) -> dict[str, str]:
    """The guards in the database by name, each with its text; an empty text for one that is switched off."""
    pattern = PREFIX.replace("_", r"\_") + "%"
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                r"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE %s ESCAPE '\'",
                [pattern],
            )
        else:
            cursor.execute(
                "SELECT t.tgname, CASE WHEN t.tgenabled IN ('O', 'A') THEN p.prosrc ELSE '' END FROM pg_trigger t "
                "JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid "
                "WHERE t.tgname LIKE %s AND pg_table_is_visible(c.oid)",
                [pattern],
            )
        return dict(cursor.fetchall())


def install_after_migrate(*, using: str, **kwargs: Any) -> None:
    """Handler of post_migrate for the approvals app: it is sent after the migrations of all apps have run."""
    install(connections[using])


@receiver(pre_migrate, dispatch_uid="approvals.triggers")
def remove_before_migrate(
    *, sender: AppConfig, using: str, plan: list[tuple[Any, bool]] | None = None, **kwargs: Any
) -> None:
    """SQLite renames tables when it alters them, and refuses to while a trigger names one that is just gone.

    So there the guards are lifted while migrations run, and only if there are any to run.
    """
    if sender.label == "approvals" and plan and connections[using].vendor == "sqlite":
        remove(connections[using])
