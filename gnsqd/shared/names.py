"""The rules for topics and channels: their names (NSQD-COMPAT section 2.3), and how many clients may create."""

import re
from collections.abc import Collection

from gnsqd.shared.errors import BrokerError

EPHEMERAL_SUFFIX = "#ephemeral"
MAX_NAME_LENGTH = 64

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


class TooMany(BrokerError):
    """There are as many topics, or channels of a topic, as clients may create: each costs memory and files."""


def is_valid_name(name: str) -> bool:
    """Returns True if `name` may name a topic or a channel; the suffix counts towards the 64 characters."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL_SUFFIX)


def check_limit(name: str, existing: Collection[str], limit: int, what: str) -> None:
    """Raises TooMany if a client may not create `name` beside the existing names; 0 means no limit."""
    if 0 < limit <= len(existing) and name not in existing:
        raise TooMany(f"too many {what}")
