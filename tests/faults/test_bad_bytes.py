"""The daemon survives whatever bytes a client sends, keeps nothing of them, and nobody else notices.

One daemon takes all examples, while two good clients publish to and consume from a topic that no example can name.
Afterwards it must have no client, file descriptor or greenlet more than before.
"""

import re
import socket
import struct
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.daemons import Instance, eventually
from kit.http_api import ask
from kit.nsq_client import NSQClient, sized, split_frames
from kit.observers import GOOD, resident_bytes, served, sockets

EXAMPLES = 2500
ID = b"0123456789abcdef"


def clients_in_stats(daemon: Instance) -> int:
    stats = daemon.stats()
    consumers = sum(len(channel["clients"]) for topic in stats["topics"] for channel in topic["channels"])
    return consumers + len(stats["producers"] or [])


def greenlets_of_clients(daemon: Instance) -> list[str]:
    return re.findall(r"^(?:IOLoop|messagePump):127.*", ask(daemon, "GET /debug/pprof/goroutine")[1], re.MULTILINE)


def throw(daemon: Instance, first: bytes, second: bytes, *, abrupt: bool) -> bytes:
    """Sends one example in two pieces, half-closes and returns all that comes back; `abrupt` resets instead."""
    client = NSQClient(daemon.tcp_address, magic=b"", timeout=20)
    try:
        client.send(first)
        client.send(second)
        if abrupt:
            client.reset()
            return b""
        client.sock.shutdown(socket.SHUT_WR)
        return client.recv_until_closed()
    except OSError:
        return b""  # the daemon closed first
    finally:
        client.close()


names = st.sampled_from([b"t", b"u#ephemeral", b"t.-_9", b"", b"x" * 64, b"x" * 65, b"t$"]) | st.binary(max_size=80)
numbers = st.sampled_from([b"0", b"1", b"", b"-1", b"2501", b"3600001", b"9" * 30]) | st.binary(max_size=9)
bodies = st.binary(max_size=50)
sizes = st.sampled_from([0, 1, -1, 4, 5, 100000, 100001, 5242880, 5242881, 2**31 - 1, -(2**31)]) | st.integers(
    -(2**31), 2**31 - 1
)
ids = st.sampled_from([ID, ID[:-1], ID + b"0", b"", b"\xff" * 16]) | st.binary(max_size=20)
json_fields = st.dictionaries(
    st.sampled_from(
        ["client_id", "hostname", "user_agent", "heartbeat_interval", "output_buffer_size", "output_buffer_timeout",
         "feature_negotiation", "sample_rate", "msg_timeout", "deflate_level", "x"]
    ),
    st.sampled_from(["0", "1", "-1", "1000", "64", "99", "true", "false", "null", '"x"', "1.5", "[]", "{}", "1e400"]),
    max_size=4,
)  # fmt: skip
identify = json_fields.map(
    lambda fields: (
        b"IDENTIFY\n" + sized(("{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}").encode())
    )
)
mpub = st.tuples(names, st.lists(bodies, max_size=5)).map(
    lambda parts: b"MPUB %b\n" % parts[0] + sized(struct.pack(">i", len(parts[1])) + b"".join(map(sized, parts[1])))
)
commands = st.one_of(
    identify,
    mpub,
    st.tuples(names, bodies).map(lambda parts: b"PUB %b\n" % parts[0] + sized(parts[1])),
    st.tuples(names, numbers, bodies).map(lambda parts: b"DPUB %b %b\n" % parts[:2] + sized(parts[2])),
    st.tuples(names, names).map(lambda parts: b"SUB %b %b\n" % parts),
    names.map(lambda name: b"SUB t %b\n" % name),
    st.just(b"SUB t c\n"),
    st.just(b"SUB u#ephemeral c#ephemeral\n"),
    numbers.map(lambda number: b"RDY %b\n" % number),
    st.just(b"RDY 100\n"),
    ids.map(lambda id: b"FIN %b\n" % id),
    ids.map(lambda id: b"TOUCH %b\n" % id),
    st.tuples(ids, numbers).map(lambda parts: b"REQ %b %b\n" % parts),
    st.sampled_from([b"NOP\n", b"CLS\n", b"\n", b"\r\n", b"AUTH\n\x00\x00\x00\x01x", b"WHAT\n"]),
)
sessions = st.lists(commands, min_size=1, max_size=8).map(lambda parts: b"  V2" + b"".join(parts))
edits = st.lists(
    st.tuples(st.sampled_from(["flip", "insert", "delete", "repeat"]), st.integers(0, 10_000), st.binary(max_size=4)),
    min_size=1,
    max_size=6,
)


def edit(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for how, at, piece in changes:
        at %= len(data) + 1
        if how == "flip":
            data = data[:at] + piece + data[at + len(piece) :]
        elif how == "insert":
            data = data[:at] + piece + data[at:]
        elif how == "delete":
            data = data[:at] + data[at + 1 + len(piece) :]
        else:
            data = data[:at] + data[:at][-20:] + data[at:]
    return data


anything = st.one_of(
    st.tuples(st.sampled_from([b"", b"  V2"]), st.binary(max_size=300)).map(b"".join),
    st.builds(edit, sessions, edits),
    st.builds(lambda session, end: session[: end % (len(session) + 1)], sessions, st.integers(0, 2000)),
    st.builds(
        lambda line, sizes: b"  V2" + line + struct.pack(">iii", *sizes) + b"x" * 200,
        st.sampled_from([b"IDENTIFY\n", b"AUTH\n", b"PUB t\n", b"DPUB t 1\n", b"MPUB t\n"]),
        st.tuples(sizes, sizes, sizes),
    ),
)


def test_daemon_survives_and_keeps_nothing(gnsqd_factory: Callable[..., Instance]) -> None:
    daemon = gnsqd_factory("--mem-queue-size=100", "--max-msg-size=100000")
    with NSQClient(daemon.tcp_address) as client:  # what is made lazily is there before counting begins
        client.subscribe(GOOD, "c")
    for _ in range(200):
        throw(daemon, b"  V2PUB t\n", b"", abrupt=False)
    eventually(lambda: clients_in_stats(daemon) == 0)
    open_before = sockets(daemon)
    memory_before = resident_bytes(daemon)

    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(data=anything, at=st.integers(0, 2000), abrupt=st.booleans())
    def survives(data: bytes, at: int, abrupt: bool) -> None:
        at %= len(data) + 1
        split_frames(throw(daemon, data[:at], data[at:], abrupt=abrupt))  # whole frames
        assert daemon.running

    with served(daemon) as good:
        survives()
    assert good.published
    assert sorted(good.received) == sorted(good.published)
    eventually(lambda: clients_in_stats(daemon) == 0)
    eventually(lambda: not greenlets_of_clients(daemon))
    eventually(lambda: sockets(daemon) <= open_before)
    assert resident_bytes(daemon) < memory_before + (64 << 20)
    with NSQClient(daemon.tcp_address) as client:
        client.publish(GOOD, b"still here")
