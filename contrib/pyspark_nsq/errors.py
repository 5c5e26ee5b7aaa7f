"""What the NSQ data source raises on purpose; str() is the text for people.

- NsqSourceError: everything raised on purpose
  - OptionError: an option is unknown, missing, has a wrong value or contradicts another one
  - DiscoveryError: no nsqlookupd answers, an nsqd does not return its statistics
  - ConnectionLost: an nsqd cannot be reached or went away; trying again may help
  - NotAgreed: an nsqd and the options do not agree on TLS or authorization; trying again does not help
  - Refused: an nsqd answered an error, of which `code` is the E_ code
  - WriteError: a frame cannot be published, or no nsqd takes its messages
    - InvalidRow: a row of it cannot be published; trying again does not help
  - SpoolError: the spool cannot be written, or what is in it makes no sense
"""

from gnsqd.errors import NSQError


class NsqSourceError(NSQError):
    """Raised on purpose, as opposed to a defect."""


class OptionError(NsqSourceError, ValueError):
    """An option that cannot be obeyed; the text names it, its value, and what was expected."""


class DiscoveryError(NsqSourceError):
    """Which nsqds there are, or what they hold, cannot be found out."""


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


class SpoolError(NsqSourceError):
    """A spool directory cannot be used, or a file in it is damaged."""
