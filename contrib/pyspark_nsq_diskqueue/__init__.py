"""Disk queues of nsqd as a source of PySpark: `spark.read.format("nsq_diskqueue").load("/var/lib/nsqd")`.

Reads the data directory of an nsqd, running or dead, one task a file, and changes nothing there. Spark looks for
top-level modules named `pyspark_*` that define `DefaultSource`, so that nothing needs registering. It is made on
demand, so that the other modules work without pyspark.
"""


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from pyspark_nsq_diskqueue.data_source import DiskqueueDataSource

        return DiskqueueDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
