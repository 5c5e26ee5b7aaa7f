"""Protocol V1 of nsqlookupd: ours and the real one give the same answers, hold the same registrations and log the same
lines in the same run (NSQD-COMPAT 6.2)."""

import json
import re
import socket
import struct
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from kit.daemons import eventually
from kit.http_api import read_all
from kit.lookupds import (
    EMBEDDED,
    IDENTITY,
    LookupdInside,
    LookupdPair,
    Registrant,
    RunningLookupd,
    identify,
    lists_sorted,
    normal,
    own_lookupd_command,
)
from kit.traffic import DaemonFactory

pytestmark = pytest.mark.peer


def exchange(lookupd: RunningLookupd, data: bytes) -> str:
    with lookupd.connect() as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return normal(read_all(sock).decode("latin-1"))


def log_lines(lookupd: RunningLookupd) -> list[str]:
    """Returns the lines without date; sorts consecutive ones about one client's registrations, or about the start."""
    lines = [re.sub(r"^(\S+ )?\S+ \S+ ", r"\1", line) for line in normal(lookupd.log()).splitlines()]
    groups = groupby(lines, lambda line: re.findall("listening| UNREGISTER ", line))
    return [line for key, group in groups for line in (sorted(group) if key else group)]


def has_logged_all(lookupd: RunningLookupd) -> bool:
    """True if the last line about each client is there: nsqlookupd logs a bad magic after it closed the connection."""
    log = lookupd.log()
    return log.count("TCP: new client(") == len(re.findall(r"ERROR: (?:client\(|failed to read protocol version)", log))


IDENTIFIED = b"  V1" + identify(IDENTITY)


def identity(**fields: object) -> bytes:
    return b"  V1" + identify({**IDENTITY, **fields})


