"""Procedures about the disk: draining a backlog, a clean exit with one, a start."""

import http.client
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients import drain
from benchmarks.lanes import BenchmarkError, cpu_seconds, total_cpu_seconds
from benchmarks.queues import (
    BODY_SIZE,
    CHANNEL,
    SETTLE_SECONDS,
    TOPIC,
    channel_stats,
    connections,
    fill,
    wait_for_channel,
)
from benchmarks.row import SECONDS, Load, Measurement
from kit.daemons import DEADLINE, Daemon, eventually, free_port
from kit.traffic import create, post

POLL_SECONDS = 0.001
TOPICS = 1000
CHANNELS = 4
STAGES = dict.fromkeys(("create", "after-kill", "exit", "after-exit"), SECONDS)

# The consumer must not be what is measured.
MAX_BUSY = 0.5


def drainer(rdy: int) -> Callable[[Daemon, Load], Measurement]:
    """All that is stored goes to as many connections as nsq's bench programs open.

    The last windows are left out of the rate: less than an output buffer's load waits up to output-buffer-timeout for
    the next tick, which is not a speed.
    """

    def measure(daemon: Daemon, load: Load) -> Measurement:
        if (depth := channel_stats(daemon)["backend_depth"]) != load.stored:
            raise BenchmarkError(f"{depth} messages on disk instead of {load.stored}")
        until = max(load.stored - 2 * rdy * connections(), 1)
        before = cpu_seconds(daemon)
        drained = drain(
            daemon.tcp_address, TOPIC, CHANNEL, load.stored, BODY_SIZE, rdy=rdy, connections=connections(), until=until
        )
        wait_for_channel(daemon, in_flight_count=0)
        spent = cpu_seconds(daemon) - before
        if drained.busy > MAX_BUSY:
            raise BenchmarkError(f"the consumer was busy {drained.busy:.0%} of the time")
        return Measurement(drained.messages / drained.seconds, load.stored, spent)

    return measure


def drain_rewound(daemon: Daemon, load: Load) -> Measurement:
    """As `drainer`, in a daemon with retention after all was finished, and the channel rewound."""
    fill(daemon, load.stored)
    channel = f"topic={TOPIC}&channel={CHANNEL}"
    if daemon.http("GET", f"/channel/rewind?{channel}&to=first")[0] == 200:
        post(daemon, f"/channel/empty?{channel}")
        post(daemon, f"/channel/rewind?{channel}&to=first")
    return drainer(2500)(daemon, load)


def restart(daemon: Daemon, load: Load) -> Measurement:
    """From just before exec to the first answer to /ping, after a clean exit."""
    if (code := daemon.terminate()) != 0:
        raise BenchmarkError(f"exited with {code}")
    return start(daemon)


def start(daemon: Daemon) -> Measurement:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        answered = pool.submit(first_answer, port)
        daemon.restart(*daemon.flags, f"--http-address=127.0.0.1:{port}")
        seconds = answered.result() - began
    return Measurement(seconds, cpu_seconds=cpu_seconds(daemon))


def first_answer(port: int) -> float:
    """The monotonic time at which /ping is first answered with 200."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        try:
            connection.request("GET", "/ping")
            if connection.getresponse().status == 200:
                return time.monotonic()
        except ConnectionError:
            pass
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    raise BenchmarkError(f"/ping was not answered within {DEADLINE:g} s")


def clean_exit(daemon: Daemon, load: Load) -> Measurement:
    """From SIGTERM to the end of the process, with as many messages in memory as are stored elsewhere."""
    fill(daemon, load.stored)
    if (depth := channel_stats(daemon)["backend_depth"]) != 0:
        raise BenchmarkError(f"{depth} messages on disk already")
    return end(daemon, load.stored)


def clean_exit_of_channels(daemon: Daemon, load: Load) -> Measurement:
    """The same with CHANNELS channels, each of which has the messages; and the start after that."""
    create(daemon, TOPIC, *(f"{CHANNEL}{number}" for number in range(1, CHANNELS)))
    fill(daemon, load.stored)
    return Measurement(parts={"exit": end(daemon, load.stored).value, "after-exit": start(daemon).value})


def end(daemon: Daemon, messages: int) -> Measurement:
    before = total_cpu_seconds(daemon)
    began = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    # Not reaped yet: its CPU time stays in /proc until then.
    eventually(lambda: os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), "exit", SETTLE_SECONDS)
    seconds = time.monotonic() - began
    spent = total_cpu_seconds(daemon) - before
    if (code := daemon.wait()) != 0:
        raise BenchmarkError(f"exited with {code}:\n{daemon.log()}")
    return Measurement(seconds, messages, spent)


def many_topics(daemon: Daemon, load: Load) -> Measurement:
    """TOPICS topics with a channel each: to create them over HTTP, one after the other; to start again with a message
    in each after SIGKILL, which only a journal keeps; to exit with these messages; to start after that."""
    began = time.monotonic()
    for number in range(TOPICS):
        create(daemon, f"t{number}", CHANNEL)
    created = time.monotonic() - began
    for number in range(TOPICS):
        post(daemon, f"/pub?topic=t{number}", b"message")
    daemon.kill()
    killed = start(daemon).value
    ended = end(daemon, TOPICS).value
    started = start(daemon).value
    return Measurement(parts=dict(zip(STAGES, (created, killed, ended, started), strict=True)))
