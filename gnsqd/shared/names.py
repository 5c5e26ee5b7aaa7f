"""The names that topics, channels and queues may have (NSQD-COMPAT section 2.3), and how many clients may create."""

import re
from collections.abc import Collection

from gnsqd.shared.errors import BrokerError

EPHEMERAL_SUFFIX = "#ephemeral"
MAX_NAME_LENGTH = 64
NAME_RULE = f"1 to {MAX_NAME_LENGTH} of a-z, A-Z, 0-9, '.', '_' and '-', optionally with {EPHEMERAL_SUFFIX} at the end"

_NAME = re.compile(rf"[.a-zA-Z0-9_-]+({EPHEMERAL_SUFFIX})?")


class TooMany(BrokerError):
    """There are as many topics, or channels of a topic, as clients may create: each costs memory and files."""


def is_valid_name(name: str) -> bool:
    """Returns True if `name` may name a topic or a channel; the suffix counts towards the 64 characters."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """True if the topic or channel is deleted with its last consumer."""
    return name.endswith(EPHEMERAL_SUFFIX)


def is_valid_queue(name: str) -> bool:
    """True if `name` is that of a queue: `topic`, or `topic:channel`."""
    return all(map(is_valid_name, name.split(":", 1)))


def check_limit(name: str, existing: Collection[str], limit: int, what: str) -> None:
    """Raises TooMany if a client may not create `name` beside the existing names; 0 means no limit."""
    if 0 < limit <= len(existing) and name not in existing:
        raise TooMany(f"too many {what}")
