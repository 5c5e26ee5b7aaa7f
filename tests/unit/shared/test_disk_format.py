"""Bytes by hand from NSQD-COMPAT 4.2 to 4.4."""

import pytest

from gnsqd.shared.disk_format import (
    Meta,
    data_file_name,
    data_file_number,
    decode_record,
    encode_record,
    frame_records,
)
from gnsqd.shared.errors import StorageError

PAYLOAD = bytes.fromhex("18e9e45a8a4c3001 0102 30313233343536373839616263646566") + b"body"
TIMESTAMP = 0x18E9E45A8A4C3001


def test_payload_is_timestamp_attempts_id_body() -> None:
    assert encode_record(TIMESTAMP, 0x0102, b"0123456789abcdef", b"body") == PAYLOAD
    assert decode_record(PAYLOAD) == (TIMESTAMP, 0x0102, b"0123456789abcdef", b"body")
    assert decode_record(PAYLOAD[:26])[3] == b""
    with pytest.raises(StorageError, match=r"invalid message buffer size \(25\)"):
        decode_record(PAYLOAD[:25])
    assert frame_records([PAYLOAD, b""]) == b"\x00\x00\x00\x1e" + PAYLOAD + b"\x00\x00\x00\x00"


def test_meta_is_five_numbers_on_three_lines() -> None:
    """Some forms are written by nobody, but read by the real nsqd."""
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
    "name, number",
    [
        ("t.diskqueue.000007.dat", 7),
        ("t.diskqueue.1234567.dat", 1234567),
        ("t.diskqueue.000007.dat.bad", None),
        ("t.diskqueue.meta.dat", None),
        ("t.diskqueue.7.dat", None),
        ("t.diskqueue..dat", None),
        ("t:c.diskqueue.000007.dat", None),
        ("a.t.diskqueue.000007.dat", None),
    ],
)
def test_data_file_number(name: str, number: int | None) -> None:
    assert data_file_number("t", name) == number
    assert number is None or data_file_name("t", number) == name
