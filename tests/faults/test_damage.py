"""Disk queues that somebody damaged while no daemon ran: what comes all the same, and what is said of the rest.

A daemon is started on many queues at a time, each damaged in its own way. All have seven messages in four files, two
in each but the last. Where the real nsqd loses what ours finds again, only ours has the queue.
"""

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kit.account import drain, next_body
from kit.daemons import Daemon
from kit.http_api import ask
from kit.nsq_client import Client

DaemonFactory = Callable[..., Daemon]

BODIES = [b"message no. %d" % number for number in range(7)]
SIZE = 4 + 26 + len(BODIES[0])  # of each record
FILES = 4
META = f"7\n0,0\n3,{SIZE}\n"


def record(number: int) -> bytes:
    return struct.pack(">iqH16s", SIZE - 4, 1_700_000_000_000_000_000 + number, 0, b"%016x" % number) + BODIES[number]


class Queue:
    """The files of one queue, to be damaged."""

    def __init__(self, directory: Path, name: str) -> None:
        self.meta = directory / f"{name}.diskqueue.meta.dat"
        self.files = [directory / f"{name}.diskqueue.{number:06d}.dat" for number in range(FILES)]
        self.meta.write_text(META)
        for number, path in enumerate(self.files):
            path.write_bytes(b"".join(map(record, range(7)[2 * number : 2 * number + 2])))

    def cut(self, number: int, size: int) -> None:
        data = self.files[number].read_bytes()
        self.files[number].write_bytes(data[:size])

    def append(self, number: int, data: bytes) -> None:
        with self.files[number].open("ab") as file:
            file.write(data)

    def overwrite(self, number: int, position: int, data: bytes) -> None:
        with self.files[number].open("r+b") as file:
            file.seek(position)
            file.write(data)

    def make_directory(self, number: int) -> None:
        self.files[number].unlink()
        self.files[number].mkdir()


@dataclass
class Case:
    """`lost`: which messages don't come. `bad`: which file is set aside. `log`: the WARN and ERROR lines about the
    queue, in order, where `$0` to `$3` are the data files; `nsqd_log`, if the real nsqd's are others.
    """

    damage: Callable[[Queue], object]
    log: list[str]
    lost: set[int] = field(default_factory=set)
    bad: int | None = None
    nsqd_log: list[str] | None = None
    both: bool = True


def reading(number: int, position: int, text: str) -> list[str]:
    """The lines about a file that is set aside."""
    return [
        f"ERROR: reading at {position} of ${number} - {text}",
        f"WARNING: jump to next file and saving bad file as ${number}.bad",
    ]


def positive(depth: int) -> str:
    return f"ERROR: positive depth at tail ({depth}), data loss, resetting 0..."


def negative(depth: int) -> str:
    return f"ERROR: negative depth at tail ({depth}), metadata corruption, resetting 0..."


RECOVERED = "WARNING: no usable metadata, reading all {} messages in {} files from $0 on"


def damage_twice(queue: Queue) -> None:
    queue.meta.write_bytes(b"x")
    queue.overwrite(1, SIZE, struct.pack(">i", -1))


CASES = {
    "whole": Case(lambda queue: None, []),
    "size-small": Case(
        lambda queue: queue.overwrite(1, SIZE, struct.pack(">i", 25)),
        [*reading(1, SIZE, "invalid message read size (25)"), positive(1)],
        lost={3},
        bad=1,
    ),
    "size-large": Case(
        lambda queue: queue.overwrite(0, 0, struct.pack(">i", (1 << 20) + 27)),
        [*reading(0, 0, f"invalid message read size ({(1 << 20) + 27})"), positive(2)],
        lost={0, 1},
        bad=0,
    ),
    "cut-in-record": Case(
        lambda queue: queue.cut(1, 2 * SIZE - 1),
        [*reading(1, SIZE, "unexpected EOF"), positive(1)],
        lost={3},
        bad=1,
    ),
    "cut-between-records": Case(lambda queue: queue.cut(1, SIZE), [positive(1)], lost={3}),
    "directory": Case(
        lambda queue: queue.make_directory(1),
        [*reading(1, 0, "read $1: is a directory"), positive(2)],
        lost={2, 3},
        bad=1,
    ),
    "missing": Case(
        lambda queue: queue.files[1].unlink(),
        ["ERROR: reading at 0 of $1 - open $1: no such file or directory", positive(2)],
        lost={2, 3},
        nsqd_log=[
            *reading(1, 0, "open $1: no such file or directory"),
            "ERROR: failed to rename bad diskqueue file $1 to $1.bad",
            positive(2),
        ],
    ),
    "torn-end": Case(
        lambda queue: queue.append(3, record(0)[:20]),
        [
            f"WARNING: $3 metadata writePos {SIZE} < file size of {SIZE + 20}, skipping to new file",
            *reading(3, SIZE, "unexpected EOF"),
        ],
        bad=3,
    ),
    "depth-high": Case(lambda queue: queue.meta.write_text(META.replace("7", "9")), [positive(2)]),
    "depth-low": Case(lambda queue: queue.meta.write_text(META.replace("7", "4")), [negative(-3)]),
    "meta-stale": Case(
        lambda queue: queue.meta.write_text(f"6\n0,0\n3,{SIZE - 9}\n"),
        [f"WARNING: $3 metadata writePos {SIZE - 9} < file size of {SIZE}, skipping to new file", negative(-1)],
    ),
    "meta-gone": Case(lambda queue: queue.meta.unlink(), [RECOVERED.format(7, 4)], both=False),
    "meta-empty": Case(
        lambda queue: queue.meta.write_bytes(b""),
        ["ERROR: failed to retrieveMetaData - EOF", RECOVERED.format(7, 4)],
        both=False,
    ),
    "meta-garbage": Case(
        lambda queue: queue.meta.write_bytes(b"\x00\xff garbage"),
        ["ERROR: failed to retrieveMetaData - expected integer", RECOVERED.format(7, 4)],
        both=False,
    ),
    "meta-garbage-and-size": Case(
        damage_twice,
        [
            "ERROR: failed to retrieveMetaData - expected integer",
            RECOVERED.format(6, 4),
            *reading(1, SIZE, "invalid message read size (-1)"),
        ],
        lost={3},
        bad=1,
        both=False,
    ),
    "meta-of-older-files": Case(
        lambda queue: queue.meta.write_text(f"2\n0,0\n0,{2 * SIZE}\n"),
        ["WARNING: metadata ends at $0, reading 3 later files too"],
        both=False,
    ),
}


