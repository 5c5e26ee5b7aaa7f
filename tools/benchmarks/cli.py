"""The command line: which lanes and rows, how often and how long."""

import argparse
import fnmatch
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.harness import Harness, RowResult
from benchmarks.lanes import DIRECTORY_PREFIX, BenchmarkError, Lane
from benchmarks.row import BenchmarkLoad, BenchmarkRow
from benchmarks.rows import ROWS
from kit.certificates import issue
from kit.daemons import PEERS, raise_file_limit


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 with a line on stderr for each comparison that is not possible, 130 on Ctrl-C. What
    other rows have measured is not lost with one that fails."""
    arguments = parser().parse_args(argv)
    raise_file_limit()
    results: list[RowResult] = []
    failures: list[object] = []
    try:
        draw = load_plot() if arguments.plot else None
        rows = select(arguments.rows)
        lanes = find_lanes(arguments)
        with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
            certificate = issue("localhost").write(Path(directory) / "server")
            load = BenchmarkLoad(arguments.seconds, arguments.backlog, certificate)
            harness = Harness(lanes, arguments.runs, load, print_progress)
            for row in rows:
                try:
                    results += harness.run(row)
                except (BenchmarkError, OSError) as error:
                    failures.append(error)
        if results:
            print(report.markdown(results, load))
            if arguments.json:
                text = json.dumps(report.document(results, load), indent=2)
                arguments.json.write_text(f"{text}\n", encoding="utf-8")
            if draw:
                draw(results, arguments.plot)
    except (BenchmarkError, OSError) as error:
        failures.append(error)
    except KeyboardInterrupt:
        return 130
    for failure in failures:
        print_progress(f"benchmarks: {failure}")
    return 1 if failures else 0


def select(patterns: Sequence[str]) -> list[BenchmarkRow]:
    """Returns the rows whose names match one of the patterns, in the order of the table; raises BenchmarkError if a
    pattern matches none."""
    names = [row.name for row in ROWS]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise BenchmarkError(f"no row is called {pattern}; there are {', '.join(names)}")
    if not patterns:
        return [row for row in ROWS if not row.apart]
    return [row for row in ROWS if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python tools/benchmarks", description="Compare gnsqd with the real nsqd.")
    add = result.add_argument
    add("--runs", type=positive, default=5, metavar="N", help="of each row and daemon (%(default)s)")
    add("--seconds", type=seconds, default=3, metavar="N", help="that a load runs (%(default)s)")
    add("--backlog", type=positive, default=1_000_000, metavar="N", help="messages that a backlog has (%(default)s)")
    usual = ", ".join(row.name for row in ROWS if not row.apart)
    others = ", ".join(row.name for row in ROWS if row.apart)
    add("--rows", nargs="+", default=[], metavar="PATTERN", help=f"those called so, like 'both*', of {usual} (all "
        f"of these), {others}")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every run to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw the rows scale-* to FILE, a PNG; needs matplotlib")
    add("--real", default=str(PEERS / "nsqd"), metavar="CMD", help="the real nsqd (%(default)s)")
    add("--compiled", default=".venv/bin/gnsqd", metavar="CMD", help="ours, compiled (%(default)s)")
    add("--plain", default=".venv-plain/bin/gnsqd", metavar="CMD", help="ours, plain (%(default)s)")
    return result


def positive(text: str) -> int:
    if (number := int(text)) <= 0:
        raise ValueError(text)
    return number


def seconds(text: str) -> float:
    if not 0 < (number := float(text)) < math.inf:
        raise ValueError(text)
    return number


def load_plot() -> Callable[[Sequence[RowResult], Path], None]:
    try:
        from benchmarks.plot import draw  # here, because only this needs matplotlib
    except ImportError as error:
        raise BenchmarkError(f"a plot needs matplotlib: {error}") from None
    return draw


def find_lanes(arguments: argparse.Namespace) -> list[Lane]:
    """Returns the real nsqd and each of ours that is there and built as its name requires; logs which is left out, and
    why."""
    try:
        lanes = [Lane.parse("nsqd", arguments.real)]
    except BenchmarkError as error:
        raise BenchmarkError(f"{error} (make peers builds it)") from None
    for build, command in (("compiled", arguments.compiled), ("plain", arguments.plain)):
        try:
            lane = Lane.parse(f"gnsqd {build}", command)
            found = lane.build()
        except BenchmarkError as error:
            print_progress(f"without gnsqd {build}: {error}")
            continue
        except AssertionError as error:  # from the test kit
            raise BenchmarkError(f"gnsqd {build}: {error}") from error
        if found in (build, None):
            lanes.append(lane)
        else:
            print_progress(f"without {lane.name}: {command} is {found}")
    if len(lanes) == 1:
        raise BenchmarkError("nothing to compare nsqd with")
    return lanes


def print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
