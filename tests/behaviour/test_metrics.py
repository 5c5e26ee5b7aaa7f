"""/metrics of a daemon at work: its options, topics that come and go, and what a scrape costs the others."""

import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.scrape import FORMATS, write_topics
from daemons import Daemon, eventually
from exposition import Series, labels, series
from nsq_client import Client

TEXT, OPENMETRICS = FORMATS["text"], FORMATS["openmetrics"]


def scrape(daemon: Daemon, accept: str = TEXT) -> Series:
    status, headers, page = daemon.http("GET", "/metrics", headers={"Accept": accept})
    assert status == 200
    assert headers["Content-Type"].startswith(accept.split(";")[0])
    return series(page)


def test_clients_and_latencies_show_where_asked_for(gnsqd_factory: Callable[..., Daemon]) -> None:
    daemon = gnsqd_factory("--metrics-clients", "--e2e-processing-latency-percentile=0.5,1")
    with Client(daemon.tcp_address) as producer, Client(daemon.tcp_address) as consumer:
        producer.identify(client_id="p", hostname="where\npublished")
        producer.publish("t", b"hello")
        consumer.identify(client_id="c")
        consumer.subscribe("t", "ch", rdy=5)
        consumer.command(b"FIN " + consumer.message().id)
        eventually(lambda: 1 in (value for (name, _), value in scrape(daemon).items() if "finished" in name))
        found = scrape(daemon)
    its = {name: dict(its) for name, its in found}
    assert its["gnsqd_producer_messages_total"]["hostname"] == "where\npublished"
    assert its["gnsqd_producer_messages_total"]["topic"] == "t"
    assert its["gnsqd_client_ready"]["client_id"] == "c"
    assert its["gnsqd_client_ready"]["channel"] == "ch"
    assert its["gnsqd_client_ready"]["remote_address"].startswith("127.0.0.1:")
    for quantile in ("0.5", "1.0"):
        of_channel = labels(topic="t", channel="ch", quantile=quantile)
        assert 0 < found["gnsqd_channel_e2e_processing_latency_seconds", of_channel] < 60
    assert found["gnsqd_clients", ()] == 2
    assert found["gnsqd_greenlets", ()] >= 2 * 2 + 1
    assert found["gnsqd_gc_pause_seconds_count", ()] >= 0


def test_ephemeral_topics_and_channels_are_left_out_and_names_of_others_added_where_asked_for(
    gnsqd_factory: Callable[..., Daemon],
) -> None:
    daemon = gnsqd_factory("--metrics-exclude-ephemeral", "--metrics-compat")
    with Client(daemon.tcp_address) as consumer, Client(daemon.tcp_address) as another:
        consumer.subscribe("t", "c#ephemeral")
        another.subscribe("t#ephemeral", "c#ephemeral")
        daemon.http("POST", "/channel/create?topic=t&channel=c")
        found = scrape(daemon)
    assert {dict(its).get("topic", "t") for _, its in found} == {"t"}
    assert {dict(its).get("channel", "c") for _, its in found} == {"c"}
    assert found["nsq_channel_client_count", labels(topic="t", channel="c", paused="false")] == 0
    assert found["nsq_topic_channel_depth", labels(topic="t", channel="c")] == 0


def test_scrapes_bear_topics_that_come_and_go(gnsqd_factory: Callable[..., Daemon], tmp_path: Path) -> None:
    write_topics(tmp_path / "data", [f"topic{number}" for number in range(100)], ["channel0"])
    flags = ("--metrics-clients", "--metrics-compat", "--e2e-processing-latency-percentile=0.99")
    daemon = gnsqd_factory(*flags, data_path=tmp_path / "data")
    stop = threading.Event()
    changes = 0

    def change_topics() -> None:
        nonlocal changes
        while not stop.is_set():
            with Client(daemon.tcp_address) as client, Client(daemon.tcp_address) as publisher:
                client.subscribe(f"topic{changes % 100}", f"new{changes}")
                publisher.publish(f"topic{changes % 100}", b"x")
                assert daemon.http("POST", f"/topic/delete?topic=topic{changes % 100}")[0] == 200
            changes += 1

    thread = threading.Thread(target=change_topics)
    thread.start()
    try:
        scrapes = 0
        while changes < 100 or scrapes < 20:
            assert thread.is_alive()
            found = scrape(daemon, (TEXT, OPENMETRICS)[scrapes % 2])
            assert found["gnsqd_healthy", ()] == 1
            scrapes += 1
    finally:
        stop.set()
        thread.join()
    assert "ERROR" not in daemon.log()
