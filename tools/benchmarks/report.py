"""The result as a document, which is also the JSON file, and its table in Markdown.

contrib/docs/performance.md has such a table; tools/documents draws the README's picture of it.
"""

import math
import os
import platform
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.harness import RowResult, Spread
from benchmarks.queues import BODY_SIZE
from benchmarks.row import BenchmarkLoad
from documents.marks import table

_FIGURES = "median (range), ratio (range), CPU s per million messages, ratio (range), of the clients"
HEADINGS = ("row", "unit", "daemon", *_FIGURES.split(", "))
COLUMNS = 125  # of a line of text in a document


def document(results: Sequence[RowResult], load: BenchmarkLoad) -> dict[str, Any]:
    """Returns every single run, with the medians and ranges of the table."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "seconds": load.seconds,
        "backlog": load.stored,
        "rows": {
            result.row.name: {
                "title": result.row.title,
                "unit": result.row.unit.name,
                "lanes": {lane: _lane(result, lane) for lane in result.runs},
            }
            for result in results
        },
    }


def _lane(result: RowResult, lane: str) -> dict[str, Any]:
    ratio = result.ratio(lane)
    return {
        "figure": asdict(result.figure(lane)),
        "ratio": None if ratio is None or math.isinf(ratio.high) else asdict(ratio),
        "cpu_ratio": (cpu := result.cpu_ratio(lane)) and asdict(cpu),
        "runs": [asdict(run) for run in result.runs[lane]],
    }


def markdown(results: Sequence[RowResult], load: BenchmarkLoad) -> str:
    heading, *lines = cells(results)
    return f"{table(heading, lines)}\n{notes(results, load)}"


def cells(results: Sequence[RowResult]) -> list[tuple[str, ...]]:
    """Returns HEADINGS, and a line per row and lane; without columns that are empty."""
    columns = zip(HEADINGS, *(line for result in results for line in _lines(result)), strict=True)
    return list(zip(*(column for column in columns if any(column[1:])), strict=True))


def _lines(result: RowResult) -> Iterator[tuple[str, ...]]:
    unit = result.row.unit
    first = next(iter(result.runs))
    for lane in result.runs:
        own, clients = (f"{values.median:.2f}" if values else "" for values in result.per_million(lane))
        yield (
            result.row.title if lane == first else "",
            unit.heading if lane == first else "",
            lane,
            spread(result.figure(lane), unit.form),
            "1" if lane == first else spread(result.ratio(lane), ".2f"),
            own,
            "" if lane == first else spread(result.cpu_ratio(lane), ".2f"),
            clients,
        )


def spread(values: Spread | None, form: str) -> str:
    """Returns an empty text if a figure of the first daemon was 0."""
    if values is None or math.isinf(values.high):
        return ""
    return f"{values.median:{form}} ({values.low:{form}}–{values.high:{form}})"


def notes(results: Sequence[RowResult], load: BenchmarkLoad) -> str:
    turns = max((len(runs) for result in results for runs in result.runs.values()), default=0)
    text = (
        f"Medians of {turns} interleaved runs, each with a new daemon, on {len(os.sched_getaffinity(0))} CPUs shared "
        f"with the load, Python {platform.python_version()}. A load runs for {load.seconds:g} s, a backlog is "
        f"{load.stored:,} messages, bodies have {BODY_SIZE} bytes. A ratio is the speed relative to the first daemon "
        "in the same round: above 1 is faster. Where less is better, it is the figure relative to that daemon's."
    )
    if any("durability" in result.row.title for result in results):
        text += " Durability rows are relative to the same gnsqd without durability."
    return textwrap.fill(text, COLUMNS)
