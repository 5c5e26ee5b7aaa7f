"""The errors that end a run of gnsq-pipeline with one line on stderr; the exit codes are those of gnsqadmin."""

import click

INTERRUPTED = 130


class PipelineError(click.ClickException):
    """Spark, a node or a disk refused; a new run continues after what was committed."""


class UsageError(PipelineError):
    """The value of an option cannot be used."""

    exit_code = 2


class Unfinished(PipelineError):
    """SIGTERM stopped a run before everything was read; a new run continues there."""

    exit_code = 3


class NotFound(PipelineError):
    """The input of the command does not exist."""

    exit_code = 4
