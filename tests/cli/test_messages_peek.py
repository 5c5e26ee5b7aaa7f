"""`gnsqadmin peek` and `replay-dead`: queued messages are shown and stay, from running nodes and from their files; dead
letters become the messages that they were, and none is lost. What letters are is from contrib/docs/dead-letters.md."""

import json

from cli.gnsqadmin import Terminal, document, failure, gnsqadmin, ok
from cli.nodes import address, at, fill
from kit.daemons import Instance, eventually
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, publish, take, wait_for
from nsqadmin_cli.message import pretty_lines
from nsqadmin_cli.units import iso_time

PEEK = ("peek", "t", "c")


def put(nsqd: Instance, *bodies: bytes) -> None:
    create(nsqd, "t", "c")
    for body in bodies:
        publish(nsqd, "t", body)
    wait_for(nsqd, "t", "c", depth=len(bodies))


def test_messages_are_shown_and_stay(gnsqd: Instance) -> None:
    put(gnsqd, b"first", b"\x1b[31m\xff", b"x" * 100_000)
    first, row, *rows = ok(*PEEK, "-n", "2", *at(gnsqd)).splitlines()
    assert first == f"t c at {address(gnsqd)}: 3 messages queued, 2 shown"
    assert " ago  in memory  " in row
    assert row[-5:] == "  5 B"
    assert rows[::2] == ["  first", r"  \x1b[31m\xff"]
    out = ok(*PEEK, *at(gnsqd))
    assert "  the beginning of 100 kB  " in out
    assert len(out) < 3000
    assert gnsqd.channel_stats("t", "c")["depth"] == 3
    publish(gnsqd, "alone", b"waits")  # in a topic without channels
    assert "waits\n" in ok("peek", "alone", *at(gnsqd))
    create(gnsqd, "empty")
    assert ok("peek", "empty", *at(gnsqd)) == f"empty at {address(gnsqd)}: no messages outside its channels\n"


def test_json_has_the_messages_of_all_nodes(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory("--mem-queue-size=1"), gnsqd_factory(), gnsqd_factory()]
    put(nodes[0], b"a", b"\xff")
    put(nodes[1])
    answer = document(*PEEK, *at(*nodes))
    assert answer["nodes"] == [
        {"address": address(nodes[0]), "error": None, "depth": 2, "backend_depth": 1},
        {"address": address(nodes[1]), "error": None, "depth": 0, "backend_depth": 0},
    ]
    shown = [(one["body"], one["body_base64"], one["on_disk"], one["size"]) for one in answer["messages"]]
    assert shown == [("a", None, False, 1), (None, "/w==", True, 1)]
    csv = ok(*PEEK, "-o", "csv", *at(*nodes)).splitlines()
    assert [line.rpartition(",")[2] for line in csv] == ["body", "a", r"\xff"]
    times = [line.partition(",")[0] for line in csv[1:]]
    assert times == [iso_time(message["timestamp"]) for message in answer["messages"]]


