"""The cost of a SIGKILL, of ours and of the real one: state by state, message by message.

TABLE has, for each state, flags, the steps that bring a daemon into it, and the groups of messages that are lost or
delivered twice. The steps wait until /stats and the files of the disk queues show what they should, so nothing depends
on timing. Queues are synced by `sync` (--sync-every) and at a change of files, so it is known what is synced. After the
SIGKILL comes a start, without a memory queue so that everything keeps its order, and a consumer that takes and finishes
what there is. The outcomes are the table of contrib/docs/reliability.md.
"""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kit.daemons import DEADLINE, Instance, eventually, own_command
from kit.nsq_client import NSQClient, ReceivedMessage, mpub_body, sized
from kit.traffic import post

DOCUMENT = Path(__file__).parents[2] / "contrib" / "docs" / "reliability.md"
QUEUES = {"topic": "t", "channel": "t:c"}
BODY_SIZE = 20
RECORD_SIZE = 4 + 26 + BODY_SIZE  # messages have equal sizes, so that positions in files are counted in records
LAST = b"the last one"
POLL = 0.02  # seconds
# ms; LONG is a delay that nobody waits for, SHORT is long enough for the steps up to the kill.
DELAYS = {"LONG": b"600000", "SHORT": b"4000", "0": b"0"}

Position = tuple[int, int]  # file number and records, or messages in memory and on disk


class Fate(NamedTuple):
    """Names of groups; the other messages that were not finished come once."""

    lost: str = ""
    duplicated: str = ""


class State(NamedTuple):
    """`flags` are the arguments of `options`, and `steps` are calls of methods of Victim."""

    title: str
    flags: list[str]
    steps: list[list[str]]
    nsqd: Fate
    gnsqd: Fate

    @property
    def counted(self) -> bool:
        """True if it is known beforehand how many messages there are."""
        return ["publish_until_killed", "load"] not in self.steps


