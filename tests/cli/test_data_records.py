"""Reading a data file past damage: every message that the damage did not touch is found, and nothing is made up."""

import struct
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gnsqd.shared.disk_format import MIN_RECORD_SIZE, Gap, StoredRecord, frame_records
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, read_data_file

STAMP = 1_795_228_294_479_665_042

bodies = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.text("0123456789abcdef\0\1\x18", max_size=60).map(str.encode),  # what ids, times and lengths are made of
    ),
    min_size=1,
    max_size=12,
)


def payloads_of(texts: list[bytes]) -> list[bytes]:
    return [struct.pack(">qH16s", STAMP + number, 1, b"%016x" % number) + body for number, body in enumerate(texts)]


def read(path: Path, data: bytes, start: int = 0, max_msg_size: int = DEFAULT_MAX_MSG_SIZE) -> list[StoredRecord | Gap]:
    path.write_bytes(data)
    found = list(read_data_file(str(path), start, max_msg_size))
    position = start
    for item in found:  # in order and without holes
        assert item.begin == position < item.end
        position = item.end
    assert position == len(data)
    return found


def payloads_in(found: list[StoredRecord | Gap]) -> list[bytes]:
    return [item.payload for item in found if isinstance(item, StoredRecord)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "file"


@given(texts=bodies, junk=st.binary(max_size=300))
def test_whole_files_and_junk_are_read_to_their_ends(path: Path, texts: list[bytes], junk: bytes) -> None:
    read(path, junk)
    found = read(path, frame_records(payloads_of(texts)))
    assert payloads_in(found) == payloads_of(texts)
    assert not any(isinstance(item, Gap) or item.flaw for item in found)


@given(texts=bodies, data=st.data())
def test_what_damage_did_not_touch_is_found(path: Path, texts: list[bytes], data: st.DataObject) -> None:
    """Exempts a damaged length that leads to the end of another message: it could be true."""
    payloads = payloads_of(texts)
    written = bytearray(frame_records(payloads))
    first = data.draw(st.integers(0, len(written) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=30))[: len(written) - first]
    written[first : first + len(damage)] = damage
    touched = set(range(first, first + len(damage)))
    ends = [*accumulate(4 + len(payload) for payload in payloads)]
    starts = [0, *ends[:-1]]
    for start, end in zip(starts, ends, strict=True):
        follower = start + 4 + int.from_bytes(written[start : start + 4], "big", signed=True)
        assume(follower == end or follower not in ends)
    places = zip(payloads, starts, ends, strict=True)
    untouched = [payload for payload, start, end in places if touched.isdisjoint(range(start, end))]
    found = payloads_in(read(path, bytes(written)))
    assert [payload for payload in found if payload in untouched] == untouched


def with_lengths(payloads: list[bytes], lengths: dict[int, int]) -> bytes:
    """Returns the records of these payloads, of which some have another length in front of them."""
    records = [frame_records([payload]) for payload in payloads]
    for number, length in lengths.items():
        records[number] = length.to_bytes(4, "big", signed=True) + payloads[number]
    return b"".join(records)


def test_a_message_with_another_length_is_found_if_that_is_impossible(path: Path) -> None:
    """Finds no message that may have lost some of its bytes: it is not delivered."""
    payloads = payloads_of([b"one", b"two", b"three", b"four"])
    for length in (0, 25, -1, 2_000_000, 2**31 - 1):
        found = read(path, with_lengths(payloads, {1: length}))
        assert payloads_in(found) == payloads
        assert found[1].flaw  # type: ignore[union-attr]
    for length in (30, 28, 35, 1_000_000):
        texts = payloads_in(read(path, with_lengths(payloads, {1: length})))
        assert texts[-1] == payloads[3]
        assert payloads[1] not in texts
    first, gap, last = read(path, with_lengths(payloads, {1: 0, 2: 0}))  # nobody knows where the first one ends
    assert (payloads_in([first, last]), isinstance(gap, Gap)) == ([payloads[0], payloads[3]], True)


def test_no_part_of_a_message_is_taken_for_one(path: Path) -> None:
    inner = frame_records(payloads_of([b"inner", b"more"]))
    payloads = payloads_of([b"before", b"x" * 10 + inner, b"behind"])
    assert payloads_in(read(path, frame_records(payloads))) == payloads
    payloads = payloads_of([b"one", b"twoo"])
    written = frame_records(payloads)
    assert payloads_in(read(path, written, start=4 + MIN_RECORD_SIZE + 3)) == payloads[1:]
    for cut in (1, 7, 30, 33):
        *whole, torn = read(path, written[:-cut])
        assert payloads_in(whole) == payloads[:1]
        assert torn.reason == "a truncated message"  # type: ignore[union-attr]


def test_zeros_behind_a_crash_hide_nothing(path: Path) -> None:
    payloads = payloads_of([b"one", b"two"])
    written = frame_records(payloads[:1]) + bytes(3 << 20) + frame_records(payloads[1:])
    found = read(path, written)
    assert payloads_in(found) == payloads
    [gap] = [item for item in found if isinstance(item, Gap)]
    assert (gap.end - gap.begin, gap.reason) == (3 << 20, "a length of 0 bytes")


def test_a_message_that_is_too_large_for_the_limit_is_read_and_reported(path: Path) -> None:
    payloads = payloads_of([b"one", b"x" * 3000, b"three"])
    found = read(path, frame_records(payloads), max_msg_size=2999)
    assert payloads_in(found) == payloads
    assert [item.too_large for item in found if isinstance(item, StoredRecord)] == [False, True, False]
    assert "3,000 bytes" in found[1].flaw  # type: ignore[union-attr]
    assert not any(item.flaw for item in read(path, frame_records(payloads), max_msg_size=3000))  # type: ignore[union-attr]
