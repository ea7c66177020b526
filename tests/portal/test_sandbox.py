"""The sandbox boots a real Hermes, stops at dangerous commands, and ends without a trace."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_portal.processes import Known
from hermes_portal.sandbox import Sandbox, SandboxError
from hermes_portal.sandbox.sandbox import main, members, read_state

pytestmark = [pytest.mark.once, pytest.mark.hermes]

PATIENCE = 30.0  # seconds


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(approval_timeout=60) as running:
        yield running


@pytest.fixture
def server(sandbox):
    return sandbox.servers[0]


def start(server, prompt):
    status, receipt = server.call("POST", "/v1/runs", {"input": prompt})
    assert status == 202
    return receipt["run_id"]


def until(server, run_id, *states):
    """The run's status once it is one of these states."""
    limit = time.monotonic() + PATIENCE
    while (found := server.call("GET", f"/v1/runs/{run_id}")[1])["status"] not in states:
        assert time.monotonic() < limit, found
        time.sleep(0.05)
    return found


def answer(server, run_id, choice, **more):
    return server.call("POST", f"/v1/runs/{run_id}/approval", {"choice": choice, **more})


def test_a_plain_run_completes(server):
    assert until(server, start(server, "say: hello"), "completed")["output"] == "hello"


def test_a_dangerous_command_waits_and_runs_after_a_yes(sandbox, server):
    target = sandbox.scratch / "doomed"
    target.mkdir()
    run_id = start(server, "run: rm -rf {scratch}/doomed\nallowed: gone\nrefused: kept")
    until(server, run_id, "waiting_for_approval")
    assert target.exists()
    assert answer(server, run_id, "once")[1]["resolved"] == 1
    assert until(server, run_id, "completed")["output"] == "gone"
    assert not target.exists()


def test_a_refused_command_does_not_run_and_the_run_goes_on(sandbox, server):
    sandbox.restock()
    run_id = start(server, "Rebuild the yearly report")
    until(server, run_id, "waiting_for_approval")
    assert answer(server, run_id, "deny")[0] == 200
    assert "Nothing changed" in until(server, run_id, "completed")["output"]
    assert (sandbox.scratch / "reports/2026/build").exists()


def test_a_gate_holds_the_model_until_it_is_released(sandbox, server):
    run_id = start(server, "gate: test-gate\nsay: through")
    assert until(server, run_id, "running")["status"] == "running"
    sandbox.release("test-gate")
    assert until(server, run_id, "completed")["output"] == "through"


def test_a_scripted_failure_fails_the_run(server):
    assert until(server, start(server, "fail: 400"), "failed")["error"]


def test_the_model_tells_what_it_was_asked(sandbox, server):
    until(server, start(server, "say: a sentence to look for"), "completed")
    assert "say: a sentence to look for" in [request["prompt"] for request in sandbox.requests()]


def test_a_crash_loses_the_runs_and_a_start_finds_the_same_address(server):
    run_id = start(server, "gate: never\nsay: never")
    before = server.url
    server.crash()
    assert not server.alive()
    server.start()
    assert server.url == before
    assert server.call("GET", f"/v1/runs/{run_id}")[0] == 404


def test_a_wrong_key_is_refused(server):
    assert server.call("GET", "/v1/runs/run_" + "0" * 32, key="not-the-key-of-it")[0] == 401


def test_stopping_ends_the_commands_that_hermes_had_started():
    with Sandbox() as own:
        run_id = start(own.servers[0], "run: sleep 61.5\nsay: never")
        until(own.servers[0], run_id, "running")
        sleepers = wait_for_command("sleep 61.5")
        directory = own.directory
    assert not any(process.alive() for process in sleepers)
    assert not directory.exists()


def wait_for_command(text):
    """The processes whose command line ends with this text."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        found = [
            Known.of(int(path.parent.name))
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if command_of(path).endswith(text)
        ]
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing runs {text}")


def command_of(path):
    try:
        return path.read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def test_several_approvals_wait_at_once_only_when_asked_for():
    with Sandbox(side_by_side=True) as own:
        server = own.servers[0]
        names = ("one", "two", "three")
        run_id = start(server, "\n".join(f"also: rm -rf {{scratch}}/{name}" for name in names))
        until(server, run_id, "waiting_for_approval")
        time.sleep(0.5)  # the status says "waiting" from the first of them on
        assert answer(server, run_id, "once")[1]["resolved"] == 1
        assert answer(server, run_id, "deny", resolve_all=True)[1]["resolved"] == 2
        until(server, run_id, "completed")


def test_the_command_line_starts_reports_and_stops_a_sandbox_that_outlives_it(tmp_path, capsys):
    directory = str(tmp_path / "kept")
    command = [sys.executable, "-m", "hermes_portal.sandbox", "start", "--dir", directory]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        first = read_state(directory)
        assert all(known.alive() for _, known in members(first))
        assert (Path(directory) / "sandbox.json").stat().st_mode & 0o077 == 0
        with pytest.raises(SandboxError, match="already"):
            Sandbox(directory=directory).start()
    finally:
        assert main(["stop", "--dir", directory]) == 0
    assert "hermes-0" in capsys.readouterr().out
    assert not any(known.alive() for _, known in members(first))
    with Sandbox(directory=directory) as again:  # the same address and key, for whoever wrote them down
        assert (again.servers[0].url, again.servers[0].key) == (
            first["servers"][0]["url"],
            first["servers"][0]["key"],
        )


def test_a_sandbox_dies_with_the_process_that_started_it(tmp_path):
    code = (
        "import sys, time; from hermes_portal.sandbox import Sandbox\n"
        "Sandbox(directory=sys.argv[1]).start(); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == b"up\n"
        processes = [known for _, known in members(read_state(tmp_path))]
        assert len(processes) == 2
        owner.send_signal(signal.SIGKILL)
        assert all(process.wait(PATIENCE) for process in processes)


def test_a_missing_hermes_is_said_with_what_to_do():
    with pytest.raises(SandboxError, match="make environments"):
        Sandbox(hermes_python="/nowhere/python")
