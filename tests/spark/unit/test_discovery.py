"""Finding nsqds and their queued messages, with a real nsqlookupd, real daemons, and servers that answer wrongly."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.auth_server import AuthServer, response
from kit.certificates import write_identities
from kit.daemons import DEADLINE, Daemon, eventually, free_port
from kit.peer_program import start_nsqlookupd
from pyspark_nsq.client import Client
from pyspark_nsq.discovery import Depth, Nsqd, depth, find_nsqds, missing_topics
from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings, parse

DaemonFactory = Callable[..., Daemon]


def address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def tcp(nsqd: Daemon) -> Address:
    assert isinstance(nsqd.tcp_address, tuple)
    return nsqd.tcp_address


def http(nsqd: Daemon) -> Address:
    assert isinstance(nsqd.http_address, tuple)
    return nsqd.http_address


def shown(nsqd: Daemon) -> Nsqd:
    return Nsqd(f"127.0.0.1:{tcp(nsqd)[1]}", tcp(nsqd), http(nsqd))


def asking(*lookupds: str, timeout: float = 30.0) -> Settings:
    return Settings(lookupd_http_addresses=tuple(map(address, lookupds)), discovery_timeout=timeout)


def settings(**options: str) -> Settings:
    names = {key.replace("_", "."): text for key, text in options.items()}
    return parse({"subscribe": "t", "channel": "c", "spool": "off", **names}, "read")


# Which nsqds there are


def test_a_topic_is_missing_when_every_nsqd_says_so(nsqd: Daemon) -> None:
    nsqd.http("POST", "/topic/create?topic=t")
    here, nowhere = "{}:{}".format(*http(nsqd)), f"127.0.0.1:{free_port()}"
    names = {"subscribe": "t,tt", "nsq.nsqd.tcp.addresses": "127.0.0.1:1", "nsq.nsqd.http.addresses": here}
    assert missing_topics(settings(**names)) == ["tt"]
    both = {"nsq.nsqd.tcp.addresses": "127.0.0.1:1,127.0.0.1:2", "nsq.nsqd.http.addresses": f"{here},{nowhere}"}
    assert missing_topics(settings(**{**names, **both})) == []


@pytest.mark.peer
def test_nsqlookupd_reports_the_nodes_that_have_a_topic(
    nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "nsqlookupd.log") as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.address['TCP']}", "--broadcast-address=127.0.0.1")
        nodes = [nsqd_factory(*flags), nsqd_factory(*flags)]
        wanted = asking(lookupd.address["HTTP"])
        everyone = sorted(map(shown, nodes))
        eventually(lambda: find_nsqds(wanted) == everyone)
        assert find_nsqds(wanted, "t") == []
        nodes[0].http("POST", "/topic/create?topic=t")
        eventually(lambda: find_nsqds(wanted, "t") == [shown(nodes[0])])
        nodes[1].http("POST", "/topic/create?topic=t")
        eventually(lambda: find_nsqds(wanted, "t") == everyone)


def producer(host: str, tcp_port: int) -> dict[str, object]:
    return {"broadcast_address": host, "tcp_port": tcp_port, "http_port": tcp_port + 1, "hostname": "h"}


def producers(*found: dict[str, object]) -> bytes:
    return response(json.dumps({"channels": [], "producers": found or None}))


def test_answers_of_several_nsqlookupds_are_joined() -> None:
    with (
        AuthServer(producers(producer("b", 4150), producer("a", 4150))) as one,
        AuthServer(producers(producer("b", 4150), producer("a", 4140))) as two,
        AuthServer(producers()) as three,
    ):
        found = find_nsqds(asking(one.address, two.address, three.address), "a.b#ephemeral")
    assert [nsqd.name for nsqd in found] == ["a:4140", "a:4150", "b:4150"]
    assert found[2] == Nsqd("b:4150", ("b", 4150), ("b", 4151))
    assert one.targets == ["/lookup?topic=a.b%23ephemeral"]


def test_an_nsqlookupd_that_is_gone_is_a_warning_while_another_one_answers(caplog: pytest.LogCaptureFixture) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with AuthServer(producers(producer("a", 4150))) as there, caplog.at_level(logging.WARNING):
        assert [nsqd.name for nsqd in find_nsqds(asking(gone, there.address), "t")] == ["a:4150"]
    assert f"nsqlookupd {gone} does not answer at HTTP address {gone}: connection refused" in caplog.text


def test_when_no_nsqlookupd_answers_all_are_named() -> None:
    gone = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(DiscoveryError) as raised:
        find_nsqds(asking(*gone), "t")
    assert all(f"nsqlookupd {one} does not answer" in str(raised.value) for one in gone)


@pytest.mark.parametrize(
    "answer, text",
    [
        (response("{}"), "does not answer as nsqlookupd does"),
        (response("[]"), "does not answer as nsqlookupd does"),
        (
            response('{"producers":[{"broadcast_address":5,"tcp_port":1,"http_port":2}]}'),
            "does not answer as nsqlookupd",
        ),
        (response('{"producers":[{"broadcast_address":"a"}]}'), "does not answer as nsqlookupd does"),
        (response("<html>"), "answers something that is not JSON"),
        (response("{}", "500 Internal Server Error"), "answered 500 to /lookup?topic=t"),
        (b"NSQ\r\n\r\n", "does not speak HTTP"),
    ],
)
def test_an_answer_that_is_not_of_nsqlookupd_is_reported(answer: bytes, text: str) -> None:
    with AuthServer(answer) as server, pytest.raises(DiscoveryError) as raised:
        find_nsqds(asking(server.address), "t")
    assert str(raised.value).startswith(f"nsqlookupd {server.address} ")
    assert text in str(raised.value)


def test_a_silent_nsqlookupd_is_not_waited_for_longer_than_given() -> None:
    with AuthServer(b"") as server:
        server.awake.clear()
        with pytest.raises(DiscoveryError, match="timed out"):
            find_nsqds(asking(server.address, timeout=0.1), "t")


def test_configured_nsqds_have_http_one_port_above_tcp_unless_given() -> None:
    given = {"nsq_nsqd_tcp_addresses": "b:4150,[::1]:4160"}
    assert find_nsqds(settings(**given), "t") == [
        Nsqd("[::1]:4160", ("::1", 4160), ("::1", 4161)),
        Nsqd("b:4150", ("b", 4150), ("b", 4151)),
    ]
    assert find_nsqds(settings(**given, nsq_nsqd_http_tls="on"))[1].http == ("b", 4152)
    reported = find_nsqds(settings(**given, nsq_nsqd_http_addresses="b:1,[::1]:2"))
    assert [nsqd.http for nsqd in reported] == [("::1", 2), ("b", 1)]


# Queued messages


def waits(nsqd: Daemon, channel: str = "c") -> Depth:
    return depth(Settings(discovery_timeout=30.0), shown(nsqd), "t", channel)


def test_depth_has_queued_in_flight_and_deferred_messages(nsqd: Daemon) -> None:
    start = nsqd.stats()["start_time"]
    assert waits(nsqd) == Depth(start_time=start)
    with Client.connect(tcp(nsqd), Settings()) as client:
        client.publish("t", [b"x"] * 7)
        assert waits(nsqd) == Depth(topic=7, topic_exists=True, start_time=start)
        client.subscribe("t", "c")
        client.ready(3)
        eventually(lambda: waits(nsqd).in_flight == 3)
        client.ready(0)
        client.requeue([client.receive(DEADLINE)[0].id], 60_000)
        there = Depth(4, 2, 1, 0, channel_exists=True, topic_exists=True, start_time=start, consumers=1)
        eventually(lambda: waits(nsqd) == there)
        # A channel that is not there hides nothing of the topic.
        assert waits(nsqd, "other") == Depth(topic_exists=True, start_time=start)


def test_a_pause_of_topic_or_channel_is_seen(nsqd: Daemon) -> None:
    nsqd.http("POST", "/topic/create?topic=t")
    nsqd.http("POST", "/channel/create?topic=t&channel=c")
    assert not waits(nsqd).paused
    nsqd.http("POST", "/channel/pause?topic=t&channel=c")
    assert waits(nsqd).paused
    assert not waits(nsqd, "other").paused
    nsqd.http("POST", "/channel/unpause?topic=t&channel=c")
    nsqd.http("POST", "/topic/pause?topic=t")
    assert waits(nsqd).paused
    assert waits(nsqd, "other").paused


def test_an_nsqd_that_is_gone_is_named() -> None:
    port = free_port()
    nsqd = Nsqd("node:4150", ("127.0.0.1", 1), ("127.0.0.1", port))
    with pytest.raises(DiscoveryError) as raised:
        depth(Settings(), nsqd, "t", "c")
    assert str(raised.value) == f"nsqd node:4150 does not answer at HTTP address 127.0.0.1:{port}: connection refused"


def test_a_host_that_is_not_a_name_is_reported() -> None:
    for host in ("x" * 70, "nosuchhost.invalid"):
        with pytest.raises(DiscoveryError, match=f"nsqlookupd {host}:4161 does not answer at HTTP address"):
            find_nsqds(Settings(lookupd_http_addresses=((host, 4161),)))


def test_statistics_are_asked_for_by_https(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    files = write_identities(tmp_path)
    cert, key = files["server"]
    port = free_port()
    nsqd = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", f"--https-address=127.0.0.1:{port}")
    nsqd.http("POST", "/topic/create?topic=t")
    https = Nsqd("n", tcp(nsqd), ("127.0.0.1", port))
    trusting = Settings(nsqd_http_tls=True, tls=True, tls_ca=files["authority"][0])
    assert depth(trusting, https, "t", "c").topic_exists
    with pytest.raises(DiscoveryError, match="its certificate is not trusted"):
        depth(Settings(nsqd_http_tls=True), https, "t", "c")


def test_an_nsqd_that_requires_https_is_reported_with_the_option_for_it() -> None:
    with AuthServer(response('{"message":"TLS_REQUIRED"}', "403 Forbidden")) as server:
        here = Nsqd("n", ("127.0.0.1", 1), address(server.address))
        with pytest.raises(DiscoveryError, match=r"answered 403 .* \(option 'nsq.nsqd.http.tls' asks by HTTPS\)"):
            depth(Settings(), here, "t", "c")


@pytest.mark.parametrize("answer", ["{}", "[]", '{"topics":[{"topic_name":"t"}],"start_time":1}', '{"topics":5}', "5"])
def test_an_answer_that_is_not_of_nsqd_is_reported(answer: str) -> None:
    with AuthServer(response(answer)) as server:
        here = Nsqd("n", ("127.0.0.1", 1), address(server.address))
        with pytest.raises(
            DiscoveryError, match=f"nsqd n does not answer as nsqd does at HTTP address {server.address}"
        ):
            depth(Settings(), here, "t", "c")
