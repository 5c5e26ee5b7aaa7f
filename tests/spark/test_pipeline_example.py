"""The example of spark-pipelines.md, end to end: JSON events published by pynsq are archived, rolled up and replayed,
and nothing is lost, duplicated or changed on the way.

`GNSQD_EXAMPLE_EVENTS` says how many (`make spark-example`: a million). What is expected is computed from the events
that the publisher generates, not from what any step says.
"""

import json
import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gnsq_pipeline.cli import main
from kit.daemons import Daemon
from spark.events import bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = int(os.environ.get("GNSQD_EXAMPLE_EVENTS", "40000"))
TOPICS = {"orders": 1, "clicks": 2}  # and the seeds of their events


class Totals(NamedTuple):
    """What can't stay the same when a body is lost, duplicated or changed."""

    messages: int
    bytes: int
    checksums: int  # the sum of the bodies' CRC-32


def totals(values: Iterable[bytes]) -> Totals:
    count = size = checksums = 0
    for value in values:
        count, size, checksums = count + 1, size + len(value), checksums + zlib.crc32(value)
    return Totals(count, size, checksums)


def totals_in(spark: "SparkSession", directory: Path) -> dict[str, Totals]:
    from pyspark.sql import functions as sf

    rows = (
        spark.read.parquet(str(directory))
        .groupBy("topic")
        .agg(sf.count("value"), sf.sum(sf.length("value").cast("long")), sf.sum(sf.crc32("value")))
        .collect()
    )
    return {row[0]: Totals(*row[1:]) for row in rows}


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str | Path
) -> list[dict[str, Any]]:
    """A command of gnsq-pipeline that ends well; the JSON it prints."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["gnsq-pipeline", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def test_a_million_events_are_archived_rolled_up_and_replayed(
    spark: "SparkSession",
    gnsqd_factory: Callable[..., Daemon],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources, target = [gnsqd_factory(), gnsqd_factory()], gnsqd_factory()
    addresses = ["{}:{}".format(*daemon.tcp_address) for daemon in sources]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    publishers = [
        subprocess.Popen(
            [sys.executable, "-m", "spark.pynsq_publisher", str(seed), str(EVENTS // 2), topic, *addresses],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for topic, seed in TOPICS.items()
    ]

    expected = {topic: totals(bodies(EVENTS // 2, seed)) for topic, seed in TOPICS.items()}
    for publisher in publishers:
        assert publisher.communicate()[0] == f"{EVENTS // 2}\n"
        assert publisher.returncode == 0

    archive, again = tmp_path / "archive", tmp_path / "again"
    nodes: list[str] = []
    for daemon in sources:
        nodes += ["--nsqd-tcp-address", "{}:{}".format(*daemon.tcp_address)]
        nodes += ["--nsqd-http-address", "{}:{}".format(*daemon.http_address)]
    subscription = ["--topic", "orders", "--topic", "clicks", "--channel", "archive"]
    run(capsys, monkeypatch, "archive", *subscription, *nodes, "--max-messages", str(EVENTS // 3 + 1), archive)
    assert totals_in(spark, archive) == expected
    ids = spark.read.parquet(str(archive)).select("nsqd", "topic", "message_id")
    assert ids.distinct().count() == EVENTS
    for daemon in sources:
        for topic in TOPICS:
            channel = daemon.channel_stats(topic, "archive")
            assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)

    by_topic: Counter[str] = Counter()
    for row in run(capsys, monkeypatch, "rollup", "--from-archive", archive, "--window", "1h", "--json"):
        by_topic[row["topic"]] += row["messages"]
        by_topic[row["topic"] + " bytes"] += row["bytes"]
    assert by_topic == {
        **{topic: total.messages for topic, total in expected.items()},
        **{f"{topic} bytes": total.bytes for topic, total in expected.items()},
    }
    destination = "{}:{}".format(*target.tcp_address)
    (published,) = run(capsys, monkeypatch, "replay", archive, "--nsqd-tcp-address", destination, "--json")
    assert published["messages"] == EVENTS
    here = ["--nsqd-tcp-address", destination, "--nsqd-http-address", "{}:{}".format(*target.http_address)]
    run(capsys, monkeypatch, "archive", *subscription, *here, again)
    assert totals_in(spark, again) == expected
