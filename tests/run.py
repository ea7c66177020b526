"""Runs every suite: `make test`, python tests/run.py [--coverage] [SUITE ...] [-- PYTEST ARGUMENTS].

Each suite is pytest with other servers behind it, given by environment variables as in any deployment. The
exit code is not 0 if any test failed, or a suite was empty, or a test was skipped without an excuse in
ALLOWED_SKIPS.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tests.services import chromium_path, postgres, redis  # noqa: E402 - needs the path above

NOTHING_COLLECTED = 5  # pytest's exit code
COVERAGE = "--coverage"  # shows branch coverage; tracing makes the tests a third slower
BUDGET = 20 * 60  # seconds for all suites together
# "classname::name" as pytest writes it in JUnit files -> why it may be skipped. Empty on purpose.
ALLOWED_SKIPS: dict[str, str] = {}
# Nothing of the caller's own deployment may leak into a test.
FOREIGN = ("DATABASE_URL", "CELERY_BROKER_URL", "REDIS_URL", "PORTAL_", "SECRET_KEY", "DJANGO_")


@contextlib.contextmanager
def embedded() -> Iterator[dict[str, str]]:
    """SQLite and a broker made of files, all in PORTAL_DATA_DIR: the default."""
    yield {}


@contextlib.contextmanager
def scaled() -> Iterator[dict[str, str]]:
    """PostgreSQL and Redis, started for this suite alone."""
    with postgres() as database, redis() as queue:
        yield {"DATABASE_URL": database.url, "CELERY_BROKER_URL": queue.broker, "REDIS_URL": queue.url}


class Suite(NamedTuple):
    """A name, which tests, and the servers behind them."""

    name: str
    select: str
    servers: Callable[[], contextlib.AbstractContextManager[dict[str, str]]]


SUITES = (
    Suite("sqlite", "not browser and not postgresql and not redis and not once", embedded),
    Suite("postgresql", "not browser and not sqlite and not once", scaled),
    Suite("once", "once and not browser", embedded),
    Suite("browser", "browser and not postgresql and not redis", embedded),
    Suite("walk", "walk", scaled),
)
# Suites that share nothing run beside each other, one core each.
TOGETHER = (("sqlite", "postgresql"), ("once", "browser"), ("walk",))


@dataclass(frozen=True)
class Outcome:
    """What one suite came to."""

    name: str
    seconds: float
    code: int
    skipped: tuple[str, ...]

    @property
    def sentence(self) -> str:
        if self.code == NOTHING_COLLECTED:
            return "selected no test"
        if self.code:
            return "failed"
        if self.skipped:
            return f"skipped without an excuse: {', '.join(self.skipped)}"
        return "passed"


def skips_in(report: Path) -> tuple[str, ...]:
    """The tests that were skipped or expected to fail, without those that ALLOWED_SKIPS excuses."""
    if not report.exists():
        return ()
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 - written by our own pytest
    names = (
        f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("skipped") is not None
    )
    return tuple(name for name in names if name not in ALLOWED_SKIPS)


def environment_for(servers: dict[str, str], data: Path) -> dict[str, str]:
    """The caller's environment without its own deployment, plus the suite's servers and a data directory."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) or name.startswith("PORTAL_TEST_")
    }
    return kept | servers | {"PORTAL_DATA_DIR": str(data)}


def run(suite: Suite, arguments: list[str], output: IO[bytes] | None = None) -> Outcome:
    """One suite with its servers; what it prints goes to `output`, if that is given."""
    began = time.monotonic()
    with suite.servers() as servers, tempfile.TemporaryDirectory(prefix="portal-test-") as folder:
        report = Path(folder) / "report.xml"
        environment = environment_for(servers, Path(folder) / "data")
        environment["COVERAGE_FILE"] = str(PROJECT / f".coverage.{suite.name}")
        if "browser" in suite.select or "walk" in suite.select:
            environment.setdefault("PORTAL_TEST_CHROMIUM", chromium_path())
        command = [sys.executable, "-X", "dev", "-m", "pytest", "-m", suite.select, f"--junitxml={report}"]
        command += ["-p", "no:cacheprovider"]
        if (
            suite.servers is embedded
        ):  # tracing costs a third; the same lines on other servers show nothing new
            command += ["--cov", "--cov-report="]
        command += arguments
        done = subprocess.run(
            command, cwd=PROJECT, env=environment, check=False, stdout=output, stderr=output
        )
        return Outcome(suite.name, time.monotonic() - began, done.returncode, skips_in(report))


def run_together(suites: Sequence[Suite], arguments: list[str]) -> list[Outcome]:
    """Suites side by side, one core each; with more than one, each prints when it has ended."""
    for suite in suites:
        print(f"=== {suite.name}: -m '{suite.select}'", flush=True)
    if len(suites) == 1:
        return [run(suites[0], arguments)]
    with contextlib.ExitStack() as files, ThreadPoolExecutor(len(suites)) as threads:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in suites]
        running = {
            threads.submit(run, suite, arguments, output): output
            for suite, output in zip(suites, outputs, strict=True)
        }
        for future in as_completed(running):
            output = running[future]
            output.seek(0)
            print(f"\n=== {future.result().name}\n{output.read().decode(errors='replace')}", flush=True)
        return [future.result() for future in running]


def report_on(outcomes: list[Outcome], total: float) -> int:
    """Print what each suite took and came to; returns the exit code."""
    print()
    for outcome in outcomes:
        print(line(outcome.name, outcome.seconds), outcome.sentence)
    print(line("together", total))
    return int(any(outcome.sentence != "passed" for outcome in outcomes))


def line(name: str, seconds: float) -> str:
    return f"{name:12} {seconds:7.1f} s {seconds / BUDGET:5.0%} of {BUDGET // 60} min "


def main(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, rest = [name for name in arguments[:cut] if name != COVERAGE], arguments[cut + 1 :]
    covered = COVERAGE in arguments[:cut]
    known = {suite.name for suite in SUITES}
    if unknown := [name for name in names if name not in known]:
        print(
            f"No suite is called {', '.join(unknown)}. There are: {', '.join(sorted(known))}.",
            file=sys.stderr,
        )
        return 2
    for old in PROJECT.glob(".coverage*"):
        old.unlink()
    began = time.monotonic()
    outcomes = []
    for group in TOGETHER:
        chosen = [suite for suite in SUITES if suite.name in group and (not names or suite.name in names)]
        if chosen:
            outcomes += run_together(chosen, [*rest, COVERAGE] if covered else rest)
    if covered:
        for words in (["combine", "--quiet"], ["report"]):
            subprocess.run([sys.executable, "-m", "coverage", *words], cwd=PROJECT, check=False)
    return report_on(outcomes, time.monotonic() - began)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
