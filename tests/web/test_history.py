"""The last hour of a cluster: steps, gaps, what is forgotten, and snapshots while nobody looks."""

import math
import time

import pytest

from cli.fake_nsqd import FakeServer, channel, node, topic
from kit.daemons import eventually
from nsqadmin_cli.api import ChannelStats, NodeStats, TopicStats
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.web.history import STEP, STEPS, History
from nsqadmin_cli.web.present import charts_of
from web.app import App

NODE = Address("a", 1)


def looks(*figures: tuple[float, int, int]) -> list[ClusterSnapshot]:
    """Snapshots at these moments, with this depth of a channel and that many messages that it finished since it was
    created; twice as many were published."""
    found: list[ClusterSnapshot] = []
    for moment, depth, finished in figures:
        stats = ChannelStats("c", depth, 0, 0, 0, 2 * finished, 0, 0, 1, paused=False, finish_count=finished)
        row = TopicStats("t", 10, 0, 2 * finished, 0, paused=False, channels=(stats,))
        seen = NodeStats("1.3.0", "OK", 1, (row,), moment=moment)
        found.append(ClusterSnapshot({NODE: seen}, [], found[-1] if found else None, moment=moment))
    return found


def shown(values: list[float]) -> dict[int, float]:
    """The values that are there, by the number of steps since."""
    return {len(values) - 1 - index: value for index, value in enumerate(values) if not math.isnan(value)}


def test_a_step_has_the_last_depth_and_the_mean_rates() -> None:
    history, begin = History(), 1000 * STEP
    for seen in looks((begin, 7, 0), (begin + 2, 8, 20), (begin + 4, 9, 60), (begin + 3 * STEP, 5, 60)):
        history.add(seen)
    hour = history.hour(begin + 4 * STEP, "t", "c")
    assert hour is not None
    assert {len(values) for values in hour} == {STEPS}
    assert shown(hour.depth) == {4: 9, 1: 5}  # nothing between them, nor after the latest
    assert shown(hour.ingress) == {4: 30, 1: 0}
    assert shown(hour.egress) == {4: 15, 1: 0}
    for key, depth in ((("t", ""), 19), (("", ""), 19)):
        hour = history.hour(begin, *key)
        assert hour is not None
        assert shown(hour.depth) == {3: depth, 0: 15}
        assert shown(hour.egress)[3] == 15


def test_an_hour_is_kept_and_no_topic_that_is_gone() -> None:
    history = History()
    steps = range(1000, 1000 + STEPS + 5)
    for seen in looks(*((step * STEP, step, 0) for step in steps)):
        history.add(seen)
    hour = history.hour(steps[-1] * STEP, "t", "c")
    assert hour is not None
    assert hour.depth == list(steps[-STEPS:])
    later = history.hour(steps[-1] * STEP + 2 * 3600, "t", "c")
    assert later is not None
    assert shown(later.depth) == {}
    history.add(ClusterSnapshot({NODE: NodeStats("1.3.0", "OK", 1, ())}, []))
    assert history.hour(0.0, "t", "c") is None


def test_a_chart_has_a_shape_for_each_run_and_a_text() -> None:
    history, begin = History(), 1000 * STEP
    for seen in looks((begin, 700, 0), (begin + STEP, 1400, 0), (begin + 9 * STEP, 100, 0)):
        history.add(seen)
    depth, *rates = charts_of(history.hour(begin + 9 * STEP, "t", "c"))
    assert depth.label == "depth in the last hour: 100 now, 100 to 1,400"
    assert depth.shapes == ["460,120 460,61 461,61 463,4 464,4 464,120", "478,120 478,110 479,110 480,110 480,120"]
    assert [rate.name for rate in rates] == ["in/s", "finished/s"]
    assert charts_of(None) == []


def test_pages_have_charts() -> None:
    fake = FakeServer({"/stats": [node(topic("t", channel("c", depth=900), depth=1))]})
    app = App([fake.address])
    for target, name, depth in (
        ("/", "depth", 901), ("/topics/t", "depth with channels", 901), ("/topics/t/c", "depth", 900)
    ):  # fmt: skip
        label = f'aria-label="{name} in the last hour: {depth} now, {depth} to {depth}"'
        assert label in app.get(target).text


def test_snapshots_for_charts_are_taken_until_nobody_has_looked_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.monitor._SAMPLED", 0.01)
    fake = FakeServer({"/stats": [node(topic("t"))]})
    app = App([fake.address])
    app.app.keep_history()
    app.page("/nodes")
    eventually(lambda: len(fake.queries("/stats")) > 10)
    monkeypatch.setattr("nsqadmin_cli.web.monitor._REMEMBERED", 0.0)
    last = [len(fake.asked), time.monotonic()]

    def nobody_asks() -> bool:
        if len(fake.asked) != last[0]:
            last[:] = len(fake.asked), time.monotonic()
        return time.monotonic() - last[1] > 0.2

    eventually(nobody_asks)
    app.app.close()
