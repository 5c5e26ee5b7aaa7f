"""The snapshot behind /stats while things change, and what it has of memory. All else of it is judged, with the real
daemon too, in behaviour/test_http_stats and test_http_matrix."""

import gc
import re
from pathlib import Path

import gevent
import pytest

from gnsqd.broker.registry import Registry
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.stats import snapshot
from unit.observe.clients import ShownClient


def test_others_have_turns_and_may_change_all_meanwhile(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = {number: ShownClient(number) for number in range(5)}
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
                channel.add_client(ShownClient(100 + turns))
            topic.get_channel(f"new{turns}")
        registry.get_topic(f"new{turns}")
        clients[100 + turns] = ShownClient(100 + turns)

    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", change)
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
    topic.publish([b"x"])

    def move() -> None:
        topic.pause(False)
        gevent.sleep(0)

    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", move)
    (row,) = snapshot(registry, list).topics or []
    assert [channel["depth"] for channel in row["channels"]] == [0, 1], "it moved behind the first channel's row"
    assert row["depth"] == 1


# Memory


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
    runs = memory.row()["gc_total_runs"]
    memory.start()
    try:
        junk = [[number] for number in range(200_000)]
        gc.collect()
        row = memory.row()
    finally:
        gc.callbacks.remove(memory._on_collection)
    del junk
    assert row["gc_pause_usec_100"] >= row["gc_pause_usec_99"] >= row["gc_pause_usec_95"]
    assert row["gc_pause_usec_100"] > 100
    assert row["gc_total_runs"] > runs
    assert memory._on_collection not in gc.callbacks
