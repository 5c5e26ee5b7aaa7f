"""What comes out: a table for the terminal, the same in Markdown for the README, and a JSON file with every run."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import RowResult, Spread
from benchmarks.rows import BODY_SIZE, Load

HEADINGS = ("row", "unit", "daemon", "median (range)", "ratio (range)", "CPU s per million messages")


def text(results: Sequence[RowResult], load: Load) -> str:
    lines = [HEADINGS, *cells(results)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*rows, "", *notes(results, load)])


def markdown(results: Sequence[RowResult], load: Load) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *cells(results)]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *notes(results, load)])


def cells(results: Sequence[RowResult]) -> list[tuple[str, ...]]:
    """A line per row and lane, in the order of HEADINGS."""
    lines: list[tuple[str, ...]] = []
    for result in results:
        for lane in result.runs:
            first = lane == next(iter(result.runs))
            unit = result.row.unit
            cpu = result.cpu_per_million(lane)
            lines.append(
                (
                    result.row.title if first else "",
                    unit.name if first else "",
                    lane,
                    spread(result.figure(lane), unit.form) + marks(result, lane),
                    "1" if first else spread(result.ratio(lane), ".2f"),
                    f"{cpu.median:.2f}" if cpu else "",
                )
            )
    return lines


def spread(values: Spread, form: str) -> str:
    return f"{values.median:{form}} ({values.low:{form}}–{values.high:{form}})"


def marks(result: RowResult, lane: str) -> str:
    return "".join(mark for mark, (applies, _) in MARKS.items() if applies(result, lane))


def spilled(result: RowResult, lane: str) -> bool:
    return result.row.in_memory and any(run.on_disk for run in result.runs[lane])


def fell_behind(result: RowResult, lane: str) -> bool:
    return not result.row.in_memory and any(run.behind > run.messages // 100 for run in result.runs[lane])


MARKS = {
    "†": (spilled, "more messages than the memory queue holds: some went to disk."),
    "‡": (
        fell_behind,
        "more than 1 % of the messages were still in the topic's disk queue, and not yet in the channel's, when the "
        "last one was acknowledged. The CPU time includes the rest.",
    ),
}


def notes(results: Sequence[RowResult], load: Load) -> list[str]:
    turns = max(len(runs) for result in results for runs in result.runs.values())
    lines = [
        f"Medians of {turns} interleaved runs, each with a fresh daemon; bench programs run for {load.seconds:g} s, a "
        f"backlog is {load.stored:,} messages, all bodies have {BODY_SIZE} bytes. A ratio is the speed relative to the "
        f"first daemon in the same turn, above 1 is faster. {len(os.sched_getaffinity(0))} CPUs, Python "
        f"{platform.python_version()}."
    ]
    for mark, (applies, text) in MARKS.items():
        if any(applies(result, lane) for result in results for lane in result.runs):
            lines += ["", f"{mark} {text}"]
    return lines


def write_json(path: Path, results: Sequence[RowResult], load: Load) -> None:
    """Every single run, with the medians and ranges of the table; raises OSError."""
    document = {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "seconds": load.seconds,
        "backlog": load.stored,
        "rows": {result.row.name: row_document(result) for result in results},
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def row_document(result: RowResult) -> dict[str, object]:
    return {
        "title": result.row.title,
        "unit": result.row.unit.name,
        "lanes": {
            lane: {
                "figure": asdict(result.figure(lane)),
                "ratio": asdict(result.ratio(lane)),
                "cpu_seconds_per_million": asdict(cpu) if (cpu := result.cpu_per_million(lane)) else None,
                "runs": [asdict(run) for run in runs],
            }
            for lane, runs in result.runs.items()
        },
    }
