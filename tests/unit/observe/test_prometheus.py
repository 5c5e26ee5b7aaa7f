"""The /metrics page, read with prometheus-client's own parsers."""

from collections.abc import Iterable

import gevent
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gnsqd.broker.registry import Registry
from gnsqd.errors import StorageError
from gnsqd.observe.prometheus import SAMPLES_PER_TURN, Metrics
from gnsqd.version import NSQD_VERSION, VERSION, lane

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(families: Iterable[Metric]) -> Series:
    """All samples by name and labels; AssertionError for one that comes twice."""
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def scrape(metrics: Metrics) -> Series:
    return series(parse_text(metrics.render("")[0].decode()))


def labels(**values: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(values.items()))


def test_topics_and_channels_show_all_their_figures(registry: Registry) -> None:
    topic = registry.get_topic("t")
    channel = topic.get_channel("c")
    channel.pause()
    topic.put_messages([topic.new_message(b"abc"), topic.new_message(b"de")])
    gevent.sleep(0)
    found = scrape(Metrics(registry))
    own = {name: value for (name, _), value in found.items() if name.startswith(("gnsqd_topic", "gnsqd_channel"))}
    assert own == {
        "gnsqd_topic_depth": 0,
        "gnsqd_topic_backend_depth": 0,
        "gnsqd_topic_messages_total": 2,
        "gnsqd_topic_message_bytes_total": 5,
        "gnsqd_topic_paused": 0,
        "gnsqd_channel_depth": 2,
        "gnsqd_channel_backend_depth": 0,
        "gnsqd_channel_in_flight": 0,
        "gnsqd_channel_deferred": 0,
        "gnsqd_channel_messages_total": 2,
        "gnsqd_channel_requeues_total": 0,
        "gnsqd_channel_timeouts_total": 0,
        "gnsqd_channel_clients": 0,
        "gnsqd_channel_paused": 1,
    }
    assert found["gnsqd_topic_messages_total", labels(topic="t")] == 2
    assert found["gnsqd_channel_depth", labels(topic="t", channel="c")] == 2


def test_page_says_what_runs_and_how_the_process_fares(registry: Registry) -> None:
    found = scrape(Metrics(registry))
    (build,) = [dict(key[1]) for key in found if key[0] == "gnsqd_build_info"]
    assert build.pop("python")
    assert build == {"version": VERSION, "nsqd_version": NSQD_VERSION, "lane": lane()}
    names = {name for name, _ in found}
    assert {"process_resident_memory_bytes", "python_gc_collections_total", "python_info"} <= names


def test_health_is_one_until_a_write_fails(registry: Registry) -> None:
    metrics = Metrics(registry)
    assert scrape(metrics)["gnsqd_healthy", ()] == 1
    registry.set_health(StorageError("disk full"))
    assert scrape(metrics)["gnsqd_healthy", ()] == 0


def test_every_family_has_type_and_help(registry: Registry) -> None:
    registry.get_topic("t").get_channel("c")
    for family in parse_text(Metrics(registry).render("")[0].decode()):
        assert family.documentation, family.name
        assert family.type != "unknown", family.name


@pytest.mark.parametrize(
    "accept, content_type",
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html, */*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=nonsense", "text/plain; version=0.0.4; charset=utf-8"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0"),
    ],
)
def test_format_is_negotiated(registry: Registry, accept: str, content_type: str) -> None:
    assert Metrics(registry).render(accept)[1].startswith(content_type)


def test_openmetrics_says_the_same(registry: Registry) -> None:
    registry.get_topic("t#ephemeral").get_channel("c").pause()
    metrics = Metrics(registry)
    page, _ = metrics.render(OPENMETRICS)
    found = series(parse_openmetrics(page.decode()))  # type: ignore[no-untyped-call]
    own = {key: value for key, value in scrape(metrics).items() if key[0].startswith("gnsqd_")}
    assert own == {key: value for key, value in found.items() if key[0].startswith("gnsqd_")}
    assert own["gnsqd_channel_paused", labels(topic="t#ephemeral", channel="c")] == 1


def test_long_page_gives_others_their_turn_and_bears_what_they_do(registry: Registry) -> None:
    for number in range(2 * SAMPLES_PER_TURN):
        registry.get_topic(f"t{number}").get_channel("c")
    turns = 0

    def change_things() -> None:
        nonlocal turns
        while True:
            registry.delete_existing_topic(f"t{turns}")
            registry.get_topic(f"t{turns}").get_channel(f"c{turns}")
            turns += 1
            gevent.sleep(0)

    changer = gevent.spawn(change_things)
    try:
        found = scrape(Metrics(registry))
    finally:
        changer.kill()
    assert turns >= 5
    assert len([name for name, _ in found if name == "gnsqd_topic_depth"]) == 2 * SAMPLES_PER_TURN
