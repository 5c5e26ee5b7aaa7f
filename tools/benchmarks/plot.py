"""Draws the points of `benchmarks.scale`: a column for each dimension, a row for each figure, a line per daemon."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from benchmarks.scale import Point

FIGURES = (("microseconds", "µs of CPU per message"), ("rest", "% of a CPU at rest"), ("megabytes", "MB at rest"))
COLOURS = {"nsqd": "#888888", "gnsqd compiled": "#0072b2", "gnsqd plain": "#e69f00"}
INCHES = (2.8, 2.3)  # of one panel
DOTS_PER_INCH = 80


def draw(points: Sequence[Point], what: dict[str, str], path: Path) -> None:
    """Writes a PNG; `what` is, for each dimension, what the messages are. Raises OSError."""
    dimensions = list(dict.fromkeys(point.dimension for point in points))
    lanes = list(dict.fromkeys(point.lane for point in points))
    size = (INCHES[0] * len(dimensions), INCHES[1] * len(FIGURES))
    figure, panels = pyplot.subplots(len(FIGURES), len(dimensions), figsize=size, squeeze=False, layout="constrained")
    for column, dimension in enumerate(dimensions):
        panels[0][column].set_title(what[dimension], fontsize=8)
        panels[-1][column].set_xlabel(dimension, fontsize=8)
        for row, (name, _) in enumerate(FIGURES):
            panel = panels[row][column]
            for lane in lanes:
                mine = [point for point in points if (point.dimension, point.lane) == (dimension, lane)]
                values = [getattr(point, name) for point in mine]
                panel.plot([point.count for point in mine], values, "o-", ms=3, label=lane, color=COLOURS.get(lane))
            panel.set_xscale("log")
            panel.set_ylim(bottom=0)
            panel.tick_params(labelsize=7)
            panel.grid(alpha=0.3)
    for row, (_, label) in enumerate(FIGURES):
        panels[row][0].set_ylabel(label, fontsize=8)
    panels[0][0].legend(fontsize=7)
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH)
    pyplot.close(figure)
