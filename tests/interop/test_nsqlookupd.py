"""A daemon and a real nsqlookupd: who is registered for what, and what a new topic learns from it."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemons import DEADLINE, Daemon, eventually
from nsq_client import Client

pytestmark = pytest.mark.peer


class Lookupd:
    """A real nsqlookupd. After `kill`, `start` begins again on the same ports, knowing nothing."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self._binary = binary
        self._log = directory / "nsqlookupd.log"
        self._ports = {"tcp": "0", "http": "0"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Lookupd":
        flags = [f"--{kind}-address=127.0.0.1:{port}" for kind, port in self._ports.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [os.fspath(self._binary), "--broadcast-address=127.0.0.1", *flags], stderr=log
            )
        for kind in self._ports:
            line = re.compile(rf"\b{kind.upper()}: listening on 127\.0\.0\.1:(\d+)$", re.MULTILINE)
            found = eventually(lambda line=line: line.search(self._log.read_text()))  # type: ignore[misc]
            self._ports[kind] = found[1]
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)
            self._process = None

    def freeze(self) -> None:
        """From now on the kernel accepts connections, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    @property
    def flag(self) -> str:
        return f"--lookupd-tcp-address=127.0.0.1:{self._ports['tcp']}"

    def ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self._ports['http']}{path}", method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            body = response.read()
        return json.loads(body) if body else None

    def registered(self) -> set[str]:
        """`topic:channel` for each registration of a producer, `topic:` for a topic's own."""
        return {
            f"{topic}:{channel}"
            for category, topic, channel in (key.split(":") for key in self.ask("/debug"))
            if category != "client"
        }

    def producers(self) -> list[dict[str, Any]]:
        return list(self.ask("/nodes")["producers"])


@pytest.fixture
def start_lookupd(peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[[], Lookupd]]:
    """Start an nsqlookupd, any number of times."""
    started: list[Lookupd] = []

    def start() -> Lookupd:
        directory = tmp_path / f"nsqlookupd-{len(started)}"
        directory.mkdir()
        started.append(Lookupd(peer_binary("nsqlookupd"), directory))
        return started[-1].start()

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def lookupd(start_lookupd: Callable[[], Lookupd]) -> Lookupd:
    return start_lookupd()


DaemonFactory = Callable[..., Daemon]


def post(nsqd: Daemon, path: str) -> None:
    assert nsqd.http("POST", path)[0] == 200


def registered(lookupd: Lookupd, *expected: str) -> None:
    eventually(lambda: lookupd.registered() == set(expected), f"{expected} registered")


def test_daemon_describes_itself(nsqd_factory: DaemonFactory, lookupd: Lookupd) -> None:
    nsqd = nsqd_factory(lookupd.flag, "--broadcast-address=127.0.0.1")
    (producer,) = eventually(lookupd.producers)
    assert producer["remote_address"].startswith("127.0.0.1:")
    del producer["remote_address"]
    assert producer == {
        "hostname": socket.gethostname(),
        "broadcast_address": "127.0.0.1",
        "tcp_port": nsqd.tcp_address[1],
        "http_port": nsqd.http_address[1],
        "version": "1.3.0",
        "tombstones": [],
        "topics": [],
    }


def test_ports_to_announce_can_be_given(nsqd_factory: DaemonFactory, lookupd: Lookupd) -> None:
    nsqd_factory(lookupd.flag, "--broadcast-address=b", "--broadcast-tcp-port=1", "--broadcast-http-port=2")
    (producer,) = eventually(lookupd.producers)
    assert (producer["broadcast_address"], producer["tcp_port"], producer["http_port"]) == ("b", 1, 2)


def test_unix_socket_has_no_port_to_announce(nsqd_factory: DaemonFactory, lookupd: Lookupd, tmp_path: Path) -> None:
    nsqd = nsqd_factory(lookupd.flag, f"--http-address={tmp_path}/http.sock")
    eventually(lambda: "E_BAD_BODY IDENTIFY missing fields" in nsqd.log())
    assert lookupd.producers() == []


def test_what_is_created_is_registered_until_it_is_deleted(nsqd_factory: DaemonFactory, lookupd: Lookupd) -> None:
    nsqd = nsqd_factory(lookupd.flag)
    eventually(lookupd.producers)
    with closing(Client(nsqd.tcp_address)) as client, closing(Client(nsqd.tcp_address)) as publisher:
        publisher.publish("t", b"x")
        registered(lookupd, "t:")
        client.subscribe("t", "c#ephemeral")
        registered(lookupd, "t:", "t:c#ephemeral")
    registered(lookupd, "t:")
    post(nsqd, "/channel/create?topic=t&channel=c")
    post(nsqd, "/topic/create?topic=u%23ephemeral")
    registered(lookupd, "t:", "t:c", "u#ephemeral:")
    post(nsqd, "/channel/delete?topic=t&channel=c")
    registered(lookupd, "t:", "u#ephemeral:")
    post(nsqd, "/channel/create?topic=t&channel=d")
    post(nsqd, "/topic/delete?topic=t")
    registered(lookupd, "u#ephemeral:")


