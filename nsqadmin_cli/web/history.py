"""The last hour of the cluster, of each topic and of each channel: depth, and messages per second in and finished, and
charts of them.

Time is divided into steps, of 5 s for the last 15 minutes and of 15 s for the last hour. A step has the last depth and
the mean rates of its snapshots, as floats of 4 bytes: 5.7 kB for each topic or channel.

A sum over only some of its nodes is not a value: it would look as if messages had been consumed.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import groupby
from math import floor, isnan, log10, nan
from typing import NamedTuple

from nsqadmin_cli import units
from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, through
from nsqadmin_cli.web.present import RANGES, HTMLTable, View

_RESOLUTIONS = ((5.0, 180), (15.0, 240))  # seconds of a step, and steps that are kept; the finest first
_MOST = 5000  # topics and channels
_GONE = 60.0  # seconds; an nsqlookupd that was restarted lists a node again within this time
_ADJACENT = 15.0  # seconds; while nobody looks, there is a snapshot every 10 s
_UNKNOWN = array("f", [nan] * 3)  # depth, in/s and finished/s


class HistoryWindow(NamedTuple):
    """One value for each step, the latest last; NaN where it is unknown."""

    seconds: float  # of a step
    steps: range  # their numbers
    depth: list[float]
    ingress: list[float]
    egress: list[float]


class _Ring:
    """The values of the latest steps, those of step n at 3 * (n % steps)."""

    __slots__ = ("first", "last", "rates", "seconds", "steps", "values")

    def __init__(self, seconds: float, steps: int, moment: float) -> None:
        self.seconds, self.steps = seconds, steps
        self.values = _UNKNOWN * steps
        self.first = int(moment // seconds)  # the first step ever
        self.last = self.first - 1  # the latest one
        self.rates = 0  # of which the mean rates of the latest step are

    def add(self, moment: float, value: tuple[int, Flow | None] | None) -> None:
        """Adds depth and rates, or None if they are unknown. Steps without a snapshot have the values of the next one
        if it was taken soon, and are unknown otherwise."""
        step, before = int(moment // self.seconds), self.last
        for new in range(max(before + 1, step - self.steps + 1), step + 1):
            self._set(new, _UNKNOWN)
        if step > before:
            self.last, self.rates = step, 0
        if value is None:
            return
        (depth, flow), at = value, 3 * (step % self.steps)
        values = self.values[at : at + 3]
        values[0] = depth
        if flow is not None:
            self.rates += 1
            for index, rate in ((1, flow.ingress), (2, flow.egress)):
                values[index] = rate if self.rates == 1 else values[index] + (rate - values[index]) / self.rates
        is_soon = self.first <= before < step and (step - before) * self.seconds <= _ADJACENT
        for known in range(before + 1 if is_soon else step, step + 1):
            self._set(known, values)

    def _set(self, step: int, values: "array[float]") -> None:
        at = 3 * (step % self.steps)
        self.values[at : at + 3] = values

    def figure(self, offset: int, steps: range) -> list[float]:
        """Returns the depths, rates in or rates finished, by their offset, of these steps."""
        kept = range(self.last - self.steps + 1, self.last + 1)
        return [self.values[3 * (step % self.steps) + offset] if step in kept else nan for step in steps]


class ClusterHistory:
    """Owns the values of all topics and channels, by their keys; `("", "")` is the cluster. The depth of the cluster
    and of a topic is that of topics and channels together."""

    def __init__(self) -> None:
        self._series: dict[Key, list[_Ring]] = {}

    def add(self, snapshot: ClusterSnapshot) -> None:
        """Adds a snapshot. A topic or channel is forgotten a minute after all nodes that had it answered without it, or
        were no longer listed; a node that does not answer is waited for as long as the snapshot knows what it had."""
        flows = snapshot.flows or {}
        values: dict[Key, tuple[int, Flow | None] | None] = {}
        if snapshot.nodes:
            values["", ""] = snapshot.totals.depth, None if snapshot.flows is None else through(flows)
        for topic in snapshot.totals.topics:
            name, depth = topic.topic_name, topic.depth
            for channel in topic.channels:
                key = name, channel.channel_name
                values[key] = channel.depth, flows.get(key)
                depth += channel.depth
            values[name, ""] = depth, snapshot.topic_flows.get(name)
        values |= dict.fromkeys(snapshot.partial_keys)
        gone = (snapshot.moment - _GONE) // _RESOLUTIONS[-1][0]
        self._series = {key: kept for key, kept in self._series.items() if key in values or kept[-1].last > gone}
        for key, value in values.items():
            if value is not None and key not in self._series and len(self._series) < _MOST:
                self._series[key] = [_Ring(*resolution, snapshot.moment) for resolution in _RESOLUTIONS]
            for ring in self._series.get(key, ()):
                ring.add(snapshot.moment, value)

    def window(self, moment: float, seconds: float, topic: str = "", channel: str = "") -> HistoryWindow | None:
        """Returns the last `seconds` before `moment`, by time.monotonic(), or less if values begin later, of the
        cluster, a topic or a channel; in the finest steps that reach so far back. None if there is no value."""
        rings = self._series.get((topic, channel))
        if rings is None:
            return None
        span = min(seconds, moment - rings[0].first * rings[0].seconds)
        ring = next((ring for ring in rings if ring.seconds * ring.steps >= span), rings[-1])
        last = int(moment // ring.seconds)
        steps = range(max(last - int(seconds // ring.seconds) + 1, ring.first), last + 1)
        depths = ring.figure(0, steps)
        known = next((index for index, depth in enumerate(depths) if not isnan(depth)), 0)
        rates = (ring.figure(offset, steps[known:]) for offset in (1, 2))
        return HistoryWindow(ring.seconds, steps[known:], depths[known:], *rates)

    def depths(self, window: HistoryWindow, topic: str, channel: str = "") -> list[float]:
        rings = self._series.get((topic, channel), ())
        return next((ring.figure(0, window.steps) for ring in rings if ring.seconds == window.seconds), [])


class Chart(NamedTuple):
    """One figure, in a box that is `_HEIGHT` high, and as wide as two for each step; a shape for each run of steps."""

    name: str
    width: int
    shapes: list[str]
    highest: str
    top: str  # of the box
    label: str
    values: str  # of all steps, with a bar between them; empty if unknown


class Charts(NamedTuple):
    """The charts of a page, how long ago their left end and their middle are, and links to other ranges of time."""

    charts: list[Chart]
    seconds: float  # of a step
    begin: str
    middle: str
    ranges: list[tuple[str, str, bool]]  # text, address, and whether it is the range that is shown


_HEIGHT = 120
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 72, 16, 18


def charts_of(history: ClusterHistory, moment: float, view: View, topic: str = "", channel: str = "") -> Charts | None:
    """Returns charts of depth and rates, as far as there are values until `moment`. Rates are in the same scale."""
    window = history.window(moment, RANGES[view.range][0], topic, channel)
    if window is None:
        return None
    last = RANGES[view.range][1]
    top = _top(window.ingress, window.egress)
    charts = [
        _chart(
            "depth with channels" if topic and not channel else "depth",
            window.depth,
            lambda value: f"{round(value):,}",
            _top(window.depth),
            last,
        ),
        _chart("in/s", window.ingress, units.rate, top, last),
        _chart("finished/s", window.egress, units.rate, top, last),
    ]
    span = len(window.steps) * window.seconds
    begin, middle = (units.duration(seconds).removesuffix(" 0m").removesuffix(" 0s") for seconds in (span, span / 2))
    ranges = [(text, view.at(range=key), key == view.range) for key, (_, text) in RANGES.items()]
    return Charts([chart for chart in charts if chart.shapes], window.seconds, begin, middle, ranges)


def _chart(name: str, values: Sequence[float], text: Callable[[float], str], top: float, last: str) -> Chart:
    shapes = []
    for run in _runs(values):
        points = _placed(run, 2, top, _HEIGHT)
        (left, first), (right, final) = points[0], points[-1]
        middles = [(x + 1, y) for x, y in points]
        shapes.append(_points([(left, _HEIGHT), (left, first), *middles, (right + 2, final), (right + 2, _HEIGHT)]))
    texts = ["" if isnan(value) else text(value) for value in values]
    lowest, highest = (text(limit(_known(values), default=0.0)) for limit in (min, max))
    label = f"{name} in the last {last}: {texts[-1] or 'unknown'} now, {lowest} to {highest}"
    return Chart(name, 2 * len(values), shapes, highest, text(top), label, "|".join(texts))


def add_sparklines(table: HTMLTable, key: str, values_of: Callable[[dict[str, object]], Sequence[float]]) -> None:
    """Adds a line to each cell of the column `key`: the highest values of up to 18 spans of time, in the same scale."""
    series = [values_of(row.values) for row in table.rows]
    top = _top(*series)
    for row, values in zip(table.rows, series, strict=True):
        length = max(1, -(-len(values) // _SPARK_POINTS))
        ends = range(len(values), 0, -length)
        highest = [max(_known(values[max(0, end - length) : end]), default=nan) for end in reversed(ends)]
        width = _SPARK_WIDTH / max(1, len(highest) - 1)
        lines = [_points(_placed(run, width, top, _SPARK_HEIGHT)) for run in _runs(highest) if len(run) > 1]
        column = [*row.values].index(key)
        row.cells[column] = row.cells[column]._replace(lines=lines)


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not isnan(value)]


def _top(*series: Sequence[float]) -> float:
    """Returns the least round number that no value exceeds, so that a scale changes rarely."""
    highest = max((value for values in series for value in _known(values)), default=0.0)
    power = 10.0 ** floor(log10(max(highest, 1.0)))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= highest)


def _runs(values: Sequence[float]) -> list[list[tuple[int, float]]]:
    """Returns the values that have no gap between them, with their indexes."""
    groups = groupby(enumerate(values), lambda pair: isnan(pair[1]))
    return [list(run) for is_gap, run in groups if not is_gap]


def _placed(run: Sequence[tuple[int, float]], width: float, top: float, height: int) -> list[tuple[int, int]]:
    """Places values in a box of this height, with room for the line at both ends."""
    return [(round(index * width), round(height - 1 - value / top * (height - 2))) for index, value in run]


def _points(points: Sequence[tuple[int, int]]) -> str:
    """Writes the points of a line, without those inside of its level parts."""
    around = zip([None, *points], points, [*points[1:], None], strict=False)
    kept = [here for before, here, after in around if not (before and after and before[1] == here[1] == after[1])]
    return " ".join(f"{x},{y}" for x, y in kept)
