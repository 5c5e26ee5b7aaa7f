"""Regions and zones, as nsq's development branch has them (NSQD-COMPAT 11). There is no release to compare with: the
expected values were observed at its commit 3103474b. nsqd v1.3.0 does not have them; nor does gnsqd by default."""

import json
import time
from contextlib import ExitStack
from operator import itemgetter
from typing import Any

import pytest

from kit.daemons import Instance, eventually
from kit.http_api import ask
from kit.lookupds import EMBEDDED, LookupdInside
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create

EXPERIMENT = "--enable-experiment=topology-aware-consumption"
HERE = ("--topology-region=region", "--topology-zone=zone")
KEYS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


def consumer(stack: ExitStack, nsqd: Instance, rdy: int, **settings: object) -> NSQClient:
    """Connects a consumer that waits for messages when this returns."""
    client = stack.enter_context(NSQClient(nsqd.tcp_address))
    client.identify(output_buffer_timeout=-1, client_id=f"{time.monotonic_ns():020}", **settings)
    client.subscribe("t", "c", rdy)
    eventually(lambda: all(one["ready_count"] == rdy for one in nsqd.channel_stats("t", "c")["clients"]))
    time.sleep(0.05)  # until its messagePump has seen RDY; if that takes longer, it is too late for this test only
    return client


def counts(nsqd: Instance) -> list[int]:
    """Returns how many messages each consumer has got, in the order in which they came."""
    clients = sorted(nsqd.channel_stats("t", "c")["clients"], key=itemgetter("client_id"))
    return [client["message_count"] for client in clients]


def publish(nsqd: Instance, count: int) -> None:
    """Publishes each message when the one before has gone to a consumer, or nobody is ready."""
    with NSQClient(nsqd.tcp_address) as client:
        for _ in range(count):
            client.publish("t", b"x")
            time.sleep(0.01)


def local_counts(nsqd: Instance) -> list[Any]:
    channel = nsqd.channel_stats("t", "c")
    return [channel.get(key) for key in KEYS]


@pytest.mark.parametrize(
    ("flags", "near", "far", "key"),
    [
        (HERE, {"topology_zone": "zone"}, {"topology_zone": "zone2"}, 0),
        (HERE, {"topology_region": "region"}, {"topology_region": "region2"}, 1),
        (HERE, {"topology_zone": "zone"}, {"topology_region": "region"}, 0),
        (("--topology-zone=zone",), {"topology_zone": "zone"}, {"topology_zone": "zone2", "topology_region": "r"}, 0),
    ],
)
def test_who_is_near_gets_messages_first(
    gnsqd_factory: DaemonFactory, flags: tuple[str, ...], near: dict[str, str], far: dict[str, str], key: int
) -> None:
    nsqd = gnsqd_factory(*flags, EXPERIMENT)
    with ExitStack() as stack:
        for place in (far, near, far, near):
            consumer(stack, nsqd, 10, **place)
        publish(nsqd, 20)
        eventually(lambda: sum(counts(nsqd)) == 20)
        assert counts(nsqd) == [0, 10, 0, 10]
        assert local_counts(nsqd) == [20 if index == key else None for index in range(3)]
        publish(nsqd, 1)
        eventually(lambda: sum(counts(nsqd)) == 21)
        assert counts(nsqd)[1::2] == [10, 10]


@pytest.mark.parametrize("flags", [HERE, ("--topology-region=region",), (EXPERIMENT,)])
def test_without_both_all_consumers_are_alike(gnsqd_factory: DaemonFactory, flags: tuple[str, ...]) -> None:
    nsqd = gnsqd_factory(*flags)
    with ExitStack() as stack:
        for place in ("zone2", "zone", "zone2"):
            consumer(stack, nsqd, 10, topology_zone=place, topology_region="elsewhere")
        publish(nsqd, 12)
        eventually(lambda: sum(counts(nsqd)) == 12)
        assert min(counts(nsqd)) > 0
        assert local_counts(nsqd) == [None, None, 12]


