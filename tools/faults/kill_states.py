"""What a SIGKILL costs: the states to kill a daemon in, and the procedure that counts what comes back.

A state is a row of STATES: flags, the steps that bring a daemon into it (`victim`), and which groups of messages it
then loses or delivers twice. With a sync-timeout of an hour, queues are synced by sync-every and at a change of files,
so it is known what is synced; most rows take all of it or none. After the SIGKILL comes a start, without a memory queue
so that everything keeps its order, and a consumer that takes and finishes what there is.

    PYTHONPATH=tests:tools .venv/bin/python -m faults.kill_states

prints the table of contrib/docs/reliability.md.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from faults.victim import (
    QUEUE,
    RECORD_SIZE,
    TOPIC,
    Step,
    Victim,
    all_read,
    channel,
    defer,
    empty,
    files,
    finish,
    finish_what_comes,
    handed_over,
    holds,
    kill_and_start,
    let_it_sync,
    pause,
    publish,
    publish_until_killed,
    requeue,
    restart,
    take,
    topic,
)
from kit.daemons import PEERS, Daemon, own_command

LONG = 600_000  # ms; a delay that nobody waits for
SHORT = 4000  # ms; long enough for the steps up to the kill

ON_DISK = "--mem-queue-size=0"
MEMORY_OF_8 = "--mem-queue-size=8"
MEMORY_OF_20 = "--mem-queue-size=20"
FILES_OF_4 = f"--max-bytes-per-file={4 * RECORD_SIZE}"
FILES_OF_100 = f"--max-bytes-per-file={100 * RECORD_SIZE}"
SYNC_ALWAYS = ("--sync-every=1", "--sync-timeout=1h")
SYNC_EVERY_16 = ("--sync-every=16", "--sync-timeout=1h")
SYNC_NEVER = ("--sync-every=1000000", "--sync-timeout=1h")


class Outcome(NamedTuple):
    """Bodies: the acknowledged ones, the ones finished before the kill, and how often each came after it."""

    acknowledged: frozenset[bytes]
    finished: frozenset[bytes]
    delivered: Counter[bytes]

    @property
    def lost(self) -> frozenset[bytes]:
        return self.acknowledged - self.finished - self.delivered.keys()

    @property
    def duplicated(self) -> frozenset[bytes]:
        """Bodies that came although they had been finished, before the kill or after it."""
        return frozenset(body for body, count in self.delivered.items() if count > 1 or body in self.finished)


class Fate(NamedTuple):
    """Names of groups; the other messages that were not finished come once."""

    lost: str = ""
    duplicated: str = ""


@dataclass(frozen=True)
class State:
    name: str
    title: str
    flags: tuple[str, ...]
    steps: tuple[Step, ...]
    nsqd: Fate
    gnsqd: Fate
    counted: bool = True  # how many messages there are is known beforehand


def loaded(*sync: str) -> tuple[Step, ...]:
    """3 + 5 messages in the channel's disk queue, all synced, and no memory queue; then synced in another way."""
    return (
        channel(),
        publish("first", 3),
        publish("rest", 5),
        restart(ON_DISK, *sync),
        holds(channel=(0, 8)),
        files(QUEUE, {0: 8}, written=(0, 8)),
    )


def filled(queue: str) -> tuple[Step, ...]:
    """8 messages in memory, 16 on disk, synced, and 3 more, unsynced."""
    return (
        publish("memory", 8),
        publish("synced", 16),
        files(queue, {0: 16}, written=(0, 16)),
        publish("unsynced", 3),
        files(queue, {0: 19}, written=(0, 16)),
    )


NOTHING = Fate()

