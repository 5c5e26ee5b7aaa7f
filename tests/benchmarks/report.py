"""What comes out: a table for the terminal, the same in Markdown for the README, and a JSON file with every run."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import RowResult, Spread

HEADINGS = ("row", "daemon", "messages/s (range)", "ratio (range)", "CPU s per million messages")


def text(results: Sequence[RowResult], seconds: float) -> str:
    lines = [HEADINGS, *cells(results)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*rows, "", *notes(results, seconds)])


def markdown(results: Sequence[RowResult], seconds: float) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *cells(results)]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *notes(results, seconds)])


def cells(results: Sequence[RowResult]) -> list[tuple[str, ...]]:
    """A line per row and lane, in the order of HEADINGS."""
    lines: list[tuple[str, ...]] = []
    for result in results:
        for lane in result.runs:
            first = lane == next(iter(result.runs))
            lines.append(
                (
                    result.row.title if first else "",
                    lane,
                    spread(result.rate(lane), ",.0f") + ("†" if spilled(result, lane) else ""),
                    "1" if first else spread(result.ratio(lane), ".2f"),
                    f"{result.cpu_per_million(lane).median:.2f}",
                )
            )
    return lines


def spread(values: Spread, form: str) -> str:
    return f"{values.median:{form}} ({values.low:{form}}–{values.high:{form}})"


def spilled(result: RowResult, lane: str) -> bool:
    return any(run.on_disk for run in result.runs[lane])


def notes(results: Sequence[RowResult], seconds: float) -> list[str]:
    turns = max(len(runs) for result in results for runs in result.runs.values())
    lines = [
        f"Medians of {turns} interleaved runs of {seconds:g} s, each with a fresh daemon; a ratio is to the first "
        f"daemon in the same turn. {len(os.sched_getaffinity(0))} CPUs, Python {platform.python_version()}."
    ]
    if any(spilled(result, lane) for result in results for lane in result.runs):
        lines += ["", "† more messages than the memory queue holds: some went to disk."]
    return lines


def write_json(path: Path, results: Sequence[RowResult], seconds: float) -> None:
    """Every single run, with the medians and ranges of the table; raises OSError."""
    document = {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "seconds": seconds,
        "rows": {result.row.name: row_document(result) for result in results},
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def row_document(result: RowResult) -> dict[str, object]:
    return {
        "title": result.row.title,
        "lanes": {
            lane: {
                "messages_per_second": asdict(result.rate(lane)),
                "ratio": asdict(result.ratio(lane)),
                "cpu_seconds_per_million": asdict(result.cpu_per_million(lane)),
                "runs": [asdict(run) for run in runs],
            }
            for lane, runs in result.runs.items()
        },
    }
