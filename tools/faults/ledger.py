"""SIGKILL again and again, and a ledger of what was acknowledged and what was finished.

Publishers and consumers work all the time; the daemon is killed at a random moment, also while it starts, and started
again on what it left. At the end everything is taken. For every channel holds: what was acknowledged and not finished
comes. As a program it prints a row of the table in contrib/docs/reliability.md:

    PYTHONPATH=tests:tools python -m faults.ledger --kills=500 --durability=process

With --rewinds the first channel is also rewound all the time, with an end or without, and a channel that nobody
consumes is deleted and created again at a point in the past. What was published since then comes again, nothing older.
Retention is so small that segments are deleted meanwhile, but has all that is asked for. With --changes deferred
messages of the second channel are cancelled, which must not come again, and its delivery rules are changed, which must
be as they were last set.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from kit.daemons import DEADLINE, Daemon, own_command
from kit.nsq_client import ERROR, MESSAGE, Client, mpub_body, parse_message

TOPIC = "t"
CHANNELS = ("one", "two")
CHANGED = f"topic={TOPIC}&channel={CHANNELS[1]}"  # the channel with cancels and rules
PAST = "past"  # the channel that is created in the past
RECENT = 400  # commands that published last, with 12 messages each: to one of these times a channel is rewound
RETENTION_BYTES = 16_000_000  # more than these, what is not finished, and the records about both
FOREVER = 1 << 62  # ns
QUIET = 2.0  # seconds without a message, at the end
SETTLED = 0.3  # seconds that a FIN may take to be read and kept
MAX_PUBLISHED = 2000  # messages, by one publisher between two kills: the ledger has to remember them


Rules = tuple[int, bool]  # rate, and whether it is ordered
NO_RULES = (0, False)


class Rewind(NamedTuple):
    """Of the first channel, to messages published from `since` to `until` (ns)."""

    since: int
    until: int
    asked: float  # s
    ended: float  # by the answer or a kill, s; infinity before that
    answered: bool


@dataclass
class Past:
    """The channel that was last created in the past, or is being created there."""

    since: int | None = None  # ns; None: it is being deleted, and a kill may leave it without messages, as nsqd's files
    made: bool = False  # it has to be there
    count: int = 0  # of channels that were
    wrong: list[str] = field(default_factory=list)  # what was found after a kill


@dataclass
class Ledger:
    """What the clients know, by body; of each channel where it is a matter of channels."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    finished: dict[str, dict[bytes, float]] = field(default_factory=lambda: {name: {} for name in CHANNELS})
    delivered: dict[str, Counter[bytes]] = field(default_factory=lambda: {name: Counter() for name in CHANNELS})
    again: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in CHANNELS})
    unsure: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in CHANNELS})
    attempts: dict[str, dict[bytes, int]] = field(default_factory=lambda: {name: {} for name in CHANNELS})
    early: list[bytes] = field(default_factory=list)
    due: dict[bytes, float] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    kills: int = 0
    rewinds: list[Rewind] = field(default_factory=list)
    past: Past = field(default_factory=Past)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))  # when messages were acknowledged, ns
    published: dict[bytes, int] = field(default_factory=dict)  # ns, of what the first channel delivered
    delivered_at: dict[bytes, float] = field(default_factory=dict)  # the last time, by the first channel
    cancelled: dict[bytes, bool] = field(default_factory=dict)  # in the second channel; True if that was answered
    rules: list[Rules] = field(default_factory=lambda: [NO_RULES])  # the last answered, and later requests
    changes: int = 0  # of rules
    wrong_rules: list[Rules] = field(default_factory=list)  # what was found after a kill

    def lost(self) -> list[tuple[str, bytes]]:
        """Acknowledged, never finished or cancelled, and never delivered at the end."""
        gone = {name: set(self.finished[name]) for name in CHANNELS}
        gone[CHANNELS[1]] |= self.cancelled.keys()
        return [(name, body) for name in CHANNELS for body in sorted(self.acknowledged - gone[name])]

    def may_come_again(self, body: bytes, finished: float) -> bool:
        """Whether the first channel was rewound to that message or before it, after it was finished."""
        published = self.published[body]
        return any(each.since <= published < each.until and each.ended >= finished for each in reversed(self.rewinds))

    def missing(self) -> list[bytes]:
        """What an answered rewind has not brought again."""
        missing: set[bytes] = set()
        finished = self.finished[CHANNELS[0]]
        in_order = sorted(self.published, key=self.published.__getitem__)
        times = [self.published[body] for body in in_order]
        for rewind in self.rewinds:
            if rewind.answered:
                end = min(rewind.until, int(rewind.asked * 1e9))
                for body in in_order[bisect_left(times, rewind.since) : bisect_left(times, end)]:
                    if rewind.asked > max(self.delivered_at[body], finished.get(body, FOREVER) + SETTLED):
                        missing.add(body)
        return sorted(missing)

    def duplicated(self) -> int:
        """Finished a while before the next kill, or cancelled, and delivered again."""
        return sum(len(bodies) for bodies in self.again.values())