CONVERSATIONS = {
    "nothing": b"",
    "part of a magic": b"  V",
    "magic of nsqd": b"  V2",
    "only a magic": b"  V1",
    "PING": b"  V1PING\n",
    "PING after PING, with spaces, parameters and CR": b"  V1 PING x \r\nPING\n\t\vPING\xc2\x85\n",
    "PING without a line feed": b"  V1PING",
    "PING after IDENTIFY": IDENTIFIED + b"PING\nPING\n",
    "empty line": b"  V1\n",
    "unknown command": b"  V1FOO bar\nPING\n",
    "lower case": b"  V1ping\n",
    "command that is not UTF-8": b"  V1\xff\xfe\n",
    "REGISTER before IDENTIFY": b"  V1REGISTER t\n",
    "UNREGISTER before IDENTIFY, without parameters": b"  V1UNREGISTER\n",
    "IDENTIFY without size": b"  V1IDENTIFY\n",
    "IDENTIFY with half a size": b"  V1IDENTIFY\n\0\0",
    "IDENTIFY without body": b"  V1IDENTIFY\n\0\0\0\x05",
    "IDENTIFY with half a body": b"  V1IDENTIFY\n\0\0\0\x05ab",
    "IDENTIFY with an empty body": b"  V1" + identify(b""),
    "IDENTIFY without fields": b"  V1" + identify(b"{}"),
    "IDENTIFY with null": b"  V1" + identify(b"null"),
    "IDENTIFY with a list": b"  V1" + identify(b"[]"),
    "IDENTIFY with no JSON": b"  V1" + identify(b"{x}"),
    "IDENTIFY with two values": b"  V1" + identify(b"{}{}"),
    "port as text": identity(tcp_port="1"),
    "port as fraction": identity(tcp_port=1.5),
    "number as address": identity(broadcast_address=1),
    "remote address as number": identity(remote_address=1),
    "hostname as list": identity(hostname=[]),
    "no version": identity(version=""),
    "null as version": identity(version=None),
    "no address": identity(broadcast_address=""),
    "no TCP port": identity(tcp_port=0),
    "no HTTP port": identity(http_port=0),
    "no hostname": identity(hostname=""),
    "negative port": identity(tcp_port=-1),
    "another remote address, and unknown fields": identity(remote_address="r", extra=[1], Hostname="later"),
    "topology of another type": identity(topology_zone=1, topology_region=["r"]),
    "keys in any case": b"  V1" + identify({name.upper(): value for name, value in IDENTITY.items()}),
    "parameters of IDENTIFY": b"  V1" + identify(IDENTITY).replace(b"IDENTIFY", b"IDENTIFY a b", 1),
    "IDENTIFY again": IDENTIFIED + identify(IDENTITY),
    "REGISTER without parameters": IDENTIFIED + b"REGISTER\n",
    "REGISTER topic": IDENTIFIED + b"REGISTER t\nREGISTER t\n",
    "REGISTER channel": IDENTIFIED + b"REGISTER t c\nREGISTER t c\nREGISTER t d\n",
    "REGISTER ephemeral": IDENTIFIED + b"REGISTER t#ephemeral c#ephemeral\n",
    "REGISTER with more parameters": IDENTIFIED + b"REGISTER t c d\n",
    "REGISTER with two spaces before the topic": IDENTIFIED + b"REGISTER  t\n",
    "REGISTER with two spaces before the channel": IDENTIFIED + b"REGISTER t  c\n",
    "REGISTER of a bad topic": IDENTIFIED + b"REGISTER t$ c$\n",
    "REGISTER of a bad channel": IDENTIFIED + b"REGISTER t c$\n",
    "REGISTER of a topic that is not UTF-8": IDENTIFIED + b"REGISTER t\xff\n",
    "REGISTER of all": IDENTIFIED + b"REGISTER *\n",
    "REGISTER of the longest name": IDENTIFIED + b"REGISTER " + b"a" * 64 + b"\n",
    "REGISTER of a longer name": IDENTIFIED + b"REGISTER " + b"a" * 65 + b"\n",
    "UNREGISTER without parameters": IDENTIFIED + b"UNREGISTER\n",
    "UNREGISTER of unknown names": IDENTIFIED + b"UNREGISTER t\nUNREGISTER t c\nUNREGISTER t c#ephemeral\n",
    "UNREGISTER channel": IDENTIFIED + b"REGISTER t c\nUNREGISTER t c\nUNREGISTER t c\n",
    "UNREGISTER topic": IDENTIFIED + b"REGISTER t\nUNREGISTER t\nUNREGISTER t\n",
    "UNREGISTER topic with its channel": IDENTIFIED + b"REGISTER t c\nUNREGISTER t\n",
    "UNREGISTER of a bad topic": IDENTIFIED + b"UNREGISTER t$\n",
    "UNREGISTER of a bad channel": IDENTIFIED + b"UNREGISTER t c$\n",
    "long line": b"  V1" + b"X" * 16000 + b"\n",
}


def test_every_command_and_error_is_answered_and_logged_as_by_nsqlookupd(lookupd_pair: LookupdPair) -> None:
    for name, data in CONVERSATIONS.items():
        ours, real = (exchange(lookupd, data) for lookupd in lookupd_pair)
        assert ours == real, name
        for lookupd in lookupd_pair:
            eventually(partial(has_logged_all, lookupd), name)
    # Ours shows bytes that are not UTF-8 in escapes.
    assert [line.replace("\\udc", "\\x") for line in log_lines(lookupd_pair[0])] == log_lines(lookupd_pair[1])


def contents(lookupd: RunningLookupd) -> dict[str, object]:
    paths = ["/topics", "/nodes", "/debug", "/channels?topic=t", "/channels?topic=*", "/lookup?topic=*"]
    paths += ["/channels?topic=e%23ephemeral"]
    if not lookupd.ask("/topics")["topics"]:
        paths.remove("/lookup?topic=*")  # which is not found
    answers = {path: json.dumps(lookupd.ask(path), separators=(",", ":")) for path in paths}
    return {path: lists_sorted(json.loads(normal(text))) for path, text in answers.items()}


def is_gone(lookupd: RunningLookupd, name: str) -> bool:
    return all(row["hostname"] != name for row in lookupd.producers())


