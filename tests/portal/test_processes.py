"""Processes are told from later ones of the same number, and end with everything they started."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from hermes_portal.processes import Known, birth_of, descendants, end_all, spawn

pytestmark = pytest.mark.once

PATIENCE = 20.0  # seconds
NOBODY = 2**22 + 1  # above the kernel's highest process number
FAMILY = "import subprocess, sys; subprocess.run(['sleep', '60'])"


@pytest.fixture
def sleeper():
    with spawn(["sleep", "60"]) as process:
        yield process
        process.kill()


def with_child(process):
    """The processes below this one, once there is one."""
    limit = threading.Event()
    for _ in range(200):
        if found := descendants(process.pid):
            return found
        limit.wait(0.05)
    raise AssertionError("it started nothing")


def test_a_running_process_is_alive_and_a_killed_one_is_not(sleeper):
    known = Known.of(sleeper.pid)
    assert known.alive()
    sleeper.kill()
    sleeper.wait()
    assert not known.alive()


def test_a_zombie_counts_as_gone(sleeper):
    known = Known.of(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    assert known.wait(PATIENCE)
    assert sleeper.returncode is None  # nobody collected it


def test_another_process_of_the_same_number_is_never_signalled(sleeper):
    stranger = Known(sleeper.pid, "some-earlier-birth")
    assert not stranger.alive()
    assert not stranger.send(signal.SIGKILL)
    stranger.end()
    assert sleeper.poll() is None


def test_a_process_that_never_was_has_no_birth_and_is_not_alive():
    assert birth_of(NOBODY) == ""
    assert not Known.of(NOBODY).alive()


def test_who_ignores_the_request_is_killed_after_the_grace():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with spawn([sys.executable, "-c", code], output=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        Known.of(process.pid).end(grace=0.1)
        assert process.wait() == -signal.SIGKILL


def test_ending_takes_along_what_was_started_below():
    with spawn([sys.executable, "-c", FAMILY]) as process:
        below = with_child(process)
        end_all([Known.of(process.pid)], grace=5)
        process.wait()
    assert not any(child.alive() for child in below)


def test_a_child_leads_a_session_of_its_own(sleeper):
    assert os.getsid(sleeper.pid) == sleeper.pid


def test_a_child_of_a_parent_that_was_gone_before_it_looked_never_starts():
    """The bond asks the kernel first and looks second: here it looks for a parent that is not there."""
    from hermes_portal.processes import BOND

    command = [sys.executable, "-I", "-S", "-c", BOND, str(NOBODY), "echo", "started"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
