"""Starts and ends a sandbox: one scripted model and real Hermes API servers, each with a home of its own.

    with Sandbox(approval_timeout=5) as sandbox:
        server = sandbox.servers[0]
        server.url, server.key
        server.call("POST", "/v1/runs", {"input": "run: rm -rf {scratch}/old"})
        server.crash(); server.start()      # process loss: same home, same port

From a shell: python -m hermes_portal.sandbox start|status|stop --dir DIRECTORY (see --help).

Standard library only. Hermes runs in an environment of its own: `hermes_python`, else the variable
HERMES_PYTHON, else .venv-hermes/bin/python beside this project.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from hermes_portal.processes import Known, end_all, spawn

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
STATE_NAME = "sandbox.json"
BOOT_LIMIT = 90.0  # seconds until a server must be healthy; usually about one
LOOPBACK = "127.0.0.1"


class SandboxError(RuntimeError):
    """The sandbox could not start; the message says what to do."""


@dataclass(frozen=True)
class Settings:
    """How the sandbox differs from a plain one. Seconds where it is a time; None leaves Hermes as shipped."""

    approval_timeout: float = 60.0
    approval_mode: str = "manual"
    cron_mode: str = "deny"
    max_concurrent_runs: int = 10
    tick: float | None = None
    sweep: float | None = None
    stream: float | None = None
    status: float | None = None
    side_by_side: bool = False  # not as shipped, see gateway.py
    pace: float = 0.0  # between two words of the model
    warm: bool = (
        False  # play one run at the start: building the first agent stalls a server for over a second
    )
    hermes: dict[str, Any] = field(default_factory=dict)  # more sections of config.yaml

    def environment(self) -> dict[str, str]:
        """The variables that gateway.py understands."""
        values = {
            f"SANDBOX_{name.upper()}_SECONDS": getattr(self, name)
            for name in ("tick", "sweep", "stream", "status")
        }
        chosen = {name: str(value) for name, value in values.items() if value is not None}
        return chosen | ({"SANDBOX_SIDE_BY_SIDE": "1"} if self.side_by_side else {})


def hermes_python_at(given: str | Path | None = None) -> Path:
    """The Python that Hermes is installed in. Raises SandboxError when there is none."""
    path = Path(given or os.environ.get("HERMES_PYTHON") or PROJECT / ".venv-hermes/bin/python")
    if not os.access(path, os.X_OK):
        raise SandboxError(
            f"No Hermes at {path}. `make environments` installs it; HERMES_PYTHON names another one."
        )
    return path


def port_of(wanted: int | None = None) -> int:
    """A loopback port nobody listens on: the wanted one if it is free."""
    for port in (wanted, 0):
        if port is None:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise SandboxError("No free port on the loopback interface.")


def http(
    method: str, url: str, *, key: str | None = None, body: object = None, timeout: float = 10.0
) -> tuple[int, Any]:
    """One request: the status and the decoded JSON, or the text where it is not JSON."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310 - loopback only
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as reply:
            status, raw = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            status, raw = error.code, error.read()
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode("utf-8", "replace")


def healthy(url: str) -> bool:
    """Whether something answers 200 there."""
    with contextlib.suppress(OSError):
        return http("GET", url, timeout=2)[0] == 200
    return False


class Child:
    """One process of the sandbox: its log, its health address, how it is started and ended."""

    def __init__(self, name: str, root: Path, health: str, *, die_with_us: bool) -> None:
        self.name, self.health, self.die_with_us = name, health, die_with_us
        self.log = root / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.known: Known | None = None

    def launch(self, command: list[str], *, env: dict[str, str], cwd: Path) -> None:
        if self.alive():
            raise SandboxError(f"{self.name} runs already.")
        with self.log.open("ab") as log:
            self.process = spawn(command, env=env, cwd=cwd, output=log, die_with_us=self.die_with_us)
        self.known = Known.of(self.process.pid)

    def await_health(self) -> None:
        limit = time.monotonic() + BOOT_LIMIT
        while not healthy(self.health):
            if not self.alive():
                raise SandboxError(f"{self.name} ended while starting; its log is {self.log}.")
            if time.monotonic() > limit:
                raise SandboxError(
                    f"{self.name} is not healthy after {BOOT_LIMIT:.0f} s; its log is {self.log}."
                )
            time.sleep(0.1)

    def alive(self) -> bool:
        return self.known is not None and self.known.alive()

    def kill(self) -> None:
        if self.known:
            self.known.end(grace=0.0, number=signal.SIGKILL)
        self.collect()

    def end(self, grace: float) -> None:
        if self.known:
            end_all([self.known], grace)
        self.collect()

    def collect(self) -> None:
        """Take note that it is gone."""
        if self.process:
            self.process.wait()
        self.process = self.known = None


