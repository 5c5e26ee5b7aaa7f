"""The `gnsq-pipeline` command line: the group of all commands, and how a run ends.

A user's mistake is a line on stderr, never a traceback; only --verbose shows where an error of Spark comes from.
"""

import importlib
import os
import sys
from typing import NoReturn

import click

from gnsq_pipeline.errors import ExitCode, PipelineError
from gnsqd.version import VERSION

# What the extra `spark` in pyproject.toml installs; gnsqd itself, whose extra that is, may be on no index.
INSTALL = "pip install 'pyarrow>=18' 'pyspark>=4.2'"
COMMANDS = {
    "archive": "Write topics to a table: Parquet, Delta Lake or Iceberg.",
    "replay": "Publish messages of an archive again.",
    "rollup": "Aggregate counts, bytes, rates and latencies per topic and window, or fields of JSON bodies.",
    "backlog": "Report the queued messages in the data directories of nodes that are down.",
    "spool": "Inspect the spool of a stream, publish its messages again, or clean it up.",
}


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are used: their imports are slow."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        loaded = getattr(importlib.import_module(f"gnsq_pipeline.commands.{cmd_name}"), cmd_name)
        assert isinstance(loaded, click.Command)
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="gnsq-pipeline", message="%(prog)s %(version)s")
def cli() -> None:
    """Pipelines between NSQ and tables on Spark.

    \b
    Exit codes:
      0    success; also if SIGTERM stopped a run with --continuous
      1    Spark, a node or a disk refused; a new run continues after what was committed
      2    wrong usage
      3    SIGTERM stopped a run before everything was read; a new run continues there
      4    the topic, archive, directory or spool does not exist
      130  interrupted, and stopped cleanly
    """


def main() -> NoReturn:
    """Run the command line of this process."""
    status: int
    try:
        status = cli.main(prog_name="gnsq-pipeline", standalone_mode=False) or ExitCode.OK
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except PipelineError as error:
        click.echo(f"Error: {error}", err=True)
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = ExitCode.INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        click.echo(f"Error: {error.name} is not installed: {INSTALL}", err=True)
        status = ExitCode.FAILED
    except OSError as error:
        click.echo(f"Error: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
        status = ExitCode.FAILED
    try:
        sys.stdout.flush()
    except OSError:  # whoever read it went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
