"""`gnsqadmin channel rewind`, `rules` and `deferred`: what is shown and changed, and nodes that keep nothing."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from cli.gnsqadmin import document, failure, gnsqadmin, ok, on_terminal, plain, rows, words
from cli.nodes import address, at, fill
from kit.daemons import Instance
from kit.http_api import ask
from kit.traffic import DaemonFactory, create, post, wait_for

RETAINING = ("--durability=process", "--retention-bytes=1000000")
REWIND = ("channel", "rewind", "t", "c", "--to")
RULES = ("channel", "rules", "t", "c")
DEFERRED = ("channel", "deferred", "t", "c")


def count(node: Instance, of: str = "depth") -> int:
    return int(node.channel_stats("t", "c")[of])


Start = Callable[..., Instance]


@pytest.fixture
def finished(gnsqd_factory: DaemonFactory) -> Start:
    """Returns a function that starts a node with these options and three finished messages."""

    def start(*flags: str) -> Instance:
        node = gnsqd_factory(*flags)
        fill(node, "t", "c", count=3)
        post(node, "/channel/empty?topic=t&channel=c")
        return node

    return start


def test_a_dry_run_shows_what_is_rewound_and_yes_does_it(finished: Start) -> None:
    before, node = time.time(), finished(*RETAINING)
    plan = document(*REWIND, "-1h", "--dry-run", *at(node))
    (row,) = plan.pop("nodes")
    assert plan == {"topic": "t", "channel": "c", "dry_run": True, "messages": 3}
    assert before < row.pop("first") <= row.pop("last") < time.time()
    counts = {"messages": 3, "in_flight": 0, "depth": 0, "deferred": 0}
    assert row == {"address": address(node), "error": None} | counts
    ok(*REWIND, "first", "--until=-1h", "--yes", *at(node))
    assert count(node) == 0
    assert ok(*REWIND, "-1h", "--yes", *at(node)).split()[-1] == "rewound"
    last = json.loads(ask(node, "GET /channel/peek?topic=t&channel=c")[1])["messages"][-1]["id"]
    post(node, "/channel/empty?topic=t&channel=c")
    other = finished(*RETAINING)
    assert address(other) not in ok(*REWIND, last, "--yes", *at(other, node))
    assert (count(node), count(other)) == (1, 0)


def test_nodes_that_keep_nothing_are_reported(finished: Start) -> None:
    keeping, *others = (finished(*flags) for flags in (RETAINING, (), RETAINING[:1]))
    result = gnsqadmin(*REWIND, "first", "--yes", *at(keeping, *others))
    reason = "keeps no finished messages: that needs"
    assert result.err.splitlines() == [
        f"Error: nsqd at {address(others[0])}: {reason} --durability and --retention-bytes",
        f"Error: nsqd at {address(others[1])}: {reason} --retention-bytes",
    ]
    assert (result.code, count(keeping)) == (1, 3)


def test_rules_are_changed_one_by_one_where_the_channel_is(gnsqd_factory: DaemonFactory) -> None:
    other, node = gnsqd_factory(), gnsqd_factory()
    create(node, "t", "c")
    row = {"address": address(node), "rate": 10, "burst": 3, "ordered": False, "error": None}
    row |= {"idle_timeout": None, "idle_policy": None}
    changed = document(*RULES, "--rate=10", "--burst=3", "--yes", *at(other, node))
    assert changed == {"topic": "t", "channel": "c", "dry_run": False, "nodes": [row]}
    assert ok(*RULES, "--ordered", "--yes", *at(node)).split()[-1] == "changed"
    assert document(*RULES, *at(node))["nodes"] == [row | {"ordered": True}]
    for options, rules in (((), (10, 3, True)), (("--rate=0", "--no-ordered", "--yes"), (0, 0, False))):
        ok(*RULES, *options, *at(node))
        answer = json.loads(ask(node, "GET /channel/rules?topic=t&channel=c")[1])
        assert answer == dict(zip(("rate", "burst", "ordered"), rules, strict=True))
    ok(*RULES, "--idle-timeout=72h", "--idle-policy=delete", "--yes", *at(node))
    (row,) = document(*RULES, *at(node))["nodes"]
    assert (row["idle_timeout"], row["idle_policy"]) == (72 * 3600, "delete")
    assert ok(*RULES, *at(node)).split()[-3:] == ["3d", "0h", "delete"]
    assert "--idle-timeout: 3d is not valid" in gnsqadmin(*RULES, "--idle-timeout=3d", "--yes", *at(node)).err
    ok(*RULES, "--idle-timeout=", "--yes", *at(node))
    assert document(*RULES, *at(node))["nodes"][0]["idle_timeout"] is None


MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000  # ms
JOURNAL = ("--durability=process", "--mem-queue-size=2")


@pytest.fixture
def deferring(gnsqd_factory: DaemonFactory) -> Start:
    """Returns a function that starts a node whose channel has a message for each of these delays, which is its body."""

    def start(*delays: int, flags: tuple[str, ...] = ()) -> Instance:
        node = gnsqd_factory("--max-defer-time=8760h", *flags)
        create(node, "t", "c")
        for delay in delays:
            post(node, f"/pub?topic=t&defer={delay}", b"%d" % delay)
        wait_for(node, "t", "c", deferred_count=len(delays))
        return node

    return start


def bodies(*arguments: str) -> list[int]:
    return [int(row["body"]) for row in document(*DEFERRED, *arguments)["messages"]]


def test_deferred_messages_of_all_nodes_are_listed_by_due_time_and_counted(deferring: Start) -> None:
    before = time.time()
    one = deferring(30 * DAY, 2 * DAY, 5 * MINUTE, MINUTE // 2, flags=JOURNAL)
    two = deferring(2 * HOUR, 300 * DAY)
    after = time.time()
    answer = document(*DEFERRED, *at(one, two))
    assert [answer.pop(key) for key in ("topic", "channel", "dry_run")] == ["t", "c", None]
    within = {"minute": 1, "hour": 2, "day": 2, "week": 3, "deferred": 4}
    assert answer["nodes"] == [
        {"address": address(one), "error": None} | within,
        {"address": address(two), "error": None, "minute": 0, "hour": 0, "day": 1, "week": 1, "deferred": 2},
    ]
    expected = [MINUTE // 2, 5 * MINUTE, 2 * HOUR, 2 * DAY, 30 * DAY, 300 * DAY]
    nodes = [address(node) for node in (one, one, two, one, one, two)]
    for row, delay, node in zip(answer["messages"], expected, nodes, strict=True):
        assert before < row.pop("due") - delay / 1000 < after
        assert len(row.pop("id")) == 16
        body = str(delay)
        assert row == {"node": node, "attempts": 0, "size": len(body), "body": body, "body_base64": None}
    assert bodies(*at(one, two), "--limit=3") == expected[:3]
    tomorrow = datetime.fromtimestamp(time.time() + 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for begin in ("1d", tomorrow):
        assert bodies(*at(one, two), f"--from={begin}", "--limit=2") == [2 * DAY, 30 * DAY]
    assert ok(*DEFERRED, *at(one), "--from=400d").splitlines()[-1] == "No deferred messages to show."


def test_bodies_are_shown_as_text_and_kept_in_json(deferring: Start) -> None:
    node = deferring()
    post(node, f"/pub?topic=t&defer={40 * DAY}", b"\0\xff\n" + b"x" * 1000)
    wait_for(node, "t", "c", deferred_count=1)
    (row,) = rows(*DEFERRED, *at(node))
    due = datetime.fromisoformat(row["due"])
    assert (row["node"], row["size"]) == (address(node), "1003")
    assert row["body"].startswith(r"\x00\xff\n" + "x" * 280)
    assert time.time() + 39 * 86400 < due.timestamp() < time.time() + 41 * 86400
    (message,) = document(*DEFERRED, *at(node))["messages"]
    assert (message["body"], len(message["body_base64"])) == (None, 1340)
    for columns in (80, 120):
        screen = plain(on_terminal(columns, *DEFERRED, *at(node)).out)
        assert max(map(len, screen.splitlines())) <= columns
        texts = (message["id"], due.astimezone().strftime("%Y-%m-%d"), r"\x00\xff\nxxxxx")
        assert all(text in screen for text in texts), screen


def test_message_is_cancelled_on_the_node_that_has_it(deferring: Start, gnsqd: Instance) -> None:
    """Leaves out the third node, which does not have the channel."""
    other, node = deferring(HOUR), deferring(MINUTE, DAY, 2 * DAY, 3 * DAY, flags=JOURNAL)
    (id,) = (row["id"] for row in document(*DEFERRED, *at(node))["messages"] if row["body"] == str(2 * DAY))
    cancel = [*DEFERRED, f"--cancel={id}", *at(other, gnsqd, node)]
    assert [row["body"] for row in document(*cancel, "--dry-run")["messages"]] == [str(2 * DAY)]
    assert [count(each, "deferred_count") for each in (node, other)] == [4, 1]
    done = ok(*cancel, "--yes").split()
    assert id in done
    assert done[-2:] == [str(2 * DAY), "cancelled"]
    assert bodies(*at(other, gnsqd, node)) == [MINUTE, HOUR, DAY, 3 * DAY]
    assert [row["address"] for row in document(*DEFERRED, *at(gnsqd, node))["nodes"]] == [address(node)]
    assert failure(*cancel, "--yes", code=4) == f"no node has the deferred message {id}"


def test_message_behind_the_first_thousand_is_cancelled(deferring: Start) -> None:
    node, other = deferring(), deferring(MINUTE)
    post(node, f"/mpub?topic=t&defer={HOUR}", b"\n".join(b"%d" % number for number in range(1000)))
    post(node, f"/pub?topic=t&defer={DAY}", b"last")
    wait_for(node, "t", "c", deferred_count=1001)
    (row,) = document(*DEFERRED, *at(node), "--from=2h")["messages"]
    cancel = [*DEFERRED, f"--cancel={row['id']}", *at(node, other)]
    planned = words(*cancel, "--dry-run")[2]
    assert planned[0] == address(node)
    assert row["id"] in planned
    assert planned[-3:] == ["to", "be", "cancelled"]
    assert words(*cancel, "--dry-run", "--from=2h")[2][-4:] == ["last", "to", "be", "cancelled"]
    ok(*cancel, "--yes")
    assert [count(each, "deferred_count") for each in (node, other)] == [1000, 1]
