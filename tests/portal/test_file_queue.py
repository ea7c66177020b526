"""The embedded broker: a message is there whole or not at all."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from hermes_portal import file_queue

pytestmark = pytest.mark.once


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    folder = str(tmp_path / "queue")
    Path(folder).mkdir()
    file_queue.Transport.global_state.clear()  # what kombu remembers of the directory of the test before
    options = {
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": str(tmp_path / "control"),
    }
    with Connection(
        "filesystem://localhost//", transport=file_queue.Transport, transport_options=options
    ) as made:
        yield made


def test_a_message_goes_there_and_comes_back(connection: Any) -> None:
    with connection.SimpleQueue("execute") as queue:
        queue.put({"id": 1})
        taken = queue.get(timeout=5)
        assert taken.payload == {"id": 1}
        taken.ack()


def test_no_name_that_a_worker_looks_for_is_ever_unfinished(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    rename = Path.rename

    def watched(path: Path, target: Path) -> Path:
        seen.append(sorted(file.suffix for file in path.parent.iterdir()))
        json.loads(path.read_bytes())
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    with connection.SimpleQueue("execute") as queue:
        queue.put({"id": 1})
    assert seen == [[".part"]]
    assert [file.suffix for file in (tmp_path / "queue").iterdir()] == [".msg"]


def test_a_table_that_is_being_written_is_read_again(connection: Any, tmp_path: Path) -> None:
    channel = connection.channel()
    exchange = Exchange("shared", type="fanout")
    Queue("one", exchange)(channel).declare()
    table = tmp_path / "control/shared.exchange"
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) // 2])
    threading.Timer(0.1, table.write_bytes, [whole]).start()
    assert [row.queue for row in channel.get_table("shared")] == ["one"]


def test_a_table_that_stays_broken_is_an_error(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_queue, "PAUSE_SECONDS", 0)
    channel = connection.channel()
    (tmp_path / "control").mkdir(exist_ok=True)
    (tmp_path / "control/shared.exchange").write_bytes(b"[")
    with pytest.raises(ValueError, match="Expecting"):
        channel.get_table("shared")
