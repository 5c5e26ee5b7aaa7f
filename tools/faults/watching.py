"""Looks at the memory, open files and greenlets of daemons in a long run, and judges its end.

Flat is what is no higher in the last tenth of the time than in the second to fifth, by medians.
"""

import os
import re
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import getrandbits
from statistics import median
from typing import NamedTuple

from faults.ledger import Ledger
from faults.mixed_load import Clients
from kit.daemons import DEADLINE

MB = 1e6
MEMORY_GROWTH = 1.05
MEMORY_SLACK = 3.0  # MB
COMING_AND_GOING = 12  # connections that may just be there, or not
LONG_ENOUGH = 600.0  # seconds, to judge what grows while there are clients: dead greenlets go once a minute


class Sample(NamedTuple):
    memory: float  # resident, MB
    files: int
    greenlets: int


class Growth(NamedTuple):
    """A figure that must not have grown: early and late, and the limit of the latter."""

    what: str
    early: float
    late: float
    limit: float

    @property
    def is_flat(self) -> bool:
        return self.late <= self.limit


def sample(pid: int, metrics: str) -> Sample:
    """Returns the figures of a process, which has this page of metrics."""
    resident = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    greenlets = re.search(r"^gnsqd_greenlets (\d+)", metrics, re.MULTILINE)
    assert resident
    assert greenlets
    return Sample(int(resident[1]) * 1024 / MB, len(os.listdir(f"/proc/{pid}/fd")), int(greenlets[1]))


def watch(
    looks: Mapping[str, Callable[[], Sample]],
    seconds: float,
    clients: Clients,
    line: Callable[[Mapping[str, Sample]], str],
) -> list[Growth]:
    """Looks at the daemons until the time is over or a client fails, and prints a line every minute, or ten in a run
    that is shorter than that. Returns the growth of each, if the time was long enough to judge it."""
    samples: dict[str, list[Sample]] = {name: [] for name in looks}
    began = time.monotonic()
    next_line = began + min(60.0, seconds / 10)
    while (now := time.monotonic()) < began + seconds and not clients.failures:
        for name, look in looks.items():
            samples[name].append(look())
        if now >= next_line:
            next_line += min(60.0, seconds / 10)
            latest = {name: taken[-1] for name, taken in samples.items()}
            report(f"{time.strftime('%H:%M:%S', time.gmtime(now - began))} {line(latest)}")
        time.sleep(max(seconds / 600, 0.2))
    if seconds < LONG_ENOUGH or clients.failures:
        return []
    return [growth for name, taken in samples.items() for growth in compare(name, taken)]


def compare(name: str, samples: Sequence[Sample]) -> list[Growth]:
    """Compares the second to fifth tenth of the time with the last."""
    count = len(samples)
    early, late = samples[count // 10 : max(count // 2, 1)], samples[9 * count // 10 :]
    before, after = (Sample(*map(median, zip(*part, strict=True))) for part in (early, late))
    limit = max(before.memory * MEMORY_GROWTH, before.memory + MEMORY_SLACK)
    return [
        Growth(f"{name}: resident memory, MB", before.memory, after.memory, limit),
        Growth(f"{name}: open files", before.files, after.files, before.files + COMING_AND_GOING),
        Growth(f"{name}: greenlets", before.greenlets, after.greenlets, before.greenlets + COMING_AND_GOING),
    ]


def settle(ledgers: Sequence[Ledger], clients: Clients) -> None:
    """Waits until all is finished, or nothing moves any more."""

    def finished() -> int:
        return sum(receipts.finished_count for ledger in ledgers for receipts in ledger.channels.values())

    before, deadline = finished(), time.monotonic() + DEADLINE
    while not clients.failures and not all(ledger.is_finished() for ledger in ledgers) and time.monotonic() < deadline:
        if finished() > before:
            before, deadline = finished(), time.monotonic() + DEADLINE
        time.sleep(0.02)


def parse(program: str, description: str | None) -> ArgumentParser:
    """Returns the options that all long runs have."""
    parser = ArgumentParser(prog=program, description=description)
    parser.add_argument("--minutes", type=float, default=60.0, help="ten at least, to judge what grows")
    parser.add_argument("--seed", type=int, default=getrandbits(32))
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between two publishes of a publisher")
    return parser


def conclude(growths: Iterable[Growth], counts: Mapping[str, int], complaints: Sequence[str]) -> int:
    """Prints the result; returns the exit code."""
    for growth in growths:
        report(f"{growth.what}: {growth.early:g} early, {growth.late:g} late, at most {growth.limit:g}")
    report(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    wrong = [*complaints, *(f"{growth.what} not flat" for growth in growths if not growth.is_flat)]
    for complaint in wrong:
        report(f"WRONG: {complaint}")
    return 1 if wrong else 0


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