# Title; flags; steps; what is lost or duplicated, where something is.
TABLE = """
8 in memory
    memory=8 sync=never
    channel; publish memory 8; holds channel=8,0; files channel
    both lost: memory
8 on disk, synced
    memory=0 sync=1
    channel; publish synced 8; holds channel=0,8; files topic 0:8 read=0,8 written=0,8
    files channel 0:8 written=0,8
8 in memory, 16 on disk, synced, and 3 unsynced
    memory=8 sync=16
    channel; fill channel; holds channel=8,19; files topic
    both lost: memory
no memory queue: 16 on disk, synced, and 3 unsynced, in the files of topic and channel
    memory=0 sync=16
    channel; publish synced 16; files topic 0:16 read=0,16 written=0,16; files channel 0:16 written=0,16
    publish unsynced 3; holds channel=0,19; files topic 0:19 read=0,16 written=0,16
    files channel 0:19 written=0,16
    both duplicated: unsynced
8 in memory, 3 on disk; never synced
    memory=8 sync=never
    channel; publish memory 8; publish fresh 3; holds channel=8,3; files channel 0:3
    nsqd lost: memory fresh
    gnsqd lost: memory
no memory queue: 8 on disk, in the files of topic and channel; never synced
    memory=0 sync=never
    channel; publish fresh 8; holds channel=0,8; files topic 0:8; files channel 0:8
    nsqd lost: fresh
    gnsqd duplicated: fresh
the same, and 3 of them finished
    memory=0 sync=never
    channel; publish first 3; publish rest 5; take first; finish first; holds channel=0,5; files topic 0:8
    files channel 0:8
    nsqd lost: rest
    gnsqd duplicated: first rest
10 on disk in 3 files, the last of them unsynced
    memory=0 sync=never files=4
    topic; publish rolled 10; holds topic=0,10; files topic 0:4 1:4 2:2 written=any
10 on disk in 3 files; 4, the whole first file, finished
    memory=20 files=4
    channel; publish first 4; publish rest 6; restart memory=0 sync=never files=4
    files channel 0:4 1:4 2:2 written=2,2; take first; finish first; holds channel=0,6
    files channel 1:4 2:2 read=1,0 written=2,2
8 on disk; 3 finished, read position synced
    memory=8
    load 1; finish first; holds channel=0,5; files channel 0:8 read=0,3 written=0,8
8 on disk; 3 finished, read position unsynced
    memory=8
    load never; finish first; holds channel=0,5; files channel 0:8 written=0,8
    both duplicated: first
3 from memory in flight
    memory=8 sync=never
    channel; publish first 3; take first; holds in_flight=3
    both lost: first
8 on disk; 3 in flight, read position synced
    memory=8
    load 1; holds channel=0,5 in_flight=3; files channel 0:8 read=0,3 written=0,8
    both lost: first
8 on disk; 3 in flight, read position unsynced
    memory=8
    load never; holds channel=0,5 in_flight=3; files channel 0:8 written=0,8
20 on disk; 15 in flight, one read less than `--sync-every`
    memory=20
    channel; publish first 15; publish rest 5; restart memory=0 sync=16; take first
    holds channel=0,5 in_flight=15; let_it_sync
4 deferred by DPUB
    memory=8 sync=never
    channel; defer deferred 4 LONG; holds deferred=4
    both lost: deferred
no memory queue, no channel: 4 by DPUB on disk, synced
    memory=0 sync=1
    topic; defer deferred 4 LONG; holds topic=0,4; files topic 0:4 written=0,4
no memory queue: 4 deferred by DPUB
    memory=0 sync=1
    channel; defer deferred 4 SHORT; holds deferred=4; topic_is_read
    nsqd lost: deferred
    gnsqd lost:
the same before there is a channel; then a channel and a consumer that finishes what it gets
    memory=0 sync=1
    topic; defer deferred 4 SHORT; holds topic=0,4; channel; handed_over; finish_what_comes; topic_is_read
3 from memory deferred by REQ
    memory=8 sync=never
    channel; publish first 3; take first; requeue first LONG; holds deferred=3
    both lost: first
8 on disk; 3 deferred by REQ, read position synced
    memory=8
    load 1; requeue first LONG; holds channel=0,5 deferred=3; files channel 0:8 read=0,3 written=0,8
    both lost: first
8 on disk; 3 deferred by REQ, read position unsynced
    memory=8
    load never; requeue first LONG; holds channel=0,5 deferred=3; files channel 0:8 written=0,8
8 on disk; 3 read and put back behind them by REQ 0, synced
    memory=8
    load 1; requeue first 0; holds channel=0,8; files channel 0:11 read=0,3 written=0,11
8 on disk; 3 read and put back behind them by REQ 0, unsynced
    memory=8
    load never; requeue first 0; holds channel=0,8; files channel 0:11 written=0,8
    both duplicated: first
no channel: 8 in memory, 16 on disk, synced, and 3 unsynced
    memory=8 sync=16
    topic; fill topic; holds topic=8,19
    both lost: memory
4 deferred at a clean exit, then a start
    memory=8 sync=never
    channel; defer deferred 4 SHORT; restart memory=8 sync=never; holds channel=0,4
    files channel 0:4 written=0,4
4 deferred at a clean exit, then a start and a consumer that finishes what it gets
    memory=8 sync=1
    channel; defer deferred 4 SHORT; restart memory=8 sync=1; finish_what_comes; let_it_sync
2 finished, 4 in flight, 3 deferred by REQ, 2 by DPUB, 8 in memory, 16 on disk, synced, and 3 unsynced
    memory=8 sync=16
    channel; publish finished 2; take finished; finish finished; publish in-flight 4; take in-flight
    publish requeued 3; take requeued; requeue requeued LONG; defer deferred 2 LONG; fill channel
    holds channel=8,19 in_flight=4 deferred=5
    both lost: in-flight requeued deferred memory
no memory queue: 16 on disk, synced, then emptied, and 3 more
    memory=0 sync=16
    topic; publish emptied 16; files topic 0:16 written=0,16; empty_topic; publish later 3; holds topic=0,3
    files topic 1:3 read=any written=any
    nsqd lost: later
    gnsqd lost:
no memory queue: 16 on disk, synced, and 3 unsynced; then a kill, a start and 3 more
    memory=0 sync=16
    topic; publish synced 16; files topic 0:16 written=0,16; publish unsynced 3; files topic 0:19 written=0,16
    kill_and_start; publish later 3; files topic 0:19 1:3 written=any
    nsqd lost: later
    gnsqd lost:
no memory queue: two publishers at work
    memory=0 sync=never files=100
    topic; publish before 120; files topic 0:100 1:20 written=any; publish_until_killed load
"""


