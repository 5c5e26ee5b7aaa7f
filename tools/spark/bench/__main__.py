"""`python -m spark.bench`: rows per second of Spark's readers and writers, with gnsqd and the real nsqd in turns."""

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from kit.daemons import PEERS, own_command
from kit.spark_sessions import CONF, QUICK_JAVA, start_session
from spark.bench.rows import ROWS, SIZE, run_once

WARM_UP = 20_000  # messages


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark.bench", description=__doc__)
    parser.add_argument("--rows", nargs="*", choices=[row.key for row in ROWS], help="only these")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each run, a multiple of 4000")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()

    commands: dict[str, list[str]] = {"ceiling": [], "gnsqd": own_command()}
    if (PEERS / "nsqd").exists():
        commands["nsqd"] = [str(PEERS / "nsqd")]
    top = Path(tempfile.mkdtemp(prefix="nsq-bench-"))
    spark = start_session(top / "spark", conf={name: value for name, value in CONF.items() if value != QUICK_JAVA})
    from spark.bench.ceiling import CeilingSource

    spark.dataSource.register(CeilingSource)
    print("| rows per second | daemon | median | range | of the ceiling |\n|---|---|---:|---:|---:|", flush=True)
    for row in ROWS:
        if arguments.rows and row.key not in arguments.rows:
            continue
        rates: dict[str, list[float]] = {name: [] for name in commands}
        for run in range(-1, arguments.runs):
            for name, command in commands.items():
                directory = Path(tempfile.mkdtemp(dir=top))
                rate = run_once(row, spark, command, directory, WARM_UP if run < 0 else arguments.messages)
                shutil.rmtree(directory)
                if run >= 0:
                    rates[name].append(rate)
        ceiling = statistics.median(rates.pop("ceiling"))
        for name, found in rates.items():
            median = statistics.median(found)
            ratio = f"{median / ceiling:.0%}"
            between = f"{min(found):,.0f}-{max(found):,.0f}"
            print(f"| {row.name} | {name} | {median:,.0f} | {between} | {ratio} |", flush=True)
    print(
        "\nThe ceiling is a source that yields the same batches, or a sink that drops them, without NSQ.\n"
        f"{arguments.messages:,} messages of {SIZE} bytes, {arguments.runs} runs each, local[2] on "
        f"{os.cpu_count()} CPUs, Spark {spark.version}, Python {platform.python_version()}"
    )
    spark.stop()
    shutil.rmtree(top, ignore_errors=True)
    sys.exit()


if __name__ == "__main__":
    main()
