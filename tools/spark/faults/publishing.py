"""What is published, numbered bodies by a publisher that never stops, and what of it arrived in files of a stream."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

from kit.daemons import Daemon
from kit.nsq_client import Client

BATCH = 50  # bodies of one MPUB
PADDING = b" " + b"x" * 100


class Publisher:
    """Publishes bodies `{number} xxx...` to each nsqd in turn, from a thread; `next` is the number behind the last.
    Those of `unsure` were not acknowledged, as the nsqd was killed, and are not published again.

    While `paused` is held nothing is on its way, and new connections are made afterwards.
    """

    def __init__(self, daemons: Sequence[Daemon], topic: str, pause: float = 0.05) -> None:
        self.next = 0
        self.unsure: set[int] = set()
        self.paused = threading.Lock()
        self._daemons = daemons
        self._topic = topic
        self._pause = pause
        self._clients: dict[int, Client] = {}
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def _run(self) -> None:
        try:
            turn = 0
            while not self._stopped.wait(self._pause):
                with self.paused:
                    self._publish(turn % len(self._daemons))
                turn += 1
        except BaseException as error:  # raised by stop(), in the thread that asks
            self._error = error

    def _publish(self, index: int) -> None:
        numbers = range(self.next, self.next + BATCH)
        try:
            client = self._clients.get(index)
            if client is None:
                client = self._clients[index] = Client(self._daemons[index].tcp_address)
                client.identify(heartbeat_interval=-1)
            self.next += BATCH
            client.publish(self._topic, *(b"%d" % number + PADDING for number in numbers))
        except ConnectionError:
            self.unsure.update(range(numbers.start, self.next))
            if client := self._clients.pop(index, None):
                client.sock.close()

    def disconnect(self) -> None:
        """For callers that hold `paused` and are about to restart daemons."""
        for client in self._clients.values():
            client.sock.close()
        self._clients.clear()

    def stop(self) -> None:
        """No more."""
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Publisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.disconnect()


class Tally(NamedTuple):
    """`published` bodies that were acknowledged or came, `rows` of the files, `ids` distinct (nsqd, topic, message_id)
    among them; `lost` and `duplicated` bodies."""

    published: int
    rows: int
    ids: int
    lost: int
    duplicated: int


def files(out: Path) -> list[Path]:
    """Returns the files that count: the ones in the log of the sink, or of the table. A killed job leaves others."""
    found = set()
    for commit in sorted((out / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text("utf-8").splitlines()):
            if "add" in action:
                found.add(out / unquote(action["add"]["path"]))
            if "remove" in action:
                found.discard(out / unquote(action["remove"]["path"]))
    log = out / "_spark_metadata"
    for entry in log.iterdir() if log.exists() else ():
        if entry.name.removesuffix(".compact").isdecimal():
            version, *lines = entry.read_text("utf-8").splitlines()
            assert version == "v1", version
            found |= {Path(json.loads(line)["path"].removeprefix("file://")) for line in lines}
    return sorted(found)


def tally(out: Path, publisher: Publisher) -> Tally:
    """Of all that it has published."""
    rows = 0
    ids: set[tuple[str, str, str]] = set()
    numbers: set[int] = set()
    for path in files(out):
        table = pq.read_table(path, columns=["nsqd", "topic", "message_id", "value"]).to_pydict()
        rows += len(table["value"])
        ids.update(zip(table["nsqd"], table["topic"], table["message_id"], strict=True))
        numbers.update(int(value.split()[0]) for value in table["value"])
    published = set(range(publisher.next))
    assert numbers <= published, "something came that nobody published"
    published -= publisher.unsure - numbers
    return Tally(len(published), rows, len(ids), len(published - numbers), rows - len(numbers))
