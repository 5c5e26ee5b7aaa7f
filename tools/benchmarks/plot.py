"""Draws the results of the rows of `benchmarks.scale`: a column for each dimension, a row for each figure, a line per
daemon."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from benchmarks.harness import RowResult
from benchmarks.scale import DIMENSIONS

LABELS = {"cost": "µs of CPU per message", "rest": "% of a CPU at rest", "memory": "MB at rest"}
COLOURS = {"nsqd": "#888888", "gnsqd compiled": "#0072b2", "gnsqd plain": "#e69f00"}
INCHES = (2.8, 2.3)  # of one panel
DOTS_PER_INCH = 80


def draw(results: Sequence[RowResult], path: Path) -> None:
    """Writes a PNG; raises OSError."""
    by_name = {result.row.name: result for result in results}
    size = (INCHES[0] * len(DIMENSIONS), INCHES[1] * len(LABELS))
    figure, panels = pyplot.subplots(len(LABELS), len(DIMENSIONS), figsize=size, squeeze=False, layout="constrained")
    for column, dimension in enumerate(DIMENSIONS):
        panels[0][column].set_title(dimension.what, fontsize=8)
        panels[-1][column].set_xlabel(dimension.name, fontsize=8)
        for row, name in enumerate(LABELS):
            panel = panels[row][column]
            points = {count: by_name.get(f"{dimension.row(count).name}-{name}") for count in dimension.counts}
            measured = {count: result for count, result in points.items() if result}
            for lane in COLOURS:
                values = {count: each.figure(lane).median for count, each in measured.items() if lane in each.runs}
                panel.plot(list(values), list(values.values()), "o-", ms=3, label=lane, color=COLOURS[lane])
            panel.set_xscale("log")
            panel.set_ylim(bottom=0)
            panel.tick_params(labelsize=7)
            panel.grid(alpha=0.3)
    for row, label in enumerate(LABELS.values()):
        panels[row][0].set_ylabel(label, fontsize=8)
    panels[0][0].legend(fontsize=7)
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH)
    pyplot.close(figure)
