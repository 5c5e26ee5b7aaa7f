"""`gnsq-pipeline replay`: messages of an archive to NSQ again."""

import click

from gnsq_pipeline.archive import read_archive
from gnsq_pipeline.errors import UsageError
from gnsq_pipeline.output import show_rows
from gnsq_pipeline.parameters import (
    NAME,
    destination_options,
    format_option,
    json_option,
    period_options,
    spark_options,
)
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import checked, require_directory


@click.command()
@click.argument("directory", metavar="DIRECTORY")
@destination_options
@click.option("--to-topic", type=NAME, metavar="TOPIC", help="Publish all to this topic, not each to its own.")
@click.option("--topic", "topics", type=NAME, multiple=True, help="Only messages of this topic; may be repeated.")
@period_options
@click.option("--where", metavar="SQL", help="Only messages that match: attempts > 1, value like '%error%'.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages a second.")
@click.option("--dry-run", is_flag=True, help="Only count what would be published.")
@format_option
@json_option
@spark_options
def replay(
    directory: str,
    nodes: dict[str, str],
    to_topic: str | None,
    topics: tuple[str, ...],
    since: int | None,
    until: int | None,
    where: str | None,
    rate: float | None,
    dry_run: bool,
    table_format: str,
    as_json: bool,
    session: SessionSettings,
) -> None:
    """Publish messages of the archive in DIRECTORY, or of any table with a column `value`, to NSQ.

    Delivery is at least once: a task that fails runs again, and publishes its messages again. The order is not kept.
    """
    from gnsq_pipeline.replay import count_by_topic, messages, publish, select
    from gnsq_pipeline.running import run_job, stoppable

    if since is not None and until is not None and since >= until:
        raise UsageError("--since and --until: the time between them is empty")
    if not dry_run:
        nodes = checked(nodes | ({"topic": to_topic} if to_topic else {}), "write")
    if table_format != "iceberg":
        require_directory(directory)
    with spark_session(session) as spark, stoppable() as stop:
        archived = read_archive(spark, directory, table_format)
        chosen = messages(select(archived, topics, since, until, where), to_topic)
        rows = run_job(spark, lambda: count_by_topic(chosen) if dry_run else publish(chosen, nodes, rate), stop)
    show_rows(rows, as_json)
