"""`python tools/benchmarks instructions`: how many instructions gnsqd executes for a message, counted by callgrind.

Counts hardly change from run to run, whatever else the machine does, so they show a change of 1 %, which rates on a
noisy machine do not. They do not include the kernel, waiting for memory and polling: valgrind, which has to be
installed, makes gnsqd too slow to poll. The real nsqd cannot run in valgrind.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cli import positive, say
from benchmarks.lanes import DIRECTORY_PREFIX, BenchmarkError, Lane
from benchmarks.programs import generator, on_channel, run_to_end
from benchmarks.queues import create_channel
from kit.certificates import issue
from kit.daemons import Daemon

PATIENCE = 600.0  # seconds for a load
SHORT = 100  # commands of the load that only pays for its connections

# The load generator's flags, and the messages of a command: those of the rows of the other benchmarks.
LOADS: dict[str, tuple[list[str], int]] = {
    "pub": (["-publishers=1"], 1),
    "mpub-20": (["-publishers=1", "-batch=20"], 20),
    "both": (["-publishers=1", "-consumers=1", "-batch=20"], 20),
    "both-16": (["-publishers=16", "-consumers=16"], 1),
    "http-pub": (["-publishers=1", "-http={http}"], 1),
    "tls-pub": (["-publishers=1", "-tls"], 1),
    "tls-mpub-20": (["-publishers=1", "-tls", "-batch=20"], 20),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/benchmarks instructions", description=__doc__)
    parser.add_argument("--commands", type=positive, default=1000, help="of each load (default %(default)s)")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="(all)")
    parser.add_argument("--gnsqd", default=".venv/bin/python -P -m gnsqd", metavar="CMD", help="(%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        lane = Lane.parse("gnsqd", arguments.gnsqd)
        if shutil.which("valgrind") is None:
            raise BenchmarkError("no such program: valgrind")
        for name in arguments.loads:
            flags, batch = LOADS[name]
            count = measure(lane, flags, arguments.commands, batch)
            each = f", {count / batch:,.0f} a message" if batch > 1 else ""
            print(f"{name:12} {count:9,.0f} instructions a command{each}", flush=True)
    except (BenchmarkError, OSError) as error:
        say(f"benchmarks: {error}")
        return 1
    return 0


def measure(lane: Lane, flags: Sequence[str], commands: int, batch: int) -> float:
    """Instructions for each command of `batch` messages: what a longer load takes more than a short one."""
    with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
        counts = Path(directory, "callgrind")
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}"]
        certificate, key = issue("localhost").write(Path(directory) / "server")
        flags_of_daemon = ["--mem-queue-size=1000000", f"--tls-cert={certificate}", f"--tls-key={key}"]
        with Daemon([*valgrind, *lane.command], Path(directory, "data"), *flags_of_daemon) as daemon:
            create_channel(daemon)
            http = "{}:{}".format(*daemon.http_address)
            load = [on_channel(), *(flag.format(http=http) for flag in flags)]
            control("--instr=on", daemon)
            totals: list[int] = []
            for number in (SHORT, SHORT, SHORT + commands):  # the first one pays for what is done once
                limits = f"-for={PATIENCE:g}s", f"-count={number * batch}"
                run_to_end(generator(daemon, "move", *limits, *load), PATIENCE)
                control("--dump", daemon)
                totals.append(total(counts.with_name(f"{counts.name}.{len(totals) + 1}")))
            daemon.kill()
    return (totals[2] - totals[1]) / commands


def control(what: str, daemon: Daemon) -> None:
    subprocess.run(["callgrind_control", what, str(daemon.pid)], check=True, capture_output=True)


def total(path: Path) -> int:
    """The instructions since the last dump."""
    found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise BenchmarkError(f"callgrind wrote no total to {path}")
    return int(found[1])
