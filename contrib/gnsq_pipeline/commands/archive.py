"""`gnsq-pipeline archive`: topics to partitioned Parquet, exactly once."""

import contextlib
import time

import click

from gnsq_pipeline.parameters import (
    DURATION,
    SIZE,
    reading_options,
    run_options,
    source_options,
    spark_options,
    subscription_options,
)
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import directories, require_topics, stream_options


@click.command()
@subscription_options
@source_options
@click.argument("output", metavar="DIRECTORY")
@reading_options
@click.option("--compact", is_flag=True, help="Compact past hours, at the end or regularly.")
@click.option(
    "--compact-every",
    type=DURATION,
    default="10m",
    show_default=True,
    help="Time between compactions with --continuous.",
)
@click.option("--target-size", type=SIZE, default="128m", show_default=True, help="Maximum size of compacted files.")
@run_options
@spark_options
def archive(
    topics: tuple[str, ...],
    channel: str | None,
    nodes: dict[str, str],
    output: str,
    spool: str | None,
    checkpoint: str | None,
    max_messages: int | None,
    continuous: bool,
    trigger: float,
    allow_missing_topics: bool,
    compact: bool,
    compact_every: float,
    target_size: int,
    progress: str,
    metrics_address: tuple[str, int] | None,
    summary_file: str | None,
    session: SessionSettings,
) -> None:
    """Write topics to Parquet below DIRECTORY, partitioned by topic, date and hour (UTC) of the messages' timestamps.

    Reads all queued messages and ends; with --continuous it does not end. Each message is archived exactly once, even
    if the run is killed and started again with the same spool and checkpoint, which are in DIRECTORY by default.
    """
    from gnsq_pipeline.archive import ArchiveSink, unmoved
    from gnsq_pipeline.compaction import HOUR_OPEN, KEEP, closed_before, compact_archive, sweep
    from gnsq_pipeline.files import files_at
    from gnsq_pipeline.running import stoppable, stopping
    from gnsq_pipeline.streaming import follow, triggered
    from gnsq_pipeline.summary import summarised

    spool, checkpoint = directories(output, channel, spool, checkpoint)
    options = stream_options(nodes, topics, channel, spool, max_messages)
    with summarised(summary_file, "archive", topics, channel) as summary, contextlib.ExitStack() as stack:
        if not allow_missing_topics:
            require_topics(options)
        spark, stop = stack.enter_context(spark_session(session)), stack.enter_context(stoppable())
        files = files_at(output, spark)
        unmoved(files)
        sweep(files, KEEP, time.time())
        compacted = time.monotonic()

        def compact_closed() -> None:
            nonlocal compacted
            compacted = time.monotonic()
            compact_archive(spark, files, target_size, wanted=closed_before(time.time() - HOUR_OPEN))

        def after_batch() -> None:
            if compact and time.monotonic() - compacted >= compact_every:
                compact_closed()

        sink = ArchiveSink(files, after_batch)
        writer = triggered(
            spark.readStream.format("nsq").options(**options).load().writeStream, continuous, trigger
        ).option("checkpointLocation", checkpoint)
        title = f"archive {', '.join(topics)} to {output}"
        start = writer.foreachBatch(stopping(sink.write_batch, stop)).start
        follow("archive", title, start, stop, progress, metrics_address, summary, continuous)
        if compact:
            compact_closed()
