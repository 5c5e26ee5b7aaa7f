"""Topic put and topic-to-channel put inside the process: nsq's own Go benchmarks beside the same loop in ours.

They need no daemon; what to measure is determined by the one that runs meanwhile, and by its command line.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.lanes import BenchmarkError
from benchmarks.programs import run_to_end
from benchmarks.row import Load, Measurement
from kit.daemons import PEERS, Daemon

LOOP = Path(__file__).with_name("put_loop.py")
GO_RESULT = re.compile(r"^Benchmark\w+(?:-\d+)?\s+\d+\s+([\d.]+) ns/op", re.MULTILINE)
GO_NAMES = {"topic": "BenchmarkTopicPut", "channel": "BenchmarkTopicToChannelPut"}


def put(kind: str) -> Callable[[Daemon, Load], Measurement]:
    """ns for each message that is put to a topic (`topic`), or also moved on to a channel (`channel`)."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        status, _, _ = daemon.http("GET", "/metrics")
        if status != 200:  # nsqd has no such page
            return Measurement(go_put(kind, load.seconds))
        return Measurement(own_put(interpreter(daemon.command), kind, load.seconds))

    return measure


def go_put(kind: str, seconds: float) -> float:
    flags = ["-test.run=^$", f"-test.bench=^{GO_NAMES[kind]}$", f"-test.benchtime={seconds:g}s"]
    run = run_to_end([str(PEERS / "nsqd.test"), *flags], 10 * seconds)
    found = GO_RESULT.search(run.stdout)
    if found is None:
        raise BenchmarkError(f"no result of {GO_NAMES[kind]}:\n{run.stdout}")
    return float(found[1])


def own_put(python: Sequence[str], kind: str, seconds: float) -> float:
    run = run_to_end([*python, "-P", str(LOOP), kind, f"{seconds:g}"], 10 * seconds)
    return float(json.loads(run.stdout)["ns_per_message"])


def interpreter(command: Sequence[str]) -> list[str]:
    """The Python that runs the program which `command` starts; BenchmarkError if that is unclear."""
    if "-m" in command:
        return [word for word in command[: command.index("-m")] if word != "-P"]
    with open(command[0], "rb") as file:
        line = file.readline(4096)
    if not line.startswith(b"#!") or b"python" not in line:
        raise BenchmarkError(f"it is unclear which Python runs {command[0]}")
    return line[2:].decode().split()
