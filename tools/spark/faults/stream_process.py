"""A stream under fault: the stream as a process of its own, and faults injected into it."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gnsq_pipeline.running import DELTA_CONF
from kit import table_formats
from kit.daemons import Instance, eventually
from kit.spark_cluster import ClusterProcess
from kit.spark_sessions import CONF, spark_environment

HERE = Path(__file__).parent
TOPIC, CHANNEL = "orders", "archive"
PATIENCE = 180.0  # seconds for anything that Spark is to do
DEATHS = 5  # of a stream in that time are too many

# Executors come and go, and that is not the job's fault.
CLUSTER_CONF = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.task.maxFailures": "1000"}


class Point(NamedTuple):
    """A function, and the moment of the fault: see inject/sitecustomize.py."""

    module: str
    name: str
    moment: str


_STREAM, _BATCH = "pyspark_nsq.deliveries.stream", "pyspark_nsq.deliveries.batch"

# Points of a stream of deliveries, in the order of a message's way.
POINTS = {
    "receiving": Point(_BATCH, "_BatchConnection.read", "after"),
    "messages in hand": Point(_BATCH, "DeliveryBatch._cut", "after"),
    "planned": Point(_STREAM, "DeliveryStream.tasks", "after"),
    "handing out rows": Point(_BATCH, "DeliveryPartition.read", "before"),
    "rows handed out": Point(_BATCH, "DeliveryPartition.read", "after"),
    "before FIN": Point(_BATCH, "DeliveryBatch.finish", "before"),
    "half of the FINs sent": Point("pyspark_nsq.client", "SourceClient.finish_joined", "halfway"),
    "FINs not confirmed": Point("pyspark_nsq.client", "SourceClient.finish_confirmed", "before"),
    "after FIN": Point(_BATCH, "DeliveryBatch.finish", "after"),
}

_RANGE_READER, _RANGE_NODE = "pyspark_nsq.ranges.range_stream", "pyspark_nsq.ranges.node"
_RANGE_TASK = "pyspark_nsq.ranges.reading"

# The same for a stream of ranges.
RANGE_POINTS = {
    "range planned": Point(_RANGE_READER, "RangeStream.tasks", "after"),
    "range asked for": Point(_RANGE_NODE, "LogNode.messages", "after"),
    "some rows made": Point(_RANGE_TASK, "RangePartition._rows", "after"),
    "channels not advanced": Point(_RANGE_READER, "RangeStream.commit", "before"),
    "one channel advanced": Point(_RANGE_NODE, "LogNode.advance", "after"),
    "channels advanced": Point(_RANGE_READER, "RangeStream.commit", "after"),
}

IN_TASK = tuple(POINTS)[3:5]
IN_RANGE_TASK = tuple(RANGE_POINTS)[1:3]

T = TypeVar("T")


class StreamProcess:
    """The stream `format("nsq")` to a table on `master`, with `options` beside the topic; started again whenever it
    ends before it should. `deaths` counts that."""

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, str],
        master: str,
        table_format: str,
    ) -> None:
        self.job = directory / "job"
        self.deaths = 0
        self._logs = directory / "streams"
        self._faults = directory / "faults"
        for path in (self.job, self._logs, self._faults):
            path.mkdir(parents=True, exist_ok=True)
        (self._faults / "points.json").write_text(json.dumps(POINTS | RANGE_POINTS))
        conf = {**CONF, "spark.local.dir": str(directory / "local"), "spark.driver.memory": "512m"}
        conf |= {"spark.sql.streaming.stopTimeout": "60s", **({} if master.startswith("local") else CLUSTER_CONF)}
        if table_format == "delta":
            conf |= {**table_formats.conf(directory), **DELTA_CONF, "spark.driver.memory": "1g"}
        self._given: dict[str, Any] = {
            "format": table_format,
            "master": master,
            "conf": conf,
            "trigger": {"processingTime": "0 seconds"},
            "options": {"subscribe": TOPIC, "channel": CHANNEL, **options},
        }
        self._armed = 0
        self._stream = self._start()

    @staticmethod
    def environment(directory: Path) -> dict[str, str]:
        """Returns the environment of the processes of a stream at `directory`, a cluster's workers included."""
        base = spark_environment()
        path = [str(HERE / "inject"), *filter(None, [base.get("PYTHONPATH")])]
        return {**base, "NSQ_FAULTS": str(directory / "faults"), "PYTHONPATH": ":".join(path)}

    def _start(self, **options: str) -> ClusterProcess:
        given = self._given | {"options": {**self._given["options"], **options}}
        (self.job / "job.json").write_text(json.dumps(given))
        command = [sys.executable, "-P", str(HERE / "stream.py"), str(self.job)]
        log = self._logs / f"{len(list(self._logs.iterdir()))}.log"
        return ClusterProcess(command, self.environment(self.job.parent), log)

    def wait(self, condition: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
        """Waits like eventually(), while a stream that ends is started again."""

        before = self.deaths

        def met() -> T | None:
            if self._stream.code() is not None:
                self._replace()
                assert self.deaths - before < DEATHS, "the stream dies again and again"
            return condition()

        try:
            return eventually(met, what, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._stream.text()[-20_000:]}") from None

    def batches(self) -> int:
        """Returns the number of committed batches."""
        commits = self.job / "checkpoint" / "commits"
        return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1) + 1 if commits.exists() else 0

    def go_on(self, batches: int = 1) -> None:
        """Waits until that many more batches are committed."""
        before = self.batches()
        self.wait(lambda: self.batches() >= before + batches, f"{batches} more batches")

    def read_up_to(self) -> dict[str, int]:
        """Returns the numbers behind what the committed batches have, by epoch of the log; for a stream of ranges."""
        positions = (self.job / "checkpoint" / "offsets" / str(self.batches() - 1)).read_text().splitlines()[-1]
        return {row["epoch"]: row["number"] for row in json.loads(positions)["positions"]}

    def fail(self, error: str) -> None:
        """Waits until the stream, which may not run, ends with this error, and lets it go on without what is lost."""
        if self._stream.code() is not None:
            self._replace()
        eventually(lambda: self._stream.code() is not None, error, PATIENCE)
        assert error in self._stream.text(), self._stream.text()[-20_000:]
        self._replace(failOnDataLoss="false")

    def _replace(self, **options: str) -> None:
        self._stream.kill()
        self.deaths += 1
        self._stream = self._start(**options)

    def inject(self, point: str, action: str) -> None:
        """Does `action` when the stream comes to `point`, and waits until it happened."""
        self._armed += 1
        temporary = self._faults / f"{self._armed}.tmp"
        temporary.write_text(action)
        done = self._faults / f"{point}.done.{self._armed}"
        temporary.rename(self._faults / f"{point}.armed.{self._armed}")
        self.wait(done.exists, f"{action} at {point}")

    def kill_driver(self) -> None:
        """Kills the driver, JVM and Python, wherever they are."""
        self._stream.kill()

    def finish(self) -> None:
        """Lets it take what there is, and end."""
        (self.job / "stop").touch()
        eventually(self._ended, "the end of the stream", PATIENCE)

    def _ended(self) -> bool:
        code = self._stream.code()
        if code:
            self._replace()
        return code == 0

    def close(self) -> None:
        self._stream.kill()


def extent(daemon: Instance) -> dict[str, Any]:
    """Returns what the log of the topic has."""
    status, _, body = daemon.http("GET", f"/topic/range?topic={TOPIC}")
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def empty(daemon: Instance) -> bool:
    """True if nothing of the topic is anywhere in the daemon."""
    found = [part for topic in daemon.stats(TOPIC)["topics"] for part in (topic, *topic["channels"])]
    return not any(part.get(name) for part in found for name in ("depth", "in_flight_count", "deferred_count"))
