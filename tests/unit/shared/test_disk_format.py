"""Bytes by hand from NSQD-COMPAT 4.2 to 4.4."""

from typing import Any

import pytest

from gnsqd.shared.disk_format import Meta, data_file_name, decode_record, frame_records, parse_queue_file
from gnsqd.shared.errors import StorageError

PAYLOAD = bytes.fromhex("18e9e45a8a4c3001 0102 30313233343536373839616263646566") + b"body"
TIMESTAMP = 0x18E9E45A8A4C3001


def test_payload_is_timestamp_attempts_id_body() -> None:
    assert decode_record(PAYLOAD) == (TIMESTAMP, 0x0102, b"0123456789abcdef", b"body")
    assert decode_record(PAYLOAD[:26])[3] == b""
    with pytest.raises(StorageError, match=r"invalid message buffer size \(25\)"):
        decode_record(PAYLOAD[:25])
    assert frame_records([PAYLOAD, b""]) == b"\x00\x00\x00\x1e" + PAYLOAD + b"\x00\x00\x00\x00"


def test_meta_is_five_numbers_on_three_lines() -> None:
    # Some forms are written by nobody, but read by the real nsqd.
    text = b"27\n0,749\n2,417\n"
    assert Meta(27, 0, 749, 2, 417).format() == text
    for form in (text, text[:-1], b"+" + text, text + b"more"):
        assert Meta.parse(form) == Meta(27, 0, 749, 2, 417)
    assert Meta.parse(b"-5\n0,0\n0,0\n").depth == -5


@pytest.mark.parametrize(
    "text, error",
    [
        (b"", "EOF"),
        (b"27", "EOF"),
        (b"27\n0,749\n", "EOF"),
        (b"27\n0,749\n2,", "EOF"),
        (b"garbage\n", "expected integer"),
        (b"27\n0,-749\n2,417\n", "expected integer"),
        (b"27\n0,749\n2,417x", "expected integer"),
        (b"27\n0,749\n2,4170000000000000000\n", "expected integer"),
        ("२७\n0,749\n2,417\n".encode(), "expected integer"),
    ],
)
def test_other_meta_is_an_error(text: bytes, error: str) -> None:
    with pytest.raises(StorageError) as raised:
        Meta.parse(text)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    "name, parsed",
    [
        ("t.diskqueue.000007.dat", ("t", 7, "", False)),
        ("t:c.diskqueue.1234567.dat", ("t:c", 1234567, "", False)),
        ("a.t.diskqueue.000007.dat.bad", ("a.t", 7, "", True)),
        ("t.diskqueue.meta.dat", ("t", None, "meta", False)),
        ("t.diskqueue.due_times.dat.bad", ("t", None, "due_times", True)),
        ("t.diskqueue.0000007.dat", ("t", None, "", False)),
        ("t.diskqueue.7.dat", None),
        ("t.diskqueue..dat", None),
        (".diskqueue.000007.dat", None),
    ],
)
def test_names_of_queue_files(name: str, parsed: Any) -> None:
    assert parse_queue_file(name) == parsed
    assert not parsed or parsed[1:2] == (None,) or name.startswith(data_file_name(parsed[0], parsed[1]))
