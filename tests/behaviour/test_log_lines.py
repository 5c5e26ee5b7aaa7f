"""The same session with both daemons leaves the same lines in their logs (NSQD-COMPAT 9), at level DEBUG.

Addresses, times, ids and paths are normalised. Lines that only one of the two has, or that come in another number, are
listed below with the reason; every other line must be there as often. Their order is compared where one thread of the
real daemon writes them: what one client's IOLoop says, and the daemon's way from start to end.
"""

import re
import signal
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually, own_command
from kit.nsq_client import NSQClient, mpub_body
from kit.pairs import running_pair
from kit.peer_program import start_nsqlookupd
from kit.upgraded_client import UpgradedClient

pytestmark = pytest.mark.peer

LINE = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ((?:DEBUG|INFO|WARNING|ERROR|FATAL): .*)")

ONLY_REAL = {
    r"INFO: DISKQUEUE\(.*\): readOne\(\) opened .*": "gnsqd opens a file when it is read",
}  # fmt: skip
ONLY_OURS = {r"INFO: gnsqd v.* \((plain|compiled, native sockets)\)": "which gnsqd it is"}
ANY_NUMBER = {
    r"INFO: NSQ: persisting topic/channel metadata to PATH/nsqd\.dat": "changes that come together are written once",
    r"INFO: 200 GET /ping \(HTTP\) D": "the kit looks until the daemon serves, and the real one handles signals",
    r"INFO: 200 GET /stats\?format=json&topic=s&channel=c .*": "this test looks until it sees something",
    r"DEBUG: \[CLIENT\d+\] state rdy: .*": "as often as the messagePump looks again, for which it has other reasons",
}
PERHAPS = {
    r"ERROR: PROTOCOL\(V2\): \[CLIENT\d+\] messagePump error - .*: use of closed network connection":
        "the real messagePump may flush a compressed stream while the connection is closed",
    r"ERROR: TOPIC\(u\) ERROR: failed to put msg\(ID\) to channel\(d\) - exiting":
        "the pump of the real topic may have a message for a channel that is just deleted",
}  # fmt: skip


def lines(nsqd: Instance) -> list[str]:
    """Returns the log's lines from the level on; clients are numbered as they came."""
    clients: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return clients[match[0]]

    found = []
    for line in nsqd.log().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        text = match[1]
        if new := re.fullmatch(r"INFO: TCP: new client\((.*)\)", text):
            clients[new[1]] = f"CLIENT{len(clients)}"
        for address, name in ((nsqd.tcp_address, "TCP"), (nsqd.http_address, "HTTP")):
            text = text.replace(f"127.0.0.1:{address[1]}", name)
        # before the others, because a port may have been a client's before
        text = re.sub(r"^(INFO: \d{3} .*) \(127\.0\.0\.1:\d+\) [\d.]+(ns|\u00b5s|ms|s)$", r"\1 (HTTP) D", text)
        text = re.sub(r"127\.0\.0\.1:\d+", number, text)
        text = text.replace(str(nsqd.data_path), "PATH")
        text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text)
        found.append(re.sub(r"\(built w/\S+\)", "", text))
    return found


def without(lines: list[str], *tables: dict[str, str]) -> list[str]:
    patterns = [re.compile(pattern) for table in tables for pattern in table]
    return [line for line in lines if not any(pattern.fullmatch(line) for pattern in patterns)]


def session(nsqd: Instance) -> None:
    """Does something of everything that is logged, and exits."""
    consume_and_publish(nsqd)
    provoke_errors(nsqd)
    steer(nsqd)
    end_streams(nsqd)
    leave_messages(nsqd)
    with connect(nsqd) as client, connect(nsqd):
        client.subscribe("s", "c")
        assert nsqd.terminate() == 0


def connect(nsqd: Instance) -> NSQClient:
    """Connects a client and waits for its line, so that the next client comes after it."""
    count = nsqd.log().count("desired protocol magic")
    client = NSQClient(nsqd.tcp_address)
    eventually(lambda: nsqd.log().count("desired protocol magic") > count)
    return client


def logged(nsqd: Instance, text: str) -> None:
    eventually(lambda: text in nsqd.log(), text)


