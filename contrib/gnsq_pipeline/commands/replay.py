"""`gnsq-pipeline replay`: messages of an archive to NSQ again."""

from typing import TYPE_CHECKING

import click

from gnsq_pipeline.errors import NotFound, UsageError
from gnsq_pipeline.output import json_option, show_rows
from gnsq_pipeline.parameters import MOMENT, NAME, destination_options, spark_options
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import checked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@click.command()
@click.argument("directory", metavar="DIRECTORY")
@destination_options
@click.option("--to-topic", type=NAME, metavar="TOPIC", help="Publish all to this topic, not each to its own.")
@click.option("--topic", "topics", type=NAME, multiple=True, help="Only messages of this topic; may be repeated.")
@click.option(
    "--since", type=MOMENT, metavar="TIME", help="Only messages at or after this time, as 2026-11-21T13:00 (UTC)."
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Only messages before this time.")
@click.option("--where", metavar="SQL", help="Only messages that match: attempts > 1, value like '%error%'.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Publish at most N messages a second."
)
@click.option("--dry-run", is_flag=True, help="Only count what would be published.")
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
    as_json: bool,
    session: SessionSettings,
) -> None:
    """Publish messages of the archive in DIRECTORY, or of any Parquet with a column `value`, to NSQ.

    Delivery is at least once: a task that fails runs again, and publishes its messages again. The order is not kept.
    """
    from gnsq_pipeline.archive import read_archive
    from gnsq_pipeline.display import tasks_shown
    from gnsq_pipeline.files import local_path
    from gnsq_pipeline.replay import messages, paced, select
    from gnsq_pipeline.running import run_job, stoppable

    if since is not None and until is not None and since >= until:
        raise UsageError("--since and --until: the time between them is empty")
    if not dry_run:
        nodes = checked(nodes | ({"topic": to_topic} if to_topic else {}), "write")
    if (path := local_path(directory)) is not None and not path.exists():
        raise NotFound(f"{directory}: no such directory")
    with spark_session(session) as spark, stoppable() as stop:
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        chosen = messages(select(read_archive(spark, directory), topics, since, until, where), to_topic)

        def publish() -> "list[dict[str, object]]":
            return count_by_topic(chosen) if dry_run else write(chosen)

        def write(frame: "DataFrame") -> "list[dict[str, object]]":
            if rate is not None:
                frame = paced(frame, rate, spark.sparkContext.defaultParallelism)
            seen = Observation()
            counted = frame.observe(seen, sf.count(sf.lit(1)).alias("messages"))
            counted.write.format("nsq").mode("append").options(**nodes).save()
            return [dict(seen.get)]

        with tasks_shown(f"replay {directory}", "auto") as display:
            rows = run_job(spark, publish, stop, display.tick)
    show_rows("", rows, as_json)


def count_by_topic(frame: "DataFrame") -> list[dict[str, object]]:
    """How many messages, and bytes of them, go to each topic."""
    from pyspark.sql import functions as sf

    counted = frame.groupBy("topic").agg(
        sf.count(sf.lit(1)).alias("messages"), sf.sum(sf.octet_length("value").cast("long")).alias("bytes")
    )
    return [row.asDict() for row in counted.orderBy("topic").collect()]
