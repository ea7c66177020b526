"""Settings from the environment: what is missing or bad stops the start and names its variable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from hermes_portal import environment as env

pytestmark = pytest.mark.once
PROJECT = Path(__file__).resolve().parent.parent.parent
KEY = "5" * 64


def test_a_value_can_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    monkeypatch.setenv("EXAMPLE_FILE", str(secret))
    assert env.text("EXAMPLE") == "from a file"


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_FILE", "/nowhere/secret")
    with pytest.raises(ImproperlyConfigured, match="EXAMPLE_FILE names /nowhere/secret"):
        env.text("EXAMPLE")


def test_a_value_and_a_file_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", "a")
    monkeypatch.setenv("EXAMPLE_FILE", "b")
    with pytest.raises(ImproperlyConfigured, match="not both"):
        env.text("EXAMPLE")


@pytest.mark.parametrize("raw", ["-1", "x", "1.5", "١"])
def test_a_whole_number_is_a_whole_number(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv("EXAMPLE", raw)
    with pytest.raises(ImproperlyConfigured, match="EXAMPLE must be a whole number"):
        env.integer("EXAMPLE", 1)


@pytest.mark.parametrize("raw", ["-1", "x", "nan", "inf"])
def test_a_duration_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv("EXAMPLE", raw)
    with pytest.raises(ImproperlyConfigured, match="EXAMPLE must be a number of seconds"):
        env.seconds("EXAMPLE", 1.0)


def test_a_choice_is_one_of_those_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE", "perhaps")
    with pytest.raises(ImproperlyConfigured, match="EXAMPLE must be one of true, false"):
        env.flag("EXAMPLE", True)


def test_a_database_address_is_taken_apart() -> None:
    found = env.postgres("DATABASE_URL", "postgresql://u%40x:p%2Fw@db.example:5433/portal?sslmode=require")
    assert found["USER"] == "u@x"
    assert found["PASSWORD"] == "p/w"
    assert (found["HOST"], found["PORT"], found["NAME"]) == ("db.example", "5433", "portal")
    assert found["OPTIONS"] == {"sslmode": "require"}


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql://h", "postgresql://h:port/d"])
def test_another_database_address_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL"):
        env.postgres("DATABASE_URL", url)


def test_the_revision_names_the_commit_of_a_checkout(tmp_path: Path) -> None:
    assert env.revision(tmp_path, "1.0") == "1.0"
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert env.revision(tmp_path, "1.0") == "1.0+0123456789ab"


def started(**variables: str) -> subprocess.CompletedProcess[str]:
    """`manage.py check` in an environment of nothing but these variables."""
    return subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=PROJECT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "missing", ["SECRET_KEY", "PORTAL_KEYS", "PORTAL_SIGNING_KEY", "PORTAL_ALLOWED_HOSTS"]
)
def test_production_refuses_to_start_without_its_own(tmp_path: Path, missing: str) -> None:
    given = {
        "PORTAL_MODE": "production",
        "PORTAL_DATA_DIR": str(tmp_path),
        "SECRET_KEY": KEY,
        "PORTAL_KEYS": KEY,
        "PORTAL_SIGNING_KEY": KEY,
        "PORTAL_ALLOWED_HOSTS": "portal.example",
    }
    assert started(**given).returncode == 0
    del given[missing]
    refused = started(**given)
    assert refused.returncode != 0
    assert f"{missing} is not set" in refused.stderr
    assert not (tmp_path / "keys").exists()


def test_the_embedded_default_makes_its_keys_once_for_its_owner_alone(tmp_path: Path) -> None:
    for _ in range(2):
        assert started(PORTAL_DATA_DIR=str(tmp_path / "data")).returncode == 0
        made = {path.name: path.read_text() for path in (tmp_path / "data/keys").iterdir()}
        assert set(made) == {"secret_key", "portal_keys", "portal_signing_key"}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "data/keys").iterdir()} == {0o600}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
