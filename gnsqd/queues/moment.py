"""Points in the history of a topic, as users write them, and what is raised if there is nothing."""

import re
from datetime import UTC, datetime
from time import time_ns

from gnsqd.gotext import parse_duration
from gnsqd.options import SECOND
from gnsqd.shared.errors import BrokerError

_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)
_DAY = 86400 * SECOND
_AGO = re.compile(r"-(?:([0-9]{1,9})d)?(.*)", re.DOTALL)
# datetime checks the numbers, but reads more of ISO 8601.
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:[0-5]\d)", re.ASCII | re.IGNORECASE)


class MessageNotFound(BrokerError):
    """No message that can be delivered again has this id."""


def parse_moment(text: str) -> int:
    """Parses a time ago such as `-15m` or `-1d12h`, where a day has 24 hours, or a time of RFC 3339; returns wall clock
    in ns. ValueError."""
    if ago := _AGO.fullmatch(text):
        days, rest = int(ago[1] or 0) * _DAY, ago[2]
        return time_ns() - days + (parse_duration(f"-{rest}") if rest or not ago[1] else 0)
    if not _RFC_3339.fullmatch(text):
        raise ValueError("not a time of RFC 3339")
    since = datetime.fromisoformat(text.upper()) - _UNIX_EPOCH
    return since.days * _DAY + since.seconds * SECOND + since.microseconds * 1000
