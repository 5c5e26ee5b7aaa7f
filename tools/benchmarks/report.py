"""The result as a document, which is also the JSON file, and its table in Markdown.

contrib/docs/performance.md has such a table; tools/documents/write_performance.py draws the README's picture of it.
"""

import math
import os
import platform
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.harness import NEAR_LIMIT, RowResult, Spread
from benchmarks.queues import BODY_SIZE
from benchmarks.row import Load
from documents.marks import table

_FIGURES = "median (range), ratio (range), CPU s per million messages, ratio (range), of the clients"
HEADINGS = ("row", "unit", "daemon", *_FIGURES.split(", "))
COLUMNS = 125  # of a line of text in a document


def document(results: Sequence[RowResult], load: Load) -> dict[str, Any]:
    """Every single run, with the medians and ranges of the table."""
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
                "sink": result.limit and asdict(result.limit),
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
        "marks": marks(result, lane),
        "runs": [asdict(run) for run in result.runs[lane]],
    }


def markdown(results: Sequence[RowResult], load: Load) -> str:
    heading, *lines = cells(results)
    return "\n".join([table(heading, lines), *notes(results, load)])


def cells(results: Sequence[RowResult]) -> list[tuple[str, ...]]:
    """HEADINGS, and a line per row and lane; without columns that are empty."""
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
            spread(result.figure(lane), unit.form) + marks(result, lane),
            "1" if lane == first else spread(result.ratio(lane), ".2f"),
            own,
            "" if lane == first else spread(result.cpu_ratio(lane), ".2f"),
            clients,
        )
    if limit := result.limit:
        ratio = unit.ratio(limit.value, result.figure(first).median)
        own, clients = ("" if cpu is None else f"{cpu:.2f}" for cpu in (limit.cpu_per_million, limit.load_per_million))
        yield "", "", "sink", f"{limit.value:{unit.form}}", f"{ratio:.2f}", own, "", clients


def spread(values: Spread | None, form: str) -> str:
    """Empty if a figure of the first daemon was 0."""
    if values is None or math.isinf(values.high):
        return ""
    return f"{values.median:{form}} ({values.low:{form}}–{values.high:{form}})"


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


def marks(result: RowResult, lane: str) -> str:
    return "".join(mark for mark, (applies, _) in MARKS.items() if applies(result, lane))


def notes(results: Sequence[RowResult], load: Load) -> list[str]:
    """Paragraphs with empty lines between them."""
    turns = max((len(runs) for result in results for runs in result.runs.values()), default=0)
    found = [
        f"Medians of {turns} interleaved runs, each with a new daemon, on {len(os.sched_getaffinity(0))} CPUs shared "
        f"with the load, Python {platform.python_version()}. Bench programs run for {load.seconds:g} s, a backlog is "
        f"{load.stored:,} messages, bodies have {BODY_SIZE} bytes unless the row specifies another size. A ratio "
        "is the speed relative to the first daemon in the same round: above 1 is faster. Where less is better, it is "
        "the figure relative to that daemon's."
    ]
    for variants in ("durability", "retention"):
        if any(variants in result.row.title for result in results):
            found.append(f"{variants.title()} rows are relative to the same gnsqd without {variants}.")
    if any(result.limit for result in results):
        found.append("The sink is a daemon that does no work: it is the maximum of the clients and the machine.")
    used = {mark for result in results for lane in result.runs for mark in marks(result, lane)}
    explained = [f"{mark} {note}" for mark, (_, note) in MARKS.items() if mark in used]
    return "\n\n".join(textwrap.fill(paragraph, COLUMNS) for paragraph in [" ".join(found), *explained]).split("\n")