def test_what_was_there_before_is_registered_at_start(nsqd_factory: DaemonFactory, lookupd: Lookupd) -> None:
    nsqd = nsqd_factory()
    post(nsqd, "/topic/create?topic=t")
    post(nsqd, "/topic/create?topic=u")
    post(nsqd, "/channel/create?topic=u&channel=c")
    nsqd.restart(lookupd.flag)
    registered(lookupd, "t:", "u:", "u:c")


def test_daemon_that_exits_is_no_producer_any_more(nsqd_factory: DaemonFactory, lookupd: Lookupd) -> None:
    nsqd = nsqd_factory(lookupd.flag)
    post(nsqd, "/topic/create?topic=t")
    registered(lookupd, "t:")
    nsqd.terminate()
    eventually(lambda: lookupd.producers() == [])


def test_new_topic_begins_with_the_channels_that_nsqlookupd_knows(
    nsqd_factory: DaemonFactory, start_lookupd: Callable[[], Lookupd]
) -> None:
    peers = [start_lookupd(), start_lookupd()]
    nsqd = nsqd_factory(*(peer.flag for peer in peers))
    for peer, channels in zip(peers, (["b", "a", "e%23ephemeral"], ["c", "b"]), strict=True):
        eventually(peer.producers)
        for channel in channels:
            peer.ask(f"/channel/create?topic=t&channel={channel}", "POST")
    with closing(Client(nsqd.tcp_address)) as client:
        client.publish("t", b"x")
    assert [nsqd.channel_stats("t", name).get("channel_name") for name in "abce"] == ["a", "b", "c", None]
    eventually(lambda: [nsqd.channel_stats("t", name)["depth"] for name in "abc"] == [1, 1, 1])
    for peer in peers:
        eventually(lambda peer=peer: peer.registered() == {"t:", "t:a", "t:b", "t:c"})  # type: ignore[misc]


def test_nsqlookupd_that_comes_back_is_told_everything(nsqd_factory: DaemonFactory, lookupd: Lookupd) -> None:
    nsqd = nsqd_factory(lookupd.flag)
    post(nsqd, "/topic/create?topic=t")
    post(nsqd, "/channel/create?topic=t&channel=c")
    registered(lookupd, "t:", "t:c")
    lookupd.kill()
    post(nsqd, "/topic/create?topic=u")  # tells the daemon that the connection is broken
    eventually(lambda: re.search(r"ERROR: LOOKUPD\(\S+\): REGISTER u - ", nsqd.log()))
    lookupd.start()
    post(nsqd, "/topic/create?topic=v")
    registered(lookupd, "t:", "t:c", "u:", "v:")


def saved_topics(nsqd: Daemon) -> set[str]:
    saved = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())
    return {topic["name"] for topic in saved["topics"]}


def test_frozen_nsqlookupd_delays_neither_publishers_nor_metadata_nor_others(
    gnsqd_factory: DaemonFactory, start_lookupd: Callable[[], Lookupd]
) -> None:
    frozen, lookupd = start_lookupd(), start_lookupd()
    nsqd = gnsqd_factory(frozen.flag, lookupd.flag)
    eventually(frozen.producers)
    eventually(lookupd.producers)
    frozen.freeze()
    post(nsqd, "/topic/create?topic=t")  # waits for the channels that the frozen one knows
    eventually(lambda: "REGISTER t - i/o timeout" in nsqd.log())
    started = time.monotonic()
    names = [f"t{number}" for number in range(20)]
    with closing(Client(nsqd.tcp_address)) as client:
        for name in names:
            client.publish(name, b"x")
    registered(lookupd, "t:", *(f"{name}:" for name in names))
    eventually(lambda: saved_topics(nsqd) == {"t", *names})
    assert time.monotonic() - started < len(names) / 2  # where one waits for the other, it is more than a second each


def test_daemon_that_drains_stays_registered_for_consumers_to_find(
    gnsqd_factory: DaemonFactory, lookupd: Lookupd
) -> None:
    gnsqd = gnsqd_factory(lookupd.flag, "--broadcast-address=127.0.0.1")
    assert gnsqd.http("POST", "/pub?topic=t", b"x")[0] == 200
    post(gnsqd, "/drain")
    # What is told now comes after whatever the drain itself would have told.
    post(gnsqd, "/channel/create?topic=t&channel=c")
    registered(lookupd, "t:", "t:c")
    (producer,) = lookupd.ask("/lookup?topic=t")["producers"]
    with Client((producer["broadcast_address"], producer["tcp_port"])) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        consumer.command(b"FIN " + consumer.message().id)
    assert gnsqd.wait() == 0
    eventually(lambda: lookupd.producers() == [])