def served(nsqd: Instance, count: int) -> None:
    """Waits until this number of clients has come and gone."""
    for what in ("exiting ioloop", "exiting messagePump"):
        eventually(lambda what=what: nsqd.log().count(what) == count, what)  # type: ignore[misc]


def consume_and_publish(nsqd: Instance) -> None:
    with connect(nsqd) as consumer, connect(nsqd) as publisher:
        consumer.identify(client_id="me", hostname="host", user_agent="ua/1.0", feature_negotiation=True)
        consumer.subscribe("t", "c", rdy=1)
        publisher.publish("t", b"finished")
        consumer.command(b"FIN " + consumer.message().id)
        publisher.publish("t", b"requeued")
        consumer.command(b"REQ " + consumer.message().id + b" 0")
        again = consumer.message()
        consumer.command(b"TOUCH " + again.id)
        consumer.command(b"NOP")
        consumer.command(b"REQ " + again.id + b" 99999999")
        consumer.command(b"FIN " + b"x" * 16)
        assert consumer.error().startswith(b"E_FIN_FAILED")
        consumer.command(b"RDY 0")
        consumer.command(b"CLS")
        assert consumer.response() == b"CLOSE_WAIT"
        consumer.command(b"RDY 1")
        publisher.command(b"MPUB t", mpub_body(b"one", b"two"))
        assert publisher.response() == b"OK"
        publisher.send(b"DPUB t 60000\n\0\0\0\5later" * 3)
        assert [publisher.response() for _ in range(3)] == [b"OK"] * 3
        logged(nsqd, "ignoring RDY after CLS")
    served(nsqd, 2)
    for number, feature in enumerate(("snappy", "deflate"), 3):
        with connect(nsqd) as client:
            client.identify(feature_negotiation=True, **{feature: True}, deflate_level=9)  # 6 is agreed
            assert client.buffer or client.sock.recv(65536)  # the OK in the upgraded stream
            client.sock.shutdown(socket.SHUT_WR)
            served(nsqd, number)


def provoke_errors(nsqd: Instance) -> None:
    with NSQClient(nsqd.tcp_address, magic=b"  V1") as client:
        client.recv_until_closed()
    NSQClient(nsqd.tcp_address, magic=b"  V").close()
    logged(nsqd, "failed to read protocol version")
    for data in (
        b"BOGUS a b\n",
        b"\n",
        b"PUB a$\n\0\0\0\1x",
        b"PUB\n",
        b"PUB t\n\0\0\0\0",
        b"IDENTIFY\n\0\0\0\2{]",
        b"IDENTIFY\n\0\0\0\2[]",
        b'IDENTIFY\n\0\0\0\x1d{"heartbeat_interval":123456}',
        b'IDENTIFY\n\0\0\0\x19{"heartbeat_interval":-1}\nSUB t c\n',
        b"IDENTIFY\n\0\0\0\2{}IDENTIFY\n\0\0\0\2{}SUB t c\nIDENTIFY\n",
        b"SUB t\n",
        b"SUB t c\nSUB t c\n",
        b"SUB t c$\n",
        b"RDY 1\n",
        b"FIN x\n",
        b"CLS\n",
        b"AUTH\n\0\0\0\1x",
        b"SUB e#ephemeral c#ephemeral\nRDY 2501\n",
        b"SUB f#ephemeral c#ephemeral\nREQ 0123456789abcdef\n",
        b"MPUB t\n\0\0\0\x08\0\0\0\1\0\0\0\0",
        b"DPUB t -1\n",
        b"x" * 20000,
    ):
        with NSQClient(nsqd.tcp_address) as client:
            client.send(data)
            client.recv_until_closed()
    count = nsqd.log().count("exiting ioloop")
    for data in (b"PUB t\n\0\0", b"PUB t\n\0\0\0\3a", b"SUB t"):
        with NSQClient(nsqd.tcp_address) as client:
            client.send(data)
            client.sock.shutdown(socket.SHUT_WR)
            client.recv_until_closed()
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c")
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so close is a reset
    served(nsqd, count + 4)
    client = connect(nsqd)
    nsqd.send_signal(signal.SIGSTOP)
    client.send(b"PUB t\n\0\0\0\1x")
    client.reset()  # before it can be answered
    nsqd.send_signal(signal.SIGCONT)
    served(nsqd, count + 5)


