"""A limit is shared by the nsqds and topics that have messages."""

import pytest

from pyspark_nsq.nodes import share


@pytest.mark.parametrize(
    "waiting, limit, expected",
    [
        ({"a": 5, "b": 7}, None, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, 12, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, 8, {"a": 4, "b": 4}),
        ({"a": 1, "b": 100}, 10, {"a": 1, "b": 9}),
        ({"a": 100, "b": 0, "c": 100}, 5, {"a": 2, "b": 0, "c": 3}),
        ({"a": 9, "b": 9, "c": 9}, 1, {"a": 0, "b": 0, "c": 1}),
        ({}, 5, {}),
    ],
)
def test_a_limit_is_shared_evenly(waiting: dict[str, int], limit: int | None, expected: dict[str, int]) -> None:
    assert share(waiting, limit) == expected
