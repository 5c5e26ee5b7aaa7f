"""A message's bytes: the frame of NSQD-COMPAT 2.1 and the payload of 4.3."""

import struct

import pytest

from gnsqd.net.plain import new_frames
from gnsqd.queues.message import Message, message_from_payload, new_messages

ID = b"18a297cb3cf09000"
TIME = 0x18E9EEC2F439B671
# A message frame of the session recorded from the real nsqd.
RECORDED = bytes.fromhex("00000023 00000002 18e9eec2f439b671 0001") + ID + b"hello"


def message(body: bytes = b"hello") -> Message:
    return new_messages(int(ID, 16), TIME, [body])[0]


def test_each_delivery_is_the_frame_that_the_real_daemon_sent_with_one_attempt_more() -> None:
    made = message()
    assert (made.id, made.timestamp, made.body, made.attempts) == (ID, TIME, b"hello", 0)
    for attempts in range(1, 5):
        assert made.next_delivery() == RECORDED[:16] + struct.pack(">H", attempts) + RECORDED[18:]
        assert made.attempts == attempts


def test_ids_of_messages_published_together_are_consecutive() -> None:
    bodies = [b"x" * (number % 3) for number in range(0x1000)]
    made = new_messages(int(ID, 16), TIME, bodies)
    assert [(each.id, each.timestamp, each.body) for each in made] == [
        (b"%016x" % (int(ID, 16) + number), TIME, body) for number, body in enumerate(bodies)
    ]
    assert [each.frame for each in made] == new_frames(int(ID, 16), TIME, bodies), "the lanes differ"


def test_attempts_stop_at_65535() -> None:
    # Corrected (NSQD-COMPAT 0.1, item 25): the real daemon's go on at 0.
    payload = struct.pack(">qH16s", TIME, 65534, ID) + b"x"
    made = message_from_payload(payload)
    attempts = [struct.unpack_from(">H", made.next_delivery(), 16)[0] for _ in range(3)]
    assert attempts == [65535] * 3
    assert made.payload()[8:10] == b"\xff\xff"


@pytest.mark.parametrize("deliveries", [0, 1, 2, 300])
@pytest.mark.parametrize("body", [b"", b"x", b"\x00\xff\n" * 1000])
def test_payload_is_time_attempts_id_body_and_brings_the_message_back(body: bytes, deliveries: int) -> None:
    made = message(body)
    for _ in range(deliveries):
        made.next_delivery()
    payload = made.payload()
    assert payload == struct.pack(">qH16s", TIME, deliveries, ID) + body
    back = message_from_payload(payload)
    assert (back.id, back.timestamp, back.body, back.attempts) == (ID, TIME, body, deliveries)
    assert back.next_delivery() == made.next_delivery()


def test_copy_is_the_same_message_never_delivered() -> None:
    (made,) = new_messages(int(ID, 16), TIME, [b"hello"], 5)
    made.next_delivery()
    copy = made.copy()
    assert (copy.id, copy.body, copy.attempts, copy.deferred) == (ID, b"hello", 0, 5)
    assert copy.next_delivery() == RECORDED
    assert made.attempts == 1