class Server:
    """A real Hermes gateway with nothing but its API server switched on."""

    def __init__(self, sandbox: Sandbox, index: int, *, port: int, key: str) -> None:
        self.index, self.port, self.key = index, port, key
        self.url = f"http://{LOOPBACK}:{port}"
        self.base = sandbox.directory / f"hermes-{index}"
        self.home = self.base / "home"
        self.sandbox = sandbox
        self.child = Child(
            f"hermes-{index}", sandbox.directory, f"{self.url}/health", die_with_us=sandbox.die_with_us
        )
        self.log = self.child.log

    def configure(self) -> None:
        """Write config.yaml anew (JSON is YAML): what was answered `always` before is forgotten with it."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.home / "config.yaml").write_text(json.dumps(self.configuration(), indent=2))

    def configuration(self) -> dict[str, Any]:
        settings = self.sandbox.settings
        config: dict[str, Any] = {
            "model": {
                "provider": "custom",
                "default": "scripted",
                "base_url": f"{self.sandbox.model_url}/v1",
                "api_key": "none-needed",
                "api_mode": "chat_completions",
                "context_length": 200_000,
            },
            "approvals": {
                "mode": settings.approval_mode,
                "timeout": settings.approval_timeout,
                "cron_mode": settings.cron_mode,
            },
            "terminal": {"backend": "local", "cwd": str(self.sandbox.scratch)},
            "gateway": {"api_server": {"max_concurrent_runs": settings.max_concurrent_runs}},
            "platform_toolsets": {"api_server": ["terminal", "file", "code_execution"]},
            "agent": {"api_max_retries": 1, "environment_probe": False},
            "auxiliary": {"title_generation": {"enabled": False}},
            "security": {"tirith_enabled": False},  # Hermes would download that scanner
        }
        for section, values in settings.hermes.items():
            if isinstance(values, dict) and isinstance(config.get(section), dict):
                values = config[section] | values
            config[section] = values
        return config

    def environment(self) -> dict[str, str]:
        return bare_environment(self.base) | {
            "HERMES_HOME": str(self.home),
            "API_SERVER_ENABLED": "true",
            "API_SERVER_HOST": LOOPBACK,
            "API_SERVER_PORT": str(self.port),
            "API_SERVER_KEY": self.key,
            **self.sandbox.settings.environment(),
        }

    def launch(self) -> None:
        command = [str(self.sandbox.hermes_python), str(HERE / "gateway.py")]
        self.child.launch(command, env=self.environment(), cwd=self.base)

    def start(self) -> Self:
        """Start (again) with the same home and port, and wait until it is healthy."""
        self.launch()
        self.child.await_health()
        self.sandbox.save()
        return self

    def stop(self, grace: float = 10.0) -> None:
        """An orderly shutdown: SIGTERM, then SIGKILL, then whatever commands it left behind."""
        self.child.end(grace)
        self.sandbox.save()

    def crash(self) -> None:
        """Process loss: SIGKILL to the server alone. Its home stays, and so does a command it had started."""
        self.child.kill()
        self.sandbox.save()

    def alive(self) -> bool:
        return self.child.alive()

    def call(
        self, method: str, path: str, body: object = None, *, key: str | None = None, timeout: float = 30.0
    ) -> tuple[int, Any]:
        """One request with this server's key, or another one."""
        return http(method, self.url + path, key=self.key if key is None else key, body=body, timeout=timeout)

    def tick(self, timeout: float = 120.0) -> str:
        """One look of the scheduler at its jobs, as `hermes cron tick` does it; returns what it said."""
        environment = bare_environment(self.base) | {"HERMES_HOME": str(self.home)}
        command = [str(self.sandbox.hermes_python), "-m", "hermes_cli.main", "cron", "tick"]
        done = subprocess.run(
            command,
            env=environment,
            cwd=self.base,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.stdout + done.stderr


def bare_environment(home: Path) -> dict[str, str]:
    """What a child may know of ours: nothing that configures Hermes, and no key of anybody."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **kept,
        "HOME": str(home),
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
    }


class Sandbox:
    """One scripted model and `servers` real Hermes servers, as a context manager.

    With a directory, homes, ports and keys last: the next start finds the same addresses where the ports are
    still free. Without one, everything is temporary and gone afterwards. Other keywords: see Settings.
    """

    def __init__(
        self,
        servers: int = 1,
        directory: str | Path | None = None,
        *,
        hermes_python: str | Path | None = None,
        die_with_us: bool = True,
        **settings: Any,
    ) -> None:
        self.hermes_python = hermes_python_at(hermes_python)
        self.settings = Settings(**settings)
        self.temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="hermes-sandbox-")).resolve()
        self.scratch = self.directory / "scratch"
        self.die_with_us = die_with_us
        self.count = servers
        self.servers: list[Server] = []
        self.model: Child | None = None
        self.model_url = ""

    # ---------------------------------------------------------------------------------- life

    def start(self) -> Self:
        """Start everything side by side and wait until all of it is healthy. Raises SandboxError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        saved = read_state(self.directory)
        if running := [name for name, known in members(saved) if known.alive()]:
            raise SandboxError(
                f"A sandbox runs in {self.directory} already ({', '.join(running)}). Stop it first."
            )
        try:
            self.restock()
            self.launch(saved)
            for child in self.children():
                child.await_health()
            self.save()
            if self.settings.warm:
                self.warm_up()
        except BaseException:
            self.stop(grace=1.0)
            raise
        return self

    def launch(self, saved: dict[str, Any]) -> None:
        before = saved.get("servers", [])
        port = port_of(saved.get("model", {}).get("port"))
        self.model_url = f"http://{LOOPBACK}:{port}"
        self.model = Child("model", self.directory, f"{self.model_url}/healthz", die_with_us=self.die_with_us)
        command = [
            sys.executable,
            str(HERE / "model.py"),
            "--port",
            str(port),
            "--scratch",
            str(self.scratch),
        ]
        command += ["--pace", str(self.settings.pace)]
        self.model.launch(command, env=bare_environment(self.directory), cwd=self.directory)
        for index in range(self.count):
            old = before[index] if index < len(before) else {}
            key = old.get("key") or secrets.token_hex(24)
            server = Server(self, index, port=port_of(old.get("port")), key=key)
            self.servers.append(server)
            server.configure()
            server.launch()

    def warm_up(self) -> None:
        """Play one harmless run on each server, so that the next one starts in milliseconds."""
        for server in self.servers:
            run_id = server.call("POST", "/v1/runs", {"input": "say: ready"})[1]["run_id"]
            limit = time.monotonic() + BOOT_LIMIT
            while server.call("GET", f"/v1/runs/{run_id}")[1].get("status") != "completed":
                if time.monotonic() > limit:
                    raise SandboxError(f"{server.child.name} does not finish a run; its log is {server.log}.")
                time.sleep(0.05)

    def stop(self, grace: float = 5.0) -> None:
        """End every process of the sandbox; remove the directory if it was a temporary one."""
        end_all([child.known for child in self.children() if child.known], grace)
        for child in self.children():
            child.collect()
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.save()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def children(self) -> list[Child]:
        return [child for child in (self.model, *(server.child for server in self.servers)) if child]

    # ---------------------------------------------------------------------------------- model

    def release(self, gate: str) -> None:
        """Open a gate of the model's script for good."""
        http("POST", f"{self.model_url}/control/gates/{urllib.parse.quote(gate, safe='')}")

    def requests(self) -> list[dict[str, Any]]:
        """What was asked of the model, oldest first."""
        found: list[dict[str, Any]] = http("GET", f"{self.model_url}/control/requests")[1]["requests"]
        return found

    def reset_model(self) -> None:
        """Forget what was asked and close all gates; whoever waits at one goes on."""
        http("POST", f"{self.model_url}/control/reset")

    def restock(self) -> None:
        """Put (back) the files that the stories of the model talk about."""
        report = self.scratch / "reports/2026"
        for folder in (report / "build", self.scratch / "logs", self.scratch / "uploads"):
            folder.mkdir(parents=True, exist_ok=True)
        for quarter, rows in enumerate((460, 461, 460, 461), start=1):
            lines = (f"{quarter},{row},{row * 7 % 1000}\n" for row in range(rows))
            (report / f"quarter{quarter}.csv").write_text("".join(lines))
        (report / "build/report.html").write_text(
            "<h1>Yearly report, built before the last correction</h1>\n"
        )
        for day in range(1, 6):
            (self.scratch / f"logs/2026-11-{day:02}.log").write_text("nothing happened\n" * 40)

    # ---------------------------------------------------------------------------------- state

    def save(self) -> None:
        """Write down what runs, for `status` and `stop` of another process. Holds the keys: owner only."""
        if self.temporary or not self.model:
            return
        state = {
            "directory": str(self.directory),
            "hermes_python": str(self.hermes_python),
            "settings": asdict(self.settings),
            "scratch": str(self.scratch),
            "model": {
                "url": self.model_url,
                "port": int(self.model_url.rsplit(":", 1)[1]),
                **entry(self.model),
            },
            "servers": [
                {"url": s.url, "port": s.port, "key": s.key, "home": str(s.home), **entry(s.child)}
                for s in self.servers
            ],
        }
        path = self.directory / STATE_NAME
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(state, indent=2))
        fresh.replace(path)


