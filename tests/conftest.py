"""What every test can use: the cast, a database whose append-only tables can be emptied between tests, a quiet cache.

Servers (PostgreSQL, Redis) come from outside, by environment variables: tests/run.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.test import TransactionTestCase

from approvals import triggers
from tests import factories


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SQLite in a file, as it is served: several connections, WAL and real locks, which a memory database has not."""
    if connection.vendor == "sqlite":
        name = str(tmp_path_factory.mktemp("database") / "test.sqlite3")
        connection.settings_dict["TEST"]["NAME"] = name


@pytest.fixture(scope="session", autouse=True)
def _tables_can_be_emptied() -> Iterator[None]:
    """A transactional test ends with `flush`, which append-only tables refuse.

    So the guards are lifted first; `flush` sends post_migrate when it is done, and that puts them back.
    """
    flush = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]

    def lifted(self: TransactionTestCase) -> None:
        triggers.remove(connection)
        flush(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lifted)
        yield


@pytest.fixture(scope="session", autouse=True)
def _static_root() -> None:
    """whitenoise warns when the directory of collected files is not there. It finds the files where they are."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)


@pytest.fixture
def cast(db: None) -> factories.Cast:
    """Two tenants with an endpoint each, and everybody who appears in the tests."""
    return factories.cast()


@pytest.fixture
def quiet_cache() -> Iterator[None]:
    """Counters of sign-in attempts start at nothing."""
    cache.clear()
    yield
    cache.clear()
