"""`python -m spark.bench`: what Spark's readers and writers cost, with gnsqd and the real nsqd in turns."""

import argparse
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kit.daemons import PEERS, own_command
from kit.spark_sessions import CONF, QUICK_JAVA, start_session
from spark.bench.rows import ROWS, SIZE, Cost, run_once

WARM_UP = 20_000  # messages
_HEADER = """\
| rows per second | daemon | median | range | CPU of Spark | of its Python | of the daemon |
|---|---|---:|---:|---:|---:|---:|"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark.bench", description=__doc__)
    parser.add_argument("--rows", nargs="*", choices=[row.key for row in ROWS], help="only these")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each run, a multiple of 1000")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()

    commands = {"gnsqd": own_command(), "nsqd": [str(PEERS / "nsqd")]}
    top = Path(tempfile.mkdtemp(prefix="nsq-bench-"))
    spark = start_session(top / "spark", conf={name: value for name, value in CONF.items() if value != QUICK_JAVA})
    print(_HEADER, flush=True)
    for row in ROWS:
        if arguments.rows and row.key not in arguments.rows:
            continue
        costs: dict[str, list[Cost]] = {name: [] for name in row.of}
        for run in range(-1, arguments.runs):
            for name, found in costs.items():
                directory = Path(tempfile.mkdtemp(dir=top))
                messages = WARM_UP if run < 0 else arguments.messages
                cost = run_once(row, spark, commands[name], directory, messages)
                shutil.rmtree(directory)
                if run >= 0:
                    found.append(cost)
        for name, found in costs.items():
            print(_line(row.name, name, found), flush=True)
    print(
        "\nCPU time is in seconds per million messages.\n"
        f"{arguments.messages:,} messages of {SIZE} bytes, {arguments.runs} runs each, local[2] on "
        f"{os.cpu_count()} CPUs, Spark {spark.version}, Python {platform.python_version()}"
    )
    spark.stop()
    shutil.rmtree(top, ignore_errors=True)


def _line(row: str, daemon: str, costs: Sequence[Cost]) -> str:
    """Returns a line of the table: figures are medians."""
    cost = Cost(*map(statistics.median, zip(*costs, strict=True)))
    rates = sorted(1 / each.seconds for each in costs)
    parts = [row, daemon, f"{1 / cost.seconds:,.0f}", f"{rates[0]:,.0f}-{rates[-1]:,.0f}"]
    parts += [f"{each * 1e6:.2f}" for each in (cost.spark, cost.python, cost.daemon)]
    return f"| {' | '.join(parts)} |"


if __name__ == "__main__":
    main()
