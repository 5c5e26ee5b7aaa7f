"""`gnsqadmin tail`: messages as they are published, shown harmlessly, and nobody else misses any."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cli import fake_nsqd
from cli.gnsqadmin import FakeNode, RunResult, Terminal, ctrl_c, end, failure, gnsqadmin, http_answer, ok, start
from cli.nodes import address, at, fill, publish
from kit.daemons import DEADLINE, Instance, eventually
from kit.traffic import DaemonFactory, create, post, wait_for


def tails(nsqd: Instance, topic: str = "t") -> set[str]:
    """Returns the channels with which somebody looks at a topic."""
    channels = [channel for found in nsqd.stats(topic)["topics"] for channel in found["channels"]]
    names = {channel["channel_name"] for channel in channels if channel["client_count"]}
    return {name for name in names if name.startswith("gnsqadmin-tail-")}


def tail(*args: str, publish: Callable[[], object], nodes: list[Instance], topic: str = "t") -> RunResult:
    """Runs it, and calls `publish` when it looks at `nodes`; without Ctrl-C it has to end by itself."""
    before = [tails(node, topic) for node in nodes]  # the one that has just ended may still be there
    with start("tail", topic, *args, *at(*nodes)) as process:
        eventually(lambda: all(tails(node, topic) - old for node, old in zip(nodes, before, strict=True)), "it looks")
        publish()
        return end(process)


def test_bodies_are_printed_as_they_are_and_others_miss_nothing(nsqd: Instance) -> None:
    fill(nsqd, "t", "c", count=1)
    bodies = ["first", "zweite ö", "\x1b[31mred"]
    publish_all = lambda: [post(nsqd, "/pub?topic=t", body.encode()) for body in bodies]  # noqa: E731
    code, out, err = tail("-n", "3", publish=publish_all, nodes=[nsqd])
    assert (code, err, sorted(out.splitlines())) == (0, "", sorted(bodies))
    wait_for(nsqd, "t", "c", depth=4)
    eventually(lambda: len(nsqd.stats("t")["topics"][0]["channels"]) == 1, "its channel is gone")


def test_json_has_every_byte_and_filters_choose(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    bodies = [b'{"a": {"b": 5, "c": "x"}}', b'{"a": {"b": "5", "c": "y"}}', b'{"a": {"b": 50}}', b"[5]", b"\xff5", b"x"]

    def publish_all() -> None:
        for body in (*bodies, b'{"a": {"b": 5, "c": "last"}}'):
            post(nsqd, "/pub?topic=t", body)

    code, out, err = tail("--json", "--where", "a.b=5", "--grep", "x|y|last", "-n3", publish=publish_all, nodes=[nsqd])
    assert (code, err) == (0, "")
    documents = [json.loads(line) for line in out.splitlines()]
    assert {json.loads(one["body"])["a"]["c"] for one in documents} == {"x", "y", "last"}
    assert list(documents[0]) == ["node", "topic", "timestamp", "attempts", "id", "body", "body_base64"]
    result = tail("--json", "--grep", r"\xff", "-n", "1", publish=publish_all, nodes=[nsqd])
    (document,) = [json.loads(line) for line in result.out.splitlines()]
    assert (document["body"], document["body_base64"]) == (None, "/zU=")


def test_csv_and_details_and_bytes_have_a_line_about_each_message(gnsqd: Instance) -> None:
    create(gnsqd, "t", "c")
    one = {"publish": lambda: post(gnsqd, "/pub?topic=t", b"a,\nb"), "nodes": [gnsqd]}
    header, row = tail("-n1", "-o", "csv", **one).out.splitlines()  # type: ignore[arg-type]
    assert header == "time,topic,node,id,attempts,size,body"
    assert row.endswith(r',1,4,"a,\nb"')
    head, body = tail("-n1", "--details", **one).out.splitlines()  # type: ignore[arg-type]
    assert f"  t  {address(gnsqd)}  " in head
    assert body == r"  a,\nb"
    _, body = tail("-n1", "--hex", **one).out.splitlines()  # type: ignore[arg-type]
    assert body == f"  00000000  {'61 2c 0a 62':<48}  |a,.b|"


def test_several_topics_on_several_nodes_are_looked_at(nsqd_factory: DaemonFactory) -> None:
    """Looks for a given time, or until the reader goes away."""
    nodes = [nsqd_factory(), nsqd_factory()]
    for node, topic in zip(nodes, ("t", "u"), strict=True):
        create(node, topic, "c")
    with start("tail", "t", "u", "-n2", *at(*nodes)) as process:
        eventually(lambda: tails(nodes[0], "t") and tails(nodes[1], "u"), "it looks")
        post(nodes[0], "/pub?topic=t", b"1")
        post(nodes[1], "/pub?topic=u", b"2")
        assert sorted(end(process).out.splitlines()) == ["t | 1", "u | 2"]
    assert ok("tail", "t", "--for", "300ms", *at(nodes[0])) == ""
    with start("tail", "t", *at(nodes[0])) as process:
        eventually(lambda: tails(nodes[0]), "it looks")
        assert process.stdout and process.stderr  # noqa: PT018
        process.stdout.close()
        publish(nodes[0], "t", 100)
        assert (process.wait(DEADLINE), process.stderr.read()) == (1, b"")


def test_messages_that_would_be_lost_with_its_channel_are_not_taken_unasked(nsqd: Instance) -> None:
    fill(nsqd, "t", count=2)
    with Terminal(120, 24, "tail", "t", *at(nsqd)) as terminal:
        terminal.wait_for("Take them? [y/N]")
        terminal.type("n\n")
        assert terminal.end() == 5
    (topic,) = nsqd.stats("t")["topics"]
    assert (topic["depth"], topic["channels"]) == (2, [])
    code, out, _ = gnsqadmin("tail", "t", "--yes", "-n2", *at(nsqd))
    assert (code, sorted(out.splitlines())) == (0, ["0", "1"])


def test_a_terminal_gets_no_control_codes_and_ctrl_c_ends_it(gnsqd: Instance) -> None:
    create(gnsqd, "t", "c")
    with Terminal(100, 24, "tail", "t", *at(gnsqd)) as terminal:
        eventually(lambda: tails(gnsqd), "it looks")
        post(gnsqd, "/pub?topic=t", b"\x1b[2J\x07[bold]\r\xff \xe5\xae\xbd")
        terminal.wait_for(r"\x1b[2J\x07[bold]\r\xff 宽")
        assert "\x1b[2J" not in terminal.printed
        post(gnsqd, "/pub?topic=t", b'{"id": 7, "tags": []}')
        terminal.wait_for('{\r\n  "id": 7,\r\n  "tags": []\r\n}\r\n')
        terminal.type("\x03")
        assert terminal.end() == 130
    eventually(lambda: not tails(gnsqd), "its channel is gone")


# Nodes whose HTTP is as it should be, and whose TCP is not


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(data), kind) + data


@contextmanager
def lying_node(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Starts a node with the topic t, whose consumers meet `talk`; gives the option that names it."""
    with FakeNode(talk, hangs=True, reads=False) as tcp:
        stats = fake_nsqd.node(fake_nsqd.topic("t", fake_nsqd.channel("c")))
        info = {"broadcast_address": "x", "hostname": "x", "http_port": 1, "tcp_port": int(tcp.address.split(":")[1])}
        with FakeNode(http_answer(json.dumps(stats | info).encode())) as node:
            yield at(node)[0]


