"""The commands of gnsq-pipeline on the tests' session: what they do to NSQ and files, and how they end."""

import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsq_pipeline import running
from gnsq_pipeline.archive import only_writer, read_archive
from kit.daemons import Instance, eventually, free_port
from kit.exposition import labels, series
from kit.spark_topics import bodies, name
from kit.traffic import DaemonFactory, create, publish, take, wait_for
from spark.command_line import Run, destination, sources
from spark.events import NOON_NS, EventRow, archive, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "contrib" / "docs" / "spark-pipelines.md"


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


@pytest.fixture(scope="module")
def archived(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[EventRow]]:
    """Returns an archive of events of two topics and three hours, in two batches; not to be changed."""
    directory, events = tmp_path_factory.mktemp("archived") / "archive", generate(120)
    archive(spark, directory, events, 2)
    return directory, events


def test_a_continuous_archive_reports_to_prometheus_and_stops_on_a_signal(
    spark: "SparkSession", run: Run, gnsqd: Instance, tmp_path: Path
) -> None:
    publish(gnsqd, "orders", *bodies(30))
    address = f"127.0.0.1:{free_port()}"

    def rows() -> float:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics") as answer:
            return series(answer.read())["gnsq_pipeline_rows_total", labels(pipeline="archive")]
        return 0

    def watch() -> None:
        try:
            eventually(lambda: rows() == 30, timeout=60)
            publish(gnsqd, "orders", *bodies(30, "later "))
            eventually(lambda: rows() == 60, timeout=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch)
    thread.start()
    words = ["--topic", "orders", "--channel", "archive", *sources(gnsqd), "--continuous", "--trigger", "100ms"]
    ended = run("archive", *words, "--metrics-address", address, tmp_path / "output")
    thread.join()
    assert ended.status == 0, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("stopped by SIGTERM: 60 rows in ")
    assert spark.read.parquet(str(tmp_path / "output")).count() == 60
    assert rows() == 0


