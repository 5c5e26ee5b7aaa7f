"""`gnsqadmin replay-dead`: letters become the messages that they were, and none is lost. What letters are is from
contrib/docs/dead-letters.md."""

import json

from cli.gnsqadmin import Terminal, gnsqadmin
from cli.nodes import at
from conftest import DaemonFactory
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client, Message
from kit.traffic import create, post, wait_for

BODY = b'\x00{"first": "line"}\nsecond\n\xff'
DEAD = "t.c.dead"


def letter(body: bytes, topic: str = "t", number: int = 0, **changed: object) -> bytes:
    header: dict[str, object] = {
        "id": f"{number:016x}",
        "topic": topic,
        "channel": "c",
        "timestamp": 1795318560_123456789,
        "attempts": 5,
        "reason": "timed out",
        "died": 1795318575_987654321,
    }
    return json.dumps(header | changed).encode() + b"\n" + body


def put(nsqd: Daemon, *letters: bytes, topic: str = DEAD) -> None:
    with Client(nsqd.tcp_address) as client:
        for one in letters:
            client.publish(topic, one)


def take(nsqd: Daemon, topic: str, count: int, channel: str = "c") -> list[Message]:
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=count)
        messages = [client.message() for _ in range(count)]
        for message in messages:
            client.command(b"FIN " + message.id)
        eventually(lambda: nsqd.channel_stats(topic, channel)["in_flight_count"] == 0)
    return messages


def left(nsqd: Daemon) -> int:
    """Letters that are still there."""
    (topic,) = nsqd.stats(DEAD)["topics"]
    return sum(int(one["depth"]) + int(one["in_flight_count"]) for one in topic["channels"]) + int(topic["depth"])


