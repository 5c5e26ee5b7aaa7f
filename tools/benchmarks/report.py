"""The result as a document, which is also the JSON file, and its table for a terminal and in Markdown.

`document` holds the medians and ranges of every row. `.ci/write_performance.py` makes contrib/docs/performance.md, the
README's ratios and the figure from one that is in the repository.
"""

import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import NEAR_LIMIT, RowResult, Spread
from benchmarks.queues import BODY_SIZE
from benchmarks.row import UNITS, Load

HEADINGS = (
    "row",
    "unit",
    "daemon",
    "median (range)",
    "ratio (range)",
    "CPU s per million messages",
    "ratio (range)",
    "of the clients",
)
SINK = "sink"

Document = dict[str, Any]


def document(results: Sequence[RowResult], load: Load) -> Document:
    """Every single run, with the medians and ranges of the table."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "seconds": load.seconds,
        "backlog": load.stored,
        "turns": max((len(runs) for result in results for runs in result.runs.values()), default=0),
        "rows": {result.row.name: row_document(result) for result in results},
    }


def row_document(result: RowResult) -> Document:
    return {
        "title": result.row.title,
        "unit": result.row.unit.name,
        "sink": None
        if result.limit is None
        else {
            "figure": result.limit.value,
            "cpu_seconds_per_million": result.limit.cpu_per_million,
            "load_cpu_seconds_per_million": result.limit.load_per_million,
            "runs": [asdict(result.limit)],
        },
        "lanes": {
            lane: {
                "figure": asdict(result.figure(lane)),
                "ratio": finite(result.ratio(lane)),
                "cpu_seconds_per_million": median(result.cpu_per_million(lane)),
                "cpu_ratio": asdict(cpu) if (cpu := result.cpu_ratio(lane)) else None,
                "load_cpu_seconds_per_million": median(result.load_per_million(lane)),
                "marks": "".join(mark for mark, (applies, _) in MARKS.items() if applies(result, lane)),
                "runs": [asdict(run) for run in runs],
            }
            for lane, runs in result.runs.items()
        },
    }


def finite(ratio: Spread) -> dict[str, float] | None:
    """None if a figure of the first daemon was 0."""
    return None if math.isinf(ratio.high) else asdict(ratio)


def median(values: Spread | None) -> float | None:
    return values.median if values else None


def write_json(path: Path, result: Document) -> None:
    """Raises OSError."""
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def text(result: Document) -> str:
    lines = cells(result)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*rows, "", *notes(result)])


def markdown(result: Document) -> str:
    heading, *lines = cells(result)
    lines = [heading, ("---",) * len(heading), *lines]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *notes(result)])


def cells(result: Document) -> list[tuple[str, ...]]:
    """HEADINGS, and a line per row and lane; without columns that are empty."""
    columns = zip(HEADINGS, *_lines(result), strict=True)
    return list(zip(*(column for column in columns if any(column[1:])), strict=True))


def _lines(result: Document) -> Iterator[tuple[str, ...]]:
    for row in result["rows"].values():
        unit = UNITS[row["unit"]]
        first = next(iter(row["lanes"]))
        for lane, values in row["lanes"].items():
            yield (
                row["title"] if lane == first else "",
                unit.heading if lane == first else "",
                lane,
                spread(values["figure"], unit.form) + values["marks"],
                "1" if lane == first else spread(values["ratio"], ".2f"),
                seconds(values["cpu_seconds_per_million"]),
                "" if lane == first else spread(values["cpu_ratio"], ".2f"),
                seconds(values["load_cpu_seconds_per_million"]),
            )
        if sink := row["sink"]:
            ratio = unit.ratio(sink["figure"], row["lanes"][first]["figure"]["median"])
            own, clients = map(seconds, (sink["cpu_seconds_per_million"], sink["load_cpu_seconds_per_million"]))
            yield "", "", SINK, f"{sink['figure']:{unit.form}}", f"{ratio:.2f}", own, "", clients


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def spread(values: dict[str, float] | None, form: str) -> str:
    return f"{values['median']:{form}} ({values['low']:{form}}–{values['high']:{form}})" if values else ""


def spilled(result: RowResult, lane: str) -> bool:
    return result.row.in_memory and any(run.on_disk for run in result.runs[lane])


def fell_behind(result: RowResult, lane: str) -> bool:
    return not result.row.in_memory and any(run.behind > run.messages // 100 for run in result.runs[lane])


MARKS = {
    "†": (spilled, "There were more messages than the memory queue holds: some went to disk."),
    "‡": (
        fell_behind,
        "When the last message was acknowledged, more than 1 % of the messages were still in the topic's disk queue, "
        "and not yet in the channel's. The CPU time includes the rest.",
    ),
    "§": (
        RowResult.near_limit,
        f"More than {100 * NEAR_LIMIT:.0f} % of what the same clients reach with the sink, so they and the machine "
        "are the limit: CPU time is more meaningful than the ratio.",
    ),
}


def notes(result: Document) -> list[str]:
    """Paragraphs with empty lines between them."""
    rows = result["rows"].values()
    lanes = [lane for row in rows for lane in row["lanes"].values()]
    found = [
        f"Medians of {result['turns']} interleaved runs, each with a new daemon, on {result['cpus']} CPUs shared with "
        f"the load, Python {result['python']}. Bench programs run for {result['seconds']:g} s, a backlog is "
        f"{result['backlog']:,} messages, bodies have {BODY_SIZE} bytes unless the row specifies another size. A ratio "
        "is the speed relative to the first daemon in the same round: above 1 is faster. Where less is better, it is "
        "the figure relative to that daemon's."
    ]
    if any("durability" in row["title"] for row in rows):
        found.append("Durability rows are relative to the same gnsqd without durability.")
    if any("retention" in row["title"] for row in rows):
        found.append("Retention rows are relative to the same gnsqd without retention.")
    if any(row["sink"] for row in rows):
        found.append("The sink is a daemon that does no work: it is the maximum of the clients and the machine.")
    found = [" ".join(found)]
    for mark, (_, note) in MARKS.items():
        if any(mark in lane["marks"] for lane in lanes):
            found += ["", f"{mark} {note}"]
    return found
