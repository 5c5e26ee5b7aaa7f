"""A soak: an hour of mixed load, or as long as one likes, after which nothing is lost and nothing has grown.

    PYTHONPATH=tests:tools python -m faults.soak --minutes=60 --durability=process

The daemon's memory, open files and greenlets are looked at all the time, and a line about them is printed every minute.
At the end everything is taken, and the tally of what was published and finished must agree with itself and with the
daemon's counters. Flat is what is no higher in the last tenth of the time than in the second to fifth, by medians.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from traceback import format_exception
from typing import NamedTuple

from faults.mixed_load import MixedLoad
from faults.tally import Tally
from kit.certificates import issue
from kit.daemons import DEADLINE, Daemon, eventually, exit_on_signals, own_command
from kit.observers import resident_bytes
from kit.traffic import create, post

TOPICS = ("t", "u")
CHANNELS = ("one", "two")
FLAGS = ("--msg-timeout=2s", "--mem-queue-size=100", "--max-bytes-per-file=1000000")

MB = 1e6
MEMORY_GROWTH = 1.05
MEMORY_SLACK = 3.0  # MB
COMING_AND_GOING = 12  # connections that may just be there, or not
LONG_ENOUGH = 600.0  # seconds, to judge what grows while there are clients: dead greenlets go once a minute
QUEUES = len(TOPICS) * (1 + len(CHANNELS))

LINE = "{:>8} {:>8} {:>6} {:>10} {:>8} {:>10} {:>10} {:>11}"
HEAD = LINE.format("time", "RSS, MB", "files", "greenlets", "depth", "published", "finished", "reconnects")


class Sample(NamedTuple):
    seconds: float  # since the beginning
    memory: float  # resident, MB
    files: int
    greenlets: int


class Row(NamedTuple):
    """What must not have grown: how much it was early and late, and how much it may be late."""

    what: str
    early: float
    late: float
    limit: float

    @property
    def is_flat(self) -> bool:
        return self.late <= self.limit


def look(daemon: Daemon, seconds: float) -> Sample:
    page = daemon.http("GET", "/metrics")[2]
    greenlets = re.search(rb"^gnsqd_greenlets (\d+)", page, re.MULTILINE)
    assert greenlets
    files = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    return Sample(seconds, resident_bytes(daemon) / MB, files, int(greenlets[1]))


def compare(samples: Sequence[Sample]) -> list[Row]:
    """The second to fifth tenth of the time with the last."""
    count = len(samples)
    early, late = samples[count // 10 : max(count // 2, 1)], samples[9 * count // 10 :]
    memory, files, greenlets = ((median(r[at] for r in early), median(r[at] for r in late)) for at in (1, 2, 3))
    return [
        Row("resident memory, MB", *memory, max(memory[0] * MEMORY_GROWTH, memory[0] + MEMORY_SLACK)),
        Row("open files", *files, files[0] + COMING_AND_GOING),
        Row("greenlets", *greenlets, greenlets[0] + COMING_AND_GOING),
    ]


class Soak:
    """One daemon and its clients, with a line every minute, ten in a run that is shorter than that. `complaints` is
    empty if all is well."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.tallies = [Tally(name, CHANNELS) for name in TOPICS]
        self.counts: Counter[str] = Counter()
        self.rows: list[Row] = []
        self.complaints: list[str] = []
        self._daemon = daemon
        self._seed = seed

    def run(self, seconds: float, interval: float) -> None:
        for topic in TOPICS:
            create(self._daemon, topic, *CHANNELS)
        before = self._at_rest()
        load = MixedLoad(self._daemon, self.tallies, self._seed, interval)
        self.counts = load.counts
        samples: list[Sample] = []
        try:
            self._watch(load, samples, seconds)
            load.stop_publishing()
            self._settle(load)
        except Exception as error:
            load.failures.append(error)
        finally:
            load.stop()
        if load.failures:
            self.complaints = ["".join(format_exception(error)) for error in load.failures]
            return
        if seconds >= LONG_ENOUGH:
            self.rows = compare(samples)
        self._judge_rest(before)
        self.complaints += [f"{row.what} not flat" for row in self.rows if not row.is_flat]

    def _watch(self, load: MixedLoad, samples: list[Sample], seconds: float) -> None:
        between_samples, between_lines = max(seconds / 600, 0.2), min(60.0, seconds / 10)
        next_line = between_lines
        began = time.monotonic()
        report(HEAD)
        while (now := time.monotonic() - began) < seconds and not load.failures:
            if not samples or now >= samples[-1].seconds + between_samples:
                samples.append(look(self._daemon, now))
            if now >= next_line:
                next_line += between_lines
                report(self._line(samples[-1]))
            time.sleep(min(between_samples, 1.0))

    def _line(self, sample: Sample) -> str:
        passed = time.strftime("%H:%M:%S", time.gmtime(sample.seconds))
        return LINE.format(
            passed,
            f"{sample.memory:.1f}",
            sample.files,
            sample.greenlets,
            self._depth(),
            sum(tally.count for tally in self.tallies),
            self._finished(),
            self.counts["reconnects"],
        )

    def _depth(self) -> int:
        """Messages that wait anywhere, are in flight or held back."""
        depth = 0
        for topic in self._daemon.stats()["topics"]:
            depth += topic["depth"]
            for channel in topic["channels"]:
                depth += channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        return depth

    def _finished(self) -> int:
        return sum(receipts.finished_count for tally in self.tallies for receipts in tally.channels.values())

    def _settle(self, load: MixedLoad) -> None:
        """Until all is finished, or nothing moves any more."""
        finished, deadline = self._finished(), time.monotonic() + DEADLINE
        while not load.failures and not all(tally.finished() for tally in self.tallies):
            if self._finished() > finished:
                finished, deadline = self._finished(), time.monotonic() + DEADLINE
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)

    def _judge_rest(self, before: Sample) -> None:
        """Without clients: all that was published is finished, and nothing but what lasts is there."""
        try:
            eventually(self._nothing_else)
        except AssertionError:
            self.complaints.append(f"something that came stays: {self._daemon.stats()}")
        topics = {topic["topic_name"]: topic for topic in self._daemon.stats()["topics"]}
        for tally in self.tallies:
            self.complaints += tally.complaints(topics[tally.topic])
        # A queue may keep files open, and know the greenlets of its last sync.
        files, greenlets = before.files + 2 * QUEUES, before.greenlets + 2 * QUEUES
        deadline = time.monotonic() + DEADLINE
        while (after := self._at_rest()).files > files or after.greenlets > greenlets:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.rows.append(Row("open files before and after", before.files, after.files, files))
        self.rows.append(Row("greenlets before and after", before.greenlets, after.greenlets, greenlets))

    def _at_rest(self) -> Sample:
        """Without garbage that the collector, which runs once a minute, has not freed yet."""
        post(self._daemon, "/debug/freememory")
        return look(self._daemon, 0)

    def _nothing_else(self) -> bool:
        topics = self._daemon.stats()["topics"]
        channels = [channel for topic in topics for channel in topic["channels"]]
        return (
            sorted(topic["topic_name"] for topic in topics) == sorted(TOPICS)
            and len(channels) == len(TOPICS) * len(CHANNELS)
            and not any(channel["client_count"] for channel in channels)
        )

    def judge_end(self) -> None:
        """Of the process, and of what it leaves."""
        if (code := self._daemon.terminate()) != 0:
            self.complaints.append(f"exit code {code}")
        log = self._daemon.log()
        self.complaints += [f"{what} in the log" for what in ("Traceback (most", " FATAL: ") if what in log]
        beginnings = ("nsqd.dat", "gnsqd.reserve.dat", *(f"{topic}{mark}" for topic in TOPICS for mark in ".:"))
        left = [
            name
            for name in os.listdir(self._daemon.data_path)
            if not name.startswith(beginnings) or name.endswith(".bad")
        ]
        if left:
            self.complaints.append(f"{len(left)} files left, such as {sorted(left)[:3]}")


