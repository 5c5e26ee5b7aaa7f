"""Actions on a batch frame that scan it late, twice or in part."""

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Values = Counter[bytes]
Action = tuple[Callable[["DataFrame", Path], Values], int]


def values(frame: "DataFrame") -> Values:
    return Counter(bytes(row.value) for row in frame.select("value").collect())


def written(frame: "DataFrame", directory: Path) -> Values:
    frame.write.parquet(str(directory))
    return values(frame.sparkSession.read.parquet(str(directory)))


def cached(frame: "DataFrame", directory: Path) -> Values:
    frame.cache().count()
    found = values(frame)
    frame.unpersist()
    return found & written(frame, directory)


def after(first: Callable[["DataFrame"], object]) -> Callable[["DataFrame", Path], Values]:
    """What is written after another action."""

    def act(frame: "DataFrame", directory: Path) -> Values:
        with contextlib.suppress(Exception):
            first(frame)
        return written(frame, directory)

    return act


# The actions of the second table of spark.md; each yields every message as often as the number specifies.
ACTIONS: dict[str, Action] = {
    "a write": (written, 1),
    "`show(5)`, then a write": (after(lambda frame: frame.take(5)), 1),  # as show does, without the printing
    "`limit(10)`, then a write": (after(lambda frame: frame.limit(10).collect()), 1),
    "`count()`, then a write": (after(lambda frame: frame.count()), 1),
    "`orderBy`, then a write": (lambda frame, directory: written(frame.orderBy("value"), directory), 1),
    "a join with itself": (lambda frame, _: values(frame.join(frame.select("message_id"), "message_id")), 1),
    "a union with itself": (lambda frame, _: values(frame.union(frame)), 2),
    "`cache`, `count()`, rows, `unpersist`, then a write": (cached, 1),
    "a failed action, then a write": (after(lambda frame: frame.selectExpr("raise_error('no')").collect()), 1),
}
