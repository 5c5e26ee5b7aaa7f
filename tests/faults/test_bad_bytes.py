"""Whatever bytes a client sends, the daemon lives on, keeps nothing of it, and nobody else notices.

One daemon takes all examples of the module, a few bad clients at a time, while two good clients publish to and consume
from a topic that no example can name. Afterwards it must have no client, file descriptor or greenlet more than before.
"""

import re
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.daemons import Daemon, eventually, own_command
from kit.nsq_client import Client, split_frames
from kit.observers import GOOD, GoodClients, resident_bytes, sockets

EXAMPLES = {"random": 600, "mutated": 900, "cut": 400, "sizes": 300, "names": 300}
ID = b"0123456789abcdef"

slow = HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture


def examples(kind: str) -> settings:
    return settings(max_examples=EXAMPLES[kind], deadline=None, database=None, suppress_health_check=slow)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(
        own_command(), tmp_path_factory.mktemp("faults") / "data", "--mem-queue-size=100", "--max-msg-size=100000"
    ) as daemon:
        yield daemon
    assert "Traceback (most" not in daemon.log(), daemon.log()


@pytest.fixture(scope="module")
def crowd(daemon: Daemon) -> Iterator[GoodClients]:
    """The good clients, at work during all examples; and at the end, the account of everything."""
    with Client(daemon.tcp_address) as client:  # what is made lazily is there before counting begins
        client.subscribe(GOOD, "c")
    eventually(lambda: daemon.channel_stats(GOOD, "c")["clients"] == [])
    for _ in range(200):
        throw(daemon, b"  V2PUB t\n", b"", abrupt=False)
    eventually(lambda: clients_in_stats(daemon) == 0)
    open_before = sockets(daemon)
    memory_before = resident_bytes(daemon)
    good = GoodClients(daemon)
    yield good
    good.stop()
    assert good.published
    assert sorted(good.received) == sorted(good.published)
    # The clients are gone, with all that was open for them.
    eventually(lambda: clients_in_stats(daemon) == 0)
    eventually(lambda: greenlets_of_clients(daemon) == 0)
    eventually(lambda: sockets(daemon) <= open_before)
    assert resident_bytes(daemon) < memory_before + (64 << 20)
    # And the daemon serves.
    with Client(daemon.tcp_address) as client:
        client.publish(GOOD, b"still here")


def clients_in_stats(daemon: Daemon) -> int:
    stats = daemon.stats()
    consumers = sum(len(channel["clients"]) for topic in stats["topics"] for channel in topic["channels"])
    return consumers + len(stats["producers"] or [])


def greenlets_of_clients(daemon: Daemon) -> int:
    """How many IOLoops and messagePumps of clients have begun and not ended, by the log."""
    log = daemon.log()
    began = len(re.findall(r"TCP: new client", log))
    refused = len(re.findall(r"failed to read protocol version|bad protocol magic", log))
    loops = len(re.findall(r"exiting ioloop", log))
    pumps = len(re.findall(r"\] exiting messagePump", log))
    return 2 * (began - refused) - loops - pumps


def throw(daemon: Daemon, first: bytes, second: bytes, *, abrupt: bool) -> bytes:
    """Send one example in two pieces, half-close and return all that comes back; `abrupt` resets instead."""
    client = Client(daemon.tcp_address, magic=b"", timeout=20)
    try:
        client.send(first)
        client.send(second)
        if abrupt:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        client.sock.shutdown(socket.SHUT_WR)
        return client.recv_until_closed()
    except OSError:
        return b""  # the daemon closed first
    finally:
        client.close()


def survives(daemon: Daemon, data: bytes, at: int, abrupt: bool) -> None:
    """One example: whatever comes back is whole frames, and the daemon is there."""
    at %= len(data) + 1
    split_frames(throw(daemon, data[:at], data[at:], abrupt=abrupt))
    assert daemon.running


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


names = st.sampled_from([b"t", b"u#ephemeral", b"t.-_9", b"", b"x" * 64, b"x" * 65, b"t$"]) | st.binary(max_size=70)
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
VALID = [
    b'  V2IDENTIFY\n\x00\x00\x00\x16{"client_id":"golden"}SUB t c\nRDY 5\nPUB t\n\x00\x00\x00\x05hello',
    b"  V2PUB t\n\x00\x00\x00\x05helloMPUB t\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x011\x00\x00\x00\x0222",
    b"  V2SUB u#ephemeral c#ephemeral\nRDY 1\nDPUB u#ephemeral 1\n\x00\x00\x00\x05laterNOP\nCLS\n",
    b"  V2SUB t c\nFIN 0123456789abcdef\nREQ 0123456789abcdef 0\nTOUCH 0123456789abcdef\nCLS\nPUB t\n\x00\x00\x00\x01x",
]
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


@examples("random")
@given(data=st.binary(max_size=300), magic=st.booleans(), at=st.integers(0, 400), abrupt=st.booleans())
def test_random_bytes(daemon: Daemon, crowd: GoodClients, data: bytes, magic: bool, at: int, abrupt: bool) -> None:
    survives(daemon, b"  V2" * magic + data, at, abrupt)


@examples("mutated")
@given(session=st.sampled_from(VALID) | sessions, changes=edits, at=st.integers(0, 2000), abrupt=st.booleans())
def test_mutated_sessions(
    daemon: Daemon, crowd: GoodClients, session: bytes, changes: list[tuple[str, int, bytes]], at: int, abrupt: bool
) -> None:
    survives(daemon, edit(session, changes), at, abrupt)


@examples("cut")
@given(
    session=st.sampled_from(VALID) | sessions, end=st.integers(0, 2000), at=st.integers(0, 2000), abrupt=st.booleans()
)
def test_sessions_that_are_cut_off(
    daemon: Daemon, crowd: GoodClients, session: bytes, end: int, at: int, abrupt: bool
) -> None:
    survives(daemon, session[: end % (len(session) + 1)], at, abrupt)


@examples("sizes")
@given(
    line=st.sampled_from([b"IDENTIFY\n", b"AUTH\n", b"PUB t\n", b"DPUB t 1\n", b"MPUB t\n"]),
    outer=sizes,
    count=sizes,
    inner=sizes,
    abrupt=st.booleans(),
)
def test_sizes_that_lie(
    daemon: Daemon, crowd: GoodClients, line: bytes, outer: int, count: int, inner: int, abrupt: bool
) -> None:
    data = b"  V2" + line + struct.pack(">iii", outer, count, inner) + b"x" * 200
    survives(daemon, data, len(line) + 8, abrupt)


@examples("names")
@given(topic=st.binary(max_size=80), channel=st.binary(max_size=80), command=st.sampled_from([b"SUB", b"PUB", b"MPUB"]))
def test_binary_in_names(daemon: Daemon, crowd: GoodClients, topic: bytes, channel: bytes, command: bytes) -> None:
    survives(daemon, b"  V2%b %b %b\n" % (command, topic, channel) + sized(b"body"), 7, abrupt=False)
    survives(daemon, b"  V2%b t %b\n" % (command, channel) + sized(b"body"), 7, abrupt=True)
