"""What comes out: a table for the terminal, the same in Markdown for the README, and a JSON file with every run."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import NEAR_LIMIT, RowResult, Spread
from benchmarks.queues import BODY_SIZE
from benchmarks.row import Load, Measurement

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
            lines.append(
                (
                    result.row.title if first else "",
                    unit.heading if first else "",
                    lane,
                    spread(result.figure(lane), unit.form) + marks(result, lane),
                    "1" if first else spread(result.ratio(lane), ".2f"),
                    seconds(result.cpu_per_million(lane)),
                    "" if first or (cpu := result.cpu_ratio(lane)) is None else spread(cpu, ".2f"),
                    seconds(result.load_per_million(lane)),
                )
            )
        if result.limit is not None:
            lines.append(limit_cells(result, result.limit))
    return lines


def limit_cells(result: RowResult, limit: Measurement) -> tuple[str, ...]:
    """The line of the sink, which had one run."""
    base = result.figure(next(iter(result.runs))).median
    unit = result.row.unit
    own, clients = (seconds(Spread.of_known([cpu])) for cpu in (limit.cpu_per_million, limit.load_per_million))
    return ("", "", SINK, f"{limit.value:{unit.form}}", f"{unit.ratio(limit.value, base):.2f}", own, "", clients)


def seconds(values: Spread | None) -> str:
    return f"{values.median:.2f}" if values else ""


def spread(values: Spread, form: str) -> str:
    return f"{values.median:{form}} ({values.low:{form}}–{values.high:{form}})"


def marks(result: RowResult, lane: str) -> str:
    return "".join(mark for mark, (applies, _) in MARKS.items() if applies(result, lane))


def spilled(result: RowResult, lane: str) -> bool:
    return result.row.in_memory and any(run.on_disk for run in result.runs[lane])


def fell_behind(result: RowResult, lane: str) -> bool:
    return not result.row.in_memory and any(run.behind > run.messages // 100 for run in result.runs[lane])


SINK = "sink"

MARKS = {
    "†": (spilled, "more messages than the memory queue holds: some went to disk."),
    "‡": (
        fell_behind,
        "more than 1 % of the messages were still in the topic's disk queue, and not yet in the channel's, when the "
        "last one was acknowledged. The CPU time includes the rest.",
    ),
    "§": (
        RowResult.near_limit,
        f"more than {100 * NEAR_LIMIT:.0f} % of what the same clients reach with the sink, so they and the machine "
        "hold the daemon back: the CPU time tells more than the ratio.",
    ),
}


def notes(results: Sequence[RowResult], load: Load) -> list[str]:
    turns = max(len(runs) for result in results for runs in result.runs.values())
    lines = [
        f"Medians of {turns} interleaved runs, each with a fresh daemon; bench programs run for {load.seconds:g} s, a "
        f"backlog is {load.stored:,} messages, bodies have {BODY_SIZE} bytes where nothing else is said. A ratio is "
        "the speed relative to the first daemon in the same turn, above 1 is faster; where less is better, it is the "
        f"figure relative to that. {len(os.sched_getaffinity(0))} CPUs, Python {platform.python_version()}."
    ]
    if any(result.limit is not None for result in results):
        lines += ["", "The sink is a daemon that does no work; it shows what the clients and the machine can do."]
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
        "sink": None if result.limit is None else asdict(result.limit),
        "lanes": {
            lane: {
                "figure": asdict(result.figure(lane)),
                "ratio": asdict(result.ratio(lane)),
                "cpu_seconds_per_million": asdict(cpu) if (cpu := result.cpu_per_million(lane)) else None,
                "cpu_ratio": asdict(cpu) if (cpu := result.cpu_ratio(lane)) else None,
                "load_cpu_seconds_per_million": asdict(cpu) if (cpu := result.load_per_million(lane)) else None,
                "near_limit": result.near_limit(lane),
                "runs": [asdict(run) for run in runs],
            }
            for lane, runs in result.runs.items()
        },
    }