def steer(nsqd: Instance) -> None:
    for line in (
        "POST /topic/create?topic=u", "POST /topic/create?topic=u", "POST /channel/create?topic=u&channel=d",
        "POST /topic/pause?topic=u", "POST /topic/unpause?topic=u", "POST /channel/pause?topic=u&channel=d",
        "POST /channel/unpause?topic=u&channel=d", "POST /channel/empty?topic=u&channel=d", "POST /topic/empty?topic=u",
        "POST /pub?topic=u", "POST /mpub?topic=u&binary=perhaps", "POST /mpub?topic=u", "POST /pub?topic=$",
        "POST /channel/delete?topic=u&channel=d", "POST /topic/delete?topic=u", "POST /topic/delete?topic=u",
        "POST /topic/delete?topic=%zz", "POST /channel/create?topic=a;b", "GET /stats?%", "GET /stats?topic=%20+&x",
        "GET /info", "GET /nope?a=%20b", "POST /ping", "OPTIONS /ping", "GET /ping/", "HEAD /stats",
    ):  # fmt: skip
        method, target = line.split(" ")
        nsqd.http(method, target, b"x")
    with connect(nsqd) as first, connect(nsqd) as second:
        first.subscribe("v", "c1")
        second.subscribe("v", "c2")
        nsqd.http("POST", "/channel/delete?topic=v&channel=c1")
        first.recv_until_closed()
        nsqd.http("POST", "/topic/delete?topic=v")
        second.recv_until_closed()


def end_streams(nsqd: Instance) -> None:
    """Sends compressed streams that end as they should, in the middle, or with the connection."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    ended = deflate.compress(b"NOP\n") + deflate.flush()
    count = nsqd.log().count("exiting ioloop")
    for feature, data in (
        ("deflate", ended),
        ("deflate", ended[:-1]),
        ("snappy", b"\xff\x06\0\0sNaPpY"),
        ("snappy", b"\xff\x06\0\0sNa"),
        ("snappy", b"\xff\x06\0\0sNaPpY\xfe\x09\0\0pad"),
        ("snappy", b"\xff\x06"),
    ):
        with connect(nsqd) as client:
            client.identify(feature_negotiation=True, **{feature: True})
            assert client.buffer or client.sock.recv(65536)  # the OK in the upgraded stream
            client.sock.sendall(data)
            client.sock.shutdown(socket.SHUT_WR)
            count += 1
            served(nsqd, count)
    with UpgradedClient(nsqd.tcp_address, deflate=True) as client:
        client.subscribe("v", "c1")
        client.command(b"NOP")  # the real IOLoop may still be flushing OK when the client has it
        logged(nsqd, "[{}:{}] [NOP]".format(*client.sock.getsockname()))
        nsqd.http("POST", "/topic/delete?topic=v")
        client.recv_until_closed()
        served(nsqd, count + 1)


def leave_messages(nsqd: Instance) -> None:
    nsqd.http("POST", "/topic/create?topic=w")
    nsqd.http("POST", "/topic/pause?topic=w")
    nsqd.http("POST", "/pub?topic=w", b"x")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("s", "c", rdy=2)
        nsqd.http("POST", "/mpub?topic=s", b"1\n2\n3\n4")
        message, _ = consumer.message(), consumer.message()
        consumer.command(b"RDY 0")
        consumer.command(b"REQ " + message.id + b" 60000")
        eventually(lambda: nsqd.channel_stats("s", "c")["deferred_count"] == 1)


@pytest.fixture(scope="module")
def logs(peer_binary: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Returns the lines of ours and of the real one, after the same session."""
    with running_pair(tmp_path_factory.mktemp("logs"), peer_binary("nsqd"), "--log-level=debug") as pair:
        for nsqd in pair:
            session(nsqd)
        ours, real = map(lines, pair)
    return ours, real


def test_every_line_is_there_as_often(logs: tuple[list[str], list[str]]) -> None:
    ours, real = (Counter(without(found, ONLY_REAL, ONLY_OURS, ANY_NUMBER, PERHAPS)) for found in logs)
    assert (dict(ours - real), dict(real - ours)) == ({}, {})


