"""The embedded broker: kombu's directory of files, with messages that appear whole or not at all.

kombu creates a message under its final name and writes it afterwards, so that a worker can take it while it is empty,
lose it and end. Here it is written beside and renamed. The table of an exchange has the same weakness and is
rewritten in place by several processes, so an unfinished one is read again.
"""

import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import filesystem
from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import dumps

TRIES, PAUSE_SECONDS = 50, 0.02


class Channel(filesystem.Channel):
    """Only what writes and what reads a table differ from kombu's."""

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:  # type: ignore[override]  # the stubs disagree
        folder = Path(self.data_folder_out)
        name = f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}"
        unfinished = folder / f"{name}.part"
        unfinished.write_bytes(str_to_bytes(dumps(message)))
        unfinished.rename(folder / f"{name}.msg")

    def get_table(self, exchange: str) -> Any:
        return _once_written(lambda: super(Channel, self).get_table(exchange))

    def _queue_bind(self, exchange: Any, routing_key: Any, pattern: Any, queue: Any) -> None:
        _once_written(lambda: super(Channel, self)._queue_bind(exchange, routing_key, pattern, queue))


def _once_written(read: Any) -> Any:
    """Reads again while another process is still writing; half a table is not JSON."""
    for _ in range(TRIES):
        try:
            return read()
        except ValueError:
            time.sleep(PAUSE_SECONDS)
    return read()


class Transport(filesystem.Transport):
    Channel = Channel
