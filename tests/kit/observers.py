"""Good clients that must not notice an attack on a daemon, and what the daemon holds open or in memory."""

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kit import preloaded
from kit.daemons import Instance, eventually
from kit.lookupds import RunningLookupd
from kit.nsq_client import HEARTBEAT, MESSAGE, NSQClient

GOOD = "good-topic"
SLOWEST = 5.0  # seconds for a good client: what a hang would exceed, and a noisy machine does not


class GoodClients:
    """A publisher and a consumer of one channel, each in its thread, from construction to `stop`.

    `slowest` is the most seconds that a publish took to be answered, or a message to be delivered.
    """

    def __init__(self, daemon: Instance) -> None:
        self.published: list[bytes] = []
        self.received: list[bytes] = []
        self.slowest = 0.0
        self._began: dict[bytes, float] = {}
        self._daemon = daemon
        self._random = random.Random(0)
        self._stopping = threading.Event()
        self._sent = 0
        self._all_sent = False
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._consume)]
        self._failures: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        try:
            with NSQClient(self._daemon.tcp_address) as client:
                while not self._all_sent:
                    # One more is sent after `stop`: the consumer may have had all others, and wait for a frame.
                    last = self._stopping.wait(0.002)
                    body = b"%d " % self._sent + self._random.randbytes(self._random.randrange(200))
                    self._sent += 1
                    self._all_sent = last  # only now, so that the consumer also waits for this one
                    began = self._began[body] = time.monotonic()
                    client.command(b"PUB " + GOOD.encode(), body)
                    while (answer := client.response()) == HEARTBEAT:
                        client.command(b"NOP")
                    assert answer == b"OK"
                    self._took(began)
                    self.published.append(body)
        except BaseException as error:
            self._failures.append(error)

    def _consume(self) -> None:
        try:
            with NSQClient(self._daemon.tcp_address) as client:
                client.subscribe(GOOD, "c", rdy=10)
                while not (self._all_sent and len(self.received) >= self._sent):
                    frame = client.frame()
                    if frame.type == MESSAGE:
                        body = frame.data[26:]
                        self._took(self._began.pop(body, time.monotonic()))
                        self.received.append(body)
                        client.command(b"FIN " + frame.data[10:26])
                    else:
                        client.command(b"NOP")
                client.command(b"CLS")  # a daemon that has not seen the end yet would deliver to it what comes next
                while client.frame().data != b"CLOSE_WAIT":
                    pass
        except BaseException as error:
            self._failures.append(error)

    def _took(self, began: float) -> None:
        self.slowest = max(self.slowest, time.monotonic() - began)

    def go_on(self, round_trips: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Waits until that many more messages have been received, and calls `meanwhile` again and again."""
        target = len(self.received) + round_trips

        def reached() -> bool:
            meanwhile()
            self.check()
            return len(self.received) >= target

        eventually(reached)

    def check(self) -> None:
        assert not self._failures, self._failures

    def stop(self) -> None:
        """Publishes no more, waits until everything has come, and raises AssertionError for what failed."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self.check()


@contextmanager
def served(daemon: Instance) -> Iterator[GoodClients]:
    """Serves good clients during the block, none of which may wait for long."""
    good = GoodClients(daemon)
    try:
        yield good
    finally:
        good.stop()
    assert good.slowest < SLOWEST


def open_files(pid: int | str) -> list[str]:
    """Returns what each descriptor of a process stands for (proc(5), fd), as far as they stay open meanwhile."""
    files = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            files.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return files


def sockets(daemon: Instance) -> int:
    """Returns how many sockets the daemon has open, without that of a fork to the process that started it."""
    own = sum(file.startswith("socket:") for file in open_files(daemon.pid))
    return own - isinstance(daemon.process, preloaded.Process)


def opened(directory: Path) -> int:
    """Returns how many descriptors this process has for the directory and its files."""
    return sum(Path(file).is_relative_to(directory) for file in open_files("self"))


def resident_bytes(daemon: Instance | RunningLookupd, field: str = "VmRSS") -> int:
    """Returns the resident memory (proc(5), status): VmRSS is now, VmHWM the most until now."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{daemon.pid}/status").read_text())
    assert match
    return int(match[1]) * 1024
