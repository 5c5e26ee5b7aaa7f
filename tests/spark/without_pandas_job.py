"""What test_without_pandas.py runs where pandas and NumPy cannot be imported: every way in and out.

    without_pandas_job.py JSON        {"source": options, "sink": options, "path": data directory, "directory": path}

Prints a number of rows for each.
"""

import importlib
import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(arguments: dict[str, Any]) -> None:
    for name in ("numpy", "pandas"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        raise AssertionError(f"{name} can be imported")
    builder = SparkSession.builder.master("local[1]")
    for setting, value in arguments["conf"].items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    read = spark.read.format("nsq").options(**arguments["source"]).load()
    print("batch", len(read.collect()))
    read.write.format("nsq").options(**arguments["sink"]).mode("append").save()
    print("directory", spark.read.format("nsq_diskqueue").load(arguments["path"]).count())
    stream = {**arguments["source"], "subscribe": arguments["sink"]["topic"]}
    counts: list[int] = []
    spark.readStream.format("nsq").options(**stream).load().writeStream.foreachBatch(
        lambda frame, _: counts.append(len(frame.collect()))
    ).option("checkpointLocation", arguments["directory"]).trigger(availableNow=True).start().awaitTermination()
    print("stream", sum(counts))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