def read_until(connection: socket.socket, command: bytes) -> None:
    said = b""
    while command not in said and (data := connection.recv(65536)):
        said += data


AGREED = frame(0, b'{"max_rdy_count": 100}')


def agree(connection: socket.socket) -> None:
    """Lets a client subscribe, up to its RDY."""
    connection.sendall(AGREED + frame(0, b"OK"))
    read_until(connection, b"RDY")


LIES = {
    b"": "no complete answer within 0.5 s",
    b"HTTP/1.1 400 Bad Request\r\n\r\n": "answers HTTP: expected its TCP port",
    struct.pack(">ii", -1, 0): "does not speak NSQ's protocol",
    frame(0, b"OK"): "does not answer like nsqd",
    frame(0, b"[" * 100_000): "does not answer like nsqd",
    AGREED + frame(1, b"E_BAD_TOPIC \x1b[31m"): r"refused: E_BAD_TOPIC \x1b[31m",
    frame(0, b'{"max_rdy_count": 1, "auth_required": true}'): "give --auth-secret",
}


def test_a_node_that_lies_or_hangs_at_the_beginning_is_one_line_of_error() -> None:
    for said, reason in LIES.items():
        with lying_node(lambda connection, said=said: connection.sendall(said)) as option:  # type: ignore[misc]
            error = failure("tail", "t", f"--timeout={DEADLINE if said else 0.5}", option)
        assert reason in error
        assert "\x1b" not in error


def test_a_node_that_lies_later_on_is_tried_again() -> None:
    for said in (frame(2, b"short"), struct.pack(">ii", 1 << 30, 2), frame(1, b"E_INVALID x")):

        def talk(connection: socket.socket, said: bytes = said) -> None:
            agree(connection)
            connection.sendall(said)

        with lying_node(talk) as option, start("tail", "t", option) as process:
            line = process.stderr.readline() if process.stderr else b""
            assert ctrl_c(process).code == 130
        assert (line[:17], line[-15:]) == (b"Warning: nsqd at ", b"; trying again\n")


def test_messages_of_a_hostile_node_are_shown_harmlessly() -> None:
    head = struct.pack(">qH", (1 << 63) - 1, 65535) + b"\x1b[31m\r\n\x00\xff" + b"x" * 7

    def talk(connection: socket.socket) -> None:
        agree(connection)
        connection.sendall(frame(2, head + b"body"))
        read_until(connection, b"CLS")
        connection.sendall(frame(0, b"CLOSE_WAIT"))
        connection.shutdown(socket.SHUT_WR)

    with lying_node(talk) as option:
        for form in (["--details"], ["--json"], ["-o", "csv"]):
            code, out, _ = gnsqadmin("tail", "t", "-n1", *form, option)
            assert code == 0
            assert "body" in out
            assert "\x1b" not in out