STATES = (
    State(
        "memory",
        "8 in memory",
        (MEMORY_OF_8, *SYNC_NEVER),
        (channel(), publish("memory", 8), holds(channel=(8, 0)), files(QUEUE, {})),
        nsqd=Fate(lost="memory"),
        gnsqd=Fate(lost="memory"),
    ),
    State(
        "synced",
        "8 on disk, synced",
        (ON_DISK, *SYNC_ALWAYS),
        (
            channel(),
            publish("synced", 8),
            holds(channel=(0, 8)),
            files(TOPIC, {0: 8}, read=(0, 8), written=(0, 8)),
            files(QUEUE, {0: 8}, written=(0, 8)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "filled",
        "8 in memory, 16 on disk, synced, and 3 unsynced",
        (MEMORY_OF_8, *SYNC_EVERY_16),
        (channel(), *filled(QUEUE), holds(channel=(8, 19)), files(TOPIC, {})),
        nsqd=Fate(lost="memory"),
        gnsqd=Fate(lost="memory"),
    ),
    State(
        "unsynced",
        "no memory queue: 16 on disk, synced, and 3 unsynced, in the files of topic and channel",
        (ON_DISK, *SYNC_EVERY_16),
        (
            channel(),
            publish("synced", 16),
            files(TOPIC, {0: 16}, read=(0, 16), written=(0, 16)),
            files(QUEUE, {0: 16}, written=(0, 16)),
            publish("unsynced", 3),
            holds(channel=(0, 19)),
            files(TOPIC, {0: 19}, read=(0, 16), written=(0, 16)),
            files(QUEUE, {0: 19}, written=(0, 16)),
        ),
        nsqd=Fate(duplicated="unsynced"),
        gnsqd=Fate(duplicated="unsynced"),
    ),
    State(
        "fresh",
        "8 in memory, 3 on disk; never synced",
        (MEMORY_OF_8, *SYNC_NEVER),
        (channel(), publish("memory", 8), publish("fresh", 3), holds(channel=(8, 3)), files(QUEUE, {0: 3})),
        nsqd=Fate(lost="memory fresh"),
        gnsqd=Fate(lost="memory"),
    ),
    State(
        "fresh-disk",
        "no memory queue: 8 on disk, in the files of topic and channel; never synced",
        (ON_DISK, *SYNC_NEVER),
        (channel(), publish("fresh", 8), holds(channel=(0, 8)), files(TOPIC, {0: 8}), files(QUEUE, {0: 8})),
        nsqd=Fate(lost="fresh"),
        gnsqd=Fate(duplicated="fresh"),
    ),
    State(
        "fresh-finished",
        "the same, and 3 of them finished",
        (ON_DISK, *SYNC_NEVER),
        (
            channel(),
            publish("first", 3),
            publish("rest", 5),
            take("first"),
            finish("first"),
            holds(channel=(0, 5)),
            files(TOPIC, {0: 8}),
            files(QUEUE, {0: 8}),
        ),
        nsqd=Fate(lost="rest"),
        gnsqd=Fate(duplicated="first rest"),
    ),
    State(
        "rolled",
        "10 on disk in 3 files, the last of them unsynced",
        (ON_DISK, *SYNC_NEVER, FILES_OF_4),
        (topic(), publish("rolled", 10), holds(topic=(0, 10)), files(TOPIC, {0: 4, 1: 4, 2: 2}, written=None)),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "rolled-finished",
        "10 on disk in 3 files; 4, the whole first file, finished",
        (MEMORY_OF_20, FILES_OF_4),
        (
            channel(),
            publish("first", 4),
            publish("rest", 6),
            restart(ON_DISK, *SYNC_NEVER, FILES_OF_4),
            files(QUEUE, {0: 4, 1: 4, 2: 2}, written=(2, 2)),
            take("first"),
            finish("first"),
            holds(channel=(0, 6)),
            files(QUEUE, {1: 4, 2: 2}, read=(1, 0), written=(2, 2)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "read-synced",
        "8 on disk; 3 finished, read position synced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_ALWAYS),
            take("first"),
            finish("first"),
            holds(channel=(0, 5)),
            files(QUEUE, {0: 8}, read=(0, 3), written=(0, 8)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "read-unsynced",
        "8 on disk; 3 finished, read position unsynced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_NEVER),
            take("first"),
            finish("first"),
            holds(channel=(0, 5)),
            files(QUEUE, {0: 8}, written=(0, 8)),
        ),
        nsqd=Fate(duplicated="first"),
        gnsqd=Fate(duplicated="first"),
    ),
    State(
        "in-flight-memory",
        "3 from memory in flight",
        (MEMORY_OF_8, *SYNC_NEVER),
        (channel(), publish("first", 3), take("first"), holds(in_flight=3)),
        nsqd=Fate(lost="first"),
        gnsqd=Fate(lost="first"),
    ),
    State(
        "in-flight-synced",
        "8 on disk; 3 in flight, read position synced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_ALWAYS),
            take("first"),
            holds(channel=(0, 5), in_flight=3),
            files(QUEUE, {0: 8}, read=(0, 3), written=(0, 8)),
        ),
        nsqd=Fate(lost="first"),
        gnsqd=Fate(lost="first"),
    ),
    State(
        "in-flight-unsynced",
        "8 on disk; 3 in flight, read position unsynced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_NEVER),
            take("first"),
            holds(channel=(0, 5), in_flight=3),
            files(QUEUE, {0: 8}, written=(0, 8)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "in-flight-many",
        "20 on disk; 15 in flight, one read less than `--sync-every`",
        (MEMORY_OF_20,),
        (
            channel(),
            publish("first", 15),
            publish("rest", 5),
            restart(ON_DISK, *SYNC_EVERY_16),
            take("first"),
            holds(channel=(0, 5), in_flight=15),
            let_it_sync(),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "dpub-memory",
        "4 deferred by DPUB",
        (MEMORY_OF_8, *SYNC_NEVER),
        (channel(), defer("deferred", 4, LONG), holds(deferred=4)),
        nsqd=Fate(lost="deferred"),
        gnsqd=Fate(lost="deferred"),
    ),
    State(
        "dpub-disk",
        "no memory queue, no channel: 4 by DPUB on disk, synced",
        (ON_DISK, *SYNC_ALWAYS),
        (topic(), defer("deferred", 4, LONG), holds(topic=(0, 4)), files(TOPIC, {0: 4}, written=(0, 4))),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "dpub-no-memory",
        "no memory queue: 4 deferred by DPUB",
        (ON_DISK, *SYNC_ALWAYS),
        (channel(), defer("deferred", 4, SHORT), holds(deferred=4), all_read(TOPIC)),
        nsqd=Fate(lost="deferred"),
        gnsqd=NOTHING,
    ),
    State(
        "dpub-late-channel",
        "the same before there is a channel; then a channel and a consumer that finishes what it gets",
        (ON_DISK, *SYNC_ALWAYS),
        (
            topic(),
            defer("deferred", 4, SHORT),
            holds(topic=(0, 4)),
            channel(),
            handed_over(),
            finish_what_comes(),
            all_read(TOPIC),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "req-memory",
        "3 from memory deferred by REQ",
        (MEMORY_OF_8, *SYNC_NEVER),
        (channel(), publish("first", 3), take("first"), requeue("first", LONG), holds(deferred=3)),
        nsqd=Fate(lost="first"),
        gnsqd=Fate(lost="first"),
    ),
    State(
        "req-synced",
        "8 on disk; 3 deferred by REQ, read position synced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_ALWAYS),
            take("first"),
            requeue("first", LONG),
            holds(channel=(0, 5), deferred=3),
            files(QUEUE, {0: 8}, read=(0, 3), written=(0, 8)),
        ),
        nsqd=Fate(lost="first"),
        gnsqd=Fate(lost="first"),
    ),
    State(
        "req-unsynced",
        "8 on disk; 3 deferred by REQ, read position unsynced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_NEVER),
            take("first"),
            requeue("first", LONG),
            holds(channel=(0, 5), deferred=3),
            files(QUEUE, {0: 8}, written=(0, 8)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "requeued-synced",
        "8 on disk; 3 read and put back behind them by REQ 0, synced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_ALWAYS),
            take("first"),
            requeue("first", 0),
            holds(channel=(0, 8)),
            files(QUEUE, {0: 11}, read=(0, 3), written=(0, 11)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "requeued-unsynced",
        "8 on disk; 3 read and put back behind them by REQ 0, unsynced",
        (MEMORY_OF_8,),
        (
            *loaded(*SYNC_NEVER),
            take("first"),
            requeue("first", 0),
            holds(channel=(0, 8)),
            files(QUEUE, {0: 11}, written=(0, 8)),
        ),
        nsqd=Fate(duplicated="first"),
        gnsqd=Fate(duplicated="first"),
    ),
    State(
        "finished-memory",
        "3 from memory finished",
        (MEMORY_OF_8, *SYNC_NEVER),
        (channel(), publish("first", 3), take("first"), finish("first"), holds()),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "no-channel",
        "no channel: 8 in memory, 16 on disk, synced, and 3 unsynced",
        (MEMORY_OF_8, *SYNC_EVERY_16),
        (topic(), *filled(TOPIC), holds(topic=(8, 19))),
        nsqd=Fate(lost="memory"),
        gnsqd=Fate(lost="memory"),
    ),
    State(
        "topic-paused",
        "topic paused: 8 in memory, 16 on disk, synced, and 3 unsynced",
        (MEMORY_OF_8, *SYNC_EVERY_16),
        (channel(), pause("topic"), *filled(TOPIC), holds(topic=(8, 19))),
        nsqd=Fate(lost="memory"),
        gnsqd=Fate(lost="memory"),
    ),
    State(
        "channel-paused",
        "channel paused: 8 in memory, 16 on disk, synced, and 3 unsynced",
        (MEMORY_OF_8, *SYNC_EVERY_16),
        (channel(), pause("channel"), *filled(QUEUE), holds(channel=(8, 19))),
        nsqd=Fate(lost="memory"),
        gnsqd=Fate(lost="memory"),
    ),
    State(
        "deferred-before",
        "4 deferred at a clean exit, then a start",
        (MEMORY_OF_8, *SYNC_NEVER),
        (
            channel(),
            defer("deferred", 4, SHORT),
            restart(MEMORY_OF_8, *SYNC_NEVER),
            holds(channel=(0, 4)),
            files(QUEUE, {0: 4}, written=(0, 4)),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "deferred-consumer",
        "4 deferred at a clean exit, then a start and a consumer that finishes what it gets",
        (MEMORY_OF_8, *SYNC_ALWAYS),
        (
            channel(),
            defer("deferred", 4, SHORT),
            restart(MEMORY_OF_8, *SYNC_ALWAYS),
            finish_what_comes(),
            let_it_sync(),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    ),
    State(
        "mixed",
        "2 finished, 4 in flight, 3 deferred by REQ, 2 by DPUB, 8 in memory, 16 on disk, synced, and 3 unsynced",
        (MEMORY_OF_8, *SYNC_EVERY_16),
        (
            channel(),
            publish("finished", 2),
            take("finished"),
            finish("finished"),
            publish("in-flight", 4),
            take("in-flight"),
            publish("requeued", 3),
            take("requeued"),
            requeue("requeued", LONG),
            defer("deferred", 2, LONG),
            *filled(QUEUE),
            holds(channel=(8, 19), in_flight=4, deferred=5),
        ),
        nsqd=Fate(lost="in-flight requeued deferred memory"),
        gnsqd=Fate(lost="in-flight requeued deferred memory"),
    ),
    State(
        "emptied",
        "no memory queue: 16 on disk, synced, then emptied, and 3 more",
        (ON_DISK, *SYNC_EVERY_16),
        (
            topic(),
            publish("emptied", 16),
            files(TOPIC, {0: 16}, written=(0, 16)),
            empty("topic"),
            publish("later", 3),
            holds(topic=(0, 3)),
            files(TOPIC, {1: 3}, read=None, written=None),
        ),
        nsqd=Fate(lost="later"),
        gnsqd=NOTHING,
    ),
    State(
        "killed-twice",
        "no memory queue: 16 on disk, synced, and 3 unsynced; then a kill, a start and 3 more",
        (ON_DISK, *SYNC_EVERY_16),
        (
            topic(),
            publish("synced", 16),
            files(TOPIC, {0: 16}, written=(0, 16)),
            publish("unsynced", 3),
            files(TOPIC, {0: 19}, written=(0, 16)),
            kill_and_start(),
            publish("later", 3),
            files(TOPIC, {0: 19, 1: 3}, written=None),
        ),
        nsqd=Fate(lost="later"),
        gnsqd=NOTHING,
    ),
    State(
        "load",
        "no memory queue: two publishers at work",
        (ON_DISK, *SYNC_NEVER, FILES_OF_100),
        (
            topic(),
            publish("before", 120),
            files(TOPIC, {0: 100, 1: 20}, written=None),
            publish_until_killed("load"),
        ),
        nsqd=NOTHING,
        gnsqd=NOTHING,
        counted=False,
    ),
)


def run(state: State, command: Sequence[str], directory: Path) -> Outcome:
    """Kill a daemon in this state, start it again and take everything; what came of its messages."""
    victim = Victim(Daemon(command, directory, *state.flags))
    try:
        victim.start()
        for step in state.steps:
            step(victim)
        victim.kill()
        victim.start(ON_DISK)
        victim.unpause()
        delivered = victim.drain()
        assert victim.daemon.terminate() == 0
    except Exception as error:
        for log in victim.daemon.logs:
            error.add_note(f"{log.name}:\n{log.read_text('utf-8', 'replace')}")
        raise
    finally:
        victim.kill()
    assert delivered.keys() <= {body for bodies in victim.groups.values() for body in bodies}
    return Outcome(frozenset(victim.acknowledged), frozenset(victim.finished), delivered)


COLUMNS = ("delivered", "lost", "duplicated")
HEADINGS = (
    "state",
    "acknowledged",
    "finished",
    *(f"{name}: {column}" for name in ("nsqd", "gnsqd") for column in COLUMNS),
)


def heading() -> str:
    return "\n".join((line(HEADINGS), line(["---", *["---:"] * (len(HEADINGS) - 1)])))


def row(state: State, nsqd: Outcome, gnsqd: Outcome) -> str:
    """A line of the table."""
    finished = dict.fromkeys((number(state, nsqd.finished), number(state, gnsqd.finished)))
    cells = [state.title, number(state, nsqd.acknowledged), " / ".join(finished)]
    for outcome in (nsqd, gnsqd):
        cells += [number(state, outcome.acknowledged & outcome.delivered.keys())]
        cells += [str(len(outcome.lost)), str(len(outcome.duplicated))]
    return line(cells)


def number(state: State, bodies: Set[bytes]) -> str:
    return str(len(bodies)) if state.counted or not bodies else "n"


def line(cells: Sequence[str]) -> str:
    """A line of Markdown."""
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    nsqd = PEERS / "nsqd"
    if not nsqd.exists():
        sys.stderr.write(f"{nsqd} is not there (make peers builds it)\n")
        return 1
    sys.stdout.write(f"{heading()}\n")
    for state in STATES:
        with tempfile.TemporaryDirectory(prefix="gnsqd-kill-") as directory:
            outcomes = [
                run(state, command, Path(directory) / name)
                for name, command in (("nsqd", [os.fspath(nsqd)]), ("gnsqd", own_command()))
            ]
        sys.stdout.write(f"{row(state, *outcomes)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
