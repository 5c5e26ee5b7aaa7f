"""`gnsq-pipeline backlog`: queued messages in the data directories of nodes that are down."""

import glob
import time

import click

from gnsq_pipeline.errors import ExitCode, NotFound
from gnsq_pipeline.output import show_rows
from gnsq_pipeline.parameters import NAME, json_option, spark_options
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import local_path


@click.command()
@click.argument("directories", metavar="DIRECTORY...", nargs=-1, required=True)
@click.option("--topic", "topics", type=NAME, multiple=True, help="Only queues of this topic; may be repeated.")
@click.option("--channel", "channels", type=NAME, multiple=True, help="Only queues of this channel; may be repeated.")
@click.option("--all", "all_messages", is_flag=True, help="Include messages that were read but are still in the files.")
@json_option
@spark_options
def backlog(
    directories: tuple[str, ...],
    topics: tuple[str, ...],
    channels: tuple[str, ...],
    all_messages: bool,
    as_json: bool,
    session: SessionSettings,
) -> None:
    """Report the queued messages in data directories of gnsqd or nsqd, for nodes that are down, with a row per queue.

    The directories (patterns such as /mnt/*/nsqd may be quoted) are read in parallel, with a task for each file. Damage
    is reported with its position, and causes exit code 1.
    """
    from gnsq_pipeline.backlog import damages, summarise
    from gnsq_pipeline.running import run_job, stoppable

    for directory in directories:
        if local_path(directory) is not None and not glob.glob(directory):
            raise NotFound(f"{directory}: no such directory")
    options = {"corruption": "column", "messages": "all" if all_messages else "unread"}
    chosen = {"topic": ",".join(topics), "channel": ",".join(channels)}
    options |= {name: names for name, names in chosen.items() if names}
    with spark_session(session) as spark, stoppable() as stop:
        records = spark.read.format("nsq_diskqueue").options(**options).load(list(directories))
        summary, damage = summarise(records, time.time_ns()), damages(records)
        rows = run_job(spark, lambda: [row.asDict() for row in summary.collect()], stop)
        damaged = []
        if any(row["damaged_places"] for row in rows):
            damaged = run_job(spark, lambda: [row.asDict() for row in damage.collect()], stop)
    show_rows(rows, as_json)
    if damaged:
        if not as_json:
            click.echo()
        show_rows(damaged, as_json, "Damaged")
        click.get_current_context().exit(ExitCode.FAILED)