def tables(soak: Soak) -> Iterable[str]:
    """In Markdown."""
    yield "| | early | late | at most | flat |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for row in soak.rows:
        sizes = [f"{round(size, 1):g}" for size in (row.early, row.late, row.limit)]
        yield f"| {row.what} | {' | '.join(sizes)} | {'yes' if row.is_flat else 'NO'} |"
    yield ""
    yield "| topic | channel | published | finished | requeued | timed out | lost | delivered again |"
    yield f"| --- | --- |{' ---: |' * 6}"
    for tally in soak.tallies:
        for name, receipts in tally.channels.items():
            timed_out = sum(receipts.attempts) - tally.count - receipts.requeues
            figures = (tally.count, receipts.finished_count, receipts.requeues, timed_out)
            bad = (len(tally.lost(name)), len(receipts.again))
            yield f"| {tally.topic} | {name} | {' | '.join(map(str, (*figures, *bad)))} |"
    yield ""
    yield ", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items()))


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="ten at least, to judge what grows")
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between two publishes of a publisher")
    parser.add_argument("--durability", help="the daemon's option")
    parser.add_argument("flags", nargs="*", help="more options for the daemon, behind --")
    asked = parser.parse_args()
    flags = [*FLAGS, *([f"--durability={asked.durability}"] if asked.durability else []), *asked.flags]
    exit_on_signals()
    report(f"seed {asked.seed}, {asked.minutes:g} minutes: {' '.join([*own_command(), *flags])}")
    with tempfile.TemporaryDirectory(prefix="gnsqd-soak-") as directory:
        cert, key = issue("server").write(Path(directory) / "server")
        flags += [f"--tls-cert={cert}", f"--tls-key={key}"]
        with Daemon(own_command(), Path(directory) / "data", *flags) as daemon:
            soak = Soak(daemon, asked.seed)
            soak.run(asked.minutes * 60, asked.interval)
            if daemon.running:
                soak.judge_end()
            else:
                soak.complaints.append(f"the daemon ended: {daemon.log()[-2000:]}")
    report("")
    for line in tables(soak):
        report(line)
    for complaint in soak.complaints:
        report(f"WRONG: {complaint}")
    return 1 if soak.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
