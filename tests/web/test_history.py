"""The last hour of a cluster: steps, gaps, what is unknown and what is forgotten, and snapshots while nobody looks."""

import math

import pytest
from msgspec.structs import replace

from cli.fake_nsqd import FakeServer, node, topic
from kit.daemons import eventually
from nsqadmin_cli.api import ChannelStats, NodeStats, TopicStats
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.table import Column, Table
from nsqadmin_cli.web.history import ClusterHistory, HistoryWindow, add_sparklines, charts_of
from nsqadmin_cli.web.present import View, html_table
from web.app import App, wait_until_quiet

NODE, OTHER = Address("a", 1), Address("b", 1)
FAILED = NodeError("nsqd", OTHER, "no complete answer within 1 s")
HOUR = 240  # steps of 15 s


def looks(*figures: tuple[float, int, int]) -> list[ClusterSnapshot]:
    """Snapshots at these moments, with this depth of a channel and that many messages that it finished since it was
    created; twice as many were published."""
    snapshots: list[ClusterSnapshot] = []
    for moment, depth, finished in figures:
        stats = ChannelStats("c", depth, 0, 0, 0, 2 * finished, 0, 0, 1, paused=False, finish_count=finished)
        row = TopicStats("t", 10, 0, 2 * finished, 0, paused=False, channels=(stats,))
        seen = NodeStats("1.3.0", "OK", 1, (row,), moment=moment)
        snapshots.append(ClusterSnapshot({NODE: seen}, [], snapshots[-1] if snapshots else None, moment=moment))
    return snapshots


def shown(values: list[float]) -> dict[int, float]:
    """Returns the known values, by the number of steps since."""
    return {len(values) - 1 - index: value for index, value in enumerate(values) if not math.isnan(value)}


def window(history: ClusterHistory, moment: float, seconds: float = 3600.0, *key: str) -> HistoryWindow:
    values = history.window(moment, seconds, *key)
    assert values is not None
    return values


def history_of(*figures: tuple[float, int, int]) -> ClusterHistory:
    history = ClusterHistory()
    for seen in looks(*figures):
        history.add(seen)
    return history


def test_a_step_has_the_last_depth_and_the_mean_rates() -> None:
    begin = 15000.0
    history = history_of((begin, 7, 0), (begin + 2, 8, 20), (begin + 4, 9, 60), (begin + 45, 5, 60))
    fine = window(history, begin + 49, 3600.0, "t", "c")  # which begins where values begin
    assert {len(values) for values in fine[1:]} == {10}
    assert shown(fine.depth) == {9: 9, 0: 5}
    assert shown(fine.ingress) == {9: 30, 0: 0}
    assert shown(fine.egress) == {9: 15, 0: 0}
    assert shown(window(history, begin + 64, 3600.0, "t", "c").depth) == {12: 9, 3: 5}  # nothing after the latest
    for key in (("t",), ()):
        assert shown(window(history, begin + 45, 3600.0, *key).depth) == {9: 19, 0: 15}


def test_short_ranges_have_finer_steps_and_steps_without_a_snapshot_the_next_values() -> None:
    moments = range(1000 * 15, 1000 * 15 + 4000, 10)  # as while nobody looks
    history = history_of(*((moment, moment, 0) for moment in moments))
    for seconds, step, count in ((300.0, 5.0, 60), (900.0, 5.0, 180), (3600.0, 15.0, HOUR)):
        span = window(history, moments[-1], seconds, "t", "c")
        assert (span.seconds, len(span.depth)) == (step, count)
        depths = list(map(int, span.depth))
        assert depths == sorted(depths)
        assert depths[-1] - depths[0] == pytest.approx(seconds, abs=2 * step)
    assert shown(window(history, moments[-1] + 7200, 3600.0, "t", "c").depth) == {}


def test_a_topic_is_forgotten_a_minute_after_all_nodes_answered_without_it() -> None:
    history = history_of((15000.0, 5, 0))
    empty = NodeStats("1.3.0", "OK", 1, ())
    for moment, is_known in ((15010.0, True), (15100.0, False)):
        history.add(ClusterSnapshot({NODE: empty}, [], moment=moment))
        assert (history.window(moment, 3600.0, "t", "c") is not None) is is_known


def test_a_node_that_does_not_answer_is_a_gap_and_erases_nothing_for_an_hour() -> None:
    (here,), (there,) = looks((15000.0, 1, 0)), looks((15000.0, 100, 0))
    first, second = here.nodes[NODE], there.nodes[NODE]
    history = ClusterHistory()
    before = None
    for moment, one, other, expected in (
        (15000.0, first, second, [121]),
        (15005.0, first, FAILED, [121]),  # unknown
        (15010.0, FAILED, FAILED, [121]),
        (15015.0, first, replace(second, moment=15015.0), [121, 121]),
        (18600.0, first, FAILED, [121]),
        (18620.0, first, FAILED, [11]),  # the hour is over
    ):
        before = ClusterSnapshot({NODE: one, OTHER: other}, [], before, moment=moment)
        history.add(before)
        assert list(shown(window(history, moment, 3600.0, "t").depth).values()) == expected, moment
    assert before is not None
    assert before.partial_keys == set()


@pytest.mark.parametrize("errors, is_waited_for", [([], False), ([FAILED], True)])
def test_a_node_is_awaited_while_an_nsqlookupd_may_list_it(errors: list[NodeError], is_waited_for: bool) -> None:
    (seen,) = looks((15000.0, 5, 0))
    later = ClusterSnapshot({}, errors, known=seen.latest, moment=15002.0)
    assert (("t", "c") in later.partial_keys) is is_waited_for


def test_a_chart_has_a_shape_for_each_run_a_text_and_the_scale_of_what_it_is_compared_with() -> None:
    begin = 15000.0
    history = history_of((begin, 700, 0), (begin + 5, 1400, 100), (begin + 45, 100, 100))
    charts = charts_of(history, begin + 45, View("/"), "t", "c")
    assert charts is not None
    depth, *rates = charts.charts
    assert depth.label == "depth in the last hour: 100 now, 100 to 1,400"
    assert depth.shapes == ["0,120 0,64 1,64 3,9 4,9 4,120", "18,120 18,111 20,111 20,120"]
    assert depth.values == "700|1,400||||||||100"
    assert [(rate.name, rate.highest, rate.top) for rate in rates] == [("in/s", "40", "40"), ("finished/s", "20", "40")]
    assert (charts.begin, charts.middle) == ("50s", "25s")
    assert charts_of(ClusterHistory(), begin, View("/")) is None


def test_sparklines_of_a_column_have_the_same_scale_and_gaps() -> None:
    table = html_table("Topics", Table([Column("topic", "topic")], [["a"], ["b"], ["c"]]))
    depths = {"a": [0.0, 50.0, 100.0], "b": [50.0, 50.0, math.nan, 50.0, 50.0], "c": [7.0]}
    add_sparklines(table, "topic", lambda row: depths[str(row["topic"])])
    lines = [row.cells[0].lines for row in table.rows]
    assert lines == [["0,15 36,8 72,1"], ["0,8 18,8", "54,8 72,8"], []]


def test_snapshots_for_charts_are_taken_until_nobody_has_looked_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.monitor._SAMPLED", 0.01)
    fake = FakeServer({"/stats": [node(topic("t"))]})
    app = App([fake.address])
    app.app.keep_history()
    app.page("/nodes")
    eventually(lambda: len(fake.queries("/stats")) > 10)
    monkeypatch.setattr("nsqadmin_cli.web.monitor._REMEMBERED", 0.0)
    wait_until_quiet(fake, 0.2)
    app.app.close()
