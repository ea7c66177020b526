"""manage.py portal: what it would run, what it refuses, and a whole portal started and ended."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.core.management.base import CommandError

from hermes_portal.management.commands.portal import address_of, alone_in, plan
from hermes_portal.processes import Known, descendants
from hermes_portal.supervisor import free_or_reason
from tests.services import free_port

PROJECT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60.0  # seconds


class Portal:
    """A `manage.py portal` in a directory of its own, on the database of the suite."""

    def __init__(self, directory, **environment):
        self.port = free_port()
        self.log = directory / "output"
        directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "portal", "--bind", f"127.0.0.1:{self.port}"],
                cwd=PROJECT,
                env=os.environ | {"PORTAL_DATA_DIR": str(directory), **environment},
                stdout=output,
                stderr=output,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def answers(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as reply:
                return reply.status == 200
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False

    def serving(self):
        """Wait until the web answers; returns this portal."""
        limit = time.monotonic() + PATIENCE
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit, self.log.read_text()
            time.sleep(0.1)
        return self

    def children(self):
        return descendants(self.process.pid)


def names(services):
    return [service.name for service in services]


@pytest.mark.once
def test_everything_runs_once_unless_told_otherwise():
    assert names(plan("127.0.0.1", 8000)) == ["web", "execute-1", "streams-1", "beat"]


@pytest.mark.once
def test_the_numbers_come_from_the_settings_and_nought_leaves_a_part_out(settings):
    settings.PORTAL_WEB_WORKERS = 0
    settings.PORTAL_EXECUTE_WORKERS = 2
    settings.PORTAL_BEAT = False
    assert names(plan("127.0.0.1", 8000)) == ["execute-1", "execute-2", "streams-1"]


@pytest.mark.once
def test_nothing_to_run_is_an_error(settings):
    for name in ("WEB", "EXECUTE", "STREAM"):
        setattr(settings, f"PORTAL_{name}_WORKERS", 0)
    settings.PORTAL_BEAT = False
    with pytest.raises(CommandError, match="Nothing to serve"):
        plan("127.0.0.1", 8000)


@pytest.mark.once
def test_connections_are_kept_longer_than_pages_wait_between_polls(settings):
    settings.PAGE_POLL_SECONDS = 20.0
    command = plan("127.0.0.1", 8000)[0].command
    assert command[command.index("--keep-alive") + 1] == "41"


@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "expected"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8000", ("::1", 8000))]
)
def test_an_address_is_a_host_and_a_port(text, expected):
    assert address_of(text) == expected


@pytest.mark.once
@pytest.mark.parametrize(
    "text", ["", "8000", ":8000", "localhost", "localhost:", "localhost:0", "localhost:99999"]
)
def test_any_other_address_is_refused_with_an_example(text):
    with pytest.raises(CommandError, match=r"127\.0\.0\.1:8000"):
        address_of(text)


@pytest.mark.once
def test_a_taken_address_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            free_or_reason("127.0.0.1", port, seconds=0)
            == f"127.0.0.1:{port} cannot be served: Address already in use."
        )


@pytest.mark.once
def test_a_data_directory_serves_one_portal_at_a_time(tmp_path):
    refused = pytest.raises(CommandError, match=f"pid {os.getpid()}")
    with alone_in(tmp_path / "data"), refused, alone_in(tmp_path / "data"):
        pass
    with alone_in(tmp_path / "data"):  # and another one after it
        assert (tmp_path / "data/portal.pid").read_text() == f"{os.getpid()}\n"


@pytest.mark.sqlite
def test_a_portal_serves_and_a_signal_ends_all_of_it(tmp_path):
    with Portal(tmp_path).serving() as portal:
        children = portal.children()
        assert len(children) == 6  # web and its two workers, two Celery workers, the timer
        portal.process.send_signal(signal.SIGINT)
        assert portal.process.wait(PATIENCE) == 0, portal.log.read_text()
        assert not any(child.alive() for child in children)
        private = [path for path in tmp_path.rglob("*.sqlite3*") if path.stat().st_mode & 0o077 == 0]
        assert private


@pytest.mark.sqlite
def test_nothing_of_a_killed_portal_stays(tmp_path):
    with Portal(tmp_path).serving() as portal:
        children = [*portal.children()]
        portal.process.kill()
        assert all(child.wait(PATIENCE) for child in children)


@pytest.mark.sqlite
def test_a_killed_worker_comes_back(tmp_path):
    with Portal(tmp_path).serving() as portal:
        worker = next(child for child in portal.children() if "execute,default" in command_of(child))
        worker.send(signal.SIGKILL)
        limit = time.monotonic() + PATIENCE
        while not any("execute,default" in command_of(child) for child in portal.children()):
            assert time.monotonic() < limit, portal.log.read_text()
            time.sleep(0.1)
        assert portal.answers()


def command_of(process: Known) -> str:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.postgresql
def test_two_portals_that_start_at_once_against_one_database_both_serve(tmp_path):
    address = urlsplit(os.environ["DATABASE_URL"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS two_portals WITH (FORCE)")
        admin.execute("CREATE DATABASE two_portals")
    fresh = {"DATABASE_URL": urlunsplit(address._replace(path="/two_portals"))}
    with Portal(tmp_path / "one", **fresh) as one, Portal(tmp_path / "two", **fresh) as two:
        assert one.serving()
        assert two.serving()
