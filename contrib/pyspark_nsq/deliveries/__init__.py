"""Topics read by consuming them, at least once: from any nsqd, also from the real one.

    backlog   how many messages wait, and where
    batch     the messages of one batch, in flight to the driver until they are finished
    stream    the batches of `spark.readStream`, and what `spark.read` sees with 'peek'

NSQ has no offsets, so a batch cannot be asked for again once its messages are finished. The driver holds them
unfinished until Spark has committed the batch. Tasks get their rows with the partitions, and never connect to an nsqd.
"""
