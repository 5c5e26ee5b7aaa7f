"""A daemon and a real nsqlookupd: who is registered for what, and what a new topic learns from it."""

import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.cluster import Pretender, is_registered
from kit.daemons import Instance, eventually, free_port
from kit.exposition import labels, series
from kit.handover import saved_topics
from kit.lookupds import RunningLookupd
from kit.nsq_client import NSQClient, sized
from kit.traffic import DaemonFactory, create, post, publish, wait_for

pytestmark = pytest.mark.peer


def is_known(lookupd: RunningLookupd, nsqd: Instance) -> None:
    """Waits until `nsqd` would ask for the channels of a new topic: IDENTIFY was answered."""
    eventually(lambda: f"LOOKUPD({lookupd.tcp_address}): peer info" in nsqd.log(), "nsqlookupd known")


@pytest.mark.parametrize("given", [True, False])
def test_daemon_describes_itself(nsqd_factory: DaemonFactory, lookupd: RunningLookupd, given: bool) -> None:
    flags = ["--broadcast-address=b", "--broadcast-tcp-port=1", "--broadcast-http-port=2"]
    nsqd = nsqd_factory(lookupd.flag, *(flags if given else ["--broadcast-address=127.0.0.1"]))
    (producer,) = eventually(lookupd.producers)
    assert producer.pop("remote_address").startswith("127.0.0.1:")
    assert producer == {
        "hostname": socket.gethostname(),
        "broadcast_address": "b" if given else "127.0.0.1",
        "tcp_port": 1 if given else nsqd.tcp_address[1],
        "http_port": 2 if given else nsqd.http_address[1],
        "version": "1.3.0",
        "tombstones": [],
        "topics": [],
    }


def test_unix_socket_has_no_port_to_announce(
    nsqd_factory: DaemonFactory, lookupd: RunningLookupd, tmp_path: Path
) -> None:
    nsqd = nsqd_factory(lookupd.flag, f"--http-address={tmp_path}/http.sock")
    eventually(lambda: "E_BAD_BODY IDENTIFY missing fields" in nsqd.log())
    assert lookupd.producers() == []


def test_what_is_created_is_registered_until_it_is_deleted(
    nsqd_factory: DaemonFactory, lookupd: RunningLookupd
) -> None:
    nsqd = nsqd_factory(lookupd.flag)
    eventually(lookupd.producers)
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as publisher:
        publisher.publish("t", b"x")
        is_registered(lookupd, "t:")
        client.subscribe("t", "c#ephemeral")
        is_registered(lookupd, "t:", "t:c#ephemeral")
    is_registered(lookupd, "t:")
    post(nsqd, "/channel/create?topic=t&channel=c")
    post(nsqd, "/topic/create?topic=u%23ephemeral")
    is_registered(lookupd, "t:", "t:c", "u#ephemeral:")
    post(nsqd, "/channel/delete?topic=t&channel=c")
    is_registered(lookupd, "t:", "u#ephemeral:")
    post(nsqd, "/channel/create?topic=t&channel=d")
    post(nsqd, "/topic/delete?topic=t")
    is_registered(lookupd, "u#ephemeral:")


