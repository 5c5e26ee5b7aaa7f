"""`python -m spark.faults`: plays the rows, and prints the table of contrib/docs/spark.md as it goes."""

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from kit import table_formats
from kit.daemons import exit_on_signals
from spark.faults.scenarios import ROWS, SHORT, play

HEAD = "| | times | published | rows | distinct ids | lost | duplicated | starts |\n| --- |" + " ---: |" * 7


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark.faults", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the rows of the short version, that tests run")
    parser.add_argument("--rows", default="", help="only rows whose name this regular expression finds")
    parser.add_argument("--times", type=int, help="that many faults instead of the row's own number")
    parser.add_argument("--keep", action="store_true", help="keep the files of each row")
    arguments = parser.parse_args()
    exit_on_signals()
    start = time.monotonic()
    wrong = []
    print(HEAD, flush=True)
    for row in SHORT if arguments.short else ROWS:
        if not re.search(arguments.rows, row.name):
            continue
        if row.table_format != "parquet" and row.table_format != table_formats.installed():
            print(f"{row.name}: left out, there is no such package for this Spark", file=sys.stderr)
            continue
        directory = Path(tempfile.mkdtemp(prefix="nsq-faults-"))
        counts, gone, deaths = play(row, directory, arguments.times)
        times = len(row.faults) * (row.times if arguments.times is None else arguments.times)
        cells = [row.name, times, *counts, deaths + 1]
        print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
        if counts.lost > gone or (counts.duplicated and not row.may_repeat):
            wrong.append(row.name)
        if arguments.keep:
            print(f"<!-- {directory} -->", flush=True)
        else:
            shutil.rmtree(directory)
    print(f"\nTook {time.monotonic() - start:.0f} s.")
    if wrong:
        raise SystemExit(f"lost or duplicated: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
