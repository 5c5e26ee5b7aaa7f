"""`spark.read.format("nsq")`: what Spark makes of rows, and of looks that are read late, twice or in part.

What a scan reads, and what it leaves in NSQ, is judged without a JVM in unit/test_batch_reader.py."""

import datetime
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Daemon
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import post, publish, wait_for
from spark.lazy_actions import ACTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Peek = Callable[[Daemon], "DataFrame"]


@pytest.fixture
def peek(spark: "SparkSession") -> Peek:
    """Makes a frame of all that waits in the channel `spark` of a topic."""

    def called(daemon: Daemon) -> "DataFrame":
        given = {**daemon_options(daemon), "subscribe": "orders", "channel": "spark", "peek": "true"}
        return spark.read.format("nsq").options(**given).load()

    return called


def test_a_row_has_everything_of_its_message(peek: Peek, nsqd: Daemon) -> None:
    before = time.time_ns()
    for body in (b"\x00\xff", b"text"):
        post(nsqd, "/pub?topic=orders", body)
    rows = sorted(peek(nsqd).collect(), key=lambda row: bytes(row.value))
    assert [bytes(row.value) for row in rows] == [b"\x00\xff", b"text"]
    for row in rows:
        assert (row.topic, row.channel, row.nsqd, row.attempts, row.offset) == ("orders", "spark", name(nsqd), 1, None)
        assert len(row.message_id) == 16
        assert before < row.timestamp_ns < time.time_ns()
        assert row.timestamp == datetime.datetime.fromtimestamp(row.timestamp_ns // 1000 / 1_000_000)
    assert len({row.message_id for row in rows}) == 2


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_on_a_look_has_all_rows_and_leaves_them(
    peek: Peek, gnsqd: Daemon, tmp_path: Path, action: str
) -> None:
    """Frames of ranges are in test_ranges.py."""
    publish(gnsqd, "orders", *bodies(2000))
    act, times = ACTIONS[action]
    assert act(peek(gnsqd), tmp_path / "table") == Counter(dict.fromkeys(bodies(2000), times))
    wait_for(gnsqd, "orders", "spark", depth=2000, in_flight_count=0)
