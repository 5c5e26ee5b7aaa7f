"""Finding nsqds and their queued messages, with a real nsqlookupd, real daemons, and servers that answer wrongly."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gnsq_pipeline.running import missing_topics
from kit.auth_server import AuthServer, response
from kit.daemons import DEADLINE, Instance, eventually, free_port
from kit.peer_program import start_nsqlookupd
from kit.traffic import DaemonFactory, create, post, publish
from pyspark_nsq.client import SourceClient
from pyspark_nsq.discovery import Depth, KnownNsqd, depths, find_nsqds
from pyspark_nsq.errors import DiscoveryError, NsqSourceError
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings, parse


def address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def shown(nsqd: Instance) -> KnownNsqd:
    tcp, http = nsqd.tcp_address, nsqd.http_address
    assert isinstance(tcp, tuple)
    assert isinstance(http, tuple)
    return KnownNsqd(f"127.0.0.1:{tcp[1]}", tcp, http)


def asking(*lookupds: str, timeout: float = 30.0) -> Settings:
    return Settings(lookupd_http_addresses=tuple(map(address, lookupds)), discovery_timeout=timeout)


def settings(**options: str) -> Settings:
    return parse({"subscribe": "t", "channel": "c", **options}, "readStream")


# Which nsqds there are


def test_a_topic_is_missing_when_every_nsqd_says_so(nsqd: Instance) -> None:
    create(nsqd, "t")
    here, nowhere = "{}:{}".format(*nsqd.http_address), f"127.0.0.1:{free_port()}"
    names = {"subscribe": "t,tt", "nsq.nsqd.tcp.addresses": "127.0.0.1:1", "nsq.nsqd.http.addresses": here}
    assert missing_topics(settings(**names)) == ["tt"]
    source = settings(**names)
    assert [missing_topics(replace(source, topics=(), topic_pattern=pattern)) for pattern in ("t+", "tt+")] == [
        [],
        ["tt+"],
    ]
    both = {"nsq.nsqd.tcp.addresses": "127.0.0.1:1,127.0.0.1:2", "nsq.nsqd.http.addresses": f"{here},{nowhere}"}
    assert missing_topics(settings(**names | both)) == []


@pytest.mark.peer
def test_nsqlookupd_reports_the_nodes_that_have_a_topic(
    nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "nsqlookupd.log") as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.address['TCP']}", "--broadcast-address=127.0.0.1")
        nodes = [nsqd_factory(*flags), nsqd_factory(*flags)]
        source = asking(lookupd.address["HTTP"])
        everyone = sorted(map(shown, nodes))
        eventually(lambda: find_nsqds(source) == everyone)
        assert find_nsqds(source, "t") == []
        create(nodes[0], "t")
        eventually(lambda: find_nsqds(source, "t") == [shown(nodes[0])])
        create(nodes[1], "t")
        eventually(lambda: find_nsqds(source, "t") == everyone)
        create(nodes[1], "u")
        eventually(lambda: find_nsqds(replace(source, topic_pattern="u.*|v")) == [shown(nodes[1])])


def producers(*found: tuple[str, int]) -> bytes:
    nodes = [{"broadcast_address": host, "tcp_port": port, "http_port": port + 1} for host, port in found]
    return response(json.dumps({"channels": [], "producers": nodes or None}))


def test_answers_of_several_nsqlookupds_are_joined(caplog: pytest.LogCaptureFixture) -> None:
    """Warns of one that is gone while another one answers."""
    gone = f"127.0.0.1:{free_port()}"
    with (
        AuthServer(producers(("b", 4150), ("a", 4150))) as one,
        AuthServer(producers(("b", 4150), ("a", 4140))) as two,
        AuthServer(producers()) as three,
        caplog.at_level(logging.WARNING),
    ):
        found = find_nsqds(asking(one.address, two.address, three.address), "a.b#ephemeral")
        assert not caplog.text
        assert find_nsqds(asking(gone, one.address), "a.b#ephemeral") == found[1:]
    assert [nsqd.name for nsqd in found] == ["a:4140", "a:4150", "b:4150"]
    assert found[2] == KnownNsqd("b:4150", ("b", 4150), ("b", 4151))
    assert set(one.targets) == {"/lookup?topic=a.b%23ephemeral"}
    assert f"nsqlookupd {gone} does not answer at HTTP address {gone}: connection refused" in caplog.text


def test_when_no_nsqlookupd_answers_all_are_named() -> None:
    gone = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(DiscoveryError, match=".*".join(f"nsqlookupd {one} does not answer" for one in gone)):
        find_nsqds(asking(*gone), "t")
    for host in ("x" * 70, "nosuchhost.invalid"):
        with pytest.raises(DiscoveryError, match=f"nsqlookupd {host}:4161 does not answer at HTTP address"):
            find_nsqds(asking(f"{host}:4161"))


OTHER = "does not answer as nsqlookupd does"


@pytest.mark.parametrize(
    "answer, text",
    [
        (response("{}"), OTHER),
        (response("[]"), OTHER),
        (response('{"producers":[{"broadcast_address":5,"tcp_port":1,"http_port":2}]}'), OTHER),
        (response('{"producers":[{"broadcast_address":"a"}]}'), OTHER),
        (response("<html>"), OTHER),
        (response("{}", "500 Internal Server Error"), r"answered 500 to /lookup\?topic=t"),
        (b"NSQ\r\n\r\n", "does not answer at HTTP address .*: does not speak HTTP"),
    ],
)
def test_an_answer_that_is_not_of_nsqlookupd_is_reported(answer: bytes, text: str) -> None:
    with AuthServer(answer) as server, pytest.raises(DiscoveryError, match=f"^nsqlookupd {server.address} {text}"):
        find_nsqds(asking(server.address), "t")


def test_a_silent_nsqlookupd_is_not_waited_for_longer_than_given() -> None:
    with AuthServer(b"") as server:
        server.awake.clear()
        with pytest.raises(DiscoveryError, match="timed out"):
            find_nsqds(asking(server.address, timeout=0.1), "t")


@pytest.mark.parametrize(
    "more, ports",
    [({}, (4151, 4161)), ({"nsq.nsqd.http.tls": "on"}, (4152, 4162)), ({"nsq.nsqd.http.addresses": "c:2,b:1"}, (1, 2))],
)
def test_configured_nsqds_have_http_one_above_tcp_unless_given(more: dict[str, str], ports: tuple[int, int]) -> None:
    b, other = KnownNsqd("b:4150", ("b", 4150), ("b", ports[0])), KnownNsqd("c:4160", ("c", 4160), ("c", ports[1]))
    assert find_nsqds(settings(**{"nsq.nsqd.tcp.addresses": "c:4160,b:4150"} | more), "t") == [b, other]
    assert find_nsqds(settings(**{"nsq.nsqd.tcp.addresses": "[::1]:4160"}))[0].name == "[::1]:4160"


# Queued messages


def waits(nsqd: Instance, channel: str = "c") -> Depth:
    return depths(Settings(topics=("t",), channel=channel, discovery_timeout=30.0), shown(nsqd))["t"]


def test_depth_has_queued_in_flight_and_deferred_messages(nsqd: Instance) -> None:
    assert waits(nsqd) == Depth()
    publish(nsqd, "t", *[b"x"] * 7)
    assert waits(nsqd) == Depth(topic=7, topic_exists=True)
    with SourceClient.connect(shown(nsqd).tcp, Settings()) as client:
        client.subscribe("t", "c")
        client.ready(3)
        eventually(lambda: waits(nsqd).in_flight == 3)
        client.ready(0)
        client.requeue([client.receive(DEADLINE)[0].id], 60_000)
        there = Depth(4, 2, 1, 0, channel_exists=True, topic_exists=True, consumers=1)
        eventually(lambda: waits(nsqd) == there)
        # A channel that is not there hides nothing of the topic.
        assert waits(nsqd, "other") == Depth(topic_exists=True)
        publish(nsqd, "u", b"x")
        source = Settings(channel="c", discovery_timeout=30.0)
        u = Depth(topic=1, topic_exists=True)
        all_three = depths(replace(source, topics=("t", "u", "v")), shown(nsqd))
        assert all_three == {"t": there, "u": u, "v": Depth()}
        assert depths(replace(source, topic_pattern="[u-z]"), shown(nsqd)) == {"u": u}


def test_a_pause_of_topic_or_channel_is_seen(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    assert not waits(nsqd).paused
    post(nsqd, "/channel/pause?topic=t&channel=c")
    assert (waits(nsqd).paused, waits(nsqd, "other").paused) == (True, False)
    post(nsqd, "/channel/unpause?topic=t&channel=c")
    post(nsqd, "/topic/pause?topic=t")
    assert (waits(nsqd).paused, waits(nsqd, "other").paused) == (True, True)


ANSWERS = ("{}", "[]", '{"topics":[{"topic_name":"t"}]}', '{"topics":5}', "5")
TLS_REQUIRED = response('{"message":"TLS_REQUIRED"}', "403 Forbidden")


@pytest.mark.parametrize(
    "answer, text",
    [
        *((response(answer), "does not answer as nsqd does at HTTP address {}$") for answer in ANSWERS),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", r"does not answer at HTTP address {}: IncompleteRead"),
        (TLS_REQUIRED, r"answered 403 to /stats at HTTP address {} \(option 'nsq.nsqd.http.tls' asks by HTTPS;"),
    ],
)
def test_an_answer_that_is_not_of_nsqd_is_reported(answer: bytes, text: str) -> None:
    with AuthServer(answer) as server:
        here = KnownNsqd("n", ("127.0.0.1", 1), address(server.address))
        with pytest.raises(NsqSourceError, match=f"^nsqd n {text.format(server.address)}"):
            depths(Settings(topics=("t",), channel="c"), here)
