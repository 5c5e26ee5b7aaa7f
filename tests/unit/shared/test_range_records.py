"""The records of `/topic/messages`, by hand: uint32 size, int64 number, uint32 count, int64 due time, frames."""

import pytest

from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.records import decode_range

FRAMES = [b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x00"]
RECORD = bytes.fromhex("0000001f 0000000000000007 00000002 0000000000000000") + b"".join(FRAMES)


@pytest.mark.parametrize("size", [1, 10, 34, 35, 36, 100])
def test_records_are_found_in_parts_of_any_size(size: int) -> None:
    data = RECORD * 2
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert list(decode_range(parts)) == [(7, FRAMES)] * 2


@pytest.mark.parametrize(
    "data, reason",
    [
        (RECORD[:-1], "ends in the middle of a record"),
        (b"\x00\x00\x00\x13" + RECORD[4:23], "record too short"),
        (RECORD[:15] + b"\x03" + RECORD[16:], "invalid record"),
        (RECORD[:27] + b"\x04" + RECORD[28:], "invalid frames"),
    ],
)
def test_other_bytes_are_an_error_after_what_was_whole(data: bytes, reason: str) -> None:
    records = decode_range([RECORD + data])
    assert next(records) == (7, FRAMES)
    with pytest.raises(StorageError, match=reason):
        next(records)
