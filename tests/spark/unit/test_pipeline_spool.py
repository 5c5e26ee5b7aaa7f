"""What `gnsq-pipeline spool` finds and publishes."""

import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_pipeline.errors import NotFound, PipelineError, UsageError
from gnsq_pipeline.spool import find, list_streams, publish
from gnsqd.shared.client import PushedMessage
from kit.daemons import Daemon, free_port
from kit.traffic import take
from pyspark_nsq.columns import Messages, pack
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import EntryKind, pack_entry
from pyspark_nsq.spool import Spool
from spark.unit.fake_nsqd import CHANNEL, TOPIC, FakeNsqd, frames_of, patch
from spark.unit.micro_batches import MicroBatches, run_task


def given(directory: Path, stream: str = "ab", **options: Any) -> SimpleNamespace:
    return SimpleNamespace(directory=str(directory), stream=stream, **options)


def stream(spool: Path, name: str, kind: str = "readStream") -> None:
    Spool.create(Settings(topics=("orders",), channel="c", spool_location=str(spool)), name, kind)


def test_streams_are_found_in_a_spool_and_in_an_output_that_has_one(tmp_path: Path) -> None:
    one, two = uuid.uuid4().hex, uuid.uuid4().hex
    stream(tmp_path / "_spool" / "a", one)
    stream(tmp_path / "_spool" / "b", two)
    rows = list_streams(given(tmp_path))
    assert [(row["stream"], row["topics"], row["channel"], row["batches"], row["messages"]) for row in rows] == [
        (one, "orders", "c", 0, 0),
        (two, "orders", "c", 0, 0),
    ]
    assert [row["stream"] for row in list_streams(given(tmp_path / "_spool" / "b"))] == [two]


def test_a_stream_is_named_by_the_begin_of_its_id_if_that_is_of_one_only(tmp_path: Path) -> None:
    stream(tmp_path, "ab1")
    stream(tmp_path, "ab2")
    assert find(given(tmp_path, "ab2"))[1].stream == "ab2"
    with pytest.raises(UsageError, match="the begin of ab1, ab2"):
        find(given(tmp_path, "ab"))
    with pytest.raises(NotFound, match="no stream x"):
        find(given(tmp_path, "x"))
    with pytest.raises(NotFound, match="no such directory"):
        list_streams(given(tmp_path / "missing"))


@pytest.fixture
def half_committed(tmp_path: Path) -> Path:
    """The spool of the stream `ab` with two batches, of which the first one is committed."""
    spool = Spool.create(Settings(topics=("orders",), channel="c", spool_location=str(tmp_path)), "ab", "readStream")
    for batch in (1, 2):
        chain = spool.chain(batch, 0, "node:4150")
        chain.open()
        for segment in range(2):
            numbers = [10 * batch + 2 * segment + number for number in range(2)]
            messages = [PushedMessage(number, 1, b"%016x" % number, b"body %d" % number) for number in numbers]
            ids, rows = Messages.of([frames_of(messages)])
            chain.append(pack_entry(EntryKind.SEGMENT, 0, 1, {"orders": ids}, pack(rows)))
        chain.end(0)
    spool.set_committed(1)
    return tmp_path


def test_replay_publishes_what_is_not_committed(half_committed: Path, gnsqd: Daemon) -> None:
    assert isinstance(gnsqd.tcp_address, tuple)
    settings = Settings(nsqd_tcp_addresses=(gnsqd.tcp_address,))
    expected = {"stream": "ab", "topic": "orders", "messages": 4, "bytes": 28, "damaged": 0}
    counted = publish(*find(given(half_committed)), None, None, False)
    assert publish(*find(given(half_committed)), settings, None, False) == counted == [expected]
    assert sorted(message.body for message in take(gnsqd, "orders", "check", 4)) == [
        b"body %d" % number for number in range(20, 24)
    ]
    (row,) = publish(*find(given(half_committed)), replace(settings, topic="again"), "again", True)
    assert (row["topic"], row["messages"]) == ("again", 8)
    assert len(take(gnsqd, "again", "check", 8)) == 8


def test_replay_publishes_each_message_to_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsqds = [FakeNsqd(), FakeNsqd(topic="views")]
    patch(monkeypatch, nsqds)
    for fake, count in zip(nsqds, (3, 2), strict=True):
        fake.publish(count)
    batches = MicroBatches(Settings(topics=(TOPIC, "views"), channel=CHANNEL, spool_location=str(tmp_path)))
    batches.plan()
    (partition,) = batches.partitions()
    run_task(partition)
    rows = publish(*find(given(tmp_path, partition.stream)), None, None, False)
    assert {row["topic"]: row["messages"] for row in rows} == {TOPIC: 3, "views": 2}


def test_replay_passes_over_damage_and_counts_it(half_committed: Path) -> None:
    segment = next((half_committed / "ab" / "batches" / "0000000002").glob("*/000000"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    (row,) = publish(*find(given(half_committed)), None, None, False)
    assert (row["messages"], row["damaged"]) == (2, 1)


def test_replay_stops_when_no_nsqd_takes_messages(half_committed: Path) -> None:
    settings = Settings(nsqd_tcp_addresses=(("127.0.0.1", free_port()),), retry_timeout=0.0)
    with pytest.raises(PipelineError, match="stopped after 0 messages: no nsqd takes 2 messages for topic orders"):
        publish(*find(given(half_committed)), settings, None, False)
