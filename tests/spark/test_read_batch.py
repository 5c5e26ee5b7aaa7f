"""`spark.read.format("nsq")`: what Spark makes of rows, and of frames that are read late, twice or in part.

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
from kit.traffic import post, publish
from spark.lazy_actions import ACTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Read = Callable[..., "DataFrame"]


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


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_all_rows(read: Read, gnsqd: Daemon, tmp_path: Path, action: str) -> None:
    publish(gnsqd, "orders", *bodies(2000))
    act, times = ACTIONS[action]
    assert act(read(gnsqd), tmp_path / "table") == Counter(dict.fromkeys(bodies(2000), times))
