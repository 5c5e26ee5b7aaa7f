"""The last hour of the cluster, of each topic and of each channel: depth, and messages per second in and finished.

The hour is divided into steps. A step holds the last depth and the mean rates of the snapshots in it, as floats of 4
bytes: 2.9 kB for each topic or channel.
"""

import math
from array import array
from typing import NamedTuple

from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, through

STEP = 15.0  # seconds
STEPS = 240  # an hour
_MOST = 5000  # topics and channels
_NONE = array("f", [math.nan])


class Hour(NamedTuple):
    """One value for each step, the latest last; NaN for steps without a snapshot."""

    depth: list[float]
    ingress: list[float]
    egress: list[float]


class _Series:
    """Rings of values, indexed by the number of the step."""

    __slots__ = ("depths", "egresses", "ingresses", "last", "rates")

    def __init__(self) -> None:
        self.depths, self.ingresses, self.egresses = (_NONE * STEPS for _ in range(3))
        self.last = -1  # the latest step
        self.rates = 0  # of which the mean rates of this step are

    def add(self, step: int, depth: int, flow: Flow | None) -> None:
        self.forget(step)
        at = step % STEPS
        self.depths[at] = depth
        if flow is not None:
            self.rates += 1
            for values, rate in ((self.ingresses, flow.ingress), (self.egresses, flow.egress)):
                values[at] = rate if self.rates == 1 else values[at] + (rate - values[at]) / self.rates

    def forget(self, step: int) -> None:
        """Makes `step` the latest one: clears it, and the steps before it that had no snapshot."""
        if step == self.last:
            return
        for skipped in range(max(self.last + 1, step - STEPS + 1), step + 1):
            for values in (self.depths, self.ingresses, self.egresses):
                values[skipped % STEPS] = math.nan
        self.last, self.rates = step, 0


class History:
    """Owns the values of all topics and channels, by their keys; `("", "")` is the cluster. The depth of the cluster
    and of a topic is that of topics and channels together, on the nodes that answered."""

    def __init__(self) -> None:
        self._series: dict[Key, _Series] = {}

    def add(self, snapshot: ClusterSnapshot) -> None:
        """Adds a snapshot with an answer, and forgets topics and channels that it does not have."""
        if not snapshot.nodes:
            return
        step, flows = _step_of(snapshot.moment), snapshot.flows or {}
        whole = None if snapshot.flows is None else through(flows)
        values: dict[Key, tuple[int, Flow | None]] = {("", ""): (snapshot.totals.depth, whole)}
        for topic in snapshot.totals.topics:
            name, depth = topic.topic_name, topic.depth
            for channel in topic.channels:
                key = name, channel.channel_name
                values[key] = channel.depth, flows.get(key)
                depth += channel.depth
            values[name, ""] = depth, snapshot.topic_flows.get(name)
        self._series = {key: series for key, series in self._series.items() if key in values}
        for key, (depth, flow) in values.items():
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= _MOST:
                    continue
                series = self._series[key] = _Series()
            series.add(step, depth, flow)

    def hour(self, moment: float, topic: str = "", channel: str = "") -> Hour | None:
        """The hour before `moment`, by time.monotonic(), of the cluster, a topic or a channel; None if it is new."""
        series = self._series.get((topic, channel))
        if series is None:
            return None
        latest = max(series.last, _step_of(moment))
        oldest_kept = series.last - STEPS + 1
        steps = range(latest - STEPS + 1, latest + 1)
        return Hour(
            *(
                [values[step % STEPS] if oldest_kept <= step <= series.last else math.nan for step in steps]
                for values in (series.depths, series.ingresses, series.egresses)
            )
        )


def _step_of(moment: float) -> int:
    return int(moment // STEP)