def test_logs_are_read_by_ranges(spark: "SparkSession", run: Run, gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nsqd = gnsqd_factory("--durability=process", "--retention-bytes=1000000")
    words = ["--topic", "orders", *sources(nsqd)]
    stream, part = tmp_path / "stream", tmp_path / "part"

    def numbers(directory: Path) -> list[int]:
        return sorted(row.offset for row in read_archive(spark, str(directory)).collect())

    create(nsqd, "orders", "other")
    published = bodies(40)
    for old, count in ((0, 30), (30, 40)):
        publish(nsqd, "orders", *published[old:count])
        take(nsqd, "orders", "other", count - old)  # they are kept nevertheless
        ended = run("archive", *words, "--channel", "archive", "--from", "first", stream)
        assert ended.status == 0, ended.stderr
        assert "at least once" not in ended.stderr
        assert numbers(stream) == [*range(1, count + 1)]
    wait_for(nsqd, "orders", "archive", depth=0)

    (part / "_temporary").mkdir(parents=True)  # as a run that was killed leaves it
    batch = ["archive", *words, "--from", "11", "--to", "31", part, "--summary", "-"]
    (reported,) = run(*batch).rows
    assert (reported["finished"], reported["rows"], reported["batches"]) == (True, 20, 1)
    assert numbers(part) == [*range(11, 31)]
    again = run(*batch)
    assert again.status == 1
    assert "already exists" in one_line(again.stderr)

    chosen = ["--from", "31", "--to", "36", "--where", "offset != 32", "--to-topic", "again", "-o", "batchSize=2"]
    assert run("replay", *words, *chosen, "--json").rows == [{"messages": 4}]
    expected = sorted(published[number - 1] for number in (31, 33, 34, 35))
    assert sorted(message.body for message in take(nsqd, "again", "check", 4)) == expected
    rows = run("rollup", *words, "--from", "-1h", "--to", "next", "--window", "1d", "--json").rows
    assert sum(row["messages"] for row in rows) == 40


# As the document has it.
AT_LEAST_ONCE = re.findall(r"nsqd 10.0.0.1:4150 has no log: ([^`]+?)\n\n", DOCUMENT.read_text("utf-8"))


def test_a_run_of_deliveries_reports_first_that_rows_may_come_twice(run: Run, gnsqd: Instance, tmp_path: Path) -> None:
    what = " ".join(AT_LEAST_ONCE[0].split())
    silent = [*destination(gnsqd), "--nsqd-http-address", f"127.0.0.1:{free_port()}"]
    publish(gnsqd, "orders", *bodies(20))
    for output, words, why in (
        ("output", sources(gnsqd), f"nsqd {name(gnsqd)} has no log"),
        ("output", silent, "the checkpoint is one of deliveries"),
        ("other", [*silent, "-o", "mode=deliveries"], "mode=deliveries"),
    ):
        ended = run("archive", "--topic", "orders", "--channel", "a", *words, tmp_path / output)
        assert ended.stderr.splitlines()[0] == f"{why}: {what}"


def test_a_run_of_deliveries_that_ends_is_refused_where_it_cannot_finish_its_last_batch(
    run: Run, gnsqd: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "find_spec", lambda module: None)  # as with Spark 4.1
    publish(gnsqd, "orders", b"1")
    ended = run("archive", "--topic", "orders", "--channel", "a", *sources(gnsqd), tmp_path / "output")
    assert ended.status == 2
    needed = "with Spark 4.1, --continuous is required, as a run that ends leaves its messages to the next one"
    assert one_line(ended.stderr).startswith(f"Error: nsqd {name(gnsqd)} has no log: {needed}")
    assert not (tmp_path / "output").exists()


def test_replay_publishes_what_was_asked_for(run: Run, gnsqd: Instance, archived: tuple[Path, list[EventRow]]) -> None:
    directory, events = archived
    since, until = NOON_NS + 1_800_000_000_000, NOON_NS + 7_200_000_000_000
    expected = sorted(
        event.value
        for event in events
        if event.topic == "orders" and since <= event.timestamp_ns < until and event.body["kind"] != "look"
    )
    assert expected
    chosen = ["--topic", "orders", "--since", "2026-01-15T12:30", "--until", "2026-01-15T15:00+01:00"]
    chosen += ["--where", "get_json_object(string(value), '$.kind') != 'look'"]
    counted = run("replay", directory, *chosen, "--dry-run", "--json").rows
    assert counted == [{"topic": "orders", "messages": len(expected), "bytes": sum(map(len, expected))}]
    ended = run("replay", directory, *chosen, *destination(gnsqd), "--to-topic", "again", "--json")
    assert ended.rows == [{"messages": len(expected)}], ended.stderr
    assert sorted(message.body for message in take(gnsqd, "again", "check", len(expected))) == expected


def test_replay_keeps_topics_and_holds_the_rate(
    run: Run, gnsqd: Instance, archived: tuple[Path, list[EventRow]]
) -> None:
    directory, events = archived
    began = time.monotonic()
    ended = run("replay", directory, *destination(gnsqd), "--rate", "40")
    assert ended.status == 0, ended.stderr
    # Longer than Spark takes by itself; of two lanes each lets its first tenth of a second's share go at once.
    assert time.monotonic() - began >= (len(events) - 4) / 40
    for topic in ("orders", "clicks"):
        expected = sorted(event.value for event in events if event.topic == topic)
        assert sorted(message.body for message in take(gnsqd, topic, "check", len(expected))) == expected


def test_rollup_of_an_archive_is_printed_or_written(
    spark: "SparkSession", run: Run, archived: tuple[Path, list[EventRow]], tmp_path: Path
) -> None:
    directory, events = archived
    rows = run("rollup", "--from-archive", directory, "--window", "1h", "--json").rows
    hours: Counter[tuple[str, str]] = Counter()
    for event in events:
        hour = 12 + (event.timestamp_ns - NOON_NS) // 3_600_000_000_000
        hours[event.topic, f"2026-01-15T{hour}:00:00Z"] += 1
    assert {(row["topic"], row["window_start"]): row["messages"] for row in rows} == hours
    output = tmp_path / "rolled"
    words = ["rollup", "--from-archive", directory, "--window", "1d", "--topic", "orders", "--output", output]
    assert run(*words).status == 0
    orders = [event for event in events if event.topic == "orders"]
    (row,) = spark.read.parquet(str(output)).collect()
    assert (row.messages, row.bytes) == (len(orders), sum(len(event.value) for event in orders))
    again = run(*words)
    assert again.status == 1
    assert "already exists" in one_line(again.stderr)


def test_rollup_of_topics_writes_windows_that_are_over(
    spark: "SparkSession", run: Run, gnsqd: Instance, tmp_path: Path
) -> None:
    output = tmp_path / "rolled"
    words = ["--topic", "orders", "--channel", "r", *sources(gnsqd), "--window", "1s", "--watermark", "1s"]
    publish(gnsqd, "orders", *[b"first"] * 20)

    def reported() -> list[Any]:
        ended = run("rollup", *words, "--output", output)
        assert ended.status == 0, ended.stderr
        publish(gnsqd, "orders", b"x")  # time goes on by it
        rows = [row for row in spark.read.parquet(str(output)).collect() if row.bytes >= 5]
        return rows if sum(row.messages for row in rows) == 20 else []

    assert sum(row.bytes for row in eventually(reported, timeout=100)) == 100


OF_TOPIC = ["--nsqd-tcp-address", "h:1", "--topic", "t"]
BAD = [
    (["archive", "OUT"], 2, "--lookupd-http-address or --nsqd-tcp-address is required"),
    (["archive", "OUT", "--nsqd-tcp-address", "nowhere"], 2, "expected host:port"),
    (["archive", "OUT", "--nsqd-tcp-address", "h:1", "--channel", "c"], 2, "--topic or --topic-pattern is required"),
    (["archive", "OUT", "--nsqd-tcp-address", "h:1", "--topic", "t"], 2, "--channel is required"),
    (
        ["archive", "OUT", *OF_TOPIC, "--from", "first", "--to", "next", "--channel", "c"],
        2,
        "--channel contradicts --to",
    ),
    (
        ["archive", "OUT", *OF_TOPIC, "--to", "next", "-o", "mode=deliveries"],
        2,
        "option 'mode' = 'deliveries' is for streams",
    ),
    (["archive", "OUT", "--nsqd-tcp-address", "h:1", "-o", "subscribes=x"], 2, "did you mean --topic?"),
    (["archive", "OUT", "--checkpoint", "x"], 2, "the checkpoint of a Parquet table is in its directory"),
    (["archive", "db.t", "--format", "iceberg"], 2, "--checkpoint is required with --format iceberg"),
    (["archive", "OUT", "--format", "iceberg"], 2, "--format iceberg needs the name of a table"),
    (["replay", "MISSING", "--dry-run"], 4, "no such directory"),
    (["replay", "EMPTY", "--dry-run"], 4, "no archive and no Parquet files there"),
    (["replay", "EMPTY"], 2, "--lookupd-http-address or --nsqd-tcp-address is required"),
    (["replay", "EMPTY", "--since", "5", "--until", "5"], 2, "the time between them is empty"),
    (["replay", "--topic", "t"], 2, "DIRECTORY or --from is required"),
    (["replay", "EMPTY", "--from", "first"], 2, "--from contradicts DIRECTORY"),
    (["replay", "--from", "first", "--since", "5"], 2, "--since needs DIRECTORY"),
    (["rollup", "--topic", "t", "--channel", "c", "--nsqd-tcp-address", "h:1"], 2, "--output is required"),
    (["rollup", "--output", "OUT", "--since", "5"], 2, "--since needs --from-archive"),
    (["rollup", "--from-archive", "EMPTY", "--channel", "c"], 2, "--channel contradicts --from-archive"),
    (["rollup", "--from-archive", "EMPTY", "--to", "next"], 2, "--to contradicts --from-archive"),
    (["rollup", *OF_TOPIC, "--to", "next", "--continuous"], 2, "--continuous contradicts --to"),
    (["rollup", "--from-archive", "EMPTY", "--output", "OUT", "--json"], 2, "--json is for a result that is printed"),
    (["rollup", "--from-archive", "MISSING"], 4, "no such directory"),
]


@pytest.mark.parametrize(
    "words, status, error", BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_mistake_is_reported_in_one_line(run: Run, tmp_path: Path, words: list[str], status: int, error: str) -> None:
    (tmp_path / "empty").mkdir()
    places = {"OUT": tmp_path / "out", "EMPTY": tmp_path / "empty", "MISSING": tmp_path / "missing"}
    arguments = [re.sub("OUT|EMPTY|MISSING", lambda found: str(places[found[0]]), word) for word in words]
    ended = run(*arguments)
    assert ended.status == status, ended
    assert one_line(ended.stderr).startswith("Error: ")
    assert error in ended.stderr
    assert not (tmp_path / "out").exists()


def test_an_archive_that_another_run_writes_is_refused(run: Run, gnsqd: Instance, tmp_path: Path) -> None:
    publish(gnsqd, "orders", b"1")
    words = ["archive", "--topic", "orders", "--channel", "c", *sources(gnsqd), tmp_path / "output"]
    with only_writer("another", tmp_path / "output" / "_checkpoint"):
        ended = run(*words)
    assert ended.status == 1
    assert one_line(ended.stderr) == f"Error: {tmp_path}/output: another run of gnsq-pipeline writes to it"
    assert run(*words).status == 0
    # Spark's log knows batches by number only: another channel's would be skipped.
    words[words.index("c")] = "d"
    ended = run(*words)
    assert ended.status == 1
    assert "belongs to a query that reads the channel 'c'" in ended.stderr


def test_a_condition_that_is_none_is_reported(run: Run, archived: tuple[Path, list[EventRow]]) -> None:
    for condition, error in (("nope > 1", "`nope` cannot be resolved"), ("attempts >", "yntax error")):
        ended = run("replay", archived[0], "--dry-run", "--where", condition)
        assert ended.status == 2
        assert error in ended.stderr.splitlines()[-1]


def test_a_topic_that_no_nsqd_has_is_an_error_unless_allowed(run: Run, gnsqd: Instance, tmp_path: Path) -> None:
    publish(gnsqd, "orders", b"1")
    words = ["archive", "--topic", "orders", "--topic", "order", "--channel", "c", *sources(gnsqd), tmp_path / "output"]
    summary = tmp_path / "summary.json"
    ended = run(*words, "--summary", summary)
    assert ended.status == 4
    assert one_line(ended.stderr) == "Error: no nsqd has the topic 'order'; --allow-missing-topics runs nevertheless"
    reported = json.loads(summary.read_text())
    assert (reported["exit_code"], reported["finished"], reported["rows"]) == (4, False, 0)
    assert not (tmp_path / "output").exists()
    ended = run(*words, "--allow-missing-topics", "--summary", "-")
    assert ended.status == 0
    (reported,) = ended.rows
    assert (reported["exit_code"], reported["finished"], reported["rows"], reported["lag"]) == (0, True, 1, 0)
