"""Throw-away servers for the tests: PostgreSQL and Redis from Debian's packages, and where Chromium is.

    with postgres() as server, redis() as queue:
        server.url, server.database("second"), queue.url

Works as root (PostgreSQL refuses root, so it then runs as the package's own user) and as anybody else. A
missing binary is installed when we are root, else the error names the package. Everything lives in a
temporary directory and ends with the context, and with this process even if that is killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes_portal.processes import Known, spawn

LOOPBACK = "127.0.0.1"
START_LIMIT = 30.0  # seconds; usually well under one
OLDEST_POSTGRES = 15
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class ServiceMissing(RuntimeError):
    """A server binary is not here; the message names the package."""


def install(package: str) -> None:
    """Install a Debian package when we may, else say its name. Raises ServiceMissing."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ServiceMissing(f"{package} is not installed. Install it: apt-get install {package}")
    print(f"Installing {package} (apt-get install {package})", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
    for attempt in (["apt-get", "update", "--quiet"], command):
        done = subprocess.run(
            attempt,
            env=environment,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        raise ServiceMissing(f"apt-get could not install {package}:\n{done.stdout[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def temporary_directory(name: str, owner: str | None = None) -> Iterator[Path]:
    """A directory of its own, given to another user where the server must not be root."""
    path = Path(tempfile.mkdtemp(prefix=f"portal-{name}-"))
    if owner:
        shutil.chown(path, owner, owner)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def await_ready(name: str, process: subprocess.Popen[bytes], log: Path, ready: list[str] | int) -> None:
    """Wait until a command succeeds or a port answers a Redis PING."""
    limit = time.monotonic() + START_LIMIT
    while not (pings(ready) if isinstance(ready, int) else succeeds(ready)):
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pings(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1) as link:
        link.sendall(b"PING\r\n")
        return link.recv(16).startswith(b"+PONG")
    return False


# ---------------------------------------------------------------------------------------- PostgreSQL


def postgres_binaries() -> Path:
    """The directory of the newest PostgreSQL that is new enough."""
    for _ in range(2):
        versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
        versions = [path for path in versions if float(path.parent.name) >= OLDEST_POSTGRES]
        if versions:
            return max(versions, key=lambda path: float(path.parent.name))
        if found := shutil.which("initdb"):
            return Path(found).parent
        install("postgresql")
    raise ServiceMissing("postgresql is installed, but without initdb: is it older than 15?")


@dataclass(frozen=True)
class Postgres:
    """A running server; `url` is its first database."""

    binaries: Path
    port: int
    password: str
    process: Known

    @property
    def url(self) -> str:
        return self.url_of("portal")

    def url_of(self, database: str) -> str:
        return f"postgresql://portal:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def database(self, name: str) -> str:
        """Make one more database; returns its address."""
        subprocess.run(
            [str(self.binaries / "createdb"), "-h", LOOPBACK, "-p", str(self.port), "-U", "portal", name],
            env={"PGPASSWORD": self.password, "PATH": os.environ["PATH"]},
            check=True,
            capture_output=True,
        )
        return self.url_of(name)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL with no durability, all of it in a temporary directory."""
    binaries = postgres_binaries()
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        pwd.getpwnam(user)  # the package makes it
    with temporary_directory("pg", user) as directory:
        password, port, log = secrets.token_hex(12), free_port(), directory / "log"
        secret, data = directory / "password", directory / "data"
        secret.write_text(password)
        if user:
            shutil.chown(secret, user, user)
        become = {"user": user, "group": user, "extra_groups": []} if user else {}
        subprocess.run(
            [
                *(str(binaries / "initdb"), "--no-sync", "--pgdata", str(data)),
                *("--username", "portal", "--pwfile", str(secret), "--auth", "scram-sha-256"),
                *("--encoding", "UTF8", "--locale", "C.UTF-8"),
            ],
            cwd=directory,
            check=True,
            capture_output=True,
            **become,  # type: ignore[call-overload]
        )
        options = {
            "listen_addresses": LOOPBACK,
            "port": port,
            "unix_socket_directories": directory,
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_connections": 200,
        }
        # setpriv runs after the change of user, which would cancel what it asks the kernel for: SIGQUIT (end
        # at once) when we go.
        command = ["setpriv", "--pdeathsig", "QUIT", str(binaries / "postgres"), "-D", str(data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **become,  # type: ignore[call-overload]
            )
        known = Known.of(process.pid)
        try:
            ready = [str(binaries / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(port)]
            await_ready("PostgreSQL", process, log, ready)
            server = Postgres(binaries, port, password, known)
            server.database("portal")
            yield server
        finally:
            known.end(grace=10, number=signal.SIGQUIT)  # nothing in it is worth a checkpoint
            process.wait()


# --------------------------------------------------------------------------------------------- Redis


@dataclass(frozen=True)
class Redis:
    """A running server. `url` is for the cache, `broker` for Celery: two of its databases."""

    port: int
    process: Known

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def broker(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/1"


def redis_binary() -> str:
    if not shutil.which("redis-server"):
        install("redis-server")
    found = shutil.which("redis-server")
    if not found:
        raise ServiceMissing("redis-server is installed, but not in PATH.")
    return found


@contextlib.contextmanager
def redis() -> Iterator[Redis]:
    """A Redis that keeps nothing."""
    binary = redis_binary()
    with temporary_directory("redis") as directory:
        port, log = free_port(), directory / "log"
        command = [binary, "--port", str(port), "--bind", LOOPBACK, "--dir", str(directory)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        with log.open("wb") as output:
            process = spawn(command, cwd=directory, output=output)
        known = Known.of(process.pid)
        try:
            await_ready("Redis", process, log, port)
            yield Redis(port, known)
        finally:
            known.end(grace=5)
            process.wait()


# ------------------------------------------------------------------------------------------ Chromium


def chromium_path() -> str:
    """The browser: PORTAL_TEST_CHROMIUM, or the one in PATH, or Debian's, installed now."""
    if given := os.environ.get("PORTAL_TEST_CHROMIUM"):
        return given
    for _ in range(2):
        if found := next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None):
            return found
        install("chromium")
    raise ServiceMissing("chromium is installed, but not in PATH.")