def read(state: str) -> State:
    title, flags, *lines = (line.strip() for line in state.split("\n"))
    fates = {"nsqd": Fate(), "gnsqd": Fate()}
    steps = []
    for line in lines:
        if fate := re.fullmatch(r"(nsqd|gnsqd|both) (lost|duplicated):(.*)", line):
            for name in ("nsqd", "gnsqd") if fate[1] == "both" else (fate[1],):
                fates[name] = fates[name]._replace(**{fate[2]: fate[3].strip()})
        else:
            steps += [step.split() for step in line.split(";")]
    return State(title, flags.split(), steps, **fates)


STATES = [read(state) for state in re.split(r"\n(?! )", TABLE.strip())]


def options(*words: str) -> list[str]:
    given = dict(word.split("=") for word in words)
    flags = [f"--mem-queue-size={given['memory']}", "--sync-timeout=1h"]
    if sync := given.get("sync"):
        flags.append(f"--sync-every={1_000_000 if sync == 'never' else sync}")
    if count := given.get("files"):
        flags.append(f"--max-bytes-per-file={int(count) * RECORD_SIZE}")
    return flags


def position(text: str) -> Position:
    first, second = text.split(",")
    return int(first), int(second)


class Victim:
    """A daemon that is to be killed, over any number of processes on one data path, and what its clients know of every
    message."""

    def __init__(self, command: list[str], directory: Path, flags: list[str]) -> None:
        self.daemon = Instance(command, directory, *options(*flags))
        self.memory = int(flags[0].partition("=")[2])
        self.groups: dict[str, list[bytes]] = {}  # bodies
        self.acknowledged: set[bytes] = set()
        self.finished: set[bytes] = set()  # must not come again, because of FIN or of empty
        self.in_flight: dict[bytes, ReceivedMessage] = {}
        self.passed = 0  # messages that the topic of this process had to hand to the channel
        self.publisher: NSQClient | None = None
        self.consumer: NSQClient | None = None

    def stats(self) -> dict[str, Any]:
        return self.daemon.topic_stats("t")

    def channel_stats(self) -> dict[str, Any]:
        return self.daemon.channel_stats("t", "c")

    def post(self, what: str) -> None:
        post(self.daemon, f"/{what}?topic=t&channel=c")

    def disconnect(self) -> None:
        for client in (self.publisher, self.consumer):
            if client is not None:
                client.close()
        self.publisher = self.consumer = None
        self.in_flight.clear()

    # Steps

    def load(self, sync: str) -> None:
        """Puts 3 + 5 messages into the channel's disk queue, without a memory queue and all synced; then syncs in
        another way, and takes the 3."""
        self.channel()
        self.publish("first", "3")
        self.publish("rest", "5")
        self.restart("memory=0", f"sync={sync}")
        self.holds("channel=0,8")
        self.files("channel", "0:8", "written=0,8")
        self.take("first")

    def fill(self, queue: str) -> None:
        """Puts 8 messages into memory, 16 on disk, synced, and 3 more, unsynced."""
        self.publish("memory", "8")
        self.publish("synced", "16")
        self.files(queue, "0:16", "written=0,16")
        self.publish("unsynced", "3")
        self.files(queue, "0:19", "written=0,16")

    def topic(self) -> None:
        self.post("topic/create")
        self._wait_for_metadata("t")

    def channel(self) -> None:
        self.topic()
        self.post("channel/create")
        self._wait_for_metadata("c")

    def _wait_for_metadata(self, name: str) -> None:
        path = self.daemon.data_path / "nsqd.dat"
        eventually(lambda: f'"name":"{name}"' in path.read_text(), f"nsqd.dat lists {name}")

    def empty_topic(self) -> None:
        self.post("topic/empty")
        self.finished.update(self.acknowledged)

    def publish(self, group: str, count: str) -> None:
        """Publishes in batches that the memory queue has room for; without one, all together."""
        bodies = self._new_bodies(group, int(count))
        size = self.memory or len(bodies)
        for first in range(0, len(bodies), size):
            batch = bodies[first : first + size]
            self._send(b"MPUB t", mpub_body(*batch), batch)

    def defer(self, group: str, count: str, delay: str) -> None:
        for body in self._new_bodies(group, int(count)):
            self._send(b"DPUB t %b" % DELAYS[delay], body, [body])

    def _new_bodies(self, group: str, count: int) -> list[bytes]:
        bodies = self.groups.setdefault(group, [])
        first = len(bodies)
        bodies += [f"{group} {number:03}".ljust(BODY_SIZE, ".").encode() for number in range(first, first + count)]
        return bodies[first:]

    def _send(self, line: bytes, body: bytes, bodies: list[bytes]) -> None:
        """Sends a publishing command and receives its OK; then waits until the channel has the messages, if it gets
        them now."""
        self.publisher = self.publisher or NSQClient(self.daemon.tcp_address)
        self.publisher.command(line, body)
        assert self.publisher.response() == b"OK"
        self.acknowledged.update(bodies)
        stats = self.stats()
        if stats["channels"] and not stats["paused"]:
            self.passed += len(bodies)
            eventually(lambda: self.channel_stats()["message_count"] >= self.passed, "messages are in the channel")

    def handed_over(self) -> None:
        # Not by the topic's depth: the real daemon's falls before the channel has the message.
        expected = len(self.acknowledged)
        eventually(lambda: self.channel_stats()["message_count"] == expected, "all is in the channel")

    def take(self, group: str) -> None:
        """Takes the group, which is all there is in memory or the first on disk, and keeps it in flight."""
        expected = set(self.groups[group])
        consumer = self._subscribed(len(self.in_flight) + len(expected))
        taken = {message.body: message for message in (consumer.message() for _ in expected)}
        consumer.command(b"RDY 0")
        assert taken.keys() == expected
        self.in_flight |= taken

    def _subscribed(self, rdy: int) -> NSQClient:
        if self.consumer is None:
            self.consumer = NSQClient(self.daemon.tcp_address)
            self.consumer.subscribe("t", "c")
        self.consumer.command(b"RDY %d" % rdy)
        return self.consumer

    def finish(self, group: str) -> None:
        self._answer(group, b"FIN %b")
        self.finished.update(self.groups[group])

    def requeue(self, group: str, delay: str) -> None:
        self._answer(group, b"REQ %%b %b" % DELAYS[delay])

    def _answer(self, group: str, line: bytes) -> None:
        assert self.consumer is not None
        for body in self.groups[group]:
            self.consumer.command(line % self.in_flight.pop(body).id)
        eventually(lambda: self.channel_stats()["in_flight_count"] == len(self.in_flight), "answers have arrived")

    def finish_what_comes(self) -> None:
        """Takes and finishes what the channel delivers now; deferred messages stay."""
        consumer = self._subscribed(1)
        # Not until the channel's depth is 0: a message that is being delivered is in no count for a moment.
        while len(self.finished) + self.channel_stats()["deferred_count"] < len(self.acknowledged):
            try:
                message = consumer.message(timeout=POLL)
            except TimeoutError:
                continue
            self.finished.add(message.body)
            consumer.command(b"FIN " + message.id)
        eventually(lambda: self.channel_stats()["in_flight_count"] == 0, "answers have arrived")

    def restart(self, *words: str) -> None:
        """Ends the daemon, if it runs, by a clean exit, which leaves everything on disk and synced, and starts it with
        these flags."""
        self.disconnect()
        self.passed = 0
        if words:
            self.memory = int(words[0].partition("=")[2])
        self.daemon.restart(*(options(*words) if words else []))

    def kill_and_start(self) -> None:
        self.daemon.kill()
        self.restart()

    def publish_until_killed(self, group: str) -> None:
        """Kills while one publisher has messages on their way, right after the OK to another one."""
        busy = threading.Event()
        sent: list[bytes] = []

        def keep_publishing(client: NSQClient) -> None:
            try:
                while True:
                    batch = [f"{group} endless {len(sent) + i}".encode() for i in range(20)]
                    sent.extend(batch)
                    client.send(b"".join(b"PUB t\n" + sized(body) for body in batch))
                    for body in batch:
                        assert client.response() == b"OK"
                        self.acknowledged.add(body)
                    busy.set()
            except ConnectionError:
                pass

        with NSQClient(self.daemon.tcp_address) as client, ThreadPoolExecutor() as threads:
            load = threads.submit(keep_publishing, client)
            try:
                assert busy.wait(DEADLINE), "nothing was acknowledged"
                for _ in range(20):
                    self.publish(group, "10")
            finally:
                self.daemon.kill()
            load.result()
        self.groups[group] += sent

    def let_it_sync(self) -> None:
        """Gives time for a sync that should not come: too little of it can hide a fault, but never show one."""
        time.sleep(0.2)

    def holds(self, *words: str) -> None:
        """Waits until /stats has that; of topic and channel the messages in memory and those on disk."""
        given = dict(word.split("=") for word in words)
        expected = (*position(given.get("topic", "0,0")), *position(given.get("channel", "0,0")))
        counts = {name: int(given.get(name, 0)) for name in ("in_flight", "deferred")}

        def held() -> tuple[object, ...]:
            stats = self.stats()
            (channel,) = stats["channels"] or [Counter()]
            queues = [(entry["depth"] - entry["backend_depth"], entry["backend_depth"]) for entry in (stats, channel)]
            return *queues[0], *queues[1], {name: channel[f"{name}_count"] for name in counts}

        wait_for(held, (*expected, counts))

    def files(self, queue: str, *words: str) -> None:
        """Waits until the data files hold that many records, and meta has these positions, `0,0` or `any`."""
        records = {int(number): int(count) for number, count in (word.split(":") for word in words if ":" in word)}
        given = dict(word.split("=") for word in words if "=" in word)
        positions = [
            None if text == "any" else position(text)
            for text in (given.get("read", "0,0"), given.get("written", "0,0"))
        ]

        def stored() -> tuple[object, ...]:
            synced = self._synced(queue)
            return self._records(queue), [at and by_meta for at, by_meta in zip(positions, synced, strict=True)]

        wait_for(stored, (records, positions))

    def topic_is_read(self) -> None:
        """Waits until meta shows that all records of its one data file, if there is one, have been read."""
        count = self._records("topic").get(0, 0)
        wait_for(lambda: self._synced("topic")[0] if count else (0, 0), (0, count))

    def _records(self, queue: str) -> dict[int, int]:
        """Returns how many are in each data file of a queue."""
        paths = self.daemon.data_path.glob(f"{QUEUES[queue]}.diskqueue.0*.dat")
        return {int(path.name.split(".")[-2]): path.stat().st_size // RECORD_SIZE for path in paths}

    def _synced(self, queue: str) -> list[Position]:
        """Returns the positions of reading and writing in the meta file; without one, those of the beginning."""
        try:
            lines = (self.daemon.data_path / f"{QUEUES[queue]}.diskqueue.meta.dat").read_text().split()
        except FileNotFoundError:
            return [(0, 0), (0, 0)]
        return [(number, at // RECORD_SIZE) for number, at in map(position, lines[1:])]

    # The end

    def drain(self) -> Counter[bytes]:
        """Takes and finishes everything; returns how often each body came.

        Without a memory queue a message that is published for the purpose comes after all that was there, also after
        one that was between two queues and so in no count: none has come between the counts and this one, so none was.
        """
        delivered: Counter[bytes] = Counter()
        with NSQClient(self.daemon.tcp_address) as publisher, NSQClient(self.daemon.tcp_address) as client:
            # One at a time: a copy of a message that is in flight might be dropped.
            client.subscribe("t", "c", rdy=1)
            number = 0
            while True:
                number += 1
                stats, channel = self.stats(), self.channel_stats()
                left = stats["depth"] + channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
                last = b"%b %d" % (LAST, number)
                publisher.publish("t", last)
                came = take_until(client, last)
                if not left and came == [last]:
                    return delivered
                delivered.update(body for body in came if not body.startswith(LAST))
                time.sleep(POLL)


def take_until(client: NSQClient, last: bytes) -> list[bytes]:
    """Finishes what comes up to `last`, and returns the bodies. The real daemon may write that into a damaged file, and
    lose it: then up to a second in which nothing comes."""
    came: list[bytes] = []
    while last not in came:
        try:
            message = client.message(timeout=1.0)
        except TimeoutError:
            break
        client.command(b"FIN " + message.id)
        came.append(message.body)
    return came


def wait_for(find: Callable[[], object], expected: object) -> None:
    try:
        eventually(lambda: find() == expected)
    except AssertionError as error:
        raise AssertionError(f"{find()} instead of {expected}") from error


class Outcome(NamedTuple):
    """Bodies: the acknowledged ones, the ones finished before the kill, and how often each came after it."""

    acknowledged: set[bytes]
    finished: set[bytes]
    delivered: Counter[bytes]

    @property
    def lost(self) -> set[bytes]:
        return self.acknowledged - self.finished - self.delivered.keys()

    @property
    def duplicated(self) -> set[bytes]:
        """Bodies that came although they had been finished, before the kill or after it."""
        return {body for body, count in self.delivered.items() if count > 1 or body in self.finished}

    def check(self, fate: Fate) -> None:
        for bodies, groups in ((self.lost, fate.lost), (self.duplicated, fate.duplicated)):
            assert bodies == {body for body in self.acknowledged if body.split()[0].decode() in groups.split()}


def run(state: State, command: list[str], directory: Path) -> Outcome:
    """Kills a daemon in this state, starts it again and takes everything; returns what came of its messages."""
    victim = Victim(command, directory, state.flags)
    try:
        victim.daemon.start()
        for name, *words in state.steps:
            getattr(victim, name)(*words)
        victim.daemon.kill()
        victim.restart("memory=0")
        delivered = victim.drain()
        assert victim.daemon.terminate() == 0
    except Exception as error:
        for log in victim.daemon.logs:
            error.add_note(f"{log.name}:\n{log.read_text('utf-8', 'replace')}")
        raise
    finally:
        victim.daemon.kill()
        victim.disconnect()
    assert delivered.keys() <= {body for bodies in victim.groups.values() for body in bodies}
    return Outcome(victim.acknowledged, victim.finished, delivered)


def row(state: State, *outcomes: Outcome) -> str:
    """Returns a line of the table, of nsqd and gnsqd."""

    def number(bodies: set[bytes]) -> str:
        return str(len(bodies)) if state.counted or not bodies else "n"

    finished = dict.fromkeys(number(outcome.finished) for outcome in outcomes)
    cells = [state.title, number(outcomes[0].acknowledged), " / ".join(finished)]
    for outcome in outcomes:
        cells.append(number(outcome.acknowledged & outcome.delivered.keys()))
        cells += [str(len(outcome.lost)), str(len(outcome.duplicated))]
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    """Returns the rows in the documentation."""
    rest = DOCUMENT.read_text().partition("\n| state | acknowledged | finished | nsqd: delivered |")[2]
    return rest.partition("\n\n")[0].split("\n")[2:]


@pytest.mark.peer
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_kill_costs_no_more_than_with_the_real_nsqd(
    state: State, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    nsqd = run(state, [os.fspath(peer_binary("nsqd"))], tmp_path / "nsqd")
    nsqd.check(state.nsqd)
    gnsqd = run(state, own_command(), tmp_path / "gnsqd")
    gnsqd.check(state.gnsqd)
    assert gnsqd.lost <= nsqd.lost
    # Where the real one loses messages that ours keeps, some may come twice.
    assert gnsqd.duplicated <= nsqd.duplicated or gnsqd.lost < nsqd.lost
    assert table()[STATES.index(state)] == row(state, nsqd, gnsqd)


def test_table_in_the_documentation_has_all_states_and_no_other() -> None:
    assert len(table()) == len(STATES)


def test_nothing_acknowledged_is_lost_on_its_way_from_topic_to_channel(tmp_path: Path) -> None:
    # Ours only: the real daemon's topic forgets a message before its channel has it.
    state = read(
        """moving
        memory=0 sync=50 files=100
        channel; publish before 120; publish_until_killed load"""
    )
    assert not run(state, own_command(), tmp_path / "gnsqd").lost
