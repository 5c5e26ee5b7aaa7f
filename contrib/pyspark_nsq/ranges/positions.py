"""Positions in logs, and the ranges between them. Spark's checkpoint has a stream's positions as JSON:

    {"version": 1, "channel": "archive",
     "positions": [{"topic": "clicks", "node": "node-a:4150", "epoch": "a3fd2c7f6e40d096", "number": 5001, "begin": 1,
                    "published": 1795771063003280014}]}

The epoch names the log: a node that comes back under another address goes on where it was, and a topic that was deleted
and made again is another log.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark_nsq.errors import NsqSourceError

VERSION = 1
Log = tuple[str, str]  # topic, epoch


class Position(NamedTuple):
    """The number of the next message to read from a log, and of the first that was to be read; `node` is the nsqd that
    had the log last. The message before `number` was `published` then (ns), if that is not 0."""

    topic: str
    node: str
    epoch: str
    number: int
    begin: int
    published: int = 0

    @property
    def log(self) -> Log:
        return self.topic, self.epoch


Positions = Mapping[Log, Position]
_TYPES = str, str, str, int, int, int


def positions_of(positions: Iterable[Position]) -> dict[Log, Position]:
    return {position.log: position for position in positions}


def to_json(channel: str, positions: Positions) -> dict[str, Any]:
    """Returns the offset that Spark keeps."""
    rows = [positions[log]._asdict() for log in sorted(positions)]
    return {"version": VERSION, "channel": channel, "positions": rows}


def is_ours(offset: Mapping[str, Any]) -> bool:
    """True if a query that reads ranges wrote this offset."""
    return "positions" in offset


def from_json(offset: Mapping[str, Any]) -> dict[Log, Position]:
    """Returns the positions that `to_json` was given. Raises NsqSourceError if they are not of such a query."""
    if not is_ours(offset) or offset.get("version") != VERSION:
        raise NsqSourceError(
            "the checkpoint was written by a query that reads deliveries, by another version of pyspark_nsq, or by "
            "another source: expected positions of version 1 ('mode' = 'deliveries' goes on with the former)"
        )
    try:
        positions = [Position(**row) for row in offset["positions"]]
        if wrong := [position for position in positions if tuple(map(type, position)) != _TYPES]:
            raise TypeError(f"{wrong[0]}")
    except TypeError as error:
        raise NsqSourceError(f"the checkpoint has positions that make no sense ({error!r}): {offset}") from None
    return positions_of(positions)


def begin_of(start: Positions, end: Position) -> int:
    """Returns the number at which the range up to `end` begins, also in a log that `start` does not have."""
    return start[end.log].number if end.log in start else end.begin


def pieces(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Returns `count` ranges, or fewer, that together are the one from `start` to `end`."""
    bounds = [start + (end - start) * part // count for part in range(count + 1)]
    return [(first, last) for first, last in pairwise(bounds) if first < last]
