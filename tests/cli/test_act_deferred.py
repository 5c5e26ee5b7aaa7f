"""`gnsqadmin channel deferred`: the list, the counts, and a message that is cancelled."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from cli.gnsqadmin import document, failure, ok, on_terminal, plain, rows, words
from cli.nodes import address, at
from kit.daemons import Daemon
from kit.traffic import DaemonFactory, create, post, wait_for

DEFERRED = ("channel", "deferred", "t", "c")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000  # ms
JOURNAL = ("--durability=process", "--mem-queue-size=2")
Start = Callable[..., Daemon]


@pytest.fixture
def start(gnsqd_factory: DaemonFactory) -> Start:
    """Start a node whose topic t with a channel c has a message for each of these delays, which is its body."""

    def started(*delays: int, flags: tuple[str, ...] = ()) -> Daemon:
        node = gnsqd_factory("--max-defer-time=8760h", *flags)
        create(node, "t", "c")
        for delay in delays:
            post(node, f"/pub?topic=t&defer={delay}", b"%d" % delay)
        wait_for(node, "t", "c", deferred_count=len(delays))
        return node

    return started


def count(*nodes: Daemon) -> list[int]:
    return [int(node.channel_stats("t", "c")["deferred_count"]) for node in nodes]


def listed(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = document(*DEFERRED, *arguments)
    return found


def bodies(*arguments: str) -> list[int]:
    return [int(row["body"]) for row in listed(*arguments)["messages"]]


def id_of(delay: int, node: Daemon) -> str:
    (id,) = (row["id"] for row in listed(*at(node))["messages"] if row["body"] == str(delay))
    return str(id)


def test_messages_of_all_nodes_are_listed_by_due_time_and_counted(start: Start) -> None:
    before = time.time()
    one = start(30 * DAY, 2 * DAY, 5 * MINUTE, MINUTE // 2, flags=JOURNAL)
    two = start(2 * HOUR, 300 * DAY)
    after = time.time()
    found = listed(*at(one, two))
    assert [found.pop(key) for key in ("topic", "channel", "dry_run")] == ["t", "c", None]
    within = {"minute": 1, "hour": 2, "day": 2, "week": 3, "deferred": 4}
    assert found["nodes"] == [
        {"address": address(one), "error": None} | within,
        {"address": address(two), "error": None, "minute": 0, "hour": 0, "day": 1, "week": 1, "deferred": 2},
    ]
    expected = [MINUTE // 2, 5 * MINUTE, 2 * HOUR, 2 * DAY, 30 * DAY, 300 * DAY]
    nodes = [address(node) for node in (one, one, two, one, one, two)]
    for row, delay, node in zip(found["messages"], expected, nodes, strict=True):
        assert before < row.pop("due") - delay / 1000 < after
        assert len(row.pop("id")) == 16
        body = str(delay)
        assert row == {"node": node, "attempts": 0, "size": len(body), "body": body, "body_base64": None}
    assert bodies(*at(one, two), "--limit=3") == expected[:3]
    tomorrow = datetime.fromtimestamp(time.time() + 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for begin in ("1d", tomorrow):
        assert bodies(*at(one, two), f"--from={begin}", "--limit=2") == [2 * DAY, 30 * DAY]
    assert bodies(*at(one), "--from=400d") == []
    assert ok(*DEFERRED, *at(one), "--from=400d").splitlines()[-1] == "No deferred messages to show."


def test_bodies_are_shown_as_text_and_kept_in_json(start: Start) -> None:
    node = start()
    post(node, f"/pub?topic=t&defer={40 * DAY}", b"\0\xff\n" + b"x" * 1000)
    wait_for(node, "t", "c", deferred_count=1)
    (row,) = rows(*DEFERRED, *at(node))
    assert (row["node"], row["size"]) == (address(node), "1003")
    assert row["body"].startswith(r"\x00\xff\n" + "x" * 280)
    assert time.time() + 39 * 86400 < datetime.fromisoformat(row["due"]).timestamp() < time.time() + 41 * 86400
    (message,) = listed(*at(node))["messages"]
    assert (message["body"], len(message["body_base64"])) == (None, 1340)
    day = datetime.fromisoformat(row["due"]).astimezone().strftime("%Y-%m-%d")
    for columns in (80, 120):
        screen = plain(on_terminal(columns, *DEFERRED, *at(node)).out)
        assert max(map(len, screen.splitlines())) <= columns
        assert all(text in screen for text in (message["id"], day, r"\x00\xff\nxxxxx")), screen


@pytest.mark.parametrize("flags", [(), JOURNAL], ids=["in memory", "in the journal"])
def test_message_is_cancelled_on_the_node_that_has_it(start: Start, gnsqd: Daemon, flags: tuple[str, ...]) -> None:
    """The third node does not have the channel, and is left out."""
    other, node = start(HOUR), start(MINUTE, DAY, 2 * DAY, 3 * DAY, flags=flags)
    id = id_of(2 * DAY, node)
    cancel = [*DEFERRED, f"--cancel={id}", *at(other, gnsqd, node)]
    assert [row["body"] for row in document(*cancel, "--dry-run")["messages"]] == [str(2 * DAY)]
    assert count(node, other) == [4, 1]
    done = ok(*cancel, "--yes").split()
    assert (id in done, done[-2:]) == (True, [str(2 * DAY), "cancelled"])
    assert count(node, other) == [3, 1]
    assert bodies(*at(other, gnsqd, node)) == [MINUTE, HOUR, DAY, 3 * DAY]
    assert [row["address"] for row in listed(*at(gnsqd, node))["nodes"]] == [address(node)]
    assert failure(*cancel, "--yes", code=4) == f"no node has the deferred message {id}"


def test_message_behind_the_first_thousand_is_cancelled(start: Start) -> None:
    node, other = start(), start(MINUTE)
    post(node, f"/mpub?topic=t&defer={HOUR}", b"\n".join(b"%d" % number for number in range(1000)))
    post(node, f"/pub?topic=t&defer={DAY}", b"last")
    wait_for(node, "t", "c", deferred_count=1001)
    (row,) = listed(*at(node), "--from=2h")["messages"]
    cancel = [*DEFERRED, f"--cancel={row['id']}", *at(node, other)]
    planned = words(*cancel, "--dry-run")[2]
    assert (planned[0], row["id"] in planned, planned[-3:]) == (address(node), True, ["to", "be", "cancelled"])
    assert words(*cancel, "--dry-run", "--from=2h")[2][-4:] == ["last", "to", "be", "cancelled"]
    ok(*cancel, "--yes")
    assert count(node, other) == [1000, 1]
