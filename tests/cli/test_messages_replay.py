"""`gnsqadmin replay-dead`: letters become the messages that they were, and none is lost. What letters are is from
contrib/docs/dead-letters.md."""

import json

from cli.gnsqadmin import Terminal, document, failure, gnsqadmin, ok
from cli.nodes import address, at
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client
from kit.traffic import DaemonFactory, create, publish, take

BODY = b'\x00{"first": "line"}\nsecond\n\xff'
DEAD = "t.c.dead"
DIED = {"attempts": 5, "timestamp": 1795318560_123456789, "reason": "timed out", "died": 1795318575_987654321}


def letter(body: bytes, topic: str = "t", number: int = 0) -> bytes:
    header = json.dumps({"id": f"{number:016x}", "topic": topic, "channel": "c", **DIED})
    return header.encode() + b"\n" + body


def put(nsqd: Daemon, *letters: bytes) -> None:
    for one in letters:
        publish(nsqd, DEAD, one)


def left(nsqd: Daemon) -> int:
    """Letters that are still there."""
    (topic,) = nsqd.stats(DEAD)["topics"]
    return sum(int(one["depth"]) + int(one["in_flight_count"]) for one in topic["channels"]) + int(topic["depth"])


def test_what_died_is_published_again_byte_for_byte(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-attempts=1")
    create(nsqd, "t", "c", "other")
    publish(nsqd, "t", BODY)
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        died = client.message()
        client.command(b"REQ %b 0" % died.id)
        eventually(lambda: (nsqd.stats(DEAD)["topics"] or [{"depth": 0}])[0]["depth"] == 1)
    found = document("replay-dead", "t", "c", *at(nsqd))
    assert (found["source"], found["channel"], found["letters"]) == (DEAD, "replay", [])
    assert (found["messages"], found["bytes"], found["left"]) == (1, len(BODY), 0)
    assert found["topics"] == [{"topic": "t", "messages": 1}]
    assert sum(node["messages"] for node in found["nodes"]) == 1
    (again,) = take(nsqd, "t", "c", 1)
    assert (again.body, again.attempts, again.id == died.id) == (BODY, 1, False)
    assert [message.body for message in take(nsqd, "t", "other", 2)] == [BODY] * 2
    assert left(nsqd) == 0
    assert ok("replay-dead", "t", "c", *at(nsqd)).startswith("Published 0 messages (0 B)")


def test_a_dry_run_shows_headers_and_changes_nothing(gnsqd: Daemon) -> None:
    put(gnsqd, *[letter(b"x" * size, number=size) for size in (1, 50_000)])
    stats = gnsqd.stats()["topics"]
    out = ok("replay-dead", DEAD, "--dry-run", *at(gnsqd))
    assert "Would publish 2 messages (50 kB) to t\n" in out
    assert ("0000000000000001" in out, "timed out" in out) == (True, True)
    found = document("replay-dead", "t", "c", "--dry-run", *at(gnsqd))
    where = {"node": address(gnsqd), "topic": "t", "channel": "c", "id": f"{50_000:016x}", "size": 50_000}
    assert found["letters"][1] == where | DIED
    assert (found["messages"], found["bytes"], found["nodes"]) == (2, 50_001, [])
    table = ok("replay-dead", DEAD, "--dry-run", "-o", "csv", "--limit=1", *at(gnsqd)).splitlines()
    assert table[0] == "id,topic,channel,node,published,died,attempts,reason,size"
    assert len(table) == 2
    assert gnsqd.stats()["topics"] == stats


def test_letters_of_all_nodes_go_where_they_came_from_or_to_another_topic(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory(), gnsqd_factory()]
    for node in nodes:
        put(node, *[letter(b"%d" % number, topic=f"from{number % 2}") for number in range(20)])
    found = document("replay-dead", DEAD, "--limit=10", "--to=elsewhere", *at(*nodes))
    assert found["topics"] == [{"topic": "elsewhere", "messages": 10}]
    assert sum(left(node) for node in nodes) == 30
    rest = {one["topic"]: one["messages"] for one in document("replay-dead", DEAD, *at(*nodes))["topics"]}
    assert (sorted(rest), sum(rest.values())) == (["from0", "from1"], 30)
    assert [left(node) for node in nodes] == [0, 0]
    for name, count in {**rest, "elsewhere": 10}.items():
        assert sum(topic["message_count"] for node in nodes for topic in node.stats(name)["topics"]) == count


def test_messages_other_than_dead_letters_are_left(gnsqd: Daemon) -> None:
    bad = [b"no letter", b"{}\nbody", letter(b""), letter(b"body", topic="no name")]
    put(gnsqd, bad[0], letter(b"good"), *bad[1:])
    text = f"Error: 4 messages of {DEAD} replay cannot be replayed: not dead letters\n"
    planned = gnsqadmin("replay-dead", DEAD, "--dry-run", *at(gnsqd))
    assert (planned.code, planned.err) == (1, text)
    for expected in ("Published 1 message (4 B) to t", "Published 0 messages (0 B)"):
        code, out, err = gnsqadmin("replay-dead", DEAD, *at(gnsqd))
        assert (code, err, out.startswith(expected)) == (1, text, True)
    assert [message.body for message in take(gnsqd, "t", "c", 1)] == [b"good"]
    assert sorted(message.body for message in take(gnsqd, DEAD, "replay", 4)) == sorted(bad)


def test_what_cannot_be_published_stays_a_letter(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    publish(nsqd, DEAD, *[letter(b"x")] * 400)
    with Terminal(100, 24, "replay-dead", DEAD, "--rate=300", *at(nsqd)) as terminal:
        terminal.wait_for("replaying", "/ 400 messages")
        terminal.wait_for("Published 400 messages")
        assert terminal.end() == 0
    put(nsqd, letter(b"x" * 1000))
    nsqd.restart("--max-msg-size=999")
    error = failure("replay-dead", DEAD, *at(nsqd))
    assert "a message of 1,000 bytes is larger than nsqd" in error
    assert error.endswith("; 0 messages replayed")
    assert left(nsqd) == 1
