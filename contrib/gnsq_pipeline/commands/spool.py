"""`gnsq-pipeline spool`: what is in the spool of a stream, and its removal. Needs no Spark."""

import click

from gnsq_pipeline.output import json_option, show_rows
from gnsq_pipeline.parameters import DURATION

_DIRECTORY = click.argument("directory", metavar="DIRECTORY")


@click.group()
def spool() -> None:
    """Look into the spool of a stream, and clean it up.

    DIRECTORY is a spool, or the output of a pipeline that has its spool in it.
    """


@spool.command("list")
@_DIRECTORY
@json_option
def list_streams(directory: str, as_json: bool) -> None:
    """The streams: batches, segments, messages, suspects (ids whose FIN is in doubt), bytes."""
    from gnsq_pipeline.spool_report import stream_rows

    show_rows("", stream_rows(directory), as_json)


@spool.command()
@_DIRECTORY
@click.argument("stream")
@json_option
def show(directory: str, stream: str, as_json: bool) -> None:
    """The batches of one stream, named by the begin of its id."""
    from gnsq_pipeline.spool_report import batch_rows

    show_rows("", batch_rows(directory, stream), as_json)


@spool.command()
@_DIRECTORY
@click.option("--older-than", type=DURATION, default="1d", show_default=True, help="How long ago they must have begun.")
@json_option
def prune(directory: str, older_than: float, as_json: bool) -> None:
    """Remove what batch reads left; of streams nothing, which look after themselves while they run."""
    from gnsq_pipeline.spool_report import prune as prune_reads

    show_rows("", prune_reads(directory, older_than), as_json)


@spool.command()
@_DIRECTORY
@click.argument("stream")
@click.option("--with-uncommitted", is_flag=True, help="Also when messages are lost by it that are nowhere else.")
@json_option
def remove(directory: str, stream: str, with_uncommitted: bool, as_json: bool) -> None:
    """Remove a stream whose query and checkpoint are gone for good, named by the begin of its id."""
    from gnsq_pipeline.spool_report import remove as remove_one

    show_rows("", [remove_one(directory, stream, with_uncommitted)], as_json)