STEPS = (
    "a REGISTER t c", "b REGISTER t d", "b REGISTER u", "a REGISTER e#ephemeral f#ephemeral",
    "b REGISTER e#ephemeral f#ephemeral", "a REGISTER t g#ephemeral", "a UNREGISTER e#ephemeral f#ephemeral",
    "b UNREGISTER t c", "b UNREGISTER u", "b UNREGISTER e#ephemeral f#ephemeral", "a UNREGISTER e#ephemeral",
    "b UNREGISTER e#ephemeral", "b REGISTER e#ephemeral f", "b UNREGISTER e#ephemeral",
    "b UNREGISTER t g#ephemeral", "a UNREGISTER t g#ephemeral", "a UNREGISTER t", "a REGISTER t c", "a REGISTER t c",
    "a CLOSE", "b REGISTER v w#ephemeral", "b UNREGISTER v w#ephemeral", "b CLOSE",
)  # fmt: skip


def test_registrations_come_and_go_as_in_nsqlookupd(lookupd_pair: LookupdPair) -> None:
    with ExitStack() as stack:
        nsqds = [
            {name: stack.enter_context(Registrant(lookupd, {**IDENTITY, "hostname": name})) for name in "ab"}
            for lookupd in lookupd_pair
        ]
        assert contents(lookupd_pair[0]) == contents(lookupd_pair[1])
        for step in STEPS:
            name, command = step.split(" ", 1)
            for lookupd, nsqd in zip(lookupd_pair, nsqds, strict=True):
                if command != "CLOSE":
                    assert nsqd[name].command(f"{command}\n".encode()) == b"OK", step
                    continue
                nsqd[name].close()
                eventually(partial(is_gone, lookupd, name), step)
            assert contents(lookupd_pair[0]) == contents(lookupd_pair[1]), step


def test_ephemeral_name_goes_with_its_last_producer_in_whatever_way(lookupd: RunningLookupd) -> None:
    # The real one keeps it for ever unless the last producer unregisters that very name.
    with Registrant(lookupd) as one, Registrant(lookupd) as other:
        one.register("t c", "t d#ephemeral", "t f#ephemeral", "e#ephemeral f#ephemeral")
        other.register("t d#ephemeral", "t g#ephemeral")
        lookupd.ask("/channel/create?topic=t&channel=h%23ephemeral", "POST")  # has no producer to lose
        one.close()
        eventually(lambda: lookupd.ask("/topics")["topics"] == ["t"])
        left = {"c", "d#ephemeral", "g#ephemeral", "h#ephemeral"}
        eventually(lambda: set(lookupd.ask("/channels?topic=*")["channels"]) == left)
        assert other.command(b"UNREGISTER t\n") == b"OK"
        assert set(lookupd.ask("/channels?topic=*")["channels"]) == {"c", "h#ephemeral"}


def test_reply_to_identify_has_the_ports_of_nsqlookupd(lookupd_pair: LookupdPair) -> None:
    for lookupd in lookupd_pair:
        with Registrant(lookupd) as nsqd:
            addresses = [f"127.0.0.1:{nsqd.identity[port]}" for port in ("tcp_port", "http_port")]
            assert addresses == [lookupd.tcp_address, lookupd.http_address]
            assert nsqd.address in lookupd.log()


def test_commands_may_come_in_any_pieces(lookupd_pair: LookupdPair) -> None:
    data = identify(IDENTITY) + b"REGISTER t c\nPING\n"
    for lookupd in lookupd_pair:
        with Registrant(lookupd, None) as nsqd:
            for byte in data:
                nsqd.sock.sendall(bytes([byte]))
            assert json.loads(nsqd.reply())["version"] == "1.3.0"
            assert (nsqd.reply(), nsqd.reply()) == (b"OK", b"OK")


# What only ours does


@pytest.mark.parametrize("size", [-1, -(1 << 31), 16385, (1 << 31) - 1])
def test_size_that_is_negative_or_too_large_is_refused(lookupd: RunningLookupd, size: int) -> None:
    # A negative one ends the real nsqlookupd, and a large one takes as much memory.
    with Registrant(lookupd) as other, Registrant(lookupd, None) as nsqd:
        assert nsqd.command(b"IDENTIFY\n" + struct.pack(">i", size)) == b"E_BAD_BODY IDENTIFY failed to read body"
        assert nsqd.reply() == b""
        assert other.command(b"PING\n") == b"OK"


