"""Child processes: started so that they die with us, and ended only while they are still themselves.

Linux only. Standard library only: the supervisor, the sandbox and the tests' throw-away servers share it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# Asks the kernel for SIGKILL when the parent goes (PR_SET_PDEATHSIG = 1), looks whether it went before that,
# and becomes the command. A small program of its own, because code between fork and exec of a threaded parent
# may deadlock. The request belongs to the *thread* that forked: start children from a thread that stays.
BOND = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
LOOK_EVERY = 0.05  # seconds between two looks at a process that is to end
LAST_LOOK = 5.0  # seconds that the kernel gets to carry out a SIGKILL


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name (state first); none when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rsplit(")", 1)[1].split()


def birth_of(pid: int) -> str:
    """What tells a process from a later one of the same number: boot and kernel start tick ("" when gone)."""
    fields = stat_of(pid)
    if not fields or fields[0] in "ZX":  # a zombie waits to be collected and does nothing any more
        return ""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()[:8]}-{fields[19]}"


@dataclass(frozen=True)
class Known:
    """One process: its number and its birth, as written to state files."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> Known:
        return cls(pid, birth_of(pid))

    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return bool(self.birth) and birth_of(self.pid) == self.birth

    def send(self, number: int) -> bool:
        """Signal this process if it is still itself; False when it is gone."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def wait(self, seconds: float) -> bool:
        """Wait until it is gone (or waits to be collected by its parent); False when it outlives the wait."""
        limit = time.monotonic() + seconds
        while True:
            if not self.alive():
                return True
            if time.monotonic() >= limit:
                return False
            time.sleep(LOOK_EVERY)

    def end(self, grace: float = 10.0, number: int = signal.SIGTERM) -> None:
        """Ask it to end; after `grace` seconds insist."""
        if self.send(number) and not self.wait(grace):
            self.send(signal.SIGKILL)
            self.wait(LAST_LOOK)


def descendants(pid: int) -> list[Known]:
    """Every process below this one, as far as the kernel still knows whose child it is."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_of(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [known for known in map(Known.of, found) if known.birth]


def end_all(processes: Sequence[Known], grace: float) -> None:
    """End these side by side within `grace` seconds, then whatever they had started and left behind."""
    below = [child for process in processes for child in descendants(process.pid)]
    limit = time.monotonic() + grace
    for process in processes:
        process.send(signal.SIGTERM)
    for process in processes:
        if not process.wait(max(0.0, limit - time.monotonic())):
            process.send(signal.SIGKILL)
            process.wait(LAST_LOOK)
    for child in below:
        child.send(signal.SIGKILL)
    for child in below:
        child.wait(LAST_LOOK)


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    output: int | IO[Any] | None = None,
    die_with_us: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own (a Ctrl-C of the terminal reaches only us, who forward it).

    `output` takes both its streams. With `die_with_us` the kernel kills it when the calling thread ends in
    whatever way, SIGKILL of the whole process included.
    """
    bond = [sys.executable, "-I", "-S", "-c", BOND, str(os.getpid())] if die_with_us else []
    return subprocess.Popen(
        [*bond, *command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
    )
