"""One day in the life of a client library: the plan, the run and the verdict, the same for every library.

A driver is a program that uses one library. It reads the plan, a JSON file named by its argument, runs one writer and
four readers against the daemon, and prints what happens as JSON arrays, one a line, with the time in seconds:

    ["sent", time, body, delay]                         before each try to publish; delay in ms, 0 for PUB and MPUB
    ["received", time, reader, id, body, attempts]
    ["finished", time, reader, id, body]
    ["requeued", time, reader, id, body, delay]
    ["touched", time, reader, id, body]
    ["restart"]                                         now is the time to restart the daemon
    ["done"]                                            every message was finished on every channel

After "done" it keeps its connections until its standard input closes. The daemon is restarted with messages published,
queued, in flight and deferred; a driver publishes again what was not acknowledged.
"""

import json
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kit.daemons import Instance, eventually
from kit.traffic import create

MSG_TIMEOUT = 4.0  # seconds; a daemon for scenarios is started with this --msg-timeout
DEADLINE = 240.0  # seconds; on a quiet machine a scenario takes 10

# Channel to readers; the writer's topic has the first two channels, the slow topic the last.
READERS = {"shared": ("shared-1", "shared-2"), "copy": ("copy-1",), "slow": ("slow-1",)}

Event = list[Any]


@dataclass(frozen=True)
class Plan:
    """The work of a driver. Bodies are the decimal numbers from 0 to count - 1, and `slow` on the slow topic."""

    address: str
    topic: str
    slow_topic: str
    count: int
    # What to publish, in order: {"verb": "pub" | "mpub" | "dpub", "bodies", "delay"}. The second act begins when all
    # messages of the first and the slow one are finished; after it comes the restart; the third does not wait for it.
    acts: list[list[dict[str, Any]]]
    first_act: dict[str, int]  # by channel: how many messages are finished before the second act
    requeue: dict[str, int]  # by every channel's first reader of the body, once: the delay in ms
    backoff: list[str]  # those of them that the reader backs off from
    slow_body: str = "slow"
    touch_every: float = 0.5  # seconds
    slow_for: float = MSG_TIMEOUT * 1.25  # seconds from receiving the slow message to finishing it
    readers: dict[str, tuple[str, ...]] = field(default_factory=lambda: READERS)


