"""Opening and reading a disk queue whose files are not what they should be (NSQD-COMPAT 4.5 and 4.6).

Texts of log lines are those of the real nsqd; where this queue saves what the real one loses, the test says so.
"""

import builtins
import errno
import io
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gnsqd.shared.disk_format import Meta
from gnsqd.shared.errors import StorageError
from unit.storage.conftest import OpenQueue
from unit.storage.disk.test_diskqueue import drain, record

ALL = 1_000_000


def write_queue(path: Path, meta: str | None, *contents: bytes | None) -> None:
    """Writes a queue by hand: the text of its meta file and the contents of its data files, None for none."""
    if meta is not None:
        (path / "q.diskqueue.meta.dat").write_text(meta)
    for number, content in enumerate(contents):
        if content is not None:
            (path / f"q.diskqueue.{number:06d}.dat").write_bytes(content)


@pytest.fixture
def complaints(log_stream: io.StringIO, tmp_path: Path) -> Callable[[], list[str]]:
    """Returns the WARN and ERROR lines so far, `$D` for the directory; they must contain no other path."""

    def complaints() -> list[str]:
        lines = [line.split(" ", 2)[2] for line in log_stream.getvalue().splitlines()]
        return [line.replace(str(tmp_path), "$D") for line in lines if not line.startswith("INFO")]

    return complaints


Complaints = Callable[[], list[str]]


# Opening


R = [record(b"%d" % number) for number in range(6)]
BEHIND = "WARNING: DISKQUEUE(q) metadata ends at $D/q.diskqueue.000000.dat, reading 2 later files too"
RECOVERED = "no usable metadata, reading all 4 messages in 3 files from $D/q.diskqueue.000001.dat on"


@pytest.mark.parametrize(
    "meta, contents, depth, expected, left, complaint",
    [
        # The write file is longer than in meta, or shorter: the real nsqd then loses what it writes behind the hole.
        ("1\n0,0\n0,5\n", [R[0] + R[1]], 1, b"01", ["000001.dat"], "metadata writePos 5 < file size of 10"),
        ("2\n0,0\n0,12\n", [R[0]], 2, b"0", ["000000.dat.bad", "000001.dat"], "positive depth at tail (1)"),
        # It had been read.
        ("0\n0,12\n0,12\n", [None], 0, b"", ["000001.dat"], "metadata writePos 12 > file size of 0"),
        ("0\n0,12\n0,12\n", [b""], 0, b"", ["000001.dat"], "metadata writePos 12 > file size of 0"),
        ("0\n0,12\n0,12\n", [b"torn"], 0, b"", ["000001.dat"], "metadata writePos 12 > file size of 4"),
        # A full disk may have taken records and new files but no newer meta file. The real nsqd writes over them.
        ("2\n0,0\n0,10\n", [R[0] + R[1], R[2] + R[3], R[4]], 5, b"01234", ["000003.dat"], BEHIND),
        ("1\n0,5\n0,10\n", [R[0] + R[1], R[2] + R[3], R[4]], 4, b"1234", ["000003.dat"], BEHIND),
        ("0\n0,10\n0,10\n", [R[0] + R[1], R[2] + R[3], R[4]], 3, b"234", ["000003.dat"], BEHIND),
        ("0\n0,10\n0,10\n", [R[0], R[2] + R[3], R[4]], 3, b"234", ["000003.dat"], BEHIND),
        ("0\n0,0\n0,0\n", [None, R[2] + R[3], R[4]], 3, b"234", ["000003.dat"], BEHIND),
        ("1\n0,0\n0,5\n", [R[0] + R[1], R[2] + R[3], R[4]], 4, b"01234", ["000003.dat"], BEHIND),
        # A wrong depth of an empty queue.
        ("7\n0,5\n0,5\n", [R[0]], 0, b"", ["000000.dat"], "positive depth at tail (7)"),
        ("-7\n0,5\n0,5\n", [R[0]], 0, b"", ["000000.dat"], "negative depth at tail (-7)"),
        # Without usable meta the real nsqd starts empty, and overwrites file 000000.
        (
            "3\n2,0\n1,5\n",
            [None, R[0] + R[1], R[2], None, R[3] + bytes(3)],
            4,
            b"0123",
            ["000004.dat.bad", "000005.dat"],
            RECOVERED,
        ),
    ],
)
def test_opened_queue_has_all_that_is_there_and_writes_over_nothing(
    open_queue: OpenQueue,
    tmp_path: Path,
    complaints: Complaints,
    meta: str,
    contents: list[bytes | None],
    depth: int,
    expected: bytes,
    left: list[str],
    complaint: str,
) -> None:
    write_queue(tmp_path, meta, *contents)
    queue = open_queue()
    assert queue.depth == depth
    # Meta has the file that is written to now, or else, after a kill, the real nsqd would begin it again.
    saved = Meta.parse((tmp_path / "q.diskqueue.meta.dat").read_bytes())
    queue.put_many([b"5"])
    assert (tmp_path / f"q.diskqueue.{saved.write_file:06d}.dat").read_bytes()[saved.write_pos :] == R[5]
    assert drain(queue) == [b"%c" % body for body in expected + b"5"]
    assert queue.depth == 0
    queue.close()
    assert sorted(os.listdir(tmp_path)) == [*(f"q.diskqueue.{name}" for name in left), "q.diskqueue.meta.dat"]
    last = Meta.parse((tmp_path / "q.diskqueue.meta.dat").read_bytes())
    assert last.depth == 0
    assert last.read_position == last.write_position == (saved.write_file, saved.write_pos + len(R[5]))
    assert any(complaint in line for line in complaints())


