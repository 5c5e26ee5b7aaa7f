"""`gnsq-pipeline compact`: few large files of an archive's many small ones."""

import time

import click

from gnsq_pipeline.errors import NotFound
from gnsq_pipeline.output import json_option, show_rows
from gnsq_pipeline.parameters import DURATION, SIZE, spark_options
from gnsq_pipeline.session import SessionSettings, spark_session


@click.command()
@click.argument("directory", metavar="DIRECTORY")
@click.option("--target-size", type=SIZE, default="128m", show_default=True, help="Maximum size of compacted files.")
@click.option(
    "--min-files",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    metavar="N",
    help="Merge only if there are at least this many small files.",
)
@click.option(
    "--keep-replaced",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Time for which replaced files are kept, for readers that have started; 0 removes them at once.",
)
@click.option("--adopt", is_flag=True, help="First correct the log of an archive that was moved or copied here.")
@json_option
@spark_options
def compact(
    directory: str,
    target_size: int,
    min_files: int,
    keep_replaced: float,
    adopt: bool,
    as_json: bool,
    session: SessionSettings,
) -> None:
    """Compact the archive in DIRECTORY, and remove leftovers of earlier compactions and crashes.

    The archive may be written and read meanwhile: readers see either the small files or the large one.
    """
    from gnsq_pipeline.archive import adopt as adopt_archive
    from gnsq_pipeline.archive import require_archive
    from gnsq_pipeline.compaction import compact_archive, sweep
    from gnsq_pipeline.display import tasks_shown
    from gnsq_pipeline.files import files_at, local_path
    from gnsq_pipeline.running import run_job, stoppable

    if (path := local_path(directory)) is not None and not path.is_dir():
        raise NotFound(f"{directory}: no such directory")
    with spark_session(session) as spark, stoppable() as stop:
        files = files_at(directory, spark)
        if adopt:
            adopt_archive(files)
        require_archive(files)
        with tasks_shown(f"compact {directory}", "auto") as display:
            done = run_job(
                spark,
                lambda: compact_archive(spark, files, target_size, min_files, keep_replaced),
                stop,
                display.tick,
            )
        swept, swept_bytes = sweep(files, keep_replaced, time.time())
    show_rows("", [done._asdict() | {"swept_files": swept, "swept_bytes": swept_bytes}], as_json)
