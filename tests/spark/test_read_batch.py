"""`spark.read.format("nsq")`: what Spark makes of rows, and of frames that are read late, twice or in part.

What a scan reads, and what it leaves in NSQ, is judged without a JVM in unit/test_batch_reader.py."""

import contextlib
import datetime
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Daemon
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import post, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Read = Callable[..., "DataFrame"]
Values = Counter[bytes]


@pytest.fixture
def read(spark: "SparkSession", tmp_path: Path) -> Read:
    """Makes a frame of all that waits in the channel `spark` of a topic, with a spool."""

    def called(daemon: Daemon, **options: str) -> "DataFrame":
        given = {**daemon_options(daemon), "subscribe": "orders", "channel": "spark", **options}
        return spark.read.format("nsq").options(**given, spoolLocation=str(tmp_path / "spool")).load()

    return called


def test_a_row_has_everything_of_its_message(read: Read, nsqd: Daemon) -> None:
    before = time.time_ns()
    for body in (b"\x00\xff", b"text"):
        post(nsqd, "/pub?topic=orders", body)
    rows = sorted(read(nsqd).collect(), key=lambda row: bytes(row.value))
    assert [bytes(row.value) for row in rows] == [b"\x00\xff", b"text"]
    for row in rows:
        assert (row.topic, row.channel, row.nsqd, row.attempts) == ("orders", "spark", name(nsqd), 1)
        assert len(row.message_id) == 16
        assert before < row.timestamp_ns < time.time_ns()
        assert row.timestamp == datetime.datetime.fromtimestamp(row.timestamp_ns // 1000 / 1_000_000)
    assert len({row.message_id for row in rows}) == 2


def values(frame: "DataFrame") -> Values:
    return Counter(bytes(row.value) for row in frame.select("value").collect())


def written(frame: "DataFrame", directory: Path) -> Values:
    frame.write.parquet(str(directory))
    return values(frame.sparkSession.read.parquet(str(directory)))


def cached(frame: "DataFrame", directory: Path) -> Values:
    frame.cache().count()
    found = values(frame)
    frame.unpersist()
    return found & written(frame, directory)


def after(first: Callable[["DataFrame"], object]) -> Callable[["DataFrame", Path], Values]:
    """What is written after another action."""

    def act(frame: "DataFrame", directory: Path) -> Values:
        with contextlib.suppress(Exception):
            first(frame)
        return written(frame, directory)

    return act


# The actions of the second table of spark.md; each yields every message as often as the number specifies.
ACTIONS: dict[str, tuple[Callable[["DataFrame", Path], Values], int]] = {
    "a write": (written, 1),
    "`show(5)`, then a write": (after(lambda frame: frame.take(5)), 1),  # as show does, without the printing
    "`limit(10)`, then a write": (after(lambda frame: frame.limit(10).collect()), 1),
    "`count()`, then a write": (after(lambda frame: frame.count()), 1),
    "`orderBy`, then a write": (lambda frame, directory: written(frame.orderBy("value"), directory), 1),
    "a join with itself": (lambda frame, _: values(frame.join(frame.select("message_id"), "message_id")), 1),
    "a union with itself": (lambda frame, _: values(frame.union(frame)), 2),
    "`cache`, `count()`, rows, `unpersist`, then a write": (cached, 1),
    "a failed action, then a write": (after(lambda frame: frame.selectExpr("raise_error('no')").collect()), 1),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_all_rows(read: Read, gnsqd: Daemon, tmp_path: Path, action: str) -> None:
    publish(gnsqd, "orders", *bodies(2000))
    act, times = ACTIONS[action]
    assert act(read(gnsqd), tmp_path / "table") == Counter(dict.fromkeys(bodies(2000), times))
