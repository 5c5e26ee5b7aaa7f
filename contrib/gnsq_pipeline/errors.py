"""How a run of gnsq-pipeline ends: the exit codes, and the error that ends it with one line."""

import enum


class ExitCode(enum.IntEnum):
    """What `gnsq-pipeline` exits with: the codes of gnsqadmin."""

    OK = 0
    FAILED = 1  # Spark, a node or a disk refused; what was committed stays and a new run goes on from there
    USAGE = 2
    UNFINISHED = 3  # a signal stopped a run that was to read everything, and something is left
    NOT_FOUND = 4  # the topic, archive, directory or spool that was named isn't there
    INTERRUPTED = 130


class PipelineError(Exception):
    """What ends a command with one line on standard error and `exit_code`; `str()` is that line."""

    exit_code = ExitCode.FAILED


class UsageError(PipelineError):
    """An option's value can't be used, and only a closer look than click's own showed it."""

    exit_code = ExitCode.USAGE


class Unfinished(PipelineError):
    """SIGTERM stopped a run that was to read everything. What was committed stays, and a new run goes on from there."""

    exit_code = ExitCode.UNFINISHED


class NotFound(PipelineError):
    """The input of the command does not exist."""

    exit_code = ExitCode.NOT_FOUND
