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


def from_arrow(frame: "DataFrame", directory: Path) -> Values:
    return Counter(frame.select("value").toArrow().column("value").to_pylist())


def through_views(frame: "DataFrame", directory: Path) -> Values:
    frame.createOrReplaceTempView("lazily")
    return values(frame.sparkSession.sql("SELECT value FROM lazily WHERE value IN (SELECT value FROM lazily)"))


def written_twice(frame: "DataFrame", directory: Path) -> Values:
    return written(frame, directory / "a") & written(frame.repartition(3), directory / "b")


def counted_with(frame: "DataFrame", directory: Path) -> Values:
    """Rows, if their number is the same before and after them."""
    before, rows, after = frame.count(), values(frame), frame.count()
    assert before == rows.total() == after
    return rows


# Others, for frames of ranges.
MORE_ACTIONS: dict[str, Action] = {
    "count, rows, count": (counted_with, 1),
    "toArrow": (from_arrow, 1),
    "toLocalIterator": (lambda frame, _: Counter(bytes(row.value) for row in frame.toLocalIterator()), 1),
    "two writes": (written_twice, 1),
    "coalesce": (lambda frame, _: values(frame.coalesce(1)), 1),
    "repartition by a column": (lambda frame, _: values(frame.repartition("value")), 1),
    "distinct": (lambda frame, _: values(frame.select("value").distinct()), 1),
    "dropDuplicates": (lambda frame, _: values(frame.dropDuplicates(["message_id"])), 1),
    "groupBy": (lambda frame, _: values(frame.groupBy("value").count().where("count = 1")), 1),
    "a window": (lambda frame, _: values(frame.selectExpr("value", "lag(value) OVER (ORDER BY value)")), 1),
    "rdd": (lambda frame, _: Counter(frame.rdd.map(lambda row: bytes(row.value)).collect()), 1),
    "localCheckpoint": (lambda frame, _: values(frame.localCheckpoint()), 1),
    "subtract itself": (lambda frame, _: values(frame.subtract(frame)), 0),
    "exceptAll of a part": (
        lambda frame, _: values(frame.exceptAll(frame.where("value = '0'")).unionAll(frame.where("value = '0'"))),
        1,
    ),
    "intersect with itself": (lambda frame, _: values(frame.intersect(frame)), 1),
    "an anti join with itself": (
        lambda frame, _: values(frame.join(frame.select("message_id"), "message_id", "left_anti")),
        0,
    ),
    "a view and a subquery": (through_views, 1),
    "first and last rows, then a write": (after(lambda frame: (frame.first(), frame.tail(3))), 1),
}