def complaints(nsqd: Daemon, queue: str) -> list[str]:
    """The WARN and ERROR lines about a queue, as in `Case`."""
    lines = re.findall(rf"(WARNING: |ERROR: )DISKQUEUE\({re.escape(queue)}\) (.*)", nsqd.log())
    path = re.compile(rf"{re.escape(str(nsqd.data_path / queue))}\.diskqueue\.00000(\d)\.dat")
    return [level + path.sub(r"$\1", text) for level, text in lines]


def test_everything_else_comes(nsqd_factory: DaemonFactory, request: pytest.FixtureRequest) -> None:
    nsqd = nsqd_factory("--max-bytes-per-file=100", "--mem-queue-size=0")
    ours = "(built w/gnsqd" in nsqd.log()
    nsqd.terminate()
    cases = {name: case for name, case in CASES.items() if ours or case.both}
    topics = [{"name": name, "paused": False, "channels": [{"name": "c", "paused": False}]} for name in cases]
    (nsqd.data_path / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))
    bad = {}
    for name, case in cases.items():
        queue = Queue(nsqd.data_path, f"{name}:c")
        case.damage(queue)
        if case.bad is not None:
            path = queue.files[case.bad]
            bad[f"{path.name}.bad"] = None if path.is_dir() else path.read_bytes()
    nsqd.start()
    for name, case in cases.items():
        expected = [body for number, body in enumerate(BODIES) if number not in case.lost]
        assert drain(nsqd, name, at_least=len(expected)) == expected, name
        log = case.nsqd_log if case.nsqd_log is not None and not ours else case.log
        assert complaints(nsqd, f"{name}:c") == log
    # The queues go on, and no data file is left except those set aside.
    for name in cases:
        assert ask(nsqd, f"POST /pub?topic={name}", b"next") == (200, "OK")
    assert nsqd.terminate() == 0
    nsqd.start()
    for name in cases:
        assert drain(nsqd, name, at_least=1) == [b"next"], name
        assert complaints(nsqd, f"{name}:c") == []
    assert nsqd.terminate() == 0
    aside = {path.name: None if path.is_dir() else path.read_bytes() for path in nsqd.data_path.glob("*.bad")}
    assert aside == bad


def test_file_that_was_read_is_never_set_aside(gnsqd_factory: DaemonFactory) -> None:
    """The real nsqd does so when the reader had caught up with the writer (NSQD-COMPAT 0.1 item 4)."""
    gnsqd = gnsqd_factory("--max-bytes-per-file=100", "--mem-queue-size=0")
    with Client(gnsqd.tcp_address) as publisher, Client(gnsqd.tcp_address) as consumer:
        assert consumer.identify(output_buffer_size=-1).data == b"OK"
        consumer.subscribe("t", "c", rdy=1)
        for number in range(20):
            publisher.publish("t", b"%d" % number)
            assert next_body(consumer) == b"%d" % number
    assert not re.findall("WARNING|ERROR", gnsqd.log())
    assert gnsqd.terminate() == 0
    files = sorted(path.name for path in gnsqd.data_path.glob("*.diskqueue.0*"))
    assert files == ["t.diskqueue.000006.dat", "t:c.diskqueue.000006.dat"]
