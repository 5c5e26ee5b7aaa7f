"""/metrics of a daemon at work: what its clients and its disk bring about. The page itself is judged in
unit/observe/test_prometheus."""

import time

import pytest

from kit.daemons import Instance, eventually
from kit.exposition import OPENMETRICS, Labels, Series, labels, series
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, wait_for

OF_TOPIC, OF_CHANNEL = labels(topic="t"), labels(topic="t", channel="c")
STORES = {
    "memory": [],
    "memory and disk": ["--mem-queue-size=1"],
    "disk": ["--mem-queue-size=0"],
    "journal": ["--mem-queue-size=0", "--durability=process"],
}
ROUNDING = 1e-3  # seconds: wall clock and monotonic clock are not read at once


def scrape(daemon: Instance, accept: str = "text/plain;version=0.0.4") -> Series:
    status, headers, page = daemon.http("GET", "/metrics", headers={"Accept": accept})
    assert status == 200
    assert headers["Content-Type"].startswith(accept.split(";")[0])
    return series(page)


def test_page_has_the_clients_and_latencies_of_the_daemon(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--metrics-clients", "--e2e-processing-latency-percentile=0.5,1")
    with NSQClient(daemon.tcp_address) as producer, NSQClient(daemon.tcp_address) as consumer:
        producer.identify(client_id="p", hostname="where\npublished")
        producer.publish("t", b"hello")
        consumer.identify(client_id="c")
        consumer.subscribe("t", "c", rdy=5)
        consumer.command(b"FIN " + consumer.message().id)
        eventually(lambda: scrape(daemon)["gnsqd_channel_finished_messages_total", OF_CHANNEL] == 1)
        post(daemon, "/debug/freememory")  # which collects garbage
        found = scrape(daemon, OPENMETRICS)
    its = {name: dict(its) for name, its in found}
    assert its["gnsqd_producer_messages_total"]["hostname"] == "where\npublished"
    assert its["gnsqd_client_ready"]["client_id"] == "c"
    assert its["gnsqd_client_ready"]["remote_address"].startswith("127.0.0.1:")
    for quantile in ("0.5", "1.0"):
        of_channel = labels(topic="t", channel="c", quantile=quantile)
        assert 0 < found["gnsqd_channel_e2e_processing_latency_seconds", of_channel] < 60
    assert found["gnsqd_clients", ()] == 2
    assert found["gnsqd_greenlets", ()] >= 2 * 2 + 1
    count, total = found["gnsqd_gc_pause_seconds_count", ()], found["gnsqd_gc_pause_seconds_sum", ()]
    assert count >= 1
    assert 0 < total / count <= found["gnsqd_gc_pause_seconds", labels(quantile="1.0")] <= total < 60
    assert found["process_resident_memory_bytes", ()] > 1 << 20


# Channels


def test_messages_that_a_full_ephemeral_topic_or_channel_drops_are_counted(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--mem-queue-size=2")
    with NSQClient(daemon.tcp_address) as publisher, NSQClient(daemon.tcp_address) as consumer:
        publisher.publish("t#ephemeral", *[b"x"] * 5)
        consumer.subscribe("t#ephemeral", "c#ephemeral")
        publisher.publish("t#ephemeral", b"y")
        publisher.command(b"DPUB t#ephemeral 1", b"z")
        of_channel = labels(topic="t#ephemeral", channel="c#ephemeral")
        eventually(lambda: scrape(daemon)["gnsqd_channel_dropped_messages_total", of_channel] == 2)
        assert scrape(daemon)["gnsqd_topic_dropped_messages_total", labels(topic="t#ephemeral")] == 3


def test_finished_messages_and_rdy_counts_add_up(gnsqd: Instance) -> None:
    with (
        NSQClient(gnsqd.tcp_address) as one,
        NSQClient(gnsqd.tcp_address) as other,
        NSQClient(gnsqd.tcp_address) as publisher,
    ):
        one.subscribe("t", "c", rdy=5)
        other.subscribe("t", "c")
        publisher.publish("t", *[b"x"] * 4)
        taken = [one.message() for _ in range(4)]
        fins = b"".join(b"FIN %b\n" % message.id for message in taken[:3])
        one.send(b"RDY 0\n" + fins + b"REQ %b 0\n" % taken[3].id)
        other.command(b"RDY 3")
        other.command(b"FIN " + other.message().id)
        eventually(lambda: scrape(gnsqd)["gnsqd_channel_finished_messages_total", OF_CHANNEL] == 4)
        found = scrape(gnsqd)
        assert found["gnsqd_channel_requeues_total", OF_CHANNEL] == 1
        assert found["gnsqd_channel_ready", OF_CHANNEL] == 3
        other.command(b"RDY 0")
        eventually(lambda: scrape(gnsqd)["gnsqd_channel_ready", OF_CHANNEL] == 0)


# Ages


def timed_age(daemon: Instance, its: Labels) -> tuple[float, int, int]:
    """Returns the age that a scrape shows, and the wall clock before and after it in ns."""
    before = time.time_ns()
    age = scrape(daemon)[f"gnsqd_{'channel' if its == OF_CHANNEL else 'topic'}_oldest_message_age_seconds", its]
    return age, before, time.time_ns()


def assert_age_since(since: int, timed: tuple[float, int, int]) -> None:
    age, before, after = timed
    assert (before - since) / 1e9 - ROUNDING <= age <= (after - since) / 1e9 + ROUNDING


@pytest.mark.parametrize("store", STORES)
def test_age_is_that_of_the_message_that_comes_next(gnsqd_factory: DaemonFactory, store: str) -> None:
    # The topic's, as long as there is no channel, and then the channel's.
    daemon = gnsqd_factory(*STORES[store])
    with NSQClient(daemon.tcp_address) as publisher, NSQClient(daemon.tcp_address) as consumer:
        publisher.publish("t", b"x")
        publisher.publish("t", b"x")
        of_first = [timed_age(daemon, OF_TOPIC)]
        create(daemon, "t", "c")
        wait_for(daemon, "t", "c", depth=2)
        publisher.publish("t", b"x")
        wait_for(daemon, "t", "c", depth=3)
        of_first.append(timed_age(daemon, OF_CHANNEL))
        assert timed_age(daemon, OF_TOPIC)[0] == 0
        consumer.subscribe("t", "c", rdy=1)
        first = consumer.message()
        consumer.send(b"RDY 0\nFIN %b\n" % first.id)
        wait_for(daemon, "t", "c", in_flight_count=0)
        of_second = [timed_age(daemon, OF_CHANNEL), timed_age(daemon, OF_CHANNEL)]
    daemon.restart()
    of_second.append(timed_age(daemon, OF_CHANNEL))
    with NSQClient(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=2)
        second, third = sorted((consumer.message() for _ in range(2)), key=lambda message: message.timestamp)
        wait_for(daemon, "t", "c", depth=0)
        assert timed_age(daemon, OF_CHANNEL)[0] == 0
    assert first.timestamp < second.timestamp < third.timestamp
    for timed in of_first:
        assert_age_since(first.timestamp, timed)
    for timed in of_second:
        assert_age_since(second.timestamp, timed)


def test_age_of_a_deferred_message_begins_when_it_is_due(gnsqd: Instance) -> None:
    with NSQClient(gnsqd.tcp_address) as publisher, NSQClient(gnsqd.tcp_address) as consumer:
        create(gnsqd, "t", "c")
        publisher.command(b"DPUB t 500", b"x")
        assert publisher.response() == b"OK"
        found = scrape(gnsqd)
        if found["gnsqd_channel_deferred", OF_CHANNEL]:
            assert found["gnsqd_channel_oldest_message_age_seconds", OF_CHANNEL] == 0
        wait_for(gnsqd, "t", "c", depth=1)
        age, _, after = timed_age(gnsqd, OF_CHANNEL)
        consumer.subscribe("t", "c", rdy=1)
        assert 0 <= age <= (after - consumer.message().timestamp) / 1e9 - 0.5 + ROUNDING


# Bytes on disk


def bytes_of(daemon: Instance, pattern: str) -> int:
    return sum(path.stat().st_size for path in daemon.data_path.glob(pattern) if ".meta." not in path.name)


@pytest.mark.parametrize(
    "flags, topic_files, channel_files",
    [([], "t.diskqueue.*", "t:c.diskqueue.*"), (["--durability=process"], "t.journal.*", "t:c.*")],
)
def test_bytes_on_disk_are_those_of_the_files(
    gnsqd_factory: DaemonFactory, flags: list[str], topic_files: str, channel_files: str
) -> None:
    daemon = gnsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=2000", *flags)

    def shows_sizes() -> bool:
        found = scrape(daemon)
        channel = found.get(("gnsqd_channel_disk_bytes", OF_CHANNEL), 0)
        return (found["gnsqd_topic_disk_bytes", OF_TOPIC], channel) == (
            bytes_of(daemon, topic_files),
            bytes_of(daemon, channel_files),
        )

    with NSQClient(daemon.tcp_address) as publisher, NSQClient(daemon.tcp_address) as consumer:
        publisher.publish("t", *[b"x" * 100] * 50)
        assert bytes_of(daemon, topic_files) > 5000
        eventually(shows_sizes)
        consumer.subscribe("t", "c", rdy=1)
        for _ in range(30):
            consumer.command(b"FIN " + consumer.message().id)
        publisher.command(b"DPUB t 3600000", b"x")
        assert publisher.response() == b"OK"
        eventually(shows_sizes)
        assert bytes_of(daemon, topic_files) + bytes_of(daemon, channel_files) > 2000
    daemon.restart()
    eventually(shows_sizes)
