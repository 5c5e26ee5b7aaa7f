"""The /metrics page, read with prometheus-client's parsers; test_dashboards has the names and labels of all series."""

import math
from itertools import count, pairwise

import gevent
import pytest

from gnsqd.broker.environment import ClientStats
from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import TURN_SECONDS
from gnsqd.log import Level, Logger
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.prometheus import MetricsPage
from gnsqd.options import Options
from gnsqd.shared.errors import StorageError
from gnsqd.shared.version import NSQD_VERSION, VERSION, lane
from kit.exposition import OPENMETRICS, Series, labels, series
from unit.observe.clients import STATS, ShownClient

LOG = Logger("", Level.INFO)
EACH_FORMAT = pytest.mark.parametrize("accept", ["", OPENMETRICS])


@pytest.fixture
def clients() -> list[ShownClient]:
    return []


@pytest.fixture
def metrics(registry: Registry, options: Options, clients: list[ShownClient]) -> MetricsPage:
    return MetricsPage(registry, options, MemoryStats(), lambda: clients, lambda: 11, {"messagePump": 2}, dict, LOG)


def scrape(metrics: MetricsPage, accept: str = "") -> Series:
    return series(metrics.render(accept)[0])


def names_with(found: Series, prefix: str) -> dict[str, float]:
    return {name: value for (name, _), value in found.items() if name.startswith(prefix)}


def test_topics_and_channels_show_all_their_figures(registry: Registry, metrics: MetricsPage) -> None:
    topic = registry.get_topic("t")
    channel = topic.get_channel("c")
    channel.pause()
    topic.publish([b"abc", b"de"])
    gevent.sleep(0)
    found = scrape(metrics)
    of_topic, of_channel = labels(topic="t"), labels(topic="t", channel="c")
    assert 0 < found.pop(("gnsqd_channel_oldest_message_age_seconds", of_channel)) < 60
    assert {key: value for key, value in found.items() if key[1] in (of_topic, of_channel) and value} == {
        ("gnsqd_topic_messages_total", of_topic): 2,
        ("gnsqd_topic_message_bytes_total", of_topic): 5,
        ("gnsqd_channel_depth", of_channel): 2,
        ("gnsqd_channel_messages_total", of_channel): 2,
        ("gnsqd_channel_paused", of_channel): 1,
    }


def test_page_says_what_runs_and_how_it_fares(
    registry: Registry, metrics: MetricsPage, clients: list[ShownClient]
) -> None:
    clients += [ShownClient(1), ShownClient(2)]
    found = scrape(metrics)
    (build,) = [dict(key[1]) for key in found if key[0] == "gnsqd_build_info"]
    assert build.pop("python")
    assert build == {"version": VERSION, "nsqd_version": NSQD_VERSION, "lane": lane()}
    names = {name for name, _ in found}
    assert {"process_resident_memory_bytes", "python_gc_collections_total", "python_info"} <= names
    assert (found["gnsqd_clients", ()], found["gnsqd_greenlets", ()]) == (2, 11)
    assert found["gnsqd_greenlet_crashes_total", (("greenlet", "messagePump"),)] == 2
    assert (found["gnsqd_healthy", ()], found["gnsqd_draining", ()]) == (1, 0)
    registry.error = StorageError("disk full")
    registry.set_draining(True)
    found = scrape(metrics)
    assert (found["gnsqd_healthy", ()], found["gnsqd_draining", ()]) == (0, 1)


def test_hub_lag_is_how_long_the_others_took_for_a_turn(metrics: MetricsPage) -> None:
    turn = 0.005

    def dawdle() -> None:
        while True:
            ready_at = gevent.get_hub().loop.now()
            while True:
                gevent.get_hub().loop.update_now()
                if gevent.get_hub().loop.now() - ready_at >= turn:
                    break
            gevent.sleep(0)

    dawdler = gevent.spawn(dawdle)
    gevent.sleep(0)
    try:
        assert scrape(metrics)["gnsqd_hub_lag_seconds", ()] >= turn
    finally:
        dawdler.kill()


def test_hub_watchers_are_what_the_hub_looks_after(metrics: MetricsPage) -> None:
    def watchers() -> float:
        return scrape(metrics)["gnsqd_hub_watchers", ()]

    watchers()  # lets what is under way come to its end
    before = watchers()
    timers = [gevent.get_hub().loop.timer(1000) for _ in range(3)]
    for timer in timers:
        timer.start(lambda: None)
    assert watchers() == before + 3
    for timer in timers:
        timer.stop()
        timer.close()
    assert watchers() == before


def test_openmetrics_says_the_same(registry: Registry, metrics: MetricsPage, options: Options) -> None:
    options.metrics_clients = True
    channel = registry.get_topic("t#ephemeral").get_channel("c")
    channel.pause()
    channel.add_client(ShownClient(1))
    texts, openmetrics = scrape(metrics), scrape(metrics, OPENMETRICS)
    assert texts.keys() == {key for key in openmetrics if not key[0].endswith("_created")}
    assert names_with(texts, "gnsqd_channel") == names_with(openmetrics, "gnsqd_channel")
    assert openmetrics["gnsqd_channel_paused", labels(topic="t#ephemeral", channel="c")] == 1


# Options