class Load:
    """Clients of one process of the daemon; they end when it does."""

    def __init__(
        self,
        ledger: Ledger,
        daemon: Daemon,
        seed: int,
        prefix: str,
        finish_all: bool = False,
        rewinds: bool = False,
        changes: bool = False,
    ) -> None:
        self._ledger = ledger
        self._daemon = daemon
        self._seed = seed
        self._prefix = prefix
        self._finish_all = finish_all
        self.last_message = time.monotonic()
        bodies: list[Callable[[], None]] = [lambda name=name: self.consume(name) for name in CHANNELS]  # type: ignore[misc]
        if not finish_all:
            bodies += [lambda number=number: self.publish(number) for number in (0, 1)]  # type: ignore[misc]
        bodies += [self.rewind] if rewinds else []
        bodies += [self.cancel, self.change_rules] if changes else []
        self._threads = [threading.Thread(target=self._guard, args=(body,)) for body in bodies]
        self.failures: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except (OSError, HTTPException):
            pass  # killed
        except BaseException as error:
            self.failures.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def publish(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        ledger = self._ledger
        count = 0
        with Client(self._daemon.tcp_address) as client:
            while count < MAX_PUBLISHED:
                size = chance.choice((1, 1, 5, 40))
                bodies = [
                    f"{self._prefix}-{number}-{count + i}".ljust(chance.choice((20, 200)), ".").encode()
                    for i in range(size)
                ]
                count += size
                ledger.sent.update(bodies)
                if size > 1:
                    client.command(f"MPUB {TOPIC}".encode(), mpub_body(*bodies))
                elif chance.random() < 0.2:
                    delay = chance.choice((50, 300, 2000))
                    ledger.due[bodies[0]] = time.time() + delay / 1000
                    client.command(f"DPUB {TOPIC} {delay}".encode(), bodies[0])
                else:
                    client.command(f"PUB {TOPIC}".encode(), bodies[0])
                assert client.response() == b"OK"
                ledger.acknowledged.update(bodies)
                ledger.recent.append(time.time_ns())
            client.recv_until_closed()

    def rewind(self) -> None:
        chance = random.Random(f"{self._seed} rewind")
        ledger = self._ledger
        while True:
            time.sleep(chance.uniform(0.01, 0.3))
            recent = ledger.recent.copy()
            if not recent:
                continue
            # What the time of a request can express.
            since, until = sorted(each // 1000 * 1000 for each in chance.choices(recent, k=2))
            act = chance.choice(("rewind", "until", "create"))
            if act == "create":
                self._create_in_the_past(since)
                continue
            rewind = Rewind(since, until if act == "until" else FOREVER, time.time(), float("inf"), answered=False)
            ledger.rewinds.append(rewind)
            end = f"&until={moment(until)}" if act == "until" else ""
            self._post(f"/channel/rewind?topic={TOPIC}&channel={CHANNELS[0]}&to={moment(since)}{end}")
            ledger.rewinds[-1] = rewind._replace(ended=time.time(), answered=True)

    def _create_in_the_past(self, since: int) -> None:
        past = self._ledger.past
        if PAST in channels(self._daemon):
            past.since, past.made = None, False
            self._post(f"/channel/delete?topic={TOPIC}&channel={PAST}")
        past.since = since
        self._post(f"/channel/create?topic={TOPIC}&channel={PAST}&from={moment(since)}")
        past.made = True
        past.count += 1

    def cancel(self) -> None:
        """One of the second channel's deferred messages after the other."""
        chance = random.Random(f"{self._seed} cancel")
        cancelled = self._ledger.cancelled
        while True:
            time.sleep(chance.uniform(0.0, 0.05))
            listed = json.loads(self._daemon.http("GET", f"/channel/deferred?{CHANGED}&limit=50")[2])["messages"]
            if not listed:
                continue
            message = chance.choice(listed)
            body = message["body"].encode()
            cancelled.setdefault(body, False)
            status, _, answer = self._daemon.http("POST", f"/channel/deferred/cancel?{CHANGED}&id={message['id']}")
            assert status in (200, 404), answer
            if status == 200:
                cancelled[body] = True
            else:  # it is due by now
                del cancelled[body]

    def change_rules(self) -> None:
        """Of the second channel."""
        chance = random.Random(f"{self._seed} rules")
        ledger = self._ledger
        while True:
            time.sleep(chance.uniform(0.0, 0.2))
            rules = (chance.choice((0, 500, 2000, 100_000)), chance.random() < 0.2)
            ledger.rules.append(rules)
            self._post(rules_path(rules))
            ledger.rules = [rules]
            ledger.changes += 1

    def _post(self, path: str) -> None:
        status, _, answer = self._daemon.http("POST", path)
        assert status == 200, (path, answer)

    def consume(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        ledger = self._ledger
        delivered, finished = ledger.delivered[name], ledger.finished[name]
        attempts = ledger.attempts[name]
        finishing: dict[bytes, list[bytes]] = {}  # bodies by ID, once for each FIN
        with Client(self._daemon.tcp_address) as client:
            client.subscribe(TOPIC, name, 100)
            while True:
                try:
                    frame = client.frame(QUIET if self._finish_all else None)
                except TimeoutError:  # what is deferred or in flight may come later
                    if messages_left(self._daemon) and time.monotonic() < self.last_message + DEADLINE:
                        continue
                    return
                if frame.type == ERROR:
                    self._come_too_late(name, frame.data, finishing)
                    continue
                if frame.type != MESSAGE:
                    client.command(b"NOP")
                    continue
                message = parse_message(frame.data)
                body = message.body
                self.last_message = time.monotonic()
                delivered[body] += 1
                attempts[body] = message.attempts
                if time.time() < ledger.due.get(body, 0) - 0.005:
                    ledger.early.append(body)
                if name == CHANNELS[0]:
                    ledger.published[body] = message.timestamp
                    ledger.delivered_at[body] = time.time()
                    if ledger.rewinds and body in finished and ledger.may_come_again(body, finished[body]):
                        del finished[body]
                        ledger.unsure[name].discard(body)
                is_cancelled = name == CHANNELS[1] and ledger.cancelled.get(body, False)
                if is_cancelled or (body in finished and body not in ledger.unsure[name]):
                    ledger.again[name].add(body)
                # If a cancelled message is not in flight any more, the daemon reports that.
                what = 1.0 if self._finish_all or is_cancelled else chance.random()
                if what > 0.3:
                    finishing.setdefault(message.id, []).append(body)
                    client.command(b"FIN " + message.id)
                    finished[body] = time.time()
                elif what > 0.15:
                    client.command(b"REQ " + message.id + b" %d" % chance.choice((0, 0, 40, 400)))
                # or it stays in flight

    def _come_too_late(self, name: str, error: bytes, finishing: dict[bytes, list[bytes]]) -> None:
        """A message whose time was up before its FIN or REQ came: the daemon was right to take it back."""
        refused = re.fullmatch(rb"E_(FIN|REQ)_FAILED \1 (.{16}) failed ID not in flight", error)
        assert refused, error
        if refused[1] == b"FIN":
            body = finishing[refused[2]].pop()
            self._ledger.unsure[name].add(body)  # that it came again does not make it a duplicate
            self._ledger.again[name].discard(body)
            if not finishing[refused[2]]:
                del self._ledger.finished[name][body]


def messages_left(daemon: Daemon) -> int:
    return sum(
        topic["depth"] + channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        for topic in daemon.stats()["topics"]
        for channel in topic["channels"]
        if channel["channel_name"] != PAST
    )


def channels(daemon: Daemon) -> list[str]:
    return [channel["channel_name"] for topic in daemon.stats()["topics"] for channel in topic["channels"]]


def moment(time: int) -> str:
    """A time in whole us, given in ns, for a request."""
    text = datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{time % 10**9 // 1000:06}Z"


def check_past(daemon: Daemon, past: Past) -> None:
    """Note what is wrong, after a kill, with the channel that nobody consumes: all that was published since has to be
    in it, so a rewind would bring nothing again, and nothing older."""
    if past.since is None:
        return
    if PAST not in channels(daemon):
        if past.made:
            past.wrong.append("it is gone")
        return
    plan = f"/channel/rewind?topic={TOPIC}&channel={PAST}&to={moment(past.since)}"
    if missing := json.loads(daemon.http("GET", plan)[2])["messages"]:
        past.wrong.append(f"{missing} messages are missing")
    peeked = json.loads(daemon.http("GET", f"/channel/peek?topic={TOPIC}&channel={PAST}&limit=1000")[2])
    if older := sum(message["timestamp"] < past.since for message in peeked["messages"]):
        past.wrong.append(f"{older} messages are too old")


def rules_path(rules: Rules) -> str:
    rate, ordered = rules
    return f"/channel/rules?{CHANGED}&rate={rate}&ordered={str(ordered).lower()}"


def check_rules(daemon: Daemon, ledger: Ledger) -> None:
    """Note, after a kill, rules that are neither the last answered nor requested later."""
    answer = json.loads(daemon.http("GET", f"/channel/rules?{CHANGED}")[2])
    rules = (answer["rate"], answer["ordered"])
    if rules not in ledger.rules:
        ledger.wrong_rules.append(rules)
    ledger.rules = [rules]


class Outcome(NamedTuple):
    """Messages, except for the last: the longest time that a daemon took from its start until it answered."""

    acknowledged: int
    lost: int
    duplicated: int
    recovery_seconds: float
    rewinds: int = 0
    channels: int = 0  # that were created in the past
    cancelled: int = 0
    changes: int = 0  # of rules


def kill_loop(
    command: list[str],
    kills: int,
    *flags: str,
    seed: int | None = None,
    rewinds: bool = False,
    changes: bool = False,
) -> Outcome:
    """What becomes of messages in a daemon, ours or the real one, that is killed that many times."""
    with tempfile.TemporaryDirectory() as directory:
        seed = random.getrandbits(32) if seed is None else seed
        ledger = run(command, Path(directory), kills, seed, *flags, rewinds=rewinds, changes=changes)
    lost = len(ledger.lost()) + len(ledger.missing()) + len(ledger.past.wrong) + len(ledger.wrong_rules)
    counts = len(ledger.rewinds), ledger.past.count, sum(ledger.cancelled.values()), ledger.changes
    return Outcome(len(ledger.acknowledged), lost, ledger.duplicated(), max(ledger.starts, default=0.0), *counts)


def run(
    command: list[str],
    directory: Path,
    kills: int,
    seed: int,
    *flags: str,
    rewinds: bool = False,
    changes: bool = False,
) -> Ledger:
    """Kill that many times, then take everything; returns the ledger. `rewinds` need RETENTION_BYTES."""
    chance = random.Random(seed)
    ledger = Ledger()
    daemon = Daemon(command, directory / "data", "--msg-timeout=1s", *flags)
    daemon.start()
    for channel in CHANNELS:
        for what in ("topic", "channel"):
            assert daemon.http("POST", f"/{what}/create?topic={TOPIC}&channel={channel}")[0] == 200
    for number in range(kills):
        load = Load(ledger, daemon, seed + number, f"{number}", rewinds=rewinds, changes=changes)
        time.sleep(chance.uniform(0.05, 0.8))
        killed_at = time.time()
        daemon.kill()
        load.join()
        if ledger.rewinds and not ledger.rewinds[-1].answered:
            ledger.rewinds[-1] = ledger.rewinds[-1]._replace(ended=killed_at)
        for name in CHANNELS:
            late = {body for body, at in ledger.finished[name].items() if at > killed_at - SETTLED}
            ledger.unsure[name] |= late
        if chance.random() < 0.3:
            _kill_while_starting(daemon, chance.uniform(0.2, 1.0))
            number += 1
        begin = time.monotonic()
        daemon.start()
        ledger.starts.append(time.monotonic() - begin)
        ledger.kills += 1
        if rewinds:
            check_past(daemon, ledger.past)
        if changes:
            check_rules(daemon, ledger)
    if changes:
        assert daemon.http("POST", rules_path(NO_RULES))[0] == 200
    load = Load(ledger, daemon, seed, "end", finish_all=True)
    load.join()
    daemon.close()
    return ledger


def _kill_while_starting(daemon: Daemon, after: float) -> None:
    process = subprocess.Popen(
        [
            *daemon.command,
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            f"--data-path={daemon.data_path}",
            *daemon.flags,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--durability", default="process")
    parser.add_argument("--rewinds", action="store_true")
    parser.add_argument("--changes", action="store_true", help="cancel messages and change delivery rules")
    parser.add_argument("--retention-bytes", type=int, default=RETENTION_BYTES, help="with --rewinds (%(default)s)")
    parser.add_argument("flags", nargs="*")
    asked = parser.parse_args()
    flags = (f"--durability={asked.durability}", *asked.flags)
    if asked.rewinds:
        flags += (f"--retention-bytes={asked.retention_bytes}",)
    outcome = kill_loop(
        own_command(), asked.kills, *flags, seed=asked.seed, rewinds=asked.rewinds, changes=asked.changes
    )
    print(  # noqa: T201
        f"seed {asked.seed}: {asked.kills} kills, {outcome.acknowledged} acknowledged, {outcome.lost} lost, "
        f"{outcome.duplicated} duplicated, slowest start {outcome.recovery_seconds:.2f} s"
        f"{f', {outcome.rewinds} rewinds, {outcome.channels} channels created in the past' if asked.rewinds else ''}"
        f"{f', {outcome.cancelled} cancelled, {outcome.changes} changes of rules' if asked.changes else ''}"
    )
    sys.exit(bool(outcome.lost or ((asked.rewinds or asked.changes) and outcome.duplicated)))


if __name__ == "__main__":
    main()
