"""Topics read as logs: by ranges of message numbers, where every nsqd is a gnsqd with `--durability`.

    positions       where a stream is in each log, as Spark's checkpoint keeps it
    node            the HTTP API of one gnsqd
    planning        which logs there are, and which ranges of them a batch has, also one of `spark.read`
    reading         the rows of one range, in a task
    range_stream    the batches of `spark.readStream`

Nothing is consumed by reading: a task that runs again asks for the same range. A stream advances its channel when Spark
has committed a batch, so the channel's depth is the stream's lag, and gnsqd keeps what the stream has not read.
"""
