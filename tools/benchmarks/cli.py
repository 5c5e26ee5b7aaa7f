"""The command line: which lanes and rows, how often, how long, and in what form the result comes."""

import argparse
import fnmatch
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.backlog import Backlogs
from benchmarks.harness import RowResult, run_row
from benchmarks.lanes import DIRECTORY_PREFIX, GEVENT_ALONE, BenchmarkError, Lane
from benchmarks.programs import GENERATOR
from benchmarks.queues import fill
from benchmarks.row import Load, Row
from benchmarks.rows import FLOOR_ROWS, ROWS
from kit.certificates import issue
from kit.daemons import PEERS

# Messages prepared per second of consuming; doubled for the whole row when some lane turns out to be faster.
SUPPLY = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 with a line on stderr for each comparison that is not possible, 130 on Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        load = Load(arguments.seconds, SUPPLY, arguments.backlog)
        rows = select(arguments.rows)
        results, failures = run_rows(rows, arguments, load)
        if results:
            document = report.document(results, load)
            print((report.markdown if arguments.markdown else report.text)(document))
            if arguments.json:
                report.write_json(arguments.json, document)
    except (BenchmarkError, OSError) as error:
        failures = [error]
    except KeyboardInterrupt:
        return 130
    for failure in failures:
        say(f"benchmarks: {failure}")
    return 1 if failures else 0


def select(patterns: Sequence[str]) -> list[Row]:
    """The rows whose names match one of the patterns, in the order of the table; BenchmarkError if one matches none."""
    names = [row.name for row in ROWS]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise BenchmarkError(f"no row is called {pattern}; there are {', '.join(names)}")
    return [row for row in ROWS if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)]


def run_rows(rows: Sequence[Row], arguments: argparse.Namespace, load: Load) -> tuple[list[RowResult], list[Exception]]:
    """The results, and why some rows have none: what an hour has measured is not lost with the last row."""
    lanes = find_lanes(arguments)
    sink = Lane.parse(report.SINK, f"{GENERATOR} sink")
    with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
        load = replace(load, certificate=issue("localhost").write(Path(directory) / "server"))
        backlogs = Backlogs(Path(directory), lambda daemon: fill(daemon, load.stored))
        results: list[RowResult] = []
        failures: list[Exception] = []
        for row in rows:
            try:
                compared = [*lanes, GEVENT_ALONE] if arguments.floor and row.name in FLOOR_ROWS else lanes
                results += run_row(row, compared, arguments.runs, load, say, backlogs.of, sink)
            except (BenchmarkError, OSError) as error:
                failures.append(error)
        return results, failures


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python tools/benchmarks",
        description="Compare gnsqd with the real nsqd.",
        epilog="`python tools/benchmarks memory --help` is about the memory of a backlog, `scale --help` about great "
        "numbers of topics, connections and so on, `schedule --help` about deferred messages, `scrape --help` about "
        "/metrics, `instructions --help` about instructions per message.",
    )
    result.add_argument("--runs", type=positive, default=5, metavar="N", help="of each row and daemon (%(default)s)")
    result.add_argument(
        "--seconds", type=positive_seconds, default=3, metavar="N", help="that bench programs run (%(default)s)"
    )
    result.add_argument(
        "--backlog", type=positive, default=1_000_000, metavar="N", help="messages that a backlog has (%(default)s)"
    )
    names = ", ".join(row.name for row in ROWS)
    result.add_argument(
        "--rows",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help=f"those called so, like '*-consume', of {names} (all)",
    )
    served = ", ".join(FLOOR_ROWS)
    result.add_argument("--floor", action="store_true", help=f"also a gevent server that does no work, in {served}")
    result.add_argument("--json", type=Path, metavar="FILE", help="write every run to FILE")
    result.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    add_lane_options(result)
    return result


def add_lane_options(parser: argparse.ArgumentParser) -> None:
    """How to start the daemons."""
    parser.add_argument("--real", default=str(PEERS / "nsqd"), metavar="CMD", help="the real nsqd (%(default)s)")
    parser.add_argument("--compiled", default=".venv/bin/gnsqd", metavar="CMD", help="ours, compiled (%(default)s)")
    parser.add_argument("--plain", default=".venv-plain/bin/gnsqd", metavar="CMD", help="ours, plain (%(default)s)")


def positive(text: str) -> int:
    if (number := int(text)) <= 0:
        raise ValueError(text)
    return number


def positive_seconds(text: str) -> float:
    if not 0 < (seconds := float(text)) < math.inf:
        raise ValueError(text)
    return seconds


def find_lanes(arguments: argparse.Namespace) -> list[Lane]:
    """The real nsqd and each of ours that is there and built as its name requires; logs which is left out, and why."""
    try:
        lanes = [Lane.parse("nsqd", arguments.real)]
    except BenchmarkError as error:
        raise BenchmarkError(f"{error} (make peers builds it)") from None
    for build, command in (("compiled", arguments.compiled), ("plain", arguments.plain)):
        try:
            lane = Lane.parse(f"gnsqd {build}", command)
        except BenchmarkError as error:
            say(f"without gnsqd {build}: {error}")
            continue
        try:
            found = lane.build()
        except AssertionError as error:  # from tests/kit/daemons.py
            raise BenchmarkError(f"{lane.name}: {error}") from error
        if found not in (build, None):
            say(f"without {lane.name}: {command} is {found}")
            continue
        lanes.append(lane)
    if len(lanes) == 1:
        raise BenchmarkError("nothing to compare nsqd with")
    return lanes


def exit_code_of(measure: Callable[[], object]) -> int:
    """Exit code 0, 1 with a line on stderr when a daemon fails, 130 on Ctrl-C."""
    try:
        measure()
    except (AssertionError, BenchmarkError, OSError) as error:  # the first from tests/kit/daemons.py
        say(f"benchmarks: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