def test_clean_exit_leaves_no_ephemeral_name(gnsqd_factory: DaemonFactory, lookupd: RunningLookupd) -> None:
    # The real daemon may leave some, as it only sends what it can until it ends.
    nsqd = gnsqd_factory(lookupd.flag)
    names = [f"c{number}#ephemeral" for number in range(50)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(NSQClient(nsqd.tcp_address)).subscribe("t", name)
        post(nsqd, "/topic/create?topic=u%23ephemeral")  # has no channel, so that it ends with the daemon
        is_registered(lookupd, "t:", *(f"t:{name}" for name in names), "u#ephemeral:")
        create(nsqd, "t", "c")
        assert nsqd.terminate() == 0
    eventually(lambda: lookupd.producers() == [])
    assert (lookupd.ask("/topics"), lookupd.ask("/channels?topic=t")) == ({"topics": ["t"]}, {"channels": ["c"]})


def test_new_topic_begins_with_the_channels_that_nsqlookupd_knows(
    nsqd_factory: DaemonFactory, start_lookupd: Callable[[], RunningLookupd]
) -> None:
    peers = [start_lookupd(), start_lookupd()]
    nsqd = nsqd_factory(*(peer.flag for peer in peers))
    for peer, channels in zip(peers, (["b", "a", "e%23ephemeral"], ["c", "b"]), strict=True):
        is_known(peer, nsqd)
        for channel in channels:
            peer.ask(f"/channel/create?topic=t&channel={channel}", "POST")
    publish(nsqd, "t", b"x")
    # A daemon that waits long for nsqlookupd answers before.
    eventually(lambda: [nsqd.channel_stats("t", name).get("channel_name") for name in "abce"] == ["a", "b", "c", None])
    eventually(lambda: [nsqd.channel_stats("t", name)["depth"] for name in "abc"] == [1, 1, 1])
    for peer in peers:
        is_registered(peer, "t:", "t:a", "t:b", "t:c")


def test_nsqlookupd_gets_everything_when_it_is_new_and_when_it_comes_back(
    nsqd_factory: DaemonFactory, lookupd: RunningLookupd
) -> None:
    nsqd = nsqd_factory()
    create(nsqd, "t", "c")
    create(nsqd, "u")
    nsqd.restart(lookupd.flag)
    is_registered(lookupd, "t:", "t:c", "u:")
    lookupd.kill()
    create(nsqd, "v")  # the daemon notices that the connection is broken
    eventually(lambda: re.search(r"ERROR: LOOKUPD\(\S+\): REGISTER v - ", nsqd.log()))
    lookupd.start()
    create(nsqd, "w")
    is_registered(lookupd, "t:", "t:c", "u:", "v:", "w:")
    nsqd.terminate()
    eventually(lambda: lookupd.producers() == [])


def test_frozen_nsqlookupd_delays_neither_publishers_nor_metadata_and_gets_everything_later(
    gnsqd_factory: DaemonFactory, lookupd: RunningLookupd
) -> None:
    nsqd = gnsqd_factory(lookupd.flag)
    eventually(lookupd.producers)
    lookupd.freeze()
    started = time.monotonic()
    names = [f"t{number}" for number in range(20)]
    with NSQClient(nsqd.tcp_address) as client:
        for name in names:
            client.publish(name, b"x")
    eventually(lambda: saved_topics(nsqd).keys() == set(names))
    assert time.monotonic() - started < len(names) / 4  # where one waits for the other, it is more than a second each
    lookupd.thaw()
    create(nsqd, "u")
    is_registered(lookupd, "u:", *(f"{name}:" for name in names))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections, and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_lying_nsqlookupds_delay_neither_publishers_nor_metadata_nor_others(
    gnsqd_factory: DaemonFactory, lookupd: RunningLookupd, silent_port: int
) -> None:
    info = {"tcp_port": 4160, "http_port": silent_port, "version": "1.3.0", "broadcast_address": "127.0.0.1"}
    identified = sized(json.dumps(info).encode())
    lies: list[Callable[[bytes], list[bytes]]] = [
        lambda line: [],
        lambda line: [b"\xff" * 1_000_000],
        lambda line: [struct.pack(">i", 5_000_000), b"[" * 5_000_000],
        lambda line: [identified[:50]],
        lambda line: [sized(b"E_INVALID no")],
        lambda line: [identified * 10_000],
        lambda line: [identified if line.startswith(b"IDENTIFY") else sized(b"E_INVALID no")],
        lambda line: [identified if line.startswith(b"IDENTIFY") else b"\x7f"],
    ]
    names = [f"t{number}" for number in range(20)]
    for name in names:
        lookupd.ask(f"/channel/create?topic={name}&channel=c", "POST")
    with ExitStack() as stack:
        flags = [stack.enter_context(Pretender(lie)).flag for lie in lies]
        nsqd = gnsqd_factory("--http-client-request-timeout=2s", *flags, lookupd.flag)
        is_known(lookupd, nsqd)
        eventually(lambda: f"HTTPPort:{silent_port} " in nsqd.log())
        started = time.monotonic()
        with NSQClient(nsqd.tcp_address) as client:
            for name in names:
                client.publish(name, b"x")
        eventually(lambda: saved_topics(nsqd).keys() == set(names))
        assert time.monotonic() - started < len(names) / 4
        # What was published waited for the channels.
        for name in names:
            wait_for(nsqd, name, "c", depth=1)
        is_registered(lookupd, *(f"{name}:" for name in names), *(f"{name}:c" for name in names))
        assert nsqd.terminate() == 0


def test_addresses_change_while_daemon_runs(
    nsqd_factory: DaemonFactory, start_lookupd: Callable[[], RunningLookupd]
) -> None:
    one, two = start_lookupd(), start_lookupd()
    nsqd = nsqd_factory(one.flag)
    create(nsqd, "t")
    is_registered(one, "t:")

    def change(addresses: list[str] | None) -> None:
        status, _, answer = nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps(addresses))
        assert (status, json.loads(answer)) == (200, addresses)

    change([two.tcp_address])
    is_registered(two, "t:")
    is_registered(one)
    change([two.tcp_address, one.tcp_address])
    is_registered(one, "t:")
    create(nsqd, "u")
    for lookupd in (one, two):
        is_registered(lookupd, "t:", "u:")
    (before,) = two.producers()
    change(["no.such.host.invalid:4160", "nowhere", "::1:4160", f"127.0.0.1:{free_port()}", two.tcp_address])
    is_registered(one)
    (after,) = two.producers()
    assert after["remote_address"] == before["remote_address"]  # that connection stays
    change(None)
    eventually(lambda: two.producers() == [])


def test_draining_daemon_stays_registered_for_consumers_to_find(
    gnsqd_factory: DaemonFactory, lookupd: RunningLookupd
) -> None:
    gnsqd = gnsqd_factory(lookupd.flag, "--broadcast-address=127.0.0.1")
    post(gnsqd, "/pub?topic=t", b"x")
    post(gnsqd, "/drain")
    # What is registered now comes after whatever the drain itself would have registered.
    post(gnsqd, "/channel/create?topic=t&channel=c")
    is_registered(lookupd, "t:", "t:c")
    (producer,) = lookupd.ask("/lookup?topic=t")["producers"]
    with NSQClient((producer["broadcast_address"], producer["tcp_port"])) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        consumer.command(b"FIN " + consumer.message().id)
    assert gnsqd.wait() == 0
    eventually(lambda: lookupd.producers() == [])


def test_metrics_show_which_nsqlookupd_has_the_registrations(
    gnsqd_factory: DaemonFactory, start_lookupd: Callable[[], RunningLookupd]
) -> None:
    one, two = start_lookupd(), start_lookupd()
    gnsqd = gnsqd_factory(one.flag, two.flag)

    def connected() -> list[float]:
        page = series(gnsqd.http("GET", "/metrics")[2])
        return [page["gnsqd_nsqlookupd_connected", labels(address=each.tcp_address)] for each in (one, two)]

    eventually(lambda: connected() == [1, 1])
    one.kill()
    create(gnsqd, "t")  # otherwise it shows at the next PING
    eventually(lambda: connected() == [0, 1])
    one.start()
    create(gnsqd, "u")
    is_registered(one, "t:", "u:")
    eventually(lambda: connected() == [1, 1])