def test_files_are_shown_while_the_daemon_runs_and_after_it(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=100", "--sync-every=1")
    fill(nsqd, "t", "c", count=9)
    files = ("--data-path", str(nsqd.data_path))
    for _ in ("running", "ended"):
        answer = document(*PEEK, *files)
        assert sorted(one["body"] for one in answer["messages"]) == [str(number) for number in range(9)]
        assert answer["nodes"][0]["depth"] == 9
        if nsqd.running:
            nsqd.terminate()
    assert "00000000  3" in ok(*PEEK, "-n1", "--hex", *files)
    assert failure("peek", "t", "x", *files, code=4) == f"{nsqd.data_path} does not have the channel x of t"


def test_json_bodies_are_indented_and_not_changed() -> None:
    body = '{"price": 1.10, "tags": [], "of": {"a, b": [1, "\\"{"]}}'
    assert "\n".join(pretty_lines(body)) == (
        '{\n  "price": 1.10,\n  "tags": [],\n  "of": {\n    "a, b": [\n      1,\n      "\\"{"\n    ]\n  }\n}'
    )
    for text in ("plain", "12", "{]", "[1"):
        assert pretty_lines(text) == [text]


# Dead letters


BODY = b'\x00{"first": "line"}\nsecond\n\xff'
DEAD = "t.c.dead"
DIED = {"attempts": 5, "timestamp": 1795318560_123456789, "reason": "timed out", "died": 1795318575_987654321}


def letter(body: bytes, topic: str = "t", number: int = 0) -> bytes:
    header = json.dumps({"id": f"{number:016x}", "topic": topic, "channel": "c", **DIED})
    return header.encode() + b"\n" + body


def left(nsqd: Instance) -> int:
    """Letters that are still there."""
    (topic,) = nsqd.stats(DEAD)["topics"]
    return sum(int(one["depth"]) + int(one["in_flight_count"]) for one in topic["channels"]) + int(topic["depth"])


def test_what_died_is_published_again_byte_for_byte(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-attempts=1")
    create(nsqd, "t", "c", "other")
    publish(nsqd, "t", BODY)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        died = client.message()
        client.command(b"REQ %b 0" % died.id)
        eventually(lambda: (nsqd.stats(DEAD)["topics"] or [{"depth": 0}])[0]["depth"] == 1)
    replayed = document("replay-dead", "t", "c", *at(nsqd))
    assert (replayed["source"], replayed["channel"], replayed["letters"]) == (DEAD, "replay", [])
    assert (replayed["messages"], replayed["bytes"], replayed["left"]) == (1, len(BODY), 0)
    assert replayed["topics"] == [{"topic": "t", "messages": 1}]
    assert sum(node["messages"] for node in replayed["nodes"]) == 1
    (again,) = take(nsqd, "t", "c", 1)
    assert again.body == BODY
    assert again.attempts == 1
    assert again.id != died.id
    assert [message.body for message in take(nsqd, "t", "other", 2)] == [BODY] * 2
    assert left(nsqd) == 0
    assert ok("replay-dead", "t", "c", *at(nsqd)).startswith("Published 0 messages (0 B)")


def test_a_dry_run_shows_headers_and_changes_nothing(gnsqd: Instance) -> None:
    publish(gnsqd, DEAD, *[letter(b"x" * size, number=size) for size in (1, 50_000)])
    stats = gnsqd.stats()["topics"]
    out = ok("replay-dead", DEAD, "--dry-run", *at(gnsqd))
    assert "Would publish 2 messages (50 kB) to t\n" in out
    assert "0000000000000001" in out
    assert "timed out" in out
    planned = document("replay-dead", "t", "c", "--dry-run", *at(gnsqd))
    where = {"node": address(gnsqd), "topic": "t", "channel": "c", "id": f"{50_000:016x}", "size": 50_000}
    assert planned["letters"][1] == where | DIED
    assert (planned["messages"], planned["bytes"], planned["nodes"]) == (2, 50_001, [])
    table = ok("replay-dead", DEAD, "--dry-run", "-o", "csv", "--limit=1", *at(gnsqd)).splitlines()
    assert table[0] == "id,topic,channel,node,published,died,attempts,reason,size"
    assert len(table) == 2
    assert gnsqd.stats()["topics"] == stats


def test_letters_of_all_nodes_go_where_they_came_from_or_to_another_topic(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory(), gnsqd_factory()]
    for node in nodes:
        publish(node, DEAD, *[letter(b"%d" % number, topic=f"from{number % 2}") for number in range(20)])
    replayed = document("replay-dead", DEAD, "--limit=10", "--to=elsewhere", *at(*nodes))
    assert replayed["topics"] == [{"topic": "elsewhere", "messages": 10}]
    assert sum(left(node) for node in nodes) == 30
    rest = {one["topic"]: one["messages"] for one in document("replay-dead", DEAD, *at(*nodes))["topics"]}
    assert (sorted(rest), sum(rest.values())) == (["from0", "from1"], 30)
    assert [left(node) for node in nodes] == [0, 0]
    for name, count in {**rest, "elsewhere": 10}.items():
        assert sum(topic["message_count"] for node in nodes for topic in node.stats(name)["topics"]) == count


def test_messages_other_than_dead_letters_are_left(gnsqd: Instance) -> None:
    bad = [b"no letter", b"{}\nbody", letter(b""), letter(b"body", topic="no name")]
    publish(gnsqd, DEAD, bad[0], letter(b"good"), *bad[1:])
    text = f"Error: 4 messages of {DEAD} replay cannot be replayed: not dead letters\n"
    planned = gnsqadmin("replay-dead", DEAD, "--dry-run", *at(gnsqd))
    assert (planned.code, planned.err) == (1, text)
    for expected in ("Published 1 message (4 B) to t", "Published 0 messages (0 B)"):
        code, out, err = gnsqadmin("replay-dead", DEAD, *at(gnsqd))
        assert code == 1
        assert err == text
        assert out.startswith(expected)
    assert [message.body for message in take(gnsqd, "t", "c", 1)] == [b"good"]
    assert sorted(message.body for message in take(gnsqd, DEAD, "replay", 4)) == sorted(bad)


def test_what_cannot_be_published_stays_a_letter(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    publish(nsqd, DEAD, *[letter(b"x")] * 400)
    with Terminal(100, 24, "replay-dead", DEAD, "--rate=300", *at(nsqd)) as terminal:
        terminal.wait_for("replaying", "/ 400 messages")
        terminal.wait_for("Published 400 messages")
        assert terminal.end() == 0
    publish(nsqd, DEAD, letter(b"x" * 1000))
    nsqd.restart("--max-msg-size=999")
    error = failure("replay-dead", DEAD, *at(nsqd))
    assert "a message of 1,000 bytes is larger than nsqd" in error
    assert error.endswith("; 0 messages replayed")
    assert left(nsqd) == 1
