"""A publisher that never stops, and what of its messages arrived in files of a stream."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

from faults.ledger import Ledger, Receipts
from kit.daemons import Instance
from kit.nsq_client import NSQClient

BATCH = 50  # bodies of one MPUB
SIZE = 110  # bytes of a body
TABLE = "table"  # the channel of the ledger


class StreamPublisher:
    """Publishes to each nsqd in turn, from a thread; the ledger has what was acknowledged. Other messages, whose nsqd
    was killed, are not published again.

    While `paused` is held nothing is on its way, and new connections are made afterwards.
    """

    def __init__(self, daemons: Sequence[Instance], topic: str, pause: float = 0.05) -> None:
        self.ledger = Ledger(topic, {TABLE: Receipts()})
        self.paused = threading.Lock()
        self._daemons = daemons
        self._pause = pause
        self._clients: dict[int, NSQClient] = {}
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
        try:
            client = self._clients.get(index)
            if client is None:
                client = self._clients[index] = NSQClient(self._daemons[index].tcp_address)
                client.identify(heartbeat_interval=-1)
            bodies = self.ledger.new_bodies([SIZE] * BATCH)
            client.publish(self.ledger.topic, *bodies)
            self.ledger.acknowledge(bodies)
        except ConnectionError:
            if client := self._clients.pop(index, None):
                client.sock.close()

    def disconnect(self) -> None:
        """Closes all connections, for callers that hold `paused` and are about to restart daemons."""
        for client in self._clients.values():
            client.sock.close()
        self._clients.clear()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "StreamPublisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.disconnect()


class StreamCounts(NamedTuple):
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


def count(out: Path, ledger: Ledger) -> StreamCounts:
    """Counts the messages in the files of a stream."""
    rows = 0
    ids: set[tuple[str, str, str]] = set()
    receipts = ledger.channels[TABLE]
    for path in files(out):
        table = pq.read_table(path, columns=["nsqd", "topic", "message_id", "value"]).to_pydict()
        rows += len(table["value"])
        ids.update(zip(table["nsqd"], table["topic"], table["message_id"], strict=True))
        receipts.finish(map(ledger.number, table["value"]))
    lost = len(ledger.lost(TABLE))
    return StreamCounts(receipts.finished_count + lost, rows, len(ids), lost, receipts.again.total())