def entry(child: Child) -> dict[str, Any]:
    known = child.known or Known(0, "")
    return {"log": str(child.log), "pid": known.pid, "birth": known.birth}


def read_state(directory: str | Path) -> dict[str, Any]:
    """What the last sandbox in this directory wrote down; empty when there was none."""
    with contextlib.suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((Path(directory) / STATE_NAME).read_text())
        return state
    return {}


def members(state: dict[str, Any]) -> list[tuple[str, Known]]:
    """Every process that a state names."""
    entries = [
        *((f"hermes-{at}", one) for at, one in enumerate(state.get("servers", []))),
        ("model", state.get("model")),
    ]
    return [(name, Known(one["pid"], one["birth"])) for name, one in entries if one and one["pid"]]


def stop_recorded(directory: str | Path, grace: float = 10.0) -> list[str]:
    """End the processes that a state file names, if they are still themselves; returns their names."""
    running = [(name, known) for name, known in members(read_state(directory)) if known.alive()]
    end_all([known for _, known in running], grace)
    return [name for name, _ in running]


# ---------------------------------------------------------------------------------------- command line


def describe(directory: str) -> dict[str, Any]:
    """The state file with a look at each process."""
    state = read_state(directory)
    for one in (state.get("model"), *state.get("servers", [])):
        if one:
            one["alive"] = Known(one["pid"], one["birth"]).alive()
    return state


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hermes_portal.sandbox", description=__doc__.splitlines()[0]
    )
    parser.add_argument("action", choices=["start", "status", "stop"])
    parser.add_argument("--dir", required=True, help="homes, logs, ports and keys; kept between starts")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--hermes-python", help="the Python that Hermes is installed in")
    parser.add_argument(
        "--approval-timeout", type=float, default=60.0, help="seconds that Hermes waits for an answer"
    )
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between two words of the model")
    parser.add_argument("--settings", type=json.loads, default={}, help="more of them, as JSON")
    options = parser.parse_args(arguments)
    try:
        if options.action == "start":
            settings = {
                "approval_timeout": options.approval_timeout,
                "pace": options.pace,
                **options.settings,
            }
            Sandbox(
                options.servers,
                options.dir,
                hermes_python=options.hermes_python,
                die_with_us=False,  # this command ends, the sandbox stays
                **settings,
            ).start()
        elif options.action == "stop":
            print("Ended: " + (", ".join(stop_recorded(options.dir)) or "nothing was running"))
            return 0
    except (SandboxError, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    state = describe(options.dir)
    print(json.dumps(state, indent=2) if state else f"No sandbox was started in {options.dir}.")
    return 0
