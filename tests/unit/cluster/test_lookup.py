"""Registrations of a live broker at nsqlookupd, what does not wait for them, and the channels it returns."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_STREAM, gaierror

import pytest
from gevent import Timeout, killall, spawn
from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.cluster import lookup
from gnsqd.cluster.lookup import Lookup
from gnsqd.options import Options
from gnsqd.storage.syncer import Syncer
from kit.auth_server import AuthServer, response
from kit.daemons import DEADLINE
from unit.broker.fakes import Fakes, eventually
from unit.cluster.fake_lookupd import FakeLookupd, info, obliging

Lookupd = Callable[..., FakeLookupd]
HTTP = Callable[[bytes], AuthServer]


class Broker:
    """A broker and its Lookup."""

    def __init__(self, directory: Path, syncer: Syncer) -> None:
        self.options = Options()
        self.fakes = Fakes(directory, self.options, syncer)
        self.registry: Registry = self.fakes.registry
        self.lookup = Lookup(self.registry, self.options, self.fakes.logger, self.fakes.spawn)
        self.registry.attach(
            self.fakes.environment._replace(notify=self.notify, channels_to_precreate=self.lookup.channels_to_precreate)
        )

    def notify(self, changed: Topic | Channel, persist: bool) -> None:
        names = (changed.topic_name, changed.name) if isinstance(changed, Channel) else (changed.name, "")
        self.lookup.notify(*names, changed.exiting)

    def start(self, *peers: FakeLookupd | str) -> None:
        self.options.nsqlookupd_tcp_addresses = [peer if isinstance(peer, str) else peer.address for peer in peers]
        self.lookup.connect()

    def log(self) -> str:
        return self.fakes.log.getvalue()

    def end(self) -> None:
        self.lookup.stop()
        died = [greenlet for greenlet in self.fakes.greenlets if greenlet.exception is not None]
        killall(self.fakes.greenlets)
        assert not died, died


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Broker]:
    syncer = Syncer()
    daemon = Broker(tmp_path, syncer)
    yield daemon
    daemon.end()
    syncer.stop()


def reported(lookupd: FakeLookupd, expected: list[str], connection: int = 0) -> None:
    """Waits until the connection received that, after its IDENTIFY."""
    eventually(lambda: len(lookupd.lines) > connection and len(lookupd.lines[connection]) > len(expected))
    assert lookupd.lines[connection] == ["IDENTIFY", *expected]


def connected(ours: Broker, *peers: FakeLookupd) -> None:
    ours.start(*peers)
    eventually(lambda: all(f"LOOKUPD({peer.address}): peer info" in ours.log() for peer in peers))


def test_peer_that_was_too_slow_is_left_alone_until_the_next_event(
    ours: Broker, lookupd: Lookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = lookupd(lambda line: [] if line == "REGISTER t" else obliging(line))
    connected(ours, server)
    monkeypatch.setattr(lookup, "IO_TIMEOUT", 0.1)
    ours.registry.get_topic("t")
    eventually(lambda: "REGISTER t - i/o timeout" in ours.log())
    eventually(lambda: server.closed)
    monkeypatch.setattr(lookup, "IO_TIMEOUT", DEADLINE)
    server.respond = obliging
    assert len(server.lines) == 1
    ours.registry.get_topic("u")
    reported(server, ["REGISTER t", "REGISTER u", "REGISTER u"], connection=1)


def test_peer_that_falls_far_behind_gets_everything_again(
    ours: Broker, lookupd: Lookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "IO_TIMEOUT", 10 * DEADLINE)
    monkeypatch.setattr(lookup, "MAX_EVENTS", 5)
    awake = Event()

    def slow(line: str) -> Iterable[bytes]:
        if line != "IDENTIFY":
            awake.wait()
        return obliging(line)

    server = lookupd(slow)
    connected(ours, server)
    names = [f"t{number}#ephemeral" for number in range(6)]
    for name in names:
        ours.registry.get_topic(name)
        reported(server, ["REGISTER t0#ephemeral"])  # nothing else, as long as that isn't answered
    for name in names[:-1]:
        ours.registry.delete_existing_topic(name)
    awake.set()
    eventually(lambda: len(server.lines) == 2 and len(server.lines[1]) > 2)
    assert server.lines[0] == ["IDENTIFY", "REGISTER t0#ephemeral"]
    assert server.lines[1][:3] == ["IDENTIFY", "REGISTER t5#ephemeral", "UNREGISTER t0#ephemeral"]
    assert "too far behind, registering everything again" in ours.log()


def test_end_waits_for_all_that_hang_together(ours: Broker, lookupd: Lookupd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "IO_TIMEOUT", 10 * DEADLINE)
    monkeypatch.setattr(lookup, "END_TIMEOUT", 0.1)
    servers = [lookupd(lambda line: obliging(line) if line == "IDENTIFY" else []) for _ in range(2)]
    connected(ours, *servers)
    ours.registry.get_topic("t#ephemeral")
    for server in servers:
        reported(server, ["REGISTER t#ephemeral"])
    ours.lookup.stop()
    with Timeout(DEADLINE):
        ours.lookup.join()
    eventually(lambda: all(server.closed for server in servers))


# Names


class Names:
    """A name server: the addresses of each name, as `host:port` or `[v6]:port`; None: it fails."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str] | None] = {}
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        self.asked.append(host)
        found = self.addresses[host]
        if found is None:
            raise gaierror(-3, "Temporary failure in name resolution")
        parts = [address.replace("[", "").replace("]", "").rpartition(":") for address in found]
        family = {True: (AF_INET6, (0, 0)), False: (AF_INET, ())}
        answer = [(*family[":" in host], host, int(port)) for host, _, port in parts]
        return [(kind, SOCK_STREAM, 0, "", (host, port, *scope)) for kind, scope, host, port in answer]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Replaces the name server, which is asked often."""
    names = Names()
    monkeypatch.setattr("gevent.socket.getaddrinfo", names.getaddrinfo)
    monkeypatch.setattr(lookup, "RESOLVE_PAUSE", 0.001)
    monkeypatch.setattr(lookup, "RESOLVE_INTERVAL", 0.01)
    return names


def has_peers(ours: Broker, *addresses: str) -> None:
    eventually(lambda: ours.lookup.connected().keys() == set(addresses))


def asked_again(names: Names) -> None:
    """Waits until all names were looked up after what the caller did."""
    count = len(names.asked)
    eventually(lambda: len(names.asked) >= count + 2 * len(names.addresses))


def test_name_is_all_of_its_addresses_at_any_time(ours: Broker, lookupd: Lookupd, names: Names) -> None:
    one, two, three = lookupd(), lookupd(), lookupd()
    names.addresses["several"] = [one.address, two.address]
    ours.registry.get_topic("t")
    ours.start("several:4160")
    has_peers(ours, one.address, two.address)
    eventually(lambda: all(server.lines[-1:] == [["IDENTIFY", "REGISTER t"]] for server in (one, two)))
    connections = len(two.lines)
    names.addresses["several"] = [three.address, two.address]
    reported(three, ["REGISTER t"])
    has_peers(ours, two.address, three.address)
    eventually(lambda: len(one.closed) == len(one.lines))
    assert len(two.lines) == connections
    changes = [line for line in ours.log().splitlines() if line.endswith("ing peer")]
    assert [line.partition("LOOKUP(")[2] for line in changes if two.address not in line] == [
        "several:4160): adding peer",
        "several:4160): removing peer",
        f"{one.address}): adding peer",
        f"{one.address}): removing peer",
        f"{three.address}): adding peer",
    ]


@pytest.mark.parametrize(
    ("addresses", "peers"),
    [
        (["127.0.0.1:1"], ["name:4160"]),
        (["[::1]:1", "127.0.0.1:1"], ["name:4160"]),
        (["127.0.0.1:1", "127.0.0.1:1"], ["name:4160"]),
        (["[::1]:1", "127.0.0.1:1", "127.0.0.1:2"], ["127.0.0.1:1", "127.0.0.1:2"]),
        (["[::1]:1", "127.0.0.1:1", "127.0.0.1:2", "[::1]:2"], ["[::1]:1", "[::1]:2"]),
    ],
)
def test_addresses_of_one_family_only_may_be_several_nsqlookupds(
    addresses: list[str], peers: list[str], ours: Broker, names: Names
) -> None:
    names.addresses["name"] = addresses
    ours.start("name:4160")
    asked_again(names)
    has_peers(ours, *peers)


def test_names_that_share_an_address_share_its_peer(ours: Broker, names: Names) -> None:
    names.addresses |= {"a": ["127.0.0.1:1", "127.0.0.1:2"], "b": ["127.0.0.1:2", "127.0.0.1:3"]}
    ours.start("a:4160", "127.0.0.1:1", "b:4160")
    has_peers(ours, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    assert len([line for line in ours.log().splitlines() if line.endswith("(127.0.0.1:2): adding peer")]) == 1


def test_name_server_that_fails_leaves_the_peers(ours: Broker, names: Names) -> None:
    names.addresses |= {"a": ["127.0.0.1:1", "127.0.0.1:2"], "b": None}
    ours.start("a:4160", "b:4160", "b:99999")
    has_peers(ours, "127.0.0.1:1", "127.0.0.1:2", "b:4160", "b:99999")
    names.addresses["a"] = None
    asked_again(names)
    has_peers(ours, "127.0.0.1:1", "127.0.0.1:2", "b:4160", "b:99999")
    text = "WARNING: LOOKUP(a:4160): keeping its addresses - temporary failure in name resolution\n"
    assert text in ours.log()
    assert "LOOKUP(b:4160): keeping" not in ours.log()


def test_failure_of_a_peer_is_a_reason_to_look_again(
    ours: Broker, lookupd: Lookupd, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "RESOLVE_INTERVAL", DEADLINE * 10)
    servers = [lookupd(), lookupd(), lookupd()]
    names.addresses["a"] = [server.address for server in servers[:2]]
    ours.start("a:4160")
    eventually(lambda: list(ours.lookup.connected().values()) == [True, True])
    names.addresses["a"] = [server.address for server in servers[1:]]
    servers[0].close()
    ours.registry.get_topic("t")
    has_peers(ours, *(server.address for server in servers[1:]))


def test_changed_option_is_looked_up_at_once_and_numbers_never(
    ours: Broker, lookupd: Lookupd, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "RESOLVE_INTERVAL", DEADLINE * 10)
    ours.start("127.0.0.1:1", "[::1]:1", "nowhere")
    assert not [greenlet for greenlet in ours.fakes.greenlets if getattr(greenlet, "name", "") == "resolveLoop"]
    one, two, three = (lookupd().address for _ in range(3))  # which do not fail
    names.addresses |= {"a": [one, two], "b": [two, three]}
    ours.start("a:4160")
    has_peers(ours, one, two)
    ours.start("b:4160", one)
    has_peers(ours, one, two, three)
    assert set(names.asked) == {"a", "b"}


# Channels of a new topic


def with_http(lookupd: Lookupd, port: int) -> FakeLookupd:
    return lookupd(lambda line: [info(http_port=port)] if line == "IDENTIFY" else obliging(line))


def test_valid_channels_of_all_peers_exist_before_the_topic_moves(ours: Broker, lookupd: Lookupd, http: HTTP) -> None:
    one = http(response('{"channels":["../../x","c","","b/c","a"]}'))
    two = http(response('{"more": {}, "channels" : [ "b", "c", "d#ephemeral" ]}'))
    connected(ours, with_http(lookupd, one.port), with_http(lookupd, two.port))
    assert list(ours.registry.get_topic("t#ephemeral").channels) == ["a", "b", "c"]
    assert one.requests[0].startswith(b"GET /channels?topic=t%23ephemeral HTTP/1.1\r\n")
    assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\n" in one.requests[0]
    assert "failed" not in ours.log()


FAILED = "WARNING: failed to query nsqlookupd for channels to pre-create for topic t - "


@pytest.mark.parametrize(
    "answer, text",
    [
        (response(b"oops", "500 Internal Server Error"), 'got response 500 Internal Server Error "oops"'),
        (response(b"{"), "no list of channels"),
        (response(b"\xff"), "no list of channels"),
        (response(b'{"channels":["a",5]}'), "no list of channels"),
        (response(b'{"channels":["a",]}'), "no list of channels"),
        (response(b'{"channels":["a"'), "no list of channels"),
        (response(b"[" * 99_999), "no list of channels"),
        (response(b'{"channels":"abc"}'), "no list of channels"),
        (response(b"[]"), "no list of channels"),
        (response(b"[" * 5_242_881), "response body size is greater than limit (5242880)"),
        (b"", ": EOF"),
        (b"HTTP/1.1 twohundred\r\n\r\n", "twohundred"),
    ],
    ids=["500", "syntax", "bytes", "number", "comma", "end", "deep", "text", "list", "large", "empty", "status"],
)
def test_bad_answer_only_warns(answer: bytes, text: str, ours: Broker, lookupd: Lookupd, http: HTTP) -> None:
    bad, good = http(answer), http(response(b'{"channels":["c"]}'))
    connected(ours, with_http(lookupd, bad.port), with_http(lookupd, good.port))
    assert list(ours.registry.get_topic("t").channels) == ["c"]
    assert FAILED in ours.log()
    assert text in ours.log()
    assert (" ERROR: TOPIC(t): nsqlookupd " in ours.log()) == ("5242880" in text)


def test_channels_beyond_any_ordinary_number_exist_before_the_topic_moves(
    ours: Broker, lookupd: Lookupd, http: HTTP
) -> None:
    names = ["?" * 60] * 80_000  # which cost no time
    connected(ours, with_http(lookupd, http(response(json.dumps({"channels": [*names, "c"]}))).port))
    topic = ours.registry.get_topic("t")
    eventually(lambda: list(topic.channels) == ["c"])
    assert "WARNING: skipping creation of 80000 invalid channels\n" in ours.log()


@pytest.mark.parametrize(
    "broadcast_address, http_port",
    [("a b", 1), ("no..host", 1), ("127.0.0.1", 99_999), ("::1", -1), ("[", 1), ("a]", 1), ("/", 1), ("u@:p", 1)],
)
def test_impossible_address_only_warns(broadcast_address: str, http_port: int, ours: Broker, lookupd: Lookupd) -> None:
    server = lookupd(lambda line: [info(broadcast_address=broadcast_address, http_port=http_port)])
    connected(ours, server)
    ours.registry.get_topic("t")
    assert f"{FAILED}failed to query any nsqlookupd: Get " in ours.log()


def test_no_peer_known_yet_is_an_error_in_the_log(ours: Broker, lookupd: Lookupd) -> None:
    ours.registry.get_topic("t")
    error = "no available nsqlookupd to query for channels to pre-create for topic"
    assert error not in ours.log()
    ours.start(lookupd(lambda line: []))
    ours.registry.get_topic("u")
    assert f"ERROR: {error} u\n" in ours.log()


def test_peers_that_do_not_answer_are_asked_only_if_there_are_no_others(
    ours: Broker, lookupd: Lookupd, http: HTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    webs = [http(response(b'{"channels":["c"]}')) for _ in range(2)]
    servers = [with_http(lookupd, web.port) for web in webs]
    connected(ours, *servers)
    monkeypatch.setattr(lookup, "IO_TIMEOUT", 0.5)
    servers[0].respond = lambda line: []
    ours.registry.get_topic("t")
    eventually(lambda: ours.lookup.connected() == {servers[0].address: False, servers[1].address: True})
    ours.registry.get_topic("u")
    assert [len(web.requests) for web in webs] == [1, 2]
    servers[1].respond = lambda line: []
    ours.registry.get_topic("v")
    eventually(lambda: not any(ours.lookup.connected().values()))
    assert list(ours.registry.get_topic("w").channels) == ["c"]


def test_end_does_not_wait_for_a_slow_answer(ours: Broker, lookupd: Lookupd, http: HTTP) -> None:
    slow = http(response(b""))
    slow.awake.clear()
    ours.options.http_client_request_timeout = 0
    connected(ours, with_http(lookupd, slow.port))
    waiting = spawn(ours.registry.get_topic, "t")
    eventually(lambda: slow.requests)
    ours.lookup.stop()
    waiting.get(timeout=DEADLINE)