def test_messages_from_disk_are_not_counted(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*HERE, EXPERIMENT, "--mem-queue-size=0")
    create(nsqd, "t", "c")
    publish(nsqd, 3)
    with ExitStack() as stack:
        consumer(stack, nsqd, 10, topology_zone="zone")
        eventually(lambda: counts(nsqd) == [3])
        assert local_counts(nsqd) == [None, None, None]


def test_messages_that_are_not_in_the_sample_are_counted(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*HERE, EXPERIMENT)
    create(nsqd, "t", "c")
    publish(nsqd, 50)
    with ExitStack() as stack:
        consumer(stack, nsqd, 100, topology_zone="zone", sample_rate=1)
        eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 0)
        assert local_counts(nsqd) == [50, None, None]
        assert sum(counts(nsqd)) < 50


def test_names_are_shown(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*HERE, EXPERIMENT)
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as plain:
        answer = client.identify(feature_negotiation=True, topology_region="other", topology_zone="zone").data
        assert answer.endswith(b',"output_buffer_timeout":250,"topology_region":"region","topology_zone":"zone"}')
        client.subscribe("t", "c", 1)
        plain.subscribe("t", "c")
        plain.publish("t", b"x")
        client.message()
        info = ask(nsqd, "GET /info")[1]
        assert info.endswith(',"max_deflate_level":6,"topology_zone":"zone","topology_region":"region"}')
        stats = ask(nsqd, "GET /stats?format=json&topic=t")[1]
        assert '"message_count":1,"zone_local_msg_count":1,"requeue_count":0,' in stats
        assert '"topology_zone":"zone","topology_region":"other","tls":false' in stats
        assert '"topology_zone":"","topology_region":"","pub_counts":[' in stats
    assert " TopologyRegion:other TopologyZone:zone}" in nsqd.log()


def test_nothing_is_shown_by_default(gnsqd: Instance) -> None:
    with NSQClient(gnsqd.tcp_address) as client:
        answer = client.identify(feature_negotiation=True, topology_region="other", topology_zone=5).data
        client.subscribe("t", "c", 1)
        client.publish("t", b"x")
        for text in (answer.decode(), ask(gnsqd, "GET /info")[1], ask(gnsqd, "GET /stats?format=json")[1]):
            assert "topology" not in text
            assert not any(key in text for key in KEYS)


def test_nsqlookupd_shows_them(gnsqd_factory: DaemonFactory) -> None:
    with_lookupd = gnsqd_factory(*EMBEDDED, *HERE)
    lookupd = LookupdInside(with_lookupd)
    others = [gnsqd_factory(lookupd.flag, *place) for place in (["--topology-zone=there"], [])]
    for nsqd in (with_lookupd, *others):
        create(nsqd, "t")

    def producers(what: str) -> list[str]:
        answer = lookupd.ask(what, host="x:1")
        return [json.dumps(row, separators=(",", ":")) for row in answer.get("producers") or answer.get("client::", [])]

    eventually(lambda: len(producers("/lookup?topic=t")) == 3)
    for what, end in (("/lookup?topic=t", "}"), ("/nodes", ',"tombstones":[false],"topics":["t"]}')):
        rows = sorted(row.partition('"version":"1.3.0"')[2] for row in producers(what))
        there = f',"topology_zone":"there","topology_region":""{end}'
        assert rows == sorted([there, f',"topology_zone":"zone","topology_region":"region"{end}', end])
    rows = sorted(row.rpartition('"tombstoned_at"')[2].partition(",")[2] for row in producers("/debug"))
    assert rows == [
        '"topology_region":"","topology_zone":"there","version":"1.3.0"}',
        '"topology_region":"region","topology_zone":"zone","version":"1.3.0"}',
        '"version":"1.3.0"}',
    ]
