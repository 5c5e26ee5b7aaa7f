"""End-to-end processing latency of both daemons, in both forms of /stats.

Latencies that no machine is too slow for: the messages are hours old, because their channel adopts a disk queue with
such timestamps (NSQD-COMPAT 0.1 item 23, 4.3, 4.4).
"""

import re
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import Instance, eventually
from kit.http_api import ask
from kit.nsq_client import NSQClient, sized
from kit.traffic import DaemonFactory, create, post, take

HOUR = 3600 * 1_000_000_000

FLAG = "--e2e-processing-latency-percentile"
NONE = '"e2e_processing_latency":{"count":0,"percentiles":null}'
NO_SAMPLES = (
    '"e2e_processing_latency":{"count":0,"percentiles":'
    '[{"quantile":1,"value":0},{"quantile":0.99,"value":0},{"quantile":0.5,"value":0}]}'
)


def create_aged(nsqd: Instance, topic: str, channel: str, *hours: int) -> None:
    """Creates a channel with a message for every age."""
    create(nsqd, topic)
    now = time.time_ns()
    payloads = [struct.pack(">qH", now - age * HOUR, 1) + b"%016xx" % number for number, age in enumerate(hours)]
    data = b"".join(map(sized, payloads))
    files = str(nsqd.data_path / f"{topic}:{channel}.diskqueue.")
    Path(f"{files}000000.dat").write_bytes(data)
    Path(f"{files}meta.dat").write_text(f"{len(hours)}\n0,0\n0,{len(data)}\n")
    create(nsqd, topic, channel)


def latency_of(row: dict[str, Any]) -> tuple[int, dict[float, float]]:
    """Returns the count, and hours by quantile."""
    latency = row["e2e_processing_latency"]
    return latency["count"], {entry["quantile"]: entry["value"] / HOUR for entry in latency["percentiles"]}


def about(**hours: float) -> Any:
    """Hours by quantile, given as `p99=2`: 2 % for the error and for the time that the test takes."""
    return pytest.approx({int(name[1:]) / 100: value for name, value in hours.items()}, rel=0.02)


def figures(nsqd: Instance, topic: str) -> list[str]:
    """Returns the `e2e%` of the text page: the topic's, then its channels'."""
    return re.findall(r"msgs: \d+ +e2e%: (.*)$", ask(nsqd, f"GET /stats?topic={topic}")[1], re.MULTILINE)


def test_zeros_while_nothing_was_finished_and_nothing_for_a_topic_without_channels(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(f"{FLAG}=0.5,1.0", f"{FLAG}=0.99")
    create(nsqd, "bare")
    create(nsqd, "t", "c")
    _, bare = ask(nsqd, "GET /stats?format=json&topic=bare")
    assert bare.count(NONE) == bare.count("e2e") == 1
    _, idle = ask(nsqd, "GET /stats?format=json&topic=t")
    assert idle.count(NO_SAMPLES) == idle.count("e2e") == 2
    assert figures(nsqd, "bare") == [""]
    assert figures(nsqd, "t") == ["0.0ns, 0.0ns, 0.0ns"] * 2


def test_the_config_file_says_the_order(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text("e2e_processing_latency_percentiles = [0.5, 1.0, 0.999]\n")
    nsqd = nsqd_factory(f"--config={config}")
    create(nsqd, "t", "c")
    assert list(latency_of(nsqd.channel_stats("t", "c"))[1]) == [0.5, 1, 0.999]


def test_latencies_of_a_channel(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(f"{FLAG}=1.0,0.90,0.30")
    create_aged(nsqd, "t", "c", *[1] * 60, *[2] * 39, 10)
    take(nsqd, "t", "c", 100)
    for row in (nsqd.channel_stats("t", "c"), nsqd.topic_stats("t")):
        assert latency_of(row) == (100, about(p100=10, p90=2, p30=1))
    body = ask(nsqd, "GET /stats?format=json")[1]
    assert re.search(r'"percentiles":\[\{"quantile":1,"value":3\d{13}\},\{"quantile":0\.9,"value":\d{13}\},', body)
    for figure in figures(nsqd, "t"):
        values = re.fullmatch(r"(\d+\.\d)s, (\d+\.\d)s, (\d+\.\d)s", figure)
        assert values
        assert [float(value) for value in values.groups()] == pytest.approx([36000, 7200, 3600], rel=0.02)


def test_a_topic_merges_all_its_channels_whichever_are_shown(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(f"{FLAG}=1.0,0.80,0.50")
    create_aged(nsqd, "t", "a", *[1] * 60)
    create_aged(nsqd, "t", "b", *[5] * 40)
    take(nsqd, "t", "a", 60)
    take(nsqd, "t", "b", 40)
    assert latency_of(nsqd.channel_stats("t", "a")) == (60, about(p100=1, p80=1, p50=1))
    assert latency_of(nsqd.channel_stats("t", "b")) == (40, about(p100=5, p80=5, p50=5))
    (topic,) = nsqd.stats("t", "a")["topics"]
    assert [channel["channel_name"] for channel in topic["channels"]] == ["a"]
    assert latency_of(topic) == (100, about(p100=5, p80=5, p50=1))
    post(nsqd, "/channel/delete?topic=t&channel=b")
    assert latency_of(nsqd.topic_stats("t")) == (60, about(p100=1, p80=1, p50=1))


def test_only_a_fin_counts_and_emptying_takes_nothing_away(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(f"{FLAG}=1.0")
    create_aged(nsqd, "t", "c", 4)
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        message = consumer.message()
        consumer.command(b"TOUCH " + message.id)
        consumer.command(b"FIN 0123456789abcdef")
        assert consumer.error().startswith(b"E_FIN_FAILED")
        consumer.command(b"REQ " + message.id + b" 0")
        assert consumer.message().id == message.id
        assert nsqd.channel_stats("t", "c")["requeue_count"] == 1
        assert latency_of(nsqd.channel_stats("t", "c")) == (0, {1: 0})
        consumer.command(b"FIN " + message.id)
        eventually(lambda: latency_of(nsqd.channel_stats("t", "c"))[0])
    post(nsqd, "/channel/empty?topic=t&channel=c")
    assert latency_of(nsqd.channel_stats("t", "c")) == (1, about(p100=4))


def test_samples_are_gone_when_the_window_has_passed(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(f"{FLAG}=1.0", "--e2e-processing-latency-window-time=3s")
    create_aged(nsqd, "t", "c", 1, 2)
    take(nsqd, "t", "c", 2)

    def gone() -> bool:
        latencies = [latency_of(nsqd.channel_stats("t", "c")), latency_of(nsqd.topic_stats("t"))]
        return latencies == [(0, {1: 0})] * 2

    assert latency_of(nsqd.channel_stats("t", "c")) == (2, about(p100=2))
    eventually(gone, "the window has passed")
