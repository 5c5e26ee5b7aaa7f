"""The programs that load a daemon: nsq's own bench_writer and bench_reader, whose log line carries the rate, and the
load generator in tests/peers/load, which prints JSON."""

import contextlib
import json
import math
import re
import resource
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.lanes import BenchmarkError, cpu_seconds
from benchmarks.queues import BODY_SIZE, CHANNEL, SETTLE_SECONDS, TOPIC, connections, create_channel, wait_for_channel
from kit.daemons import PEERS, Daemon

GENERATOR = PEERS / "load"
ON_CHANNEL = f"-channel={CHANNEL}"
MPUB_BYTES = 4_000_000  # of a backlog; nsqd takes 5 MiB by default

# The line all of nsq's bench programs close with; the duration is Go's (302.9ms, 15.2s, 1m0.5s).
RESULT = re.compile(r"duration: (?:(\d+)m)?([\d.]+)(m?)s - .* - ([\d.]+)ops/s - ")


@dataclass(frozen=True)
class Loaded:
    """What a program did. Times are seconds; those of single messages are there where they were timed."""

    seconds: float
    published: int
    consumed: int
    cpu_seconds: float  # of the program
    p50: float
    p99: float
    longest: float
    # The daemon's CPU time when it began, and when it had ended: connecting and closing are not in between.
    before: float = 0.0
    after: float = 0.0


def bench_program(daemon: Daemon, name: str, seconds: float, *flags: str) -> tuple[float, int, float]:
    """Runs one of nsq's bench programs: messages per second, messages, its CPU time. BenchmarkError if it fails."""
    address = "--nsqd-tcp-address={}:{}".format(*daemon.tcp_address)
    command = [str(PEERS / name), address, f"--runfor={seconds:g}s", f"--size={BODY_SIZE}", f"--topic={TOPIC}", *flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_to_end(command, seconds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = RESULT.search(run.stderr)
    if result is None:
        raise BenchmarkError(f"{name} gave no result:\n{run.stderr.strip()}")
    minutes, seconds_of_it, milli, rate = result.groups()
    elapsed = 60 * int(minutes or 0) + float(seconds_of_it) / (1000 if milli else 1)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(rate), round(float(rate) * elapsed), spent


def generate(daemon: Daemon, mode: str, seconds: float, *flags: str) -> Loaded:
    """Runs the load generator for `seconds`; BenchmarkError if it fails."""
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


def generate_all(daemon: Daemon, count: int, *flags: str) -> Loaded:
    """Moves `count` messages, in SETTLE_SECONDS at most."""
    return generate(daemon, "move", SETTLE_SECONDS, f"-count={count}", *flags)


def publish(daemon: Daemon, count: int, body_size: int = BODY_SIZE) -> None:
    """By MPUBs without a remainder."""
    batch = math.gcd(count, max(MPUB_BYTES // body_size, 1))
    generate_all(daemon, count, "-publishers=1", f"-batch={batch}", f"-size={body_size}")


def fill(daemon: Daemon, count: int, body_size: int = BODY_SIZE) -> None:
    """Publishes `count` messages and waits until all of them are in the channel."""
    create_channel(daemon)
    publish(daemon, count, body_size)
    wait_for_channel(daemon, depth=count)


def drain(daemon: Daemon, count: int, rdy: int, *flags: str, seconds: float = SETTLE_SECONDS) -> Loaded:
    """Finishes `count` messages, or those of `seconds`, over as many connections as nsq's bench programs open."""
    to = [ON_CHANNEL, f"-consumers={connections()}", f"-rdy={rdy}", f"-count={count}"]
    return generate(daemon, "move", seconds, *to, *flags)


def generator(daemon: Daemon, mode: str, *flags: str) -> list[str]:
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
def holding(daemon: Daemon, *flags: str) -> Iterator[Loaded]:
    """Keeps the load generator's connections open; BenchmarkError if they are refused, or do not last."""
    with started(generator(daemon, "hold", *flags)) as process:
        assert process.stdout is not None
        if line := process.stdout.readline():
            yield parse(line)
        end(process)


@contextlib.contextmanager
def neighbour(daemon: Daemon, *flags: str) -> Iterator[None]:
    """Moves messages without end meanwhile; BenchmarkError if that stops."""
    with started(generator(daemon, "move", "-for=1h", *flags)) as process:
        yield
        if process.poll() is not None:
            end(process)
            raise BenchmarkError("the neighbour has ended")


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that does not outlast the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    """The load generator ends with its input; BenchmarkError if it failed."""
    _, complaint = process.communicate(timeout=SETTLE_SECONDS)
    if process.returncode != 0:
        raise BenchmarkError(f"load exited with {process.returncode}:\n{complaint.strip()}")
