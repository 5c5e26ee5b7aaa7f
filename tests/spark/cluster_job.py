"""What test_cluster.py runs on a cluster: all there is of a topic on some nsqds goes to a topic of another one.

    spark-submit cluster_job.py JSON        {"source": options, "sink": options, "checkpoint": path}

Prints `executors N`, the number of processes that read, and `rows N` of a batch read that takes nothing.
"""

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(arguments: dict[str, Any]) -> None:
    spark = SparkSession.builder.getOrCreate()
    wait_for_executors(spark, 2)
    batch = {name: value for name, value in arguments["source"].items() if name != "maxMessagesPerTrigger"}
    print("rows", spark.read.format("nsq").options(**batch, peek="true").load().count(), flush=True)
    query = (
        spark.readStream.format("nsq")
        .options(**arguments["source"])
        .load()
        .select("value")
        .writeStream.format("nsq")
        .options(**arguments["sink"])
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    print("batches", progress.batchId + 1, flush=True)
    spark.stop()


def wait_for_executors(spark: SparkSession, wanted: int) -> None:
    """Until that many executors have run something: each has one daemon that all its Python workers come from."""
    while True:
        pids = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid()).distinct().collect()
        if len(pids) >= wanted:
            print("executors", len(pids), flush=True)
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
