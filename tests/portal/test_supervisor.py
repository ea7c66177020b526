"""The supervisor, with small programs as children: restarts, signals, and no one left behind."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hermes_portal.processes import Known
from hermes_portal.supervisor import Patience, Place, Service, ending

pytestmark = pytest.mark.once

PROJECT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 20.0  # seconds

# The supervisor needs a main thread of its own, so it runs as a program: services as JSON, patience as JSON.
PROGRAM = """
import json, sys
from pathlib import Path
from hermes_portal.supervisor import Patience, Service, Supervisor
services = [Service(name, (sys.executable, "-c", code)) for name, code in json.loads(sys.argv[1]).items()]
sys.exit(Supervisor(services, cwd=Path.cwd(), patience=Patience(**json.loads(sys.argv[2]))).run())
"""
OBEDIENT = """
import signal, sys, time
def leave(*_):
    print("bye", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
BRIEF = "print('once', flush=True)"
# A parent whose child would outlive it, as a web server's workers do.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
time.sleep(60)
"""


class Watched:
    """A running supervisor whose output is read line by line."""

    def __init__(self, services, **patience):
        command = [sys.executable, "-c", PROGRAM, json.dumps(services), json.dumps(patience)]
        self.process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.output = self.process.stdout
        self.lines: list[str] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.output.close()

    def until(self, *words):
        """The next line that holds all the words."""
        for line in self.output:
            self.lines.append(line.rstrip("\n"))
            if all(word in line for word in words):
                return self.lines[-1]
        raise AssertionError(f"no line with {words}; there were:\n" + "\n".join(self.lines))

    def pid_of(self, name):
        return Known.of(int(self.until(f"{name} started, pid").rsplit(" ", 1)[1]))

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def test_each_line_stands_behind_the_name_of_its_service():
    with Watched({"web": OBEDIENT}) as supervisor:
        assert supervisor.until("up") == "web        up"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_children_in_order(number):
    with Watched({"web": OBEDIENT, "beat": OBEDIENT}) as supervisor:
        children = [supervisor.pid_of("web"), supervisor.pid_of("beat")]
        supervisor.until("up")
        supervisor.until("up")
        assert supervisor.end(number) == 0
        rest = supervisor.output.read()
        assert rest.count("bye") == 2
        assert "starts again" not in rest
        assert not any(child.alive() for child in children)


def test_a_second_signal_kills_who_does_not_listen():
    with Watched({"web": STUBBORN}, grace=60) as supervisor:
        child = supervisor.pid_of("web")
        supervisor.until("up")
        supervisor.process.send_signal(signal.SIGINT)
        supervisor.until("a second signal")
        assert supervisor.end(signal.SIGINT) == 1
        assert not child.alive()


def test_who_outlives_the_grace_is_killed():
    with Watched({"web": STUBBORN}, grace=0.2) as supervisor:
        child = supervisor.pid_of("web")
        supervisor.until("up")
        assert supervisor.end() == 1
        assert not child.alive()


def test_a_child_that_ends_starts_again_later_each_time():
    with Watched({"beat": BRIEF}, first_delay=0.05, longest_delay=0.2) as supervisor:
        waits = [supervisor.until("starts again in").rsplit(" in ", 1)[1] for _ in range(5)]
    assert waits == ["0.1 s", "0.1 s", "0.2 s", "0.2 s", "0.2 s"]


def test_a_killed_child_starts_again_and_the_others_never_notice():
    with Watched({"web": OBEDIENT, "beat": OBEDIENT}, first_delay=0.05) as supervisor:
        web, beat = supervisor.pid_of("web"), supervisor.pid_of("beat")
        supervisor.until("up")
        supervisor.until("up")
        web.send(signal.SIGKILL)
        supervisor.until("web was ended by SIGKILL")
        assert supervisor.pid_of("web") != web
        assert beat.alive()


def test_what_an_ended_child_leaves_behind_is_killed_before_it_starts_again():
    with Watched({"web": FAMILY}, first_delay=0.05) as supervisor:
        web = supervisor.pid_of("web")
        orphan = Known.of(int(supervisor.until("child").rsplit(" ", 1)[1]))
        assert orphan.alive()
        web.send(signal.SIGKILL)
        supervisor.pid_of("web")
        assert orphan.wait(PATIENCE)


def test_children_die_with_a_supervisor_that_is_killed():
    with Watched({"web": STUBBORN, "beat": OBEDIENT}) as supervisor:
        children = [supervisor.pid_of("web"), supervisor.pid_of("beat")]
        supervisor.until("up")
        supervisor.until("up")
        supervisor.process.kill()
        assert all(child.wait(PATIENCE) for child in children)


def test_a_line_without_an_end_and_bytes_that_are_no_text_are_printed_too():
    code = "import sys; sys.stdout.buffer.write(b'caf\\xe9 and no end'); sys.stdout.flush()"
    with Watched({"web": code}) as supervisor:
        assert supervisor.until("and no end") == "web        caf\ufffd and no end"


def test_a_reader_that_went_away_does_not_end_the_service(tmp_path):
    marker = tmp_path / "alive"
    code = textwrap.dedent(f"""
        import pathlib, time
        while True:
            pathlib.Path({str(marker)!r}).write_text(str(time.time()))
            print("noise", flush=True)
            time.sleep(0.05)
    """)
    with Watched({"web": code}) as supervisor:
        supervisor.until("noise")
        supervisor.output.close()
        closed = time.time()
        limit = time.monotonic() + PATIENCE
        while float(marker.read_text() or 0) < closed + 0.3:
            assert time.monotonic() < limit
            time.sleep(0.05)
        assert supervisor.process.poll() is None


def test_the_wait_doubles_up_to_its_limit_and_a_steady_life_forgets_it():
    patience = Patience(first_delay=1, longest_delay=10)
    assert [patience.delay(failures) for failures in (1, 2, 3, 4, 5, 500)] == [1, 2, 4, 8, 10, 10]
    assert Place(Service("web", ("true",))).failures == 0


def test_an_end_is_told_in_words():
    assert ending(3) == "ended with code 3"
    assert ending(-9) == "was ended by SIGKILL"
    assert ending(-99) == "was ended by signal 99"
