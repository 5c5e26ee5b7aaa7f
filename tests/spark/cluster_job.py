"""The job of test_cluster.py on a cluster, with neither pandas nor NumPy: all there is of a topic on some nsqds goes to
topics of another one, by a look and by a stream.

    spark-submit cluster_job.py JSON        {"source": options, "sink": options, "path": data directory}

Prints `executors N`, the number of processes that read, `rows N` of the data directory, and `batches N` of the stream.
"""

import importlib.util
import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(arguments: dict[str, Any]) -> None:
    assert not any(importlib.util.find_spec(name) for name in ("numpy", "pandas"))
    spark = SparkSession.builder.getOrCreate()
    wait_for_executors(spark, 2)
    say(f"rows {spark.read.format('nsq_diskqueue').load(arguments['path']).count()}")
    batch = {name: value for name, value in arguments["source"].items() if name != "maxMessagesPerTrigger"}
    peeked = spark.read.format("nsq").options(**batch, peek="true").load().select("value")
    peeked.write.format("nsq").options(**arguments["sink"], topic="peeked").mode("append").save()
    frame = spark.readStream.format("nsq").options(**arguments["source"]).load().select("value")
    writer = frame.writeStream.format("nsq").options(**arguments["sink"], topic="copies")
    query = writer.trigger(availableNow=True).start(checkpointLocation=arguments["checkpoint"])
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    say(f"batches {progress.batchId + 1}")
    spark.stop()


def say(line: str) -> None:
    """Prints a line in one write: Spark does not buffer the output, and its log goes to the same file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for_executors(spark: SparkSession, minimum: int) -> None:
    """Waits until that many executors have run something: each has one daemon that its Python workers come from."""
    while True:
        pids = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid()).distinct().collect()
        if len(pids) >= minimum:
            say(f"executors {len(pids)}")
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
