"""A soak: an hour of mixed load, or as long as one likes, after which nothing is lost and nothing has grown.

    PYTHONPATH=tests:tools python -m faults.soak --minutes=60 --durability=process

At the end everything is taken, and the ledgers of what was published and finished must agree with themselves and with
the daemon's counters.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

from faults.ledger import Ledger, Receipts
from faults.mixed_load import MixedLoad
from faults.watching import Growth, Sample, conclude, parse, report, sample, settle, watch
from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, exit_on_signals, own_command
from kit.traffic import create, post

TOPICS = ("t", "u")
CHANNELS = ("one", "two")
COUNTS = ("depth", "in_flight_count", "deferred_count")
FLAGS = ("--msg-timeout=2s", "--mem-queue-size=100", "--max-bytes-per-file=1000000")
QUEUES = len(TOPICS) * (1 + len(CHANNELS))


class Soak:
    """One daemon and its clients. `complaints` is empty if all is well."""

    def __init__(self, daemon: Instance, seed: int) -> None:
        self.ledgers = [Ledger(topic, {name: Receipts() for name in CHANNELS}) for topic in TOPICS]
        self.counts: Counter[str] = Counter()
        self.growths: list[Growth] = []
        self.complaints: list[str] = []
        self._daemon = daemon
        self._seed = seed

    def run(self, seconds: float, interval: float) -> None:
        for topic in TOPICS:
            create(self._daemon, topic, *CHANNELS)
        before = self._at_rest()
        load = MixedLoad(self._daemon, self.ledgers, self._seed, interval)
        self.counts = load.counts
        try:
            self.growths = watch({"gnsqd": self._look}, seconds, load, lambda latest: self._line(latest["gnsqd"]))
            load.stop_publishing()
            settle(self.ledgers, load)
        except Exception as error:
            load.failures.append(error)
        finally:
            load.stop()
        if load.failures:
            self.complaints = ["".join(format_exception(error)) for error in load.failures]
        else:
            self._judge_rest(before)

    def _look(self) -> Sample:
        return sample(self._daemon.pid, self._daemon.http("GET", "/metrics")[2].decode())

    def _line(self, latest: Sample) -> str:
        published = sum(ledger.count for ledger in self.ledgers)
        reconnects = self.counts["reconnects"]
        resources = f"{latest.memory:.1f} MB, {latest.files} files, {latest.greenlets} greenlets"
        return f"{resources}, depth {self._depth()}, {published} published, {reconnects} reconnects"

    def _depth(self) -> int:
        """Returns the number of messages that wait anywhere, are in flight or held back."""
        depth = 0
        for topic in self._daemon.stats()["topics"]:
            depth += topic["depth"]
            for channel in topic["channels"]:
                depth += sum(channel[count] for count in COUNTS)
        return depth

    def _judge_rest(self, before: Sample) -> None:
        """Expects, without clients, that all that was published is finished, and nothing but what lasts is there."""
        try:
            eventually(self._nothing_else)
        except AssertionError:
            self.complaints.append(f"something that came stays: {self._daemon.stats()}")
        topics = {topic["topic_name"]: topic for topic in self._daemon.stats()["topics"]}
        for ledger in self.ledgers:
            for channel in ledger.channels:
                self.complaints += ledger.complaints(channel)
            self.complaints += differences(ledger, topics[ledger.topic])
        # A queue may keep files open, and know the greenlets of its last sync.
        files, greenlets = before.files + 2 * QUEUES, before.greenlets + 2 * QUEUES
        deadline = time.monotonic() + DEADLINE
        while (after := self._at_rest()).files > files or after.greenlets > greenlets:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.growths.append(Growth("open files before and after", before.files, after.files, files))
        self.growths.append(Growth("greenlets before and after", before.greenlets, after.greenlets, greenlets))

    def _at_rest(self) -> Sample:
        """Looks at the daemon without garbage that the collector, which runs once a minute, has not freed yet."""
        post(self._daemon, "/debug/freememory")
        return self._look()

    def _nothing_else(self) -> bool:
        topics = self._daemon.stats()["topics"]
        channels = [channel for topic in topics for channel in topic["channels"]]
        return (
            sorted(topic["topic_name"] for topic in topics) == sorted(TOPICS)
            and len(channels) == len(TOPICS) * len(CHANNELS)
            and not any(channel["client_count"] for channel in channels)
        )

    def judge_end(self) -> None:
        """Looks at the exit code, the log and the files that the daemon leaves."""
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


def timed_out(ledger: Ledger, channel: str) -> int:
    """Returns the number of time-outs: every delivery but the last of a message ended by REQ or by one."""
    receipts = ledger.channels[channel]
    return sum(receipts.attempts) - ledger.count - receipts.requeues


def differences(ledger: Ledger, stats: dict[str, Any]) -> Iterator[str]:
    """Compares the ledger with the daemon's statistics of the topic."""
    expected: dict[str, dict[str, int]] = {
        name: dict.fromkeys(COUNTS, 0)
        | {"message_count": ledger.count, "requeue_count": receipts.requeues, "timeout_count": timed_out(ledger, name)}
        for name, receipts in ledger.channels.items()
    }
    entries = {entry["channel_name"]: entry for entry in stats["channels"]}
    if set(entries) != set(expected):
        yield f"topic {ledger.topic}: channels {sorted(entries)}, {sorted(expected)} expected"
        return
    entries[""], expected[""] = stats, {"depth": 0, "message_count": ledger.count, "message_bytes": ledger.bytes}
    for name, counts in expected.items():
        for key, count in counts.items():
            if entries[name][key] != count:
                yield f"topic {ledger.topic} {name}: {key} {entries[name][key]}, {count} expected"


def table(soak: Soak) -> Iterator[str]:
    """Writes what became of messages, in Markdown."""
    yield "| topic | channel | published | finished | requeued | timed out | lost | delivered again |"
    yield f"| --- | --- |{' ---: |' * 6}"
    for ledger in soak.ledgers:
        for name, receipts in ledger.channels.items():
            figures = (ledger.count, receipts.finished_count, receipts.requeues, timed_out(ledger, name))
            bad = (len(ledger.lost(name)), len(receipts.again))
            yield f"| {ledger.topic} | {name} | {' | '.join(map(str, (*figures, *bad)))} |"


def main() -> int:
    parser = parse("soak", __doc__)
    parser.add_argument("--durability", help="the daemon's option")
    parser.add_argument("flags", nargs="*", help="more options for the daemon, behind --")
    asked = parser.parse_args()
    flags = [*FLAGS, *([f"--durability={asked.durability}"] if asked.durability else []), *asked.flags]
    exit_on_signals()
    report(f"seed {asked.seed}, {asked.minutes:g} minutes: {' '.join([*own_command(), *flags])}")
    with tempfile.TemporaryDirectory(prefix="gnsqd-soak-") as directory:
        cert, key = issue("server").write(Path(directory) / "server")
        flags += [f"--tls-cert={cert}", f"--tls-key={key}"]
        with Instance(own_command(), Path(directory) / "data", *flags) as daemon:
            soak = Soak(daemon, asked.seed)
            soak.run(asked.minutes * 60, asked.interval)
            if daemon.running:
                soak.judge_end()
            else:
                soak.complaints.append(f"the daemon ended: {daemon.log()[-2000:]}")
    for line in table(soak):
        report(line)
    return conclude(soak.growths, soak.counts, soak.complaints)


if __name__ == "__main__":
    sys.exit(main())
