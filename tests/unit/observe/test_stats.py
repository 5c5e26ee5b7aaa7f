"""The snapshot behind /stats. Keys and their order are NSQD-COMPAT 5.3's."""

import gc
import re
from pathlib import Path

import gevent
import pytest

from gnsqd.broker.environment import ClientStats
from gnsqd.broker.registry import Registry
from gnsqd.observe.stats import STAT_FIELDS, MemoryStats, client_row, snapshot


def keys(text: str) -> list[str]:
    return re.findall(r"\w+", text)


TOPIC_KEYS = keys("topic_name channels depth backend_depth message_count message_bytes paused e2e_processing_latency")
CHANNEL_KEYS = keys(
    "channel_name depth backend_depth in_flight_count deferred_count message_count requeue_count timeout_count"
    " client_count clients paused e2e_processing_latency"
)
CLIENT_KEYS = keys(
    "client_id hostname version remote_address state ready_count in_flight_count message_count finish_count"
    " requeue_count connect_ts sample_rate deflate snappy user_agent tls tls_cipher_suite tls_version"
    " tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)
MEMORY_KEYS = keys(
    "heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes gc_pause_usec_100 gc_pause_usec_99"
    " gc_pause_usec_95 next_gc_bytes gc_total_runs"
)


class Client:
    """Enough of a consumer to be shown."""

    def __init__(self, id: int, pub_counts: list[tuple[str, int]] | None = None) -> None:
        self.id = id
        self.ready_count = 1
        self.locality = self.rank = 2
        self._pub_counts = pub_counts or []

    def wake(self) -> None: ...
    def timed_out_message(self) -> None: ...
    def emptied(self) -> None: ...
    def close(self) -> None: ...

    def stats(self, topic_name: str = "") -> ClientStats:
        return ClientStats(
            client_id=f"client-{self.id}",
            hostname="host",
            version="V2",
            remote_address="1.2.3.4:5",
            state=3,
            ready_count=1,
            in_flight_count=0,
            message_count=0,
            finish_count=0,
            requeue_count=0,
            connect_ts=0,
            sample_rate=0,
            deflate=False,
            snappy=False,
            user_agent="ua",
            pub_counts=[(topic, count) for topic, count in self._pub_counts if topic_name in ("", topic)],
        )


def publish(registry: Registry, topic_name: str, *bodies: bytes, deferred: int = 0) -> None:
    topic = registry.get_topic(topic_name)
    topic.put_messages(topic.new_messages(list(bodies), deferred))
    gevent.sleep(0)


def test_rows_have_the_keys_of_the_real_daemon_in_its_order(registry: Registry) -> None:
    registry.get_topic("t").get_channel("c").add_client(Client(1))
    (topic,) = snapshot(registry, list).topics or []
    assert list(topic) == TOPIC_KEYS
    (channel,) = topic["channels"]
    assert list(channel) == CHANNEL_KEYS
    assert list(channel["clients"][0]) == CLIENT_KEYS


def test_topic_without_channels_counts_what_was_published(registry: Registry) -> None:
    publish(registry, "t", b"abc", b"de")
    registry.get_topic("t").pause()
    (topic,) = snapshot(registry, list).topics or []
    assert topic == {
        "topic_name": "t",
        "channels": [],
        "depth": 2,
        "backend_depth": 0,
        "message_count": 2,
        "message_bytes": 5,
        "paused": True,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def test_channel_counts_what_waits_is_deferred_and_in_flight(registry: Registry) -> None:
    channel = registry.get_topic("t").get_channel("c")
    client = Client(1)
    channel.add_client(client)
    publish(registry, "t", b"1", b"2", b"3")
    publish(registry, "t", b"4", deferred=60 * 10**9)
    first, _ = channel.take(client, 2, 60 * 10**9, 0)
    channel.requeue(client.id, first.id, 0)
    (topic,) = snapshot(registry, list, include_clients=False).topics or []
    (row,) = topic["channels"]
    assert row == {
        "channel_name": "c",
        "depth": 2,
        "backend_depth": 0,
        "in_flight_count": 1,
        "deferred_count": 1,
        "message_count": 4,
        "requeue_count": 1,
        "timeout_count": 0,
        "client_count": 1,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


@pytest.fixture
def three(registry: Registry) -> Registry:
    for topic_name, channel_names in (("b", "dc"), ("a", "cx"), ("c", "")):
        for channel_name in channel_names:
            registry.get_topic(topic_name).get_channel(channel_name)
    registry.get_topic("c")
    return registry


@pytest.mark.parametrize(
    "topic_name, channel_name, expected",
    [
        ("", "", [("a", "cx"), ("b", "cd"), ("c", "")]),
        ("b", "", [("b", "cd")]),
        ("", "c", [("a", "c"), ("b", "c")]),
        ("b", "d", [("b", "d")]),
        ("c", "d", []),
        ("nope", "", None),
    ],
)
def test_filters_choose_topics_and_channels_in_name_order(
    three: Registry, topic_name: str, channel_name: str, expected: list[tuple[str, str]] | None
) -> None:
    topics = snapshot(three, list, topic_name, channel_name).topics
    if expected is None:
        assert topics is None
        return
    found = [
        (row["topic_name"], "".join(channel["channel_name"] for channel in row["channels"])) for row in topics or []
    ]
    assert topics is not None
    assert found == expected


def test_producers_are_shown_with_clients_only(three: Registry) -> None:
    producers = [Client(1, [("a", 2)])]
    (producer,) = snapshot(three, lambda: producers).producers or []
    assert producer["pub_counts"] == [{"topic": "a", "count": 2}]
    assert list(producer) == [*CLIENT_KEYS[:15], "pub_counts", *CLIENT_KEYS[15:]]
    assert snapshot(three, lambda: producers, include_clients=False).producers is None
    assert snapshot(three, lambda: producers, "nope").producers is None
    assert snapshot(three, list).producers is None


def test_producer_has_no_counts_of_other_topics(three: Registry) -> None:
    (producer,) = snapshot(three, lambda: [Client(1, [("a", 2)])], "b").producers or []
    assert "pub_counts" not in producer


def test_others_have_turns_and_may_change_everything_meanwhile(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = {number: Client(number, [("t0", 1)]) for number in range(5)}
    for topic_number in range(4):
        for channel_name in "abc":
            channel = registry.get_topic(f"t{topic_number}").get_channel(channel_name)
            for client in clients.values():
                channel.add_client(client)
    turns = 0

    def change() -> None:
        nonlocal turns
        turns += 1
        if turns > 20:
            return
        for topic in list(registry.topics.values()):
            for channel in topic.channels.values():
                channel.add_client(Client(100 + turns))
            topic.get_channel(f"new{turns}")
        registry.get_topic(f"new{turns}")
        clients[100 + turns] = Client(100 + turns, [("t0", 1)])

    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.give_way", change)
    found = snapshot(registry, clients.values)
    assert turns >= 4 * 3 * 5 + 5
    assert [row["topic_name"] for row in found.topics or []] == ["t0", "t1", "t2", "t3"]
    for row in found.topics or []:
        for channel_row in row["channels"]:
            assert len(channel_row["clients"]) == channel_row["client_count"]
    assert len(found.producers or []) > 5


def test_message_on_its_way_into_channels_shows_somewhere(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = registry.get_topic("t")
    for channel_name in "ab":
        topic.get_channel(channel_name)
    topic.pause()
    publish(registry, "t", b"x")

    def move() -> None:
        topic.unpause()
        gevent.sleep(0)

    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.give_way", move)
    (row,) = snapshot(registry, list).topics or []
    assert [channel["depth"] for channel in row["channels"]] == [0, 1], "it moved behind the first channel's row"
    assert row["depth"] == 1


def test_client_shows_its_authorization_once_there_is_one() -> None:
    stats = Client(1).stats()
    stats.authed = True
    stats.auth_identity = "me"
    row = client_row(stats)
    assert (row["authed"], row["auth_identity"]) == (True, "me")
    assert "auth_identity_url" not in row


def test_every_statistic_has_a_help_text_and_its_own_name() -> None:
    for level, stat_fields in STAT_FIELDS.items():
        assert all(field.help.endswith(".") for field in stat_fields), level
        assert len({field.metric for field in stat_fields}) == len(stat_fields)
        assert len({field.name for field in stat_fields}) == len(stat_fields)


# Memory


def test_memory_has_the_keys_of_the_real_daemon_in_its_order() -> None:
    row = MemoryStats().row()
    assert list(row) == MEMORY_KEYS
    assert all(type(value) is int and value >= 0 for value in row.values())


def test_memory_in_use_follows_what_the_process_holds() -> None:
    memory = MemoryStats()
    before = memory.row()["heap_in_use_bytes"]
    ballast = b"x" * (64 << 20)
    grown = memory.row()["heap_in_use_bytes"] - before
    assert 60 << 20 < grown < 100 << 20
    del ballast
    assert memory.row()["heap_released_bytes"] > 32 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_in_use_is_the_kernels_figure() -> None:
    status = Path("/proc/self/status").read_text()
    anonymous = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert anonymous is not None
    assert MemoryStats().row()["heap_in_use_bytes"] == pytest.approx(int(anonymous[1]) * 1024, rel=0.2)


def test_pauses_of_the_collector_are_recorded_between_start_and_stop() -> None:
    memory = MemoryStats()
    memory.start()
    try:
        junk = [[number] for number in range(200_000)]
        gc.collect()
        row = memory.row()
    finally:
        memory.stop()
    del junk
    assert row["gc_pause_usec_100"] >= row["gc_pause_usec_99"] >= row["gc_pause_usec_95"]
    assert row["gc_pause_usec_100"] > 100
    assert memory._on_collection not in gc.callbacks


def test_runs_of_the_collector_are_counted() -> None:
    memory = MemoryStats()
    before = memory.row()["gc_total_runs"]
    gc.collect()
    assert memory.row()["gc_total_runs"] > before
