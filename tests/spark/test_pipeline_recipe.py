"""The recipe of spark-pipelines.md: a topic of the real nsqd is copied into a log, and archived from there."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gnsq_pipeline.archive import read_archive
from kit.daemons import DEADLINE, Instance, eventually
from kit.nsq_client import NSQClient
from kit.spark_topics import bodies, name
from kit.traffic import DaemonFactory, all_done, create, publish, wait_for
from spark.command_line import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.peer]

TEXT = (Path(__file__).parents[2] / "contrib" / "docs" / "spark-pipelines.md").read_text("utf-8")
CHAPTER = TEXT.partition("\n## Exactly once from nsqd\n")[2].partition("\n## ")[0]
TOPIC, COPY = "orders", "log"
FAILED = b"failed six times"


def words_of(program: str, places: Mapping[str, str]) -> list[str]:
    """Returns the words after that name in the chapter's command, with other addresses and directories."""
    lines = CHAPTER.replace("\\\n", " ")
    (line,) = re.findall(rf"^    {program} (.*)$", lines, re.MULTILINE)
    for documented, place in places.items():
        line = line.replace(documented, place)
    return shlex.split(line)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE)


def fail_often(nsqd: Instance, topic: str, channel: str, body: bytes) -> None:
    """Publishes a message and requeues it more often than clients of Go attempt a message by default."""
    publish(nsqd, topic, body)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe(topic, channel)
        for _ in range(6):
            client.command(b"RDY 1")
            client.send(b"RDY 0\nREQ %b 0\n" % client.message().id)
        assert not all_done(client)


@pytest.mark.parametrize("daemon_command", ["nsqd"], indirect=True)
def test_each_message_of_the_log_is_one_row(
    spark: "SparkSession",
    run: Run,
    nsqd_factory: DaemonFactory,
    gnsqd_factory: DaemonFactory,
    peer_binary: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    nsqd, directory = (
        nsqd_factory("--msg-timeout=10s"),
        tmp_path / "archive",
    )  # after it, what a kill has left comes again
    places = {"/var/lib/gnsqd": str(tmp_path / "data"), "/data/orders": str(directory), "10.0.0.1:4150": name(nsqd)}
    gnsqd = gnsqd_factory(*words_of("gnsqd", places), data_path=tmp_path / "data")
    places["10.0.0.2:4150"] = name(gnsqd)
    copy = [str(peer_binary("nsq_to_nsq")), *words_of("nsq_to_nsq", places)]
    http = ["--nsqd-http-address", "{}:{}".format(*gnsqd.http_address)]

    def archived() -> list[tuple[int, bytes]]:
        ended = run(*words_of("gnsq-pipeline", places), *http)
        assert ended.status == 0, ended.stderr
        assert "at least once" not in ended.stderr
        rows = read_archive(spark, str(directory)).select("offset", "value").collect()
        return sorted((row.offset, bytes(row.value)) for row in rows)

    create(nsqd, TOPIC, COPY)
    fail_often(nsqd, TOPIC, COPY, FAILED)
    first, second = bodies(500), bodies(5000, "later ")
    publish(nsqd, TOPIC, *first)
    with running(copy, tmp_path / "log"):
        wait_for(nsqd, TOPIC, COPY, depth=0, in_flight_count=0)
    rows = archived()
    assert [number for number, _ in rows] == [*range(1, len(rows) + 1)]
    assert sorted(value for _, value in rows) == sorted([*first, FAILED])

    publish(nsqd, TOPIC, *second)
    with running(copy, tmp_path / "log") as process:
        eventually(lambda: nsqd.channel_stats(TOPIC, COPY)["depth"] < 4500, "the copy runs")
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)
    with running(copy, tmp_path / "log"):
        wait_for(nsqd, TOPIC, COPY, depth=0, in_flight_count=0)
    rows = archived()
    assert [number for number, _ in rows] == [*range(1, len(rows) + 1)]
    assert {value for _, value in rows} == {*first, FAILED, *second}
