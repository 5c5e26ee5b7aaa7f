"""How a run of gnsq-pipeline ends: the exit codes, and the errors that end it with one line on stderr."""

import enum


class ExitCode(enum.IntEnum):
    """What `gnsq-pipeline` exits with: the codes of gnsqadmin."""

    OK = 0
    FAILED = 1  # Spark, a node or a disk; a new run continues after what was committed
    USAGE = 2
    UNFINISHED = 3  # a signal stopped a run before everything was read
    NOT_FOUND = 4
    INTERRUPTED = 130


class PipelineError(Exception):
    """Ends a command with `exit_code` and one line on stderr, which is its `str()`."""

    exit_code = ExitCode.FAILED


class UsageError(PipelineError):
    """The value of an option cannot be used."""

    exit_code = ExitCode.USAGE


class Unfinished(PipelineError):
    """SIGTERM stopped a run before everything was read; a new run continues there."""

    exit_code = ExitCode.UNFINISHED


class NotFound(PipelineError):
    """The input of the command does not exist."""

    exit_code = ExitCode.NOT_FOUND