def test_depth_never_hides_what_can_be_read(open_queue: OpenQueue, tmp_path: Path) -> None:
    # The real nsqd reports 0 and then negative depths here.
    write_queue(tmp_path, "1\n0,0\n0,15\n", record(b"1") + record(b"2") + record(b"3"))
    queue = open_queue()
    depths = []
    while queue.peek_many(1, ALL):
        depths.append(queue.depth)
        queue.advance(1)
    assert depths == [1, 1, 1]
    assert queue.depth == 0


def test_depth_is_0_behind_the_last_record_of_a_file_that_is_too_short(open_queue: OpenQueue, tmp_path: Path) -> None:
    write_queue(tmp_path, "2\n0,0\n0,15\n", record(b"1") + record(b"2"))
    queue = open_queue()
    assert queue.peek_many(2, ALL) == [b"1", b"2"]
    queue.advance(1)
    assert queue.depth == 1
    queue.advance(1)
    assert queue.depth == 0


def payload(number: int) -> bytes:
    return bytes(10) + b"%016x" % number + b"body"


@pytest.mark.parametrize("pos, begin", [(34, 34), (35, 34), (67, 34), (68, 68), (101, 68), (102, 102), (103, 103)])
def test_read_position_inside_a_record_goes_back_to_its_beginning(
    open_queue: OpenQueue, tmp_path: Path, complaints: Complaints, pos: int, begin: int
) -> None:
    # Behind the third record, at 102, is damage: then nobody knows where the next one begins.
    content = b"".join(map(record, map(payload, range(3)))) + b"damage"
    write_queue(tmp_path, f"3\n0,{pos}\n1,0\n", content)
    queue = open_queue(min_msg_size=26)
    assert (tmp_path / "q.diskqueue.meta.dat").read_text() == f"3\n0,{begin}\n1,0\n"
    moved = f"$D/q.diskqueue.000000.dat metadata readPos {pos} is inside the record at {begin}, reading from there"
    assert complaints() == ([f"WARNING: DISKQUEUE(q) {moved}"] if begin < pos else [])
    assert queue.peek_many(3, ALL) == [payload(number) for number in range(begin // 34, 3)]


def test_record_that_does_not_look_like_one_of_nsqd_is_read_nevertheless(open_queue: OpenQueue, tmp_path: Path) -> None:
    content = [bytes(40), bytes(range(60, 100)), bytes(30)]
    write_queue(tmp_path, "2\n0,44\n0,122\n", b"".join(map(record, content)))
    assert drain(open_queue()) == content[1:]


# Reading


@pytest.mark.parametrize(
    "damage, error",
    [
        (b"\0\0\0\x03123" + record(b"lost"), "invalid message read size (3)"),
        (b"\xff\xff\xff\xff" + record(b"lost"), "invalid message read size (-1)"),
        (b"\0\0\x03\xe9" + b"x" * 1000 + record(b"lost"), "invalid message read size (1001)"),
        (b"\0\0\0\x04", "EOF"),
        (b"\0\0\0\x0412", "unexpected EOF"),
        (b"\0\0", "unexpected EOF"),
    ],
)
def test_damage_costs_the_rest_of_its_file_only(
    open_queue: OpenQueue, tmp_path: Path, complaints: Complaints, damage: bytes, error: str
) -> None:
    write_queue(tmp_path, "5\n0,0\n2,8\n", record(b"1111"), record(b"2222") + record(b"3333") + damage, record(b"4444"))
    queue = open_queue(min_msg_size=4)
    assert drain(queue) == [b"1111", b"2222", b"3333", b"4444"]
    assert queue.depth == 0
    assert complaints() == [
        f"ERROR: DISKQUEUE(q) reading at 16 of $D/q.diskqueue.000001.dat - {error}",
        "WARNING: DISKQUEUE(q) jump to next file and saving bad file as $D/q.diskqueue.000001.dat.bad",
        "ERROR: DISKQUEUE(q) positive depth at tail (1), data loss, resetting 0...",
    ]
    queue.close()
    assert sorted(os.listdir(tmp_path)) == [
        "q.diskqueue.000001.dat.bad",
        "q.diskqueue.000002.dat",
        "q.diskqueue.meta.dat",
    ]


@pytest.mark.parametrize("size", [51, 120, 121, 123, 1000, 1 << 20, 2**31 - 1])
@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_damaged_length_does_not_pass_for_one_of_a_larger_message(
    open_queue: OpenQueue, tmp_path: Path, complaints: Complaints, size: int, behind: int
) -> None:
    content = record(b"1" * 30) + struct.pack(">i", size) + b"2" * 118 + b"".join([record(b"3" * 26)] * behind)
    write_queue(tmp_path, f"{behind + 2}\n0,0\n0,{len(content)}\n", content)
    queue = open_queue(min_msg_size=26, max_msg_size=50)
    assert drain(queue) == [b"1" * 30]
    assert complaints()[0].endswith(f" - invalid message read size ({size})")
    assert (tmp_path / "q.diskqueue.000000.dat.bad").read_bytes() == content


def test_damage_in_write_file_moves_writing_on(open_queue: OpenQueue, tmp_path: Path, complaints: Complaints) -> None:
    content = record(b"1") + b"\xff\xff\xff\xff" + record(b"lost")
    write_queue(tmp_path, f"3\n0,0\n0,{len(content)}\n", content)
    queue = open_queue()
    queue.put_many([b"lost, too"])
    assert drain(queue) == [b"1"]
    queue.put_many([b"2"])
    assert drain(queue) == [b"2"]
    queue.close()
    assert (tmp_path / "q.diskqueue.000000.dat.bad").read_bytes() == content + record(b"lost, too")
    assert (tmp_path / "q.diskqueue.000001.dat").read_bytes() == record(b"2")
    assert "positive depth at tail (3), data loss" in complaints()[-1]


def test_missing_files_are_skipped_in_one_line(open_queue: OpenQueue, tmp_path: Path, complaints: Complaints) -> None:
    write_queue(tmp_path, "9\n0,0\n987654321,0\n", record(b"1"), None, None, record(b"2"))
    queue = open_queue()
    assert drain(queue) == [b"1", b"2"]
    queue.put_many([b"3"])
    assert drain(queue) == [b"3"]
    assert complaints() == [
        "ERROR: DISKQUEUE(q) reading at 0 of $D/q.diskqueue.000001.dat"
        " - open $D/q.diskqueue.000001.dat: no such file or directory",
        "ERROR: DISKQUEUE(q) reading at 0 of $D/q.diskqueue.000004.dat"
        " - open $D/q.diskqueue.000004.dat: no such file or directory",
        "ERROR: DISKQUEUE(q) positive depth at tail (7), data loss, resetting 0...",
    ]


def test_shortage_of_descriptors_is_neither_damage_nor_missing_meta(
    open_queue: OpenQueue, tmp_path: Path, complaints: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real nsqd sets a good file aside as .bad here.
    write_queue(tmp_path, "1\n0,5\n1,0\n", record(b"1") + record(b"2"))

    def fail(*arguments: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", fail)
        with pytest.raises(StorageError, match=r"^open .*/q\.diskqueue\.meta\.dat: too many open files$"):
            open_queue()
    queue = open_queue()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert queue.peek_many(ALL, ALL) == []
    assert queue.depth == 1
    assert drain(queue) == [b"2"]
    path = "$D/q.diskqueue.000000.dat"
    assert complaints()[1:] == [f"ERROR: DISKQUEUE(q) reading at 5 of {path} - open {path}: too many open files"]


# Every byte


CONTENTS = [record(b"1111") + record(b"22222") + record(b"3333"), record(b"4444") + record(b"5555"), record(b"6666")]
META = "6\n0,0\n2,8\n"


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("number", range(3))
def test_no_byte_of_a_data_file_endangers_other_files(open_queue: OpenQueue, tmp_path: Path, number: int) -> None:
    payloads = [[b"1111", b"22222", b"3333"], [b"4444", b"5555"], [b"6666"]]
    others = [payload for i, each in enumerate(payloads) if i != number for payload in each]
    content = CONTENTS[number]
    damaged = [content[:i] for i in range(len(content))]
    for flip in (0x01, 0x80, 0xFF):
        damaged += [content[:i] + bytes([content[i] ^ flip]) + content[i + 1 :] for i in range(len(content))]
    for i, variant in enumerate(damaged):
        directory = tmp_path / str(i)
        directory.mkdir()
        write_queue(directory, META, *CONTENTS[:number], variant, *CONTENTS[number + 1 :])
        queue = open_queue(data_path=directory, min_msg_size=4)
        assert [payload for payload in drain(queue) if payload in others] == others
        queue.put_many([b"after"])
        assert drain(queue) == [b"after"]
        assert queue.depth == 0
        queue.close()
        shutil.rmtree(directory)


@pytest.mark.usefixtures("no_fsync")
def test_no_byte_of_meta_stops_the_queue_and_its_end_costs_nothing(open_queue: OpenQueue, tmp_path: Path) -> None:
    wrong = [META[:i] + character + META[i + 1 :] for i in range(len(META)) for character in "0159,\nx"]
    for i, meta in enumerate([META[:length] for length in range(len(META))] + wrong):
        directory = tmp_path / str(i)
        directory.mkdir()
        write_queue(directory, meta, *CONTENTS)
        queue = open_queue(data_path=directory, min_msg_size=4)
        if i < len(META):
            assert drain(queue) == [b"1111", b"22222", b"3333", b"4444", b"5555", b"6666"]
        drain(queue)
        queue.put_many([b"after"])
        assert drain(queue) == [b"after"]
        assert queue.depth == 0
        queue.close()
