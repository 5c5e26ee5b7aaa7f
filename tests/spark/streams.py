"""Streaming queries of tests, which are run again and again."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.spark_sessions import ADMISSION_CONTROL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Streams:
    """Runs of one query: the checkpoint stays from one to the next.

    `batches` are the ones that it handed over, how often is in `tries`. One that comes again replaces its first try, as
    in an exact sink. It has the same rows, or none if it is of deliveries: then they come in a later batch."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.batches: dict[int, list[tuple[bytes, str]]] = {}
        self.tries: Counter[int] = Counter()
        self.fails = False

    def _take(self, frame: "DataFrame", batch: int) -> None:
        rows = [(bytes(row.value), row.message_id) for row in frame.select("value", "message_id").collect()]
        self.tries[batch] += 1
        if rows and batch in self.batches:
            assert sorted(rows) == sorted(self.batches[batch]), "a replay has other rows"
        self.batches[batch] = rows
        if self.fails:
            raise RuntimeError("the sink fails")

    def values(self) -> list[bytes]:
        """Returns the values of all rows; once of a message that comes again, as with Spark 4.1 in each run."""
        rows = [row for batch in list(self.batches.values()) for row in batch]
        return sorted(value for value, _ in (rows if ADMISSION_CONTROL else set(rows)))

    def start(self, options: dict[str, str], **trigger: Any) -> "StreamingQuery":
        given = {"subscribe": "orders", "channel": "spark", **options}
        writer = self.spark.readStream.format("nsq").options(**given).load().writeStream
        writer = writer.foreachBatch(self._take).option("checkpointLocation", str(self.directory / "checkpoint"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def drain(self, options: dict[str, str]) -> "StreamingQuery":
        """Reads what there is now. Without admission control, a run that repeats a batch plans no other one."""
        for _ in range(1 if ADMISSION_CONTROL else 2):
            query = self.start(options, availableNow=True)
            query.awaitTermination()
        return query
