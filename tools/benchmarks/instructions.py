"""Counts the instructions that gnsqd executes for a command, by callgrind.

Counts hardly change from run to run, whatever else the machine does, so they show a change of 1 %, which rates on a
noisy machine do not. They do not include the kernel, waiting for memory and polling: valgrind, which has to be
installed, makes gnsqd too slow to poll. The real nsqd cannot run in valgrind.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.lanes import DIRECTORY_PREFIX, BenchmarkError
from benchmarks.programs import ON_CHANNEL, generator, run_to_end
from benchmarks.queues import create_channel
from benchmarks.row import BenchmarkLoad, Measurement, procedure
from kit.daemons import Instance, interpreter

PATIENCE = 600.0  # seconds for a load
SHORT = 100  # commands of the load that only pays for its connections

PROCESS = "--durability=process"

# The load generator's flags, those of the rows of the other benchmarks; the messages of a command; the daemon's flags.
LOADS: dict[str, tuple[list[str], int, list[str]]] = {
    "pub": (["-publishers=1"], 1, []),
    "pub-process": (["-publishers=1"], 1, [PROCESS]),
    "mpub-20": (["-publishers=1", "-batch=20"], 20, []),
    "mpub-200-process": (["-publishers=1", "-batch=200"], 200, [PROCESS]),
    "both": (["-publishers=1", "-consumers=1", "-batch=20"], 20, []),
    "both-process": (["-publishers=1", "-consumers=1", "-batch=20"], 20, [PROCESS]),
    "both-16": (["-publishers=16", "-consumers=16"], 1, []),
    "http-pub": (["-publishers=1", "-http={http}"], 1, []),
    "tls-pub": (["-publishers=1", "-tls"], 1, []),
    "tls-mpub-20": (["-publishers=1", "-tls", "-batch=20"], 20, []),
}


@procedure
def instructions(running: Instance, load: BenchmarkLoad, name: str) -> Measurement:
    """Counts those of another daemon than the one that runs meanwhile: with its interpreter and flags, in valgrind."""
    flags, batch, daemon_flags = LOADS[name]
    commands = max(load.stored // 1000, 1)
    if shutil.which("valgrind") is None:
        raise BenchmarkError("no such program: valgrind")
    with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
        counts = Path(directory, "callgrind")
        pipes = f"--vgdb-prefix={directory}/vgdb"  # SIGKILL leaves them behind
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}", pipes]
        # valgrind does not follow a script into its interpreter
        command += running.command if "-P" in running.command else [*interpreter(running.command), "-P", "-m", "gnsqd"]
        with Instance(command, Path(directory, "data"), *running.flags, *daemon_flags) as daemon:
            create_channel(daemon)
            http = "{}:{}".format(*daemon.http_address)
            to = [ON_CHANNEL, *(flag.format(http=http) for flag in flags)]
            control(daemon, pipes, "--instr=on")
            totals: list[int] = []
            for number in (SHORT, SHORT, SHORT + commands):  # the first one pays for what is done once
                limits = f"-for={PATIENCE:g}s", f"-count={number * batch}"
                run_to_end(generator(daemon, "move", *limits, *to), PATIENCE)
                control(daemon, pipes, "--dump")
                totals.append(total(counts.with_name(f"{counts.name}.{len(totals) + 1}")))
            daemon.kill()
    return Measurement((totals[2] - totals[1]) / commands)


def control(daemon: Instance, *what: str) -> None:
    subprocess.run(["callgrind_control", *what, str(daemon.pid)], check=True, capture_output=True)


def total(path: Path) -> int:
    """Returns the instructions since the last dump."""
    found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise BenchmarkError(f"callgrind wrote no total to {path}")
    return int(found[1])
