"""Points in the history of a topic, as users write them."""

import re
from time import time_ns

from gnsqd.gotext import parse_duration
from gnsqd.options import SECOND

_DAY = 86400 * SECOND
# Patterns are compiled when they are first used, by the functions of re.
_AGO = r"(?s)-(?:([0-9]{1,9})d)?(.*)"
# datetime checks the numbers, but reads more of ISO 8601.
_RFC_3339 = r"(?ai)\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:[0-5]\d)"


def parse_moment(text: str) -> int:
    """Parses a time ago such as `-15m` or `-1d12h`, where a day has 24 hours, or a time of RFC 3339; returns wall clock
    in ns. Raises ValueError."""
    if ago := re.fullmatch(_AGO, text):
        days, rest = int(ago[1] or 0) * _DAY, ago[2]
        return time_ns() - days + (parse_duration(f"-{rest}") if rest or not ago[1] else 0)
    if not re.fullmatch(_RFC_3339, text):
        raise ValueError("not a time of RFC 3339")
    from datetime import UTC, datetime  # loads slowly

    since = datetime.fromisoformat(text.upper()) - datetime.fromtimestamp(0, UTC)
    return since.days * _DAY + since.seconds * SECOND + since.microseconds * 1000
