"""The stream under fault, as a program: topics of NSQ into a table, until a file `stop` appears.

    python stream.py JOB        JOB: a directory with job.json: master, conf, trigger, format, options

Files go to JOB/out, the checkpoint to JOB/checkpoint. Ends with 0 when it was asked to stop.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def main(job: Path) -> None:
    given = json.loads((job / "job.json").read_text())
    spark = SparkSession.builder.master(given["master"]).appName("faults").config(map=given["conf"]).getOrCreate()
    writer = spark.readStream.format("nsq").options(**given["options"]).load().writeStream.trigger(**given["trigger"])
    query = writer.start(str(job / "out"), given["format"], checkpointLocation=str(job / "checkpoint"))
    while not (job / "stop").exists() and query.isActive:
        time.sleep(0.05)
    if query.isActive:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
