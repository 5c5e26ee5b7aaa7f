"""Offsets: what Spark stores of a plan comes back as it was, and plans share and split fairly."""

import json
from typing import Any

import pytest

from pyspark_nsq.discovery import Depth, Nsqd
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq.offsets import Offset, plan_tasks, report, share

NODE = Nsqd("[::1]:4150", ("::1", 4150), ("::1", 4151))
CHAINS = [(NODE.name, [{"views": 4, "carts": 5}]), (NODE.name, [{"clicks": 3}, {"clicks": 2}])]
OFFSET = Offset("5f0c", 7, "archive", CHAINS, {NODE.name: NODE})


def test_the_json_is_as_documented() -> None:
    """A checkpoint outlives a version of this package."""
    assert Offset.from_json(json.loads(json.dumps(OFFSET.to_json()))) == OFFSET
    assert OFFSET.to_json() == {
        "version": 2,
        "stream": "5f0c",
        "batch": 7,
        "channel": "archive",
        "chains": [["[::1]:4150", [{"views": 4, "carts": 5}]], ["[::1]:4150", [{"clicks": 3}, {"clicks": 2}]]],
        "addresses": {"[::1]:4150": ["::1", 4150, "::1", 4151]},
    }


@pytest.mark.parametrize(
    "value, expected",
    [
        ({}, "offsets of version None, expected 2"),
        ({"index": 3}, "offsets of version None, expected 2"),
        ({**OFFSET.to_json(), "version": 1}, "offsets of version 1, expected 2"),
        ({**OFFSET.to_json(), "batch": "many"}, "makes no sense"),
        ({**OFFSET.to_json(), "chains": [1]}, "makes no sense"),
        ({**OFFSET.to_json(), "chains": [["n", {"clicks": 1}]]}, "makes no sense"),
        ({**OFFSET.to_json(), "addresses": {"n": ["host"]}}, "makes no sense"),
        ({"version": 2}, "makes no sense"),
    ],
)
def test_an_offset_of_something_else_is_reported(value: dict[str, Any], expected: str) -> None:
    with pytest.raises(NsqSourceError, match=expected):
        Offset.from_json(value)


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
    taken = share({(topic, "n"): count for topic, count in waiting.items()}, limit)
    assert {topic: count for (topic, _), count in taken.items()} == expected


MANY = [f"t{number}" for number in range(130)]


@pytest.mark.parametrize(
    "quotas, most, tasks, expected",
    [
        ({"a": 5, "b": 0}, 1, None, [{"a": [5]}]),
        ({"a": 5, "b": 3}, 1, 1, [{"b": [3]}, {"a": [5]}]),
        ({"a": 10, "b": 3}, 1, 3, [{"b": [3]}, {"a": [5, 5]}]),
        ({"a": 10}, 99, 4, [{"a": [3, 3, 2, 2]}]),
        ({"a": 100}, 9, 3, [{"a": [34, 33, 33]}]),
        ({"a": 2, "b": 1}, 99, 9, [{"b": [1]}, {"a": [1, 1]}]),
        ({"a": 9}, 99, 4, [{"a": [2, 2, 2, 2, 1]}]),
        ({}, 99, 4, []),
        ({"a": 5, "b": 1, "c": 3}, 10, None, [{"b": [1], "c": [3], "a": [5]}]),
        ({"a": 5, "b": 1, "c": 3}, 8, None, [{"b": [1], "c": [3]}, {"a": [5]}]),
        ({"a": 5, "b": 1, "c": 3, "d": 4}, 9, None, [{"b": [1], "c": [3], "d": [4]}, {"a": [5]}]),
        ({"a": 5, "b": 1, "c": 3, "d": 4}, 9, 3, [{"b": [1], "c": [3]}, {"d": [4]}, {"a": [5]}]),
        ({"a": 10, "b": 1, "c": 3}, 99, 3, [{"b": [1], "c": [3]}, {"a": [5, 5]}]),
        (dict.fromkeys(MANY, 1), 1000, None, [{topic: [1] for topic in MANY[k : k + 64]} for k in (0, 64, 128)]),
    ],
)  # fmt: skip
def test_quotas_are_split_into_tasks_and_topics_with_few_messages_share_one(
    quotas: dict[str, int], most: int, tasks: int | None, expected: list[dict[str, list[int]]]
) -> None:
    keys = {(topic, node): quota for topic, quota in quotas.items() for node in ("n", "m")}
    chains = plan_tasks(keys, most, tasks and 2 * tasks)
    for node in ("n", "m"):
        found = [tasks for name, tasks in chains if name == node]
        assert [{topic: [task[topic] for task in tasks] for topic in tasks[0]} for tasks in found] == expected


def test_the_report_leaves_out_what_the_batch_will_read() -> None:
    depths = {("clicks", NODE.name): Depth(channel=7, topic=2, in_flight=3), ("views", NODE.name): Depth(channel=6)}
    latest = report(OFFSET, depths, {("clicks", NODE.name): 5, ("views", NODE.name): 4})
    assert latest == {
        "version": 2,
        "stream": "5f0c",
        "batch": 7,
        "unread": {"clicks": {NODE.name: 4}, "views": {NODE.name: 2}},
        "in_flight": {"clicks": {NODE.name: 3}, "views": {NODE.name: 0}},
    }
