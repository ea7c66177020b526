"""Starts the real Hermes gateway with a few timers shortened; runs under Hermes' own Python, not under ours.

Without any SANDBOX_ variable this is exactly `hermes gateway run`. The timers are intervals that Hermes
0.19.0 does not let one configure; nothing that handles a request is replaced.

    SANDBOX_TICK_SECONDS     between two looks of the scheduler at its jobs    (as shipped: 60)
    SANDBOX_SWEEP_SECONDS    between two sweeps of the table of runs           (as shipped: 60)
    SANDBOX_STREAM_SECONDS   age at which an unread event stream is forgotten  (as shipped: 300)
    SANDBOX_STATUS_SECONDS   age at which a settled run's status is forgotten  (as shipped: 3600)

NOT AS SHIPPED, and only for tests of what several open requests would need:

    SANDBOX_SIDE_BY_SIDE=1   the terminal calls of one turn run side by side: several approvals wait at once
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any


def seconds(name: str) -> float | None:
    """The variable's value in seconds, or None when it is not set."""
    text = os.environ.get(name, "")
    return float(text) if text else None


def shorten_scheduler(interval: float) -> None:
    """Have the in-process scheduler look at its jobs every `interval` seconds."""
    from cron.scheduler_provider import InProcessCronScheduler

    shipped = InProcessCronScheduler.start

    def start(self: Any, stop_event: Any, **options: Any) -> Any:
        return shipped(self, stop_event, **{"interval": interval, **options})

    InProcessCronScheduler.start = start


def shorten_retention(sweep: float | None, stream: float | None, status: float | None) -> None:
    """Forget streams and statuses sooner."""
    from gateway.platforms.api_server import APIServerAdapter

    if stream is not None:
        APIServerAdapter._RUN_STREAM_TTL = stream
    if status is not None:
        APIServerAdapter._RUN_STATUS_TTL = status
    if sweep is not None:

        async def sweep_runs(self: Any) -> None:
            while True:
                await asyncio.sleep(sweep)
                self._sweep_orphaned_runs_once(time.time())

        APIServerAdapter._sweep_orphaned_runs = sweep_runs


def run_terminals_side_by_side() -> None:
    """Not as shipped: count the terminal among the tools that may run side by side."""
    from agent import tool_dispatch_helpers

    tool_dispatch_helpers._PARALLEL_SAFE_TOOLS |= {"terminal"}


def main() -> Any:
    tick = seconds("SANDBOX_TICK_SECONDS")
    if tick is not None:
        shorten_scheduler(tick)
    sweep, stream, status = (seconds(f"SANDBOX_{name}_SECONDS") for name in ("SWEEP", "STREAM", "STATUS"))
    if (sweep, stream, status) != (None, None, None):
        shorten_retention(sweep, stream, status)
    if os.environ.get("SANDBOX_SIDE_BY_SIDE") == "1":
        run_terminals_side_by_side()
    from hermes_cli.main import main as hermes

    sys.argv = ["hermes", "gateway", "run"]
    return hermes()


if __name__ == "__main__":
    sys.exit(main())
