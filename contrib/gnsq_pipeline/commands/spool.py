"""`gnsq-pipeline spool`: what is in the spool of a stream, its replay and its removal. Needs no Spark."""

import click

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.output import show_rows
from gnsq_pipeline.parameters import DURATION, NAME, destination_options, json_option
from gnsq_pipeline.source import checked

_DIRECTORY = click.argument("directory", metavar="DIRECTORY")
_STREAM = click.argument("stream")


@click.group()
def spool() -> None:
    """Inspect the spool of a stream, publish its messages again, or clean it up.

    DIRECTORY is a spool, or the output of a pipeline that contains its spool. STREAM is the beginning of a stream's id.
    """


@spool.command("list")
@_DIRECTORY
@json_option
def list_streams(directory: str, as_json: bool) -> None:
    """List the streams: batches, segments, messages, suspects (ids whose FIN is in doubt), bytes."""
    from gnsq_pipeline.spool import stream_rows

    show_rows(stream_rows(directory), as_json)


@spool.command()
@_DIRECTORY
@_STREAM
@json_option
def show(directory: str, stream: str, as_json: bool) -> None:
    """List the batches of one stream."""
    from gnsq_pipeline.spool import batch_rows

    show_rows(batch_rows(directory, stream), as_json)


@spool.command()
@_DIRECTORY
@_STREAM
@destination_options
@click.option("--to-topic", type=NAME, metavar="TOPIC", help="Publish all to this topic, not each to its own.")
@click.option("--all", "committed", is_flag=True, help="Include committed messages that are still there.")
@click.option("--dry-run", is_flag=True, help="Only count what would be published.")
@json_option
def replay(
    directory: str,
    stream: str,
    nodes: dict[str, str],
    to_topic: str | None,
    committed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Publish the uncommitted messages of a stream whose checkpoint is lost.

    The spool is not changed, so a second run publishes them again.
    """
    from gnsq_pipeline.spool import replay as replay_one
    from pyspark_nsq.options import parse

    settings = None
    if not dry_run:
        settings = parse(checked(nodes | ({"topic": to_topic} if to_topic else {}), "write"), "write")
    rows = replay_one(directory, stream, settings, to_topic=to_topic, committed=committed)
    show_rows(rows, as_json)
    if damaged := sum(int(str(row["damaged"])) for row in rows):
        raise PipelineError(f"{damaged} segments are damaged: their messages are not published")


@spool.command()
@_DIRECTORY
@click.option("--older-than", type=DURATION, default="1d", show_default=True, help="Minimum age of the reads.")
@json_option
def prune(directory: str, older_than: float, as_json: bool) -> None:
    """Remove the messages that batch reads left. Streams clean up their spools themselves."""
    from gnsq_pipeline.spool import prune as prune_reads

    show_rows(prune_reads(directory, older_than), as_json)


@spool.command()
@_DIRECTORY
@_STREAM
@click.option("--with-uncommitted", is_flag=True, help="Also remove a stream with uncommitted messages, and lose them.")
@json_option
def remove(directory: str, stream: str, with_uncommitted: bool, as_json: bool) -> None:
    """Remove a stream whose query will not run again."""
    from gnsq_pipeline.spool import remove as remove_one

    show_rows(remove_one(directory, stream, with_uncommitted), as_json)