def test_latencies_show_in_seconds_where_percentiles_are_configured(
    registry: Registry, options: Options, metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [name for name, _ in scrape(metrics) if "latency" in name]
    options.e2e_processing_latency_percentiles = [0.99, 0.5, 0.99]
    channel = registry.get_topic("t").get_channel("c")
    registry.get_topic("idle").get_channel("c")
    registry.get_topic("lonely")
    assert channel.latencies is not None
    for seconds in [*[2] * 8, 3, 3]:
        channel.latencies.insert(seconds * 10**9)
    for accept in ("", OPENMETRICS):
        found = scrape(metrics, accept)
        for level, where in (("topic", {"topic": "t"}), ("channel", {"topic": "t", "channel": "c"})):
            name = f"gnsqd_{level}_e2e_processing_latency_seconds"
            assert found[name, labels(**where, quantile="0.5")] == pytest.approx(2, rel=0.011)
            assert found[name, labels(**where, quantile="0.99")] == pytest.approx(3, rel=0.011)
        idle = found["gnsqd_topic_e2e_processing_latency_seconds", labels(topic="idle", quantile="0.5")]
        assert math.isnan(idle)
        shown = {dict(key[1])["topic"] for key in found if key[0] == "gnsqd_topic_e2e_processing_latency_seconds"}
        assert shown == {"t", "idle"}


def test_clients_show_only_where_asked_for(
    registry: Registry, options: Options, metrics: MetricsPage, clients: list[ShownClient]
) -> None:
    shown = ClientStats(**vars(STATS) | {"remote_address": "6.7.8.9:10"})
    consumer, producer = ShownClient(1), ShownClient(2, shown, {"t": 3, "u": 4})
    registry.get_topic("t").get_channel("c").add_client(consumer)
    clients += [consumer, producer]
    assert not names_with(scrape(metrics), "gnsqd_client_") | names_with(scrape(metrics), "gnsqd_producer_")
    options.metrics_clients = True
    found = scrape(metrics)
    who = {"client_id": "me", "hostname": "host"}
    where = labels(topic="t", channel="c", id="1", remote_address="1.2.3.4:5", **who)
    assert {name: value for (name, its), value in found.items() if its == where} == {
        "gnsqd_client_state": 3,
        "gnsqd_client_ready": 7,
        "gnsqd_client_in_flight": 2,
        "gnsqd_client_messages_total": 30,
        "gnsqd_client_finished_messages_total": 20,
        "gnsqd_client_requeues_total": 8,
        "gnsqd_client_connect_timestamp_seconds": 1700000000,
        "gnsqd_client_sample_rate": 50,
    }
    for topic, published in (("t", 3), ("u", 4)):
        where = labels(topic=topic, id="2", remote_address="6.7.8.9:10", **who)
        assert found["gnsqd_producer_messages_total", where] == published
    assert len([name for name, _ in found if name.startswith(("gnsqd_client_", "gnsqd_producer_"))]) == 8 + 2


@EACH_FORMAT
def test_whatever_clients_call_themselves_the_page_can_be_read(
    registry: Registry, options: Options, metrics: MetricsPage, accept: str
) -> None:
    options.metrics_clients = True
    channel = registry.get_topic("t").get_channel("c")
    names = ['"\\', "a\nb", "é\u2028\r", "\ud800\udcff", "\x00", "}"]
    for number, name in enumerate(names):
        shown = vars(STATS) | {"client_id": name, "hostname": name, "remote_address": "@"}
        channel.add_client(ShownClient(number, ClientStats(**shown)))
    found = scrape(metrics, accept)
    assert [dict(its)["client_id"] for name, its in found if name == "gnsqd_client_ready"] == [
        "??" if name == "\ud800\udcff" else name for name in names
    ]


# Beside others


@EACH_FORMAT
def test_topics_and_clients_may_come_and_go_during_a_scrape(registry: Registry, options: Options, accept: str) -> None:
    options.metrics_clients = True
    options.e2e_processing_latency_percentiles = [0.99]
    clients = {number: ShownClient(number, pub_counts={"t": 1}) for number in range(300)}
    for number in range(100):
        registry.get_topic(f"t{number}").get_channel("c").add_client(clients[number])
    changes = 0

    def change_things() -> None:
        nonlocal changes
        while True:
            registry.delete_existing_topic(f"t{changes}")
            del clients[changes]
            client = clients[300 + changes] = ShownClient(300 + changes, pub_counts={"t": 1})
            topic = registry.get_topic(f"t{changes}")
            topic.get_channel(f"c{changes}").pause()
            topic.delete_existing_channel(f"c{changes}")
            registry.get_topic(f"new{changes}").get_channel("c").add_client(client)
            changes += 1
            gevent.sleep(0)

    page = MetricsPage(registry, options, MemoryStats(), clients.values, lambda: 0, {}, dict, LOG)
    changer = gevent.spawn(change_things)
    try:
        found = scrape(page, accept)
    finally:
        changer.kill()
    assert changes >= 5
    names = [name for name, _ in found]
    assert names.count("gnsqd_topic_depth") >= 100
    assert names.count("gnsqd_producer_messages_total") == 300


def test_many_small_families_do_not_skip_turns(
    registry: Registry, options: Options, metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        registry.get_topic(f"t{number}").get_channel("c")
    clock = count()
    turns: list[int] = []
    monkeypatch.setattr("gnsqd.hub.cooperative.perf_counter", lambda: next(clock) * TURN_SECONDS / 100)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", lambda: turns.append(next(clock)))
    scrape(metrics)
    gaps = [later - earlier for earlier, later in pairwise(turns)]
    assert len(gaps) >= 2
    assert max(gaps) <= 110
