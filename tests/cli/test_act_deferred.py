"""`gnsqadmin channel deferred`: the list, the counts, and a message that is cancelled."""

import csv
import io
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import FakeNode, Terminal, gnsqadmin, http_answer, on_terminal, plain
from cli.nodes import address, at, create, post
from conftest import DaemonFactory
from kit.daemons import Daemon, eventually

DEFERRED = ("channel", "deferred", "t", "c")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000  # ms
JOURNAL = ("--durability=process", "--mem-queue-size=2")


@pytest.fixture
def start(gnsqd_factory: DaemonFactory) -> Callable[..., Daemon]:
    """Start a node whose topic t with a channel c has a message for each of these delays, which is its body."""

    def started(*delays: int, flags: tuple[str, ...] = ()) -> Daemon:
        node = gnsqd_factory("--max-defer-time=8760h", *flags)
        create(node, "t", "c")
        for delay in delays:
            post(node, f"/pub?topic=t&defer={delay}", b"%d" % delay)
        eventually(lambda: count(node) == len(delays), "all deferred")
        return node

    return started


def count(node: Daemon) -> int:
    return int(node.channel_stats("t", "c")["deferred_count"])


def listed(*arguments: str) -> dict[str, Any]:
    result = gnsqadmin(*DEFERRED, *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    found: dict[str, Any] = json.loads(result.out)
    return found


def bodies(*arguments: str) -> list[int]:
    return [int(row["body"]) for row in listed(*arguments)["messages"]]


def id_of(delay: int, *nodes: Daemon) -> str:
    (id,) = (row["id"] for row in listed(*at(*nodes), "--limit=1000")["messages"] if row["body"] == str(delay))
    return str(id)


def test_messages_of_all_nodes_are_listed_by_due_time_and_counted(start: Callable[..., Daemon]) -> None:
    before = time.time()
    one = start(30 * DAY, 2 * DAY, 5 * MINUTE, MINUTE // 2, flags=JOURNAL)
    two = start(2 * HOUR, 300 * DAY)
    after = time.time()
    found = listed(*at(one, two))
    assert [found.pop(key) for key in ("topic", "channel", "dry_run")] == ["t", "c", None]
    within = {"minute": 1, "hour": 2, "day": 2, "week": 3, "deferred": 4}
    assert found["nodes"] == [
        {"address": address(one), "error": None} | within,
        {"address": address(two), "error": None} | dict.fromkeys(within, 1) | {"minute": 0, "hour": 0, "deferred": 2},
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
    nothing = gnsqadmin(*DEFERRED, *at(one), "--from=400d")
    assert nothing.out.splitlines()[-1] == "No deferred messages to show."


def test_bodies_are_shown_as_text_and_kept_in_json(start: Callable[..., Daemon]) -> None:
    node = start()
    body = b"\0\xff\n" + b"x" * 1000
    post(node, f"/pub?topic=t&defer={40 * DAY}", body)
    eventually(lambda: count(node) == 1)
    (row,) = csv.DictReader(io.StringIO(gnsqadmin(*DEFERRED, *at(node), "-o", "csv").out))
    assert row["node"] == address(node)
    assert row["size"] == "1003"
    assert row["body"].startswith(r"\x00\xff\n" + "x" * 280)
    assert time.time() + 39 * 86400 < datetime.fromisoformat(row["due"]).timestamp() < time.time() + 41 * 86400
    (message,) = listed(*at(node))["messages"]
    assert (message["body"], len(message["body_base64"])) == (None, 1340)
    for columns in (80, 120):
        screen = plain(on_terminal(columns, *DEFERRED, *at(node)).out)
        assert max(map(len, screen.splitlines())) <= columns
        day = datetime.fromisoformat(row["due"]).astimezone().strftime("%Y-%m-%d")
        assert all(text in screen for text in (message["id"], day, r"\x00\xff\nxxxxx")), screen


@pytest.mark.parametrize("flags", [(), JOURNAL], ids=["in memory", "in the journal"])
def test_message_is_cancelled_on_the_node_that_has_it(start: Callable[..., Daemon], flags: tuple[str, ...]) -> None:
    other, node = start(HOUR), start(MINUTE, DAY, 2 * DAY, 3 * DAY, flags=flags)
    id = id_of(2 * DAY, node)
    cancel = [*DEFERRED, f"--cancel={id}", *at(other, node)]
    plan = gnsqadmin(*cancel, "--dry-run", "--json")
    assert (plan.code, plan.err, json.loads(plan.out)["dry_run"]) == (0, "", True)
    assert [row["body"] for row in json.loads(plan.out)["messages"]] == [str(2 * DAY)]
    refused = gnsqadmin(*cancel)
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith(f"Error: The message {id} will not be delivered to the channel c in the topic t. Not")
    assert (count(node), count(other)) == (4, 1)
    done = gnsqadmin(*cancel, "--yes")
    assert (done.code, done.err) == (0, "")
    assert (id in done.out, done.out.split()[-2:]) == (True, [str(2 * DAY), "cancelled"])
    assert (count(node), count(other)) == (3, 1)
    assert bodies(*at(other, node)) == [MINUTE, HOUR, DAY, 3 * DAY]
    assert gnsqadmin(*cancel, "--yes") == (4, "", f"Error: no node has the deferred message {id}\n")


def test_question_shows_the_message(start: Callable[..., Daemon]) -> None:
    node = start(MINUTE)
    id = id_of(MINUTE, node)
    for answer, left in (("n", 1), ("y", 0)):
        with Terminal(80, 24, *DEFERRED, f"--cancel={id}", *at(node)) as terminal:
            question = terminal.wait_for("Cancel it? [y/N]")
            assert id in question
            assert str(MINUTE) in question
            terminal.type(f"{answer}\n")
            assert terminal.end() == (0 if answer == "y" else 5)
        assert count(node) == left


def test_message_behind_the_first_thousand_is_cancelled(start: Callable[..., Daemon]) -> None:
    node, other = start(), start(MINUTE)
    post(node, f"/mpub?topic=t&defer={HOUR}", b"\n".join(b"%d" % number for number in range(1000)))
    post(node, f"/pub?topic=t&defer={DAY}", b"last")
    eventually(lambda: count(node) == 1001)
    (row,) = listed(*at(node), "--from=2h")["messages"]
    cancel = [*DEFERRED, f"--cancel={row['id']}", *at(node, other)]
    planned = gnsqadmin(*cancel, "--dry-run").out.splitlines()[2].split()
    assert (planned[0], row["id"] in planned, planned[-3:]) == (address(node), True, ["to", "be", "cancelled"])
    assert gnsqadmin(*cancel, "--dry-run", "--from=2h").out.split("\n")[2].endswith("last   to be cancelled")
    absent = gnsqadmin(*DEFERRED, "--cancel=0000000000000000", *at(node, other), "--yes")
    assert absent == (4, "", "Error: no node has the deferred message 0000000000000000\n")
    assert gnsqadmin(*cancel, "--yes").code == 0
    assert (count(node), count(other)) == (1000, 1)


@pytest.mark.parametrize(
    "arguments, code, error",
    [
        (("t", "nosuch"), 4, "no node has the channel nosuch in the topic t"),
        (("nosuch", "c"), 4, "no node has the channel c in the topic nosuch"),
        (("t", "nosuch", "--cancel=0000000000000000", "-y"), 4, "no node has the channel nosuch in the topic t"),
        (("t", "c", "--cancel=0000000000000000", "-y"), 4, "no node has the deferred message 0000000000000000"),
        (("t", "c", "--cancel=0000000000000000", "-n"), 4, "no node has the deferred message 0000000000000000"),
        (("t", "c", "--cancel=x\n", "-y"), 2, r"--cancel: 'x\n' is not the id of a message."),
        (("t", "c", "--from=soon"), 2, "--from: 'soon' is not a time with its zone (2026-12-01T00:00:00Z) or a time"),
        (("t", "c", "--from=2026-12-01"), 2, "--from: '2026-12-01' is not a time with its zone"),
        (("t", "c", "--limit=1001"), 2, "1001 is not in the range 1<=x<=1000"),
        (("t", "c", "--dry-run"), 2, "--yes and --dry-run require --cancel."),
    ],
)
def test_errors(start: Callable[..., Daemon], arguments: tuple[str, ...], code: int, error: str) -> None:
    node = start(MINUTE)
    result = gnsqadmin("channel", "deferred", *arguments, *at(node))
    assert (result.code, result.out, count(node)) == (code, "", 1)
    assert error in result.err


def test_nodes_without_the_channel_are_left_out(start: Callable[..., Daemon], gnsqd: Daemon) -> None:
    node = start(MINUTE)
    assert [row["address"] for row in listed(*at(gnsqd, node))["nodes"]] == [address(node)]


@pytest.mark.peer
def test_nsqd_cannot_do_it(start: Callable[..., Daemon], peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    node = start(MINUTE)
    id = id_of(MINUTE, node)
    with Daemon([str(peer_binary("nsqd"))], tmp_path / "nsqd") as nsqd:
        create(nsqd, "t", "c")
        error = f"Error: nsqd at {address(nsqd)}: cannot list deferred messages: it is not gnsqd, or an older one\n"
        result = gnsqadmin(*DEFERRED, *at(nsqd, node), "--json")
        assert (result.code, result.err) == (1, error)
        assert [one["deferred"] for one in json.loads(result.out)["nodes"]] == [None, 1]
        assert [one["id"] for one in json.loads(result.out)["messages"]] == [id]
        alone = gnsqadmin(*DEFERRED, f"--cancel={id}", "--yes", *at(nsqd))
        assert alone.code == 1
        assert alone.err == f"{error}Error: no node that answered has the deferred message {id}\n"
        assert (gnsqadmin(*DEFERRED, f"--cancel={id}", "--yes", *at(nsqd, node)).code, count(node)) == (1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        '{"deferred": 1, "due": [], "messages": []}',
        '{"deferred": 1, "due": [{"within": 1}], "messages": []}',
        '{"deferred": "x", "due": 1, "messages": null}',
    ],
)
def test_nodes_with_another_answer_are_reported(answer: str) -> None:
    with FakeNode(http_answer(answer.encode())) as node:
        result = gnsqadmin(*DEFERRED, f"--nsqd-http-address={node.address}")
        assert result.code == 1
        assert result.err.endswith("answered JSON that is not an nsqd's: it is not a list of deferred messages\n")
