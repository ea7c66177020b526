"""make bench: python -m tests.bench [--short] [--repetitions N].

Two lines for the embedded default and two for PostgreSQL and Redis (throw-away servers; left out where their
packages are missing). Each is the median of a distance divided by the median of a reference that was measured in
the same run, between the repetitions, on the same database, broker and worker. Seconds are not printed: they belong
to a machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.run import embedded, environment_for, scaled
from tests.services import ServiceMissing

PROJECT = Path(__file__).resolve().parent.parent.parent
REPETITIONS = 25
SHORT = 3
Servers = Callable[[], AbstractContextManager[dict[str, str]]]


@dataclass(frozen=True)
class Line:
    """A distance and what it is compared with; both are names of series."""

    distance: str
    series: str
    reference: str
    against: str


LINES = (
    Line("event at Hermes to card committed", "card", "one plain INSERT and its commit", "insert"),
    Line("click to request at the provider", "click", "an empty Celery task, there and back", "task"),
)
STACKS: tuple[tuple[str, Servers], ...] = (
    ("embedded: SQLite, broker of files", embedded),
    ("PostgreSQL (fsync off) and Redis", scaled),
)


def series_of(servers: Mapping[str, str], count: int) -> dict[str, list[float]]:
    """Measures one stack in a process of its own. Raises RuntimeError with what it said."""
    with data_directory() as folder:
        environment = environment_for(dict(servers), folder) | {
            "DJANGO_SETTINGS_MODULE": "tests.bench.settings"
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.measuring", str(count)],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            check=False,
            text=True,
        )
        if done.returncode:
            output = folder / "output"
            said = output.read_text(errors="replace")[-3000:] if output.exists() else ""
            raise RuntimeError(f"The measurement failed. The portal said:\n{said}")
        found: dict[str, list[float]] = json.loads(done.stdout)
        return found


@contextmanager
def data_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="portal-bench-") as folder:
        yield Path(folder)


def ratio(found: Mapping[str, Sequence[float]], line: Line) -> tuple[float, float, float]:
    """The median of the distance, and its quartiles, in medians of the reference."""
    unit = statistics.median(found[line.against])
    low, middle, high = statistics.quantiles(found[line.series], n=4, method="inclusive")
    return middle / unit, low / unit, high / unit


def table(name: str, found: Mapping[str, Sequence[float]], count: int) -> Iterator[str]:
    yield f"{name}: {count} repetitions"
    yield f"  {'distance':36} {'median':>8}  {'quartiles':>15}  times the median of"
    for line in LINES:
        middle, low, high = ratio(found, line)
        spread = f"{low:.1f} to {high:.1f}"
        yield f"  {line.distance:36} {middle:7.1f}x  {spread:>15}  {line.reference}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Ratios within one run.")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, metavar="N")
    parser.add_argument(
        "--short", action="store_true", help=f"the embedded default only, {SHORT} repetitions"
    )
    options = parser.parse_args(arguments)
    count = SHORT if options.short else max(2, options.repetitions)
    say(f"Ratios within one run on this machine ({os.cpu_count()} cores).")
    for name, servers in STACKS[: 1 if options.short else None]:
        try:
            with servers() as given:
                found = series_of(given, count)
        except ServiceMissing as missing:
            say(f"{name}: left out. {missing}")
            continue
        say("\n" + "\n".join(table(name, found, count)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
