"""`gnsq-pipeline archive`: topics to a table, exactly once."""

import contextlib

import click

from gnsq_pipeline.archive import PARTITION_COLUMNS, FileLog, only_writer, start, to_archive
from gnsq_pipeline.parameters import StreamOptions, format_option, spark_options, stream_options
from gnsq_pipeline.progress import Summary, summarised
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import local_path, placed, read_options, require_topics


@click.command()
@stream_options
@click.argument("output", metavar="DIRECTORY")
@format_option
@spark_options
def archive(options: StreamOptions, output: str, table_format: str, session: SessionSettings) -> None:
    """Write topics to the table DIRECTORY, partitioned by topic and by date (UTC) of the messages' timestamps.

    Reads all queued messages and ends; with --continuous it does not end. Each message is archived exactly once, even
    if the run is killed and started again with the same spool and checkpoint, which are in DIRECTORY by default. With
    --format iceberg, DIRECTORY is the name of a table.
    """
    from gnsq_pipeline.running import follow, stoppable

    options = placed(options, output, table_format)
    source, checkpoint = read_options(options), str(options.checkpoint)
    with summarised(options.summary, Summary("archive", options.topics, options.channel)) as summary:
        if not options.allow_missing_topics:
            require_topics(source)
        with contextlib.ExitStack() as stack:
            stack.enter_context(only_writer(output, local_path(checkpoint)))
            spark, stop = stack.enter_context(spark_session(session)), stack.enter_context(stoppable())
            if table_format != "iceberg":
                FileLog(spark, output).check_writable(table_format)
            writer = to_archive(spark.readStream.format("nsq").options(**source).load()).writeStream
            follow(
                "archive",
                writer,
                lambda triggered: start(triggered, output, table_format, checkpoint, PARTITION_COLUMNS),
                options,
                summary,
                stop,
            )
