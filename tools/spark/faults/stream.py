"""The stream under fault, as a program: topics of NSQ into Parquet files, until a file `stop` appears.

    python stream.py JOB        JOB: a directory with job.json: master, conf, options

Files go to JOB/out, the checkpoint to JOB/checkpoint. Ends with 0 when it was asked to stop.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def main(job: Path) -> None:
    job_options = json.loads((job / "job.json").read_text())
    builder = SparkSession.builder.master(job_options["master"]).appName("faults")
    for name, value in job_options["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    query = (
        spark.readStream.format("nsq")
        .options(**job_options["options"])
        .load()
        .writeStream.format("parquet")
        .option("path", str(job / "out"))
        .option("checkpointLocation", str(job / "checkpoint"))
        .trigger(**job_options["trigger"])
        .start()
    )
    while not (job / "stop").exists() and query.isActive:
        time.sleep(0.05)
    if query.isActive:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
