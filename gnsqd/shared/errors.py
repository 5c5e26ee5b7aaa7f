"""The bases of everything gnsqd raises on purpose; each layer derives its own from these."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class NSQError(Exception):
    """The base of errors that are raised on purpose, as opposed to a defect; str() is the text for people."""


class StartError(NSQError):
    """The daemon cannot start, and exits with code 1. `line` is the text of the FATAL line (NSQD-COMPAT 1.4)."""

    def __init__(self, text: str, prefix: str = "failed to instantiate nsqd") -> None:
        super().__init__(text)
        self.line = f"{prefix} - {text}" if prefix else text


class BrokerError(NSQError):
    """A topic or channel refuses a request. The text is what clients get after `failed `, such as `exiting` or
    `ID not in flight`; it has no code of the wire or of HTTP."""


class NotFound(BrokerError):
    """There is no such thing; `what` is `topic`, `channel` or `message`."""

    def __init__(self, what: str, text: str = "does not exist") -> None:
        super().__init__(f"{what} {text}")
        self.what = what


class StorageError(NSQError):
    """Reading or writing below the data path failed; `written` messages of a batch are in the queue nevertheless."""

    def __init__(self, text: str, written: int = 0) -> None:
        super().__init__(text)
        self.written = written


class AuthError(NSQError):
    """No auth server gave a valid answer. The text is for the log only: clients do not get it."""


class HTTPClientError(NSQError):
    """An HTTP server that gnsqd asks gives no answer, or none with status 200."""


class AnswerTooLarge(ValueError):
    """The cause of an HTTPClientError: the answer has more bytes than the client accepts."""


def reason_of(error: BaseException) -> str:
    """Returns the system's text of an OSError as Go prints it, such as `permission denied`, else the error's own."""
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]


def path_error(operation: str, path: str, error: OSError) -> str:
    """Returns a text such as `open /data/x: no such file or directory`."""
    return f"{operation} {path}: {reason_of(error)}"


@contextmanager
def failing_as_go(operation: str, path: str) -> Iterator[None]:
    """Turns an OSError into a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(path_error(operation, path, error)) from error


def is_disk_full(error: BaseException) -> bool:
    """True if the cause of a StorageError is a full disk, or a quota."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in NO_SPACE