def test_what_died_is_published_again_byte_for_byte(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-attempts=1")
    create(nsqd, "t", "c", "other")
    post(nsqd, "/pub?topic=t", BODY)
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        died = client.message()
        client.command(b"REQ %b 0" % died.id)
        eventually(lambda: (nsqd.stats(DEAD)["topics"] or [{"depth": 0}])[0]["depth"] == 1)
    result = gnsqadmin("replay-dead", "t", "c", "--json", *at(nsqd))
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert (document["source"], document["channel"], document["letters"]) == (DEAD, "replay", [])
    assert (document["messages"], document["bytes"], document["left"]) == (1, len(BODY), 0)
    assert document["topics"] == [{"topic": "t", "messages": 1}]
    assert sum(node["messages"] for node in document["nodes"]) == 1
    (again,) = take(nsqd, "t", 1)
    assert (again.body, again.attempts) == (BODY, 1)
    assert again.id != died.id
    assert [message.body for message in take(nsqd, "t", 2, "other")] == [BODY] * 2
    assert left(nsqd) == 0
    result = gnsqadmin("replay-dead", "t", "c", *at(nsqd))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Published 0 messages (0 B)")


def test_a_dry_run_shows_headers_and_changes_nothing(gnsqd: Daemon) -> None:
    put(gnsqd, *[letter(b"x" * size, number=size) for size in (1, 50_000)])
    stats = gnsqd.stats(DEAD)["topics"]
    result = gnsqadmin("replay-dead", DEAD, "--dry-run", *at(gnsqd))
    assert (result.code, result.err) == (0, "")
    assert "Would publish 2 messages (50 kB) to t\n" in result.out
    assert "0000000000000001" in result.out
    assert "timed out" in result.out
    document = json.loads(gnsqadmin("replay-dead", "t", "c", "--dry-run", "--json", *at(gnsqd)).out)
    assert document["letters"][1] == {
        "node": at(gnsqd)[0].partition("=")[2],
        "topic": "t",
        "channel": "c",
        "id": f"{50_000:016x}",
        "timestamp": 1795318560_123456789,
        "attempts": 5,
        "reason": "timed out",
        "died": 1795318575_987654321,
        "size": 50_000,
    }
    assert (document["messages"], document["bytes"], document["nodes"]) == (2, 50_001, [])
    table = gnsqadmin("replay-dead", DEAD, "--dry-run", "-o", "csv", "--limit=1", *at(gnsqd)).out.splitlines()
    assert table[0] == "id,topic,channel,node,published,died,attempts,reason,size"
    assert len(table) == 2
    assert gnsqd.stats(DEAD)["topics"] == stats
    assert [one["topic_name"] for one in gnsqd.stats()["topics"]] == [DEAD]


def test_letters_of_all_nodes_go_where_they_came_from_or_where_they_are_told_to(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory(), gnsqd_factory()]
    for node in nodes:
        put(node, *[letter(b"%d" % number, topic=f"from{number % 2}") for number in range(20)])
    result = gnsqadmin("replay-dead", DEAD, "--limit=10", "--to=elsewhere", "--json", *at(*nodes))
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["topics"] == [{"topic": "elsewhere", "messages": 10}]
    assert sum(left(node) for node in nodes) == 30
    result = gnsqadmin("replay-dead", DEAD, "--json", *at(*nodes))
    assert (result.code, result.err) == (0, "")
    found = {one["topic"]: one["messages"] for one in json.loads(result.out)["topics"]}
    assert (sorted(found), sum(found.values())) == (["from0", "from1"], 30)
    assert [left(node) for node in nodes] == [0, 0]
    published = {
        name: sum(topic["message_count"] for node in nodes for topic in node.stats(name)["topics"])
        for name in ("from0", "from1", "elsewhere")
    }
    assert published == found | {"elsewhere": 10}


def test_what_is_no_letter_is_left_and_told(gnsqd: Daemon) -> None:
    bad = [b"no letter", b"{}\nbody", letter(b""), letter(b"body", topic="no name")]
    put(gnsqd, bad[0], letter(b"good"), *bad[1:])
    text = f"Error: 4 messages of {DEAD} replay cannot be replayed: not dead letters\n"
    planned = gnsqadmin("replay-dead", DEAD, "--dry-run", *at(gnsqd))
    assert (planned.code, planned.err) == (1, text)
    for expected in ("Published 1 message (4 B) to t", "Published 0 messages (0 B)"):
        result = gnsqadmin("replay-dead", DEAD, *at(gnsqd))
        assert (result.code, result.err) == (1, text)
        assert result.out.startswith(expected)
    assert [message.body for message in take(gnsqd, "t", 1)] == [b"good"]
    wait_for(gnsqd, DEAD, "replay", depth=4)
    assert sorted(message.body for message in take(gnsqd, DEAD, 4, "replay")) == sorted(bad)


def test_what_cannot_be_published_stays_a_letter(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    put(nsqd, letter(b"x" * 1000))
    nsqd.restart("--max-msg-size=999")
    result = gnsqadmin("replay-dead", DEAD, *at(nsqd))
    assert (result.code, result.out) == (1, "")
    assert "a message of 1,000 bytes is larger than nsqd" in result.err
    assert result.err.endswith("; 0 messages replayed\n")
    assert left(nsqd) == 1


def test_topics_without_letters_are_told(gnsqd: Daemon) -> None:
    create(gnsqd, "t", "c")
    for words, code, error in (
        (["t"], 2, "Error: t is not a dead-letter topic, which ends in .dead: also give the CHANNEL.\n"),
        (["t", "c"], 4, f"Error: no node has the topic {DEAD}\n"),
        (["t", "c", "--dry-run"], 4, f"Error: no node has the topic {DEAD}\n"),
        (["t#ephemeral", "c"], 4, f"Error: no node has the topic {DEAD}#ephemeral\n"),
    ):
        result = gnsqadmin("replay-dead", *words, *at(gnsqd))
        assert (result.code, result.out) == (code, "")
        assert result.err.endswith(error)


def test_progress_is_shown_on_a_terminal(gnsqd: Daemon) -> None:
    put(gnsqd, *[letter(b"x")] * 400)
    with Terminal(100, 24, "replay-dead", DEAD, "--rate=300", *at(gnsqd)) as terminal:
        terminal.wait_for("replaying", "/ 400 messages")
        terminal.wait_for("Published 400 messages")
        assert terminal.end() == 0
