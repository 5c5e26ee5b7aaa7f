"""Exit codes of gnsqadmin, and the error that ends a run with one line."""

import enum
from collections.abc import Sequence


class ExitCode(enum.IntEnum):
    """The exit codes of `gnsqadmin`. WARNING, CRITICAL and UNKNOWN are those of `gnsqadmin check`. USAGE is click's
    code for a wrong command line; `check` exits with UNKNOWN instead."""

    OK = 0
    FAILED = 1  # a node could not be asked or refused, or the output could not be written; what could be done is done
    USAGE = 2
    NOT_FOUND = 4  # no node has such a topic, channel or option
    NOT_CONFIRMED = 5  # what would have destroyed something was not confirmed, and nothing was done
    INTERRUPTED = 130

    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class AdminError(Exception):
    """Ends a command with one line on standard error and `exit_code`; `str()` is that line. A line for each of `causes`
    comes before it."""

    exit_code = ExitCode.FAILED

    def __init__(self, text: str, exit_code: ExitCode | None = None, causes: "Sequence[AdminError]" = ()) -> None:
        super().__init__(text)
        self.causes = causes
        if exit_code is not None:
            self.exit_code = exit_code


class NotOnNode(AdminError):
    """No node has this topic, channel or option."""

    exit_code = ExitCode.NOT_FOUND