def plan(address: str, count: int) -> Plan:
    """Plans `count` messages, a multiple of 100: 40 % go by a PUB each, 50 % by MPUBs of 50, 10 % by DPUB."""
    units: list[dict[str, Any]] = []
    for start in range(0, count, 100):
        bodies = [str(number) for number in range(start, start + 100)]
        units += [{"verb": "pub", "bodies": [body], "delay": 0} for body in bodies[:40]]
        units += [{"verb": "mpub", "bodies": bodies[40:90], "delay": 0}]
        units += [{"verb": "dpub", "bodies": [body], "delay": 300} for body in bodies[90:]]
    requeued = [str(number) for number in range(5, count, 97)]
    acts = [units[: len(units) // 3], units[len(units) // 3 : -len(units) // 3], units[-len(units) // 3 :]]
    published = sum(len(unit["bodies"]) for unit in acts[0])
    return Plan(
        address=address,
        topic="work",
        slow_topic="slow_work",
        count=count,
        acts=acts,
        first_act={"shared": published, "copy": published, "slow": 1},
        requeue=dict.fromkeys(requeued, 250),
        backoff=requeued[1::5],
    )


@dataclass(frozen=True)
class Story:
    """The events of a driver, and from when to when the daemon was on its way down and up again."""

    plan: Plan
    events: list[Event]
    down: float
    up: float

    @property
    def settled(self) -> float:
        """The time when the daemon served again and no reader read what an old connection had buffered.

        A busy driver reads that for seconds; a `closed` event of a reader is when it was through.
        """
        closed: list[float] = [event[1] for event in by_kind(self.events, "closed")]
        return max([self.up, *closed])


def run(driver: Sequence[str], daemon: Instance, count: int, directory: Path) -> Story:
    """Runs `driver` against `daemon`; AssertionError if it fails, or when messages are left over in the end."""
    the_plan = plan("{}:{}".format(*daemon.tcp_address), count)
    path = directory / "plan.json"
    path.write_text(json.dumps(asdict(the_plan)), encoding="utf-8")
    create_channels(daemon, the_plan)
    with (
        (directory / "driver.log").open("w+", encoding="utf-8") as log,
        # The driver is read while the daemon is away, or it would stand still and have nothing to reconnect for.
        ThreadPoolExecutor(1) as aside,
    ):
        process = subprocess.Popen(
            [*driver, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        watchdog = threading.Timer(DEADLINE, process.kill)
        watchdog.start()
        events: list[Event] = []
        restarted: Future[tuple[float, float]] = Future()
        try:
            for event in read_events(process):
                if event == ["restart"]:
                    restarted = aside.submit(restart, daemon)
                elif event == ["done"]:
                    eventually(lambda: left_over(daemon, the_plan) == 0, "every message is finished")
                    break
                else:
                    events.append(event)
            process.communicate(timeout=DEADLINE)
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
        log.seek(0)
        # A driver waits for what is lost until it is killed; so is a slow machine.
        assert process.returncode != -signal.SIGKILL, (
            f"the driver did not end within {DEADLINE} s, with {left_over(daemon, the_plan)} messages left over and "
            f"{unfinished(the_plan, events)} not finished:\n{log.read()}"
        )
        assert process.returncode == 0, f"driver exited with {process.returncode}:\n{log.read()}"
        return Story(the_plan, events, *restarted.result(DEADLINE))


def restart(daemon: Instance) -> tuple[float, float]:
    """Returns the times when it began to go down and when it served again."""
    down = time.time()
    daemon.restart()
    return down, time.time()


def read_events(process: subprocess.Popen[str]) -> Iterator[Event]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):  # not so the last one of a driver that was killed
            event: Event = json.loads(line)
            yield event


def create_channels(daemon: Instance, the_plan: Plan) -> None:
    """Creates the channels before the first message, which goes to no later ones."""
    for channel in READERS:
        create(daemon, topic_of(the_plan, channel), channel)


def topic_of(the_plan: Plan, channel: str) -> str:
    return the_plan.slow_topic if channel == "slow" else the_plan.topic


def left_over(daemon: Instance, the_plan: Plan) -> int:
    """Counts messages queued, in flight or deferred anywhere."""
    return sum(
        stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
        for stats in (daemon.channel_stats(topic_of(the_plan, channel), channel) for channel in READERS)
    )


def check(story: Story) -> None:
    """Raises AssertionError unless the daemon and the library kept every promise in `story`."""
    check_nothing_lost(story.plan, story.events)
    check_nothing_finished_comes_back(story)
    check_delays(story)
    check_requeues(story)
    check_touch(story)


def by_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event[0] == kind]


def channel_of(reader: str) -> str:
    return reader.rpartition("-")[0]


def check_nothing_lost(the_plan: Plan, events: list[Event]) -> None:
    assert unfinished(the_plan, events) == {"shared": 0, "copy": 0, "slow": 0}
    receivers = {reader for _, _, reader, *_ in by_kind(events, "finished")}
    assert receivers == {reader for readers in READERS.values() for reader in readers}


def unfinished(the_plan: Plan, events: list[Event]) -> dict[str, int]:
    """Counts the messages of each channel that no reader finished."""
    finished = defaultdict(set)
    for _, _, reader, _, body in by_kind(events, "finished"):
        finished[channel_of(reader)].add(body)
    everything = {str(number) for number in range(the_plan.count)}
    expected = {"shared": everything, "copy": everything, "slow": {the_plan.slow_body}}
    assert all(finished[channel] <= bodies for channel, bodies in expected.items())
    return {channel: len(bodies - finished[channel]) for channel, bodies in expected.items()}


def check_nothing_finished_comes_back(story: Story) -> None:
    finished: dict[tuple[str, str], float] = {}
    for kind, when, reader, *rest in story.events:
        if kind in ("received", "finished"):
            message = (channel_of(reader), rest[0])
            if kind == "finished":
                finished[message] = when
            elif message in finished:
                # nsqd answers no FIN, so one that was under way when the connection broke is nobody's promise.
                assert near_restart(story, finished[message], finished[message]), (message, finished[message], when)


def check_delays(story: Story) -> None:
    """Checks that no deferred message came early; but the real nsqd forgets delays on a restart (NSQD-COMPAT, 0.1)."""
    sent: dict[str, tuple[float, int]] = {}
    for _, when, body, delay in by_kind(story.events, "sent"):
        sent.setdefault(body, (when, delay))
    early = []
    seen = set()
    for _, when, reader, _, body, _ in by_kind(story.events, "received"):
        if (channel_of(reader), body) in seen or channel_of(reader) == "slow":
            continue
        seen.add((channel_of(reader), body))
        start, delay = sent[body]
        if too_early(start, when, delay) and not near_restart(story, start, start + delay / 1000):
            early.append((body, reader, when - start))
    assert not early
    assert any(delay for _, delay in sent.values())


def check_requeues(story: Story) -> None:
    """Checks that a requeued message is back after its delay and no sooner, one attempt older."""
    waiting: dict[tuple[str, str], tuple[float, int, int]] = {}
    attempts: dict[tuple[str, str], int] = {}
    back = 0
    for kind, when, reader, *rest in story.events:
        if kind not in ("requeued", "received"):
            continue
        message = channel_of(reader), rest[0]
        if kind == "requeued":
            waiting[message] = (when, rest[2], attempts[message])
        else:
            attempts[message] = rest[2]
            if requeued := waiting.pop(message, None):
                start, delay, before = requeued
                # Delivered before the restart and not read, it comes once more after it.
                if when < story.down or start > story.settled + 1:
                    assert not too_early(start, when, delay), (rest, when - start)
                    assert rest[2] == before + 1, (rest, before)
                    back += 1
    assert not waiting
    assert back > 0


def check_touch(story: Story) -> None:
    """Checks that touching kept the slow message in flight past its timeout: it came once."""
    received = [event for event in by_kind(story.events, "received") if event[2] == "slow-1"]
    finished = [event for event in by_kind(story.events, "finished") if event[2] == "slow-1"]
    assert len(received) == len(finished) == 1
    assert finished[0][1] - received[0][1] > MSG_TIMEOUT
    assert by_kind(story.events, "touched")


def too_early(start: float, when: float, delay: int) -> bool:
    """Takes `delay` in ms; a driver's clock may count no finer."""
    return when - start < (delay - 1) / 1000


def near_restart(story: Story, start: float, end: float) -> bool:
    """True if the time from `start` to `end` touches the restart or the second before or after it.

    Before: what was on its way. After: what a client that reports no `closed` still read from the old connection.
    """
    return start <= story.settled + 1 and end >= story.down - 1