def test_longest_line_and_body_are_taken(lookupd: RunningLookupd) -> None:
    with Registrant(lookupd, {**IDENTITY, "version": "v" * 16000}) as nsqd:
        assert nsqd.command(b"PING " + b"x" * (16384 - 6) + b"\n") == b"OK"
        nsqd.sock.sendall(b"x" * 16384)
        assert nsqd.reply() == b"E_INVALID command line is longer than 16384 bytes"
        assert nsqd.reply() == b""


def test_registrations_beyond_the_limit_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    with (
        RunningLookupd(own_lookupd_command(), tmp_path / "ours", "--max-registrations=6") as lookupd,
        Registrant(lookupd) as nsqd,
    ):
        nsqd.register("t c", "t")  # a topic, a channel, and a registration for each
        with Registrant(lookupd) as other:
            assert other.command(b"REGISTER u c\n") == b"E_REGISTER_FAILED REGISTER failed too many registrations"
            assert other.reply() == b""
        assert lookupd.registered() == {"t:", "t:c"}
        nsqd.register("u")
        assert nsqd.command(b"UNREGISTER u\n") == b"OK"
        nsqd.register("u", "t c")
        assert lookupd.registered() == {"t:", "t:c", "u:"}


def test_client_without_magic_is_disconnected(tmp_path: Path) -> None:
    with (
        RunningLookupd(own_lookupd_command(), tmp_path / "ours", "--magic-timeout=1s") as lookupd,
        Registrant(lookupd) as nsqd,
    ):
        with lookupd.connect() as sock:
            assert read_all(sock) == b""
        assert "ERROR: failed to read protocol version - read tcp 127.0.0.1:" in lookupd.log()
        assert nsqd.command(b"PING\n") == b"OK"


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    with RunningLookupd(own_lookupd_command(), tmp_path / "ours", "--max-tcp-connections=2") as lookupd:
        with Registrant(lookupd), Registrant(lookupd) as second:
            with lookupd.connect() as sock:
                assert read_all(sock) == b""
            assert second.command(b"PING\n") == b"OK"
        eventually(lambda: lookupd.producers() == [])
        with Registrant(lookupd) as nsqd:
            assert nsqd.command(b"PING\n") == b"OK"


GET = b"GET /nodes HTTP/1.1\r\nHost: h\r\n"
BAD_CLIENTS = {
    "tcp": [
        b"", b"  V1", b"  V1IDENTIFY\n\0\0\1\0{", b"  V1PING\n" * 1000, b"\0" * 5000, IDENTIFIED + b"REGISTER "
    ],
    "http": [
        b"", GET, GET + b"\r\n", (GET + b"\r\n") * 500, b"\0" * 5000, GET + b"X: " + b"x" * 5000,
        GET.replace(b"GET", b"POST") + b"Content-Length: 1000\r\n\r\n{",
    ],
}  # fmt: skip


@pytest.mark.parametrize("to", ["tcp", "http"])
@pytest.mark.parametrize("embedded", [False, True])
def test_bad_clients_harm_nobody(gnsqd_factory: DaemonFactory, tmp_path: Path, embedded: bool, to: str) -> None:
    # 200 of them at once: silent, cut off in the middle, not reading, and sending garbage.
    with ExitStack() as stack:
        daemon = gnsqd_factory(*EMBEDDED) if embedded else None
        if daemon is not None:
            lookupd: RunningLookupd = LookupdInside(daemon)
        else:
            lookupd = stack.enter_context(RunningLookupd(own_lookupd_command(), tmp_path / "ours"))
        own = len(lookupd.producers())
        with ExitStack() as clients, Registrant(lookupd) as nsqd:
            for number in range(200):
                sock = clients.enter_context(lookupd.connect(to))
                sock.sendall(BAD_CLIENTS[to][number % len(BAD_CLIENTS[to])])
            nsqd.register("t c")
            assert lookupd.ask("/lookup?topic=t")["channels"] == ["c"]
            assert daemon is None or daemon.http("POST", "/pub?topic=t", b"x")[0] == 200
        eventually(lambda: len(lookupd.producers()) == own)
        assert (daemon or lookupd).terminate() == 0
        assert "Traceback" not in lookupd.log()
