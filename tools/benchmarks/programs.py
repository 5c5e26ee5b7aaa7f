"""The program that loads a daemon: the load generator in tests/peers/load, which prints JSON."""

import contextlib
import json
import math
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.lanes import BenchmarkError, cpu_seconds
from benchmarks.queues import BODY_SIZE, CHANNEL, SETTLE_SECONDS, TOPIC, connections, create_channel, wait_for_channel
from kit.daemons import PEERS, Instance

GENERATOR = PEERS / "load"
ON_CHANNEL = f"-channel={CHANNEL}"
MPUB_BYTES = 4_000_000  # of a backlog; nsqd takes 5 MiB by default


@dataclass(frozen=True)
class Loaded:
    """The result of a program. Times are seconds; those of single messages are there where they were timed."""

    seconds: float
    published: int
    consumed: int
    connected: int
    cpu_seconds: float  # of the program
    p50: float
    p99: float
    longest: float
    # The daemon's CPU time when it began, and when it had ended: connecting and closing are not in between.
    before: float = 0.0
    after: float = 0.0


def generate(daemon: Instance, mode: str, seconds: float, *flags: str) -> Loaded:
    """Runs the load generator for `seconds`; raises BenchmarkError if it fails."""
    with started(generator(daemon, mode, "-wait", f"-for={seconds:g}s", *flags)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        alarm = threading.Timer(11 * seconds + SETTLE_SECONDS, process.kill)
        alarm.start()
        line, before, after = "", 0.0, 0.0
        try:
            if process.stdout.readline():
                before = cpu_seconds(daemon)
                process.stdin.write("\n")
                process.stdin.flush()
                line = process.stdout.readline()
                after = cpu_seconds(daemon)
            end(process)
        finally:
            alarm.cancel()
    return replace(parse(line), before=before, after=after)


def generate_all(daemon: Instance, count: int, *flags: str) -> Loaded:
    """Moves `count` messages, in SETTLE_SECONDS at most."""
    return generate(daemon, "move", SETTLE_SECONDS, f"-count={count}", *flags)


def fill(daemon: Instance, count: int) -> None:
    """Publishes `count` messages and waits until all of them are in the channel."""
    create_channel(daemon)
    batch = math.gcd(count, MPUB_BYTES // BODY_SIZE)  # MPUBs without a remainder
    generate_all(daemon, count, "-publishers=1", f"-batch={batch}", f"-size={BODY_SIZE}")
    wait_for_channel(daemon, depth=count)


def drain(daemon: Instance, count: int, rdy: int, seconds: float, *flags: str) -> Loaded:
    """Finishes `count` messages, or those of `seconds`."""
    limits = f"-rdy={rdy}", f"-count={count}"
    return generate(daemon, "move", seconds, ON_CHANNEL, f"-consumers={connections()}", *limits, *flags)


def generator(daemon: Instance, mode: str, *flags: str) -> list[str]:
    return [str(GENERATOR), mode, "-tcp={}:{}".format(*daemon.tcp_address), f"-topic={TOPIC}", *flags]


def run_to_end(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    name = command[0].rpartition("/")[2]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds + SETTLE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{name} still runs after {error.timeout:g} s") from error
    if run.returncode != 0:
        raise BenchmarkError(f"{name} exited with {run.returncode}:\n{run.stderr.strip()}")
    return run


def parse(line: str) -> Loaded:
    try:
        return Loaded(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise BenchmarkError(f"load gave no result: {line.strip()!r}") from error


@contextlib.contextmanager
def holding(daemon: Instance, *flags: str) -> Iterator[Loaded]:
    """Keeps the load generator's connections open; raises BenchmarkError if they are refused, or do not last."""
    with started(generator(daemon, "hold", *flags)) as process:
        assert process.stdout is not None
        if line := process.stdout.readline():
            yield parse(line)
        end(process)


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a program that does not outlast the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    """Waits for the load generator, which ends with its input; raises BenchmarkError if it failed."""
    _, complaint = process.communicate(timeout=SETTLE_SECONDS)
    if process.returncode != 0:
        raise BenchmarkError(f"load exited with {process.returncode}:\n{complaint.strip()}")
