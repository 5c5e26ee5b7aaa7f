"""Each state that a log in an object store ever had, restored: a replay finds no damage, everything that was
acknowledged before, and nothing that was finished long before."""

import random
import shutil
from collections import defaultdict
from contextlib import suppress
from io import StringIO
from math import inf
from pathlib import Path

import pytest

from gnsqd.log import Level, Logger
from gnsqd.queues.journal.journals import find_journals
from gnsqd.queues.journal.segments import OpenFiles, Segments
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.log_store import LogStore, read_log, restore
from kit.daemons import Instance, interpreter, own_command
from kit.jumping_clock import WallClock
from kit.kept_store import KeptStore
from kit.nsq_client import NSQClient, mpub_body
from kit.traffic import all_done, create, post

HOUR = 3_600_000  # ms
BEFORE_BODY = 4 + 4 + 8 + 2 + 16  # size, type, timestamp, attempts, id
FLAGS = ("--durability=store", "--max-bytes-per-file=3000", "--retention-bytes=4000", "--msg-timeout=1h")
STEPS = 90

State = dict[tuple[str, str], set[bytes]]  # by topic and channel, bodies that will come; those of the topic are of ""


class Copy:
    """A message in a channel: it must come in states from `begin` to `end`, and must not from `gone` on."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.end = self.gone = inf


class Model:
    """A daemon, all that is done with it, one after the other, and what that means for each state."""

    def __init__(self, directory: Path, seed: int, flags: tuple[str, ...]) -> None:
        self.clock = WallClock(directory / "clock", interpreter(own_command()))
        self.store = KeptStore(directory / "store", self.clock.command[: self.clock.command.index("-P")])
        flags = (f"--log-store={self.store.url}", *FLAGS, *flags)
        self.daemon = Instance(self.store.command, directory / "data", *flags)
        self.chance = random.Random(seed)
        self.channels: dict[str, list[str]] = {}
        self.copies: dict[tuple[str, str], list[tuple[bytes, Copy]]] = defaultdict(list)
        self._unsettled: dict[str, list[Copy]] = defaultdict(list)
        self._count = 0

    def publish(self, topic: str) -> None:
        size, count = self.chance.choice((30, 300)), self.chance.choice((1, 1, 3, 10))
        bodies = [f"{topic} {number} ".ljust(size, ".").encode() for number in range(self._count, self._count + count)]
        self._count += count
        verb = f"MPUB {topic}" if count > 1 else self.chance.choice((f"PUB {topic}", f"DPUB {topic} {HOUR}"))
        with NSQClient(self.daemon.tcp_address) as client:
            client.command(verb.encode(), mpub_body(*bodies) if count > 1 else bodies[0])
            assert client.response() == b"OK"
        newest = self.store.newest
        for channel in self.channels[topic]:
            self.copies[topic, channel] += [(body, Copy(newest)) for body in bodies]
        # What was done with the topic before is written before.
        for copy in self._unsettled.pop(topic, []):
            copy.gone = newest

    def consume(self, topic: str) -> None:
        channel = self.chance.choice(self.channels[topic])
        copies = dict(self.copies[topic, channel])
        with NSQClient(self.daemon.tcp_address) as client:
            client.subscribe(topic, channel, rdy=self.chance.choice((3, 10, 100)))
            with suppress(TimeoutError):
                while message := client.message(0.03):
                    if self.chance.random() < 0.75:
                        self._end(topic, [copies[message.body]])
                        client.command(b"FIN " + message.id)
                    else:
                        client.command(b"REQ " + message.id + b" %d" % self.chance.choice((0, HOUR)))
            client.command(b"RDY 0")
            all_done(client)

    def _end(self, topic: str, copies: list[Copy]) -> None:
        for copy in copies:
            copy.end, copy.gone = min(copy.end, self.store.newest), inf
        self._unsettled[topic] += copies

    def _end_channel(self, topic: str, channel: str) -> None:
        self._end(topic, [copy for _, copy in self.copies[topic, channel]])

    def rewind(self, topic: str) -> None:
        channel = self.chance.choice(self.channels[topic])
        again = {copy for _, copy in self.copies[topic, channel]}
        for copy in again:  # if it is retained
            copy.end, copy.gone = min(copy.end, copy.gone), inf
        self._unsettled[topic] = [copy for copy in self._unsettled[topic] if copy not in again]
        post(self.daemon, f"/channel/rewind?topic={topic}&channel={channel}&to=first")

    def remake_channel(self, topic: str) -> None:
        channel = self.chance.choice(self.channels[topic])
        self._end_channel(topic, channel)
        post(self.daemon, f"/channel/delete?topic={topic}&channel={channel}")
        create(self.daemon, topic, channel)

    def remake_topic(self, topic: str) -> None:
        for channel in self.channels[topic]:
            self._end_channel(topic, channel)
        post(self.daemon, f"/topic/delete?topic={topic}")
        self.make_topic(topic)

    def make_topic(self, topic: str) -> None:
        self.channels[topic] = self.chance.sample("abc", self.chance.choice((1, 2)))
        create(self.daemon, topic, *self.channels[topic])

    def set_clock(self, topic: str) -> None:
        self.clock.set(self.chance.uniform(-3600, 3600))

    def stop(self, topic: str) -> None:
        how = self.chance.choice(("exit", "kill", "lose"))
        if how == "exit":
            assert self.daemon.terminate() == 0
        else:
            self.daemon.kill()
            self._unsettled.clear()
        if how == "lose":
            shutil.rmtree(self.daemon.data_path)
        self.daemon.start()
        for name, channels in self.channels.items():  # whoever made one a moment before has to make it again
            create(self.daemon, name, *channels)

    def check(self, number: int, state: State) -> None:
        for (topic, channel), copies in self.copies.items():
            there, not_yet_there = state.get((topic, channel), set()), state.get((topic, ""), set())
            expected = {body for body, copy in copies if copy.begin <= number <= copy.end}
            assert expected <= there | not_yet_there, (number, topic, channel)
            assert not there & {body for body, copy in copies if copy.gone <= number}, (number, topic, channel)


def read_state(directory: Path) -> State:
    """Returns what there is in the journals of a directory; AssertionError if anything is damaged."""
    state: State = {}
    for topic, paths in find_journals(str(directory), [path.name for path in directory.iterdir()]).items():
        logger = Logger("", Level.WARN, log := StringIO())
        replay = Replay(topic, logger, checks=True)
        replay.read([path for _, path in paths])
        assert not [*replay.damages, *replay.lost], log.getvalue()
        segments = Segments(topic, replay.segments, logger, OpenFiles())
        for _, queue, left in replay.unread():
            bodies = state[topic, queue.name.partition(":")[2]] = set()
            for start, end in left:
                while start < end:
                    start, frames, _ = segments.read(start, end)
                    bodies |= {frame[BEFORE_BODY:] for frame in frames}
                    start += len(frames)
        segments.end_reading()
    return state


@pytest.mark.parametrize(
    "seed, flags",
    [(61, ("--log-store-retention=2s", "--log-store-interval=20ms")), (63, ("--log-store-interval=1ms",))],
)
def test_every_state_of_the_store_can_be_restored(seed: int, flags: tuple[str, ...], directory: Path) -> None:
    model = Model(directory, seed, flags)
    kinds = {Model.publish: 60, Model.consume: 25, Model.rewind: 2, Model.remake_channel: 1, Model.remake_topic: 2}
    kinds |= {Model.set_clock: 2, Model.stop: 3}
    with model.daemon:
        for topic in "stu":
            model.make_topic(topic)
        for kind in model.chance.choices([*kinds], [*kinds.values()], k=STEPS):
            kind(model, model.chance.choice("stu"))
    last: State = {}
    for number, url in model.store.views():
        store, restored = LogStore(url), directory / "restored"
        restored.mkdir()
        restore(store, read_log(store), str(restored))
        last = read_state(restored)
        model.check(number, last)
        shutil.rmtree(restored)
    assert last == read_state(model.daemon.data_path)
