"""NSQ as a source and sink of PySpark: `format("nsq")` of `spark.readStream`, `read`, `writeStream` and `write`.

Spark looks for top-level modules named `pyspark_*` that define `DefaultSource`, so that nothing needs registering.
It is made on demand, so that the other modules work without pyspark.
"""


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from pyspark_nsq.data_source import NsqDataSource

        return NsqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
