"""The errors that the NSQ data source raises on purpose; str() is the text for people. All are a NsqSourceError."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gnsqd.shared.errors import NSQError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Lets Spark show an error that is raised on purpose in the block by its text alone, without a traceback.

    pyspark.util.handle_worker_exception reads the variable when it reports an error to the JVM; its process ends then.
    """
    try:
        yield
    except NSQError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class NsqSourceError(NSQError):
    """Raised on purpose, as opposed to a defect."""


class OptionError(NsqSourceError, ValueError):
    """An option that cannot be obeyed; the text names it, its value, and what was expected."""


class DiscoveryError(NsqSourceError):
    """The nsqds, or what they hold, cannot be found out."""


class ConnectionLost(NsqSourceError):
    """An nsqd cannot be reached, is silent for too long, or went away."""


class NotAgreed(NsqSourceError):
    """An nsqd was reached, but one side requires TLS or an authorization that the other one does not give."""


class Refused(NsqSourceError):
    """`nsqd` answered `code` (`E_BAD_TOPIC`) and `reason`, the text behind it; the connection is closed."""

    def __init__(self, code: str, reason: str, nsqd: str = "") -> None:
        super().__init__(code, reason, nsqd)
        self.code = code
        self.reason = reason
        self.nsqd = nsqd

    def __str__(self) -> str:
        text = f"{self.code} {self.reason}".strip()
        return f"nsqd {self.nsqd} refused: {text}" if self.nsqd else text


class WriteError(NsqSourceError):
    """A frame lacks columns, a row lacks values, or no nsqd takes its message."""


class InvalidRow(WriteError):
    """A row has no body, or a topic or delay that no nsqd would take."""