def test_lines_that_are_excused_are_there(logs: tuple[list[str], list[str]]) -> None:
    # An excuse that nobody needs any more has to go.
    ours, real = logs
    for pattern in {**ONLY_REAL, **ANY_NUMBER}:
        assert any(re.fullmatch(pattern, line) for line in real), pattern
    for pattern in {**ONLY_OURS, **ANY_NUMBER}:
        assert any(re.fullmatch(pattern, line) for line in ours), pattern


def sequences(lines: list[str]) -> dict[str, list[str]]:
    """Returns lines by subject: one IOLoop, one topic, requests, and the daemon itself."""
    found: dict[str, list[str]] = {}
    for line in without(lines, ONLY_REAL, ONLY_OURS, ANY_NUMBER, PERHAPS):
        if re.search("messagePump|writing msg", line):
            continue
        match = (
            re.search(r"[\[(](CLIENT\d+)[\])]", line)
            or re.match(r"INFO: (\d{3}) ", line)
            or re.search(r"TOPIC\((\w)\)|DISKQUEUE\((\w)[:)]", line)
            or re.match(r"INFO: (?:NSQ|QUEUESCAN): ()", line)
        )
        if match is not None:
            found.setdefault(match[match.lastindex or 1], []).append(line)
    return found


def test_lines_about_one_thing_come_in_the_same_order(logs: tuple[list[str], list[str]]) -> None:
    ours, real = map(sequences, logs)
    assert {"CLIENT0", "CLIENT31", "200", "404", "t", "u", "v", "w", "s", ""} <= set(ours)
    assert ours == real


def test_lines_about_nsqlookupd_are_there_as_often(peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    # One nsqlookupd that answers, and one that is not there.
    found = []
    for name, command in (("gnsqd", own_command()), ("nsqd", [str(peer_binary("nsqd"))])):
        with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / f"{name}-lookupd") as lookupd:
            flags = [f"--lookupd-tcp-address={address}" for address in (lookupd.address["TCP"], "127.0.0.1:1")]
            with Instance(
                command, tmp_path / name, "--log-level=debug", "--broadcast-address=127.0.0.1", *flags
            ) as nsqd:
                steer_with_nsqlookupd(nsqd)
                assert nsqd.terminate() == 0
            known = {lookupd.address["TCP"]: "TCP", lookupd.address["HTTP"]: "HTTP"}
            known |= {address.rpartition(":")[2]: kind for address, kind in known.items()}
            texts = [match[1] for line in nsqd.log().splitlines() if (match := LINE.fullmatch(line))]
            # Only in the texts: the digits of a port may also be in the time of a line.
            texts = [re.sub("|".join(known), lambda match, known=known: known[match[0]], text) for text in texts]
            found.append([text for text in texts if re.match(r"\w+: (LOOKUP|CI)", text)])
    ours, real = map(Counter, found)
    only_ours = "ERROR: LOOKUPD(127.0.0.1:1): connect - dial tcp 127.0.0.1:1: connect: connection refused"
    assert dict(ours - real) == {only_ours: 1}, "the real daemon does not say that it could not connect at the start"
    assert dict(real - ours) == {}
    assert len(found[0]) > 20


def steer_with_nsqlookupd(nsqd: Instance) -> None:
    logged(nsqd, "peer info")
    logged(nsqd, "LOOKUP connecting to 127.0.0.1:1")
    for times, target in enumerate([
        "topic/create?topic=t", "channel/create?topic=t&channel=c", "channel/delete?topic=t&channel=c",
        "topic/delete?topic=t",
    ], 1):  # fmt: skip
        assert nsqd.http("POST", f"/{target}")[0] == 200
        logged_both(nsqd, times)


def logged_both(nsqd: Instance, times: int) -> None:
    def reported() -> tuple[int, int]:
        return len(re.findall(r"(?:topic|channel) (?:UN)?REGISTER t", nsqd.log())), len(
            re.findall("REGISTER t.* - dial tcp", nsqd.log())
        )

    eventually(lambda: reported() == (2 * times, times))
