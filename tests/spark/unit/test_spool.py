"""The chains of the spool: one entry a slot, whoever writes, and every change of a byte is noticed."""

import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_nsq import files
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import (
    EntryKind,
    pack_entry,
    read_ids,
    read_segment,
)
from pyspark_nsq.spool import Chain, Spool
from spark.unit.interruption import BOTH_PLACES

IDS = [b"00000000000000%02x" % number for number in (5, 1, 9)]


@pytest.fixture
def spool(location: str) -> Spool:
    return Spool.create(Settings(topics=("t",), channel="c", spool_location=location), "s", "readStream")


def opened(spool: Spool, batch: int = 1) -> Chain:
    chain = spool.chain(batch, 0, "n:4150")
    chain.open()
    return chain


def segment(part: int = 0) -> list[bytes | memoryview]:
    return pack_entry(EntryKind.SEGMENT, part, 1234, {"t": b"".join(IDS[:2]), "u": IDS[2]}, b"payload")


@BOTH_PLACES
def test_a_segment_comes_back_as_it_was(spool: Spool) -> None:
    assert opened(spool).append(segment(part=3))
    (entry,) = opened(spool).entries
    assert entry[1:8] == (0, EntryKind.SEGMENT, 3, 3, 1234, min(IDS), max(IDS))
    assert read_ids(entry) == {"t": b"".join(IDS[:2]), "u": IDS[2]}
    ids, payload = read_segment(entry)
    assert (ids, bytes(payload)) == (read_ids(entry), b"payload")
    assert opened(spool).segments(3) == [entry]
    assert opened(spool).segments(0) == []


def test_the_bytes_of_a_segment_are_as_documented(spool: Spool) -> None:
    chain = opened(spool)
    chain.append(segment(part=3))
    data = Path(chain.entries[0].path).read_bytes()
    ids = b'{"t": 2, "u": 1}' + b"".join(IDS)
    header = b"GNSQSEG2\x01\0\0\0" + struct.pack(">IIq", 3, 3, 1234) + min(IDS) + max(IDS)
    header += struct.pack(">QII", 7, zlib.crc32(ids), zlib.crc32(b"payload")) + struct.pack(">I", 16) + bytes(12)
    assert data == header + struct.pack(">I", zlib.crc32(header)) + ids + b"payload"


@BOTH_PLACES
def test_many_writers_make_one_chain(spool: Spool) -> None:
    def write(part: int) -> None:
        chain = opened(spool)
        for _ in range(5):
            while not chain.append(segment(part)):
                pass
        chain.end(part)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    chain = opened(spool)
    assert [len(chain.segments(part)) for part in range(4)] == [5] * 4
    assert [entry.slot for entry in chain.entries] == list(range(24))


def test_a_link_whose_answer_was_lost_counts(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS client repeats a request, which fails because its own first try has taken the name."""
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    chain = opened(spool)
    monkeypatch.setattr(os, "link", link_twice)
    assert chain.append(segment())


def test_a_file_system_without_links_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(SpoolError, match="without hard links: operation not permitted"):
        Spool.create(Settings(topics=("t",), channel="c", spool_location=str(tmp_path)), "s", "readStream")
    assert not list((tmp_path / "s").glob(".tmp*"))


@BOTH_PLACES
def test_creating_again_keeps_what_is_there(spool: Spool) -> None:
    about = spool.about()
    Spool.create(Settings(topics=("other",), channel="c", spool_location=spool.location), "s", "read")
    assert spool.about() == about


def test_nothing_is_left_of_an_entry_that_could_not_be_written(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    chain = opened(spool)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(SpoolError, match=r"cannot write .*: no space left on device \(messages stay in NSQ"):
            chain.append(segment())
    assert os.listdir(chain.directory) == []


def test_a_chain_is_durable_before_its_entries_are_believed(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever linked an entry may have died before its name was synced."""
    opened(spool).append(segment())
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    directory = Path(opened(spool).directory)
    assert {str(directory), str(directory.parent), str(directory.parent.parent)} <= set(synced)


def test_a_torn_entry_is_reported_whatever_is_left_of_it(spool: Spool) -> None:
    chain = opened(spool)
    chain.append(segment())
    path = Path(chain.entries[0].path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SpoolError, match="000000 is"):
            opened(spool)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SpoolError, match="000000 is"):
            read_segment(opened(spool).entries[0])


def test_markers_show_which_segments_are_confirmed(spool: Spool) -> None:
    chain = opened(spool)
    chain.confirm(0, [0, 2])
    chain.confirm(1, [5])
    Path(chain.directory, "fin-0002-halfway").write_text("[7, ")
    assert opened(spool).confirmed() == {0, 2, 5}


def test_the_committed_batch_is_remembered(spool: Spool) -> None:
    assert spool.committed() == 0
    spool.set_committed(12)
    assert spool.committed() == 12
    Path(spool.directory, "committed").write_text("much")
    with pytest.raises(SpoolError, match="does not hold a number"):
        spool.committed()


@pytest.mark.parametrize("nsqd", ["node:4150", "[fe80::1]:4150", "a/../b:1", "ä@b:1"])
def test_chains_are_named_after_their_nsqd(spool: Spool, nsqd: str) -> None:
    spool.chain(3, 12, nsqd).open()
    ((name, chain),) = spool.chains(3)
    assert name == nsqd
    assert chain.directory == spool.chain(3, 12, nsqd).directory
    assert spool.batches() == [3]


def test_messages_of_a_batch_are_counted_without_segments_that_are_lost(spool: Spool) -> None:
    chain = opened(spool)
    for _ in range(4):
        chain.append(segment())
    header, ids, missing, _ = [Path(entry.path) for entry in chain.entries]
    header.write_bytes(b"x" * 200)
    ids.write_bytes(ids.read_bytes().replace(IDS[0], IDS[0][::-1]))
    missing.unlink()
    assert Spool(spool.location, "s", strict=False).messages(1) == {("t", "n:4150"): 2, ("u", "n:4150"): 1}
    with pytest.raises(SpoolError):
        spool.messages(1)
