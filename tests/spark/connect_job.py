"""A client of Spark Connect, which starts its server. Prints how many rows each of several actions has, as JSON.

Usage: python connect_job.py OPTIONS, which are those of a batch read, in JSON.
"""

import json
import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    reader = spark.read.format("nsq").options(**json.loads(sys.argv[1]))
    frame = reader.load()
    rows = [frame.count(), frame.count(), frame.union(frame).count(), reader.load(peek="true").count()]
    print("rows", json.dumps(rows))
    spark.stop()
