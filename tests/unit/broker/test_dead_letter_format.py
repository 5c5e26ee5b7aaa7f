"""Dead letters as contrib/docs/dead-letters.md has them: names of topics, and what a letter is."""

import json
import zlib

import pytest

from gnsqd.broker.dead_letter_format import MAX_HEADER, DeadLetter, dead_letter_topic, is_dead_letter_topic
from gnsqd.shared.names import is_ephemeral, is_valid_name

HEADER = {
    "id": "0ea4d0c3b5a6f000",
    "topic": "orders",
    "channel": "billing",
    "timestamp": 1795318560123456789,
    "attempts": 5,
    "reason": "requeued",
    "died": 1795318575987654321,
}
BODIES = [b"body", b"", b"\n", b"two\nlines\n", bytes(range(256)), b'{"id":1}\n']


@pytest.mark.parametrize(
    ("topic", "channel", "expected"),
    [
        ("orders", "billing", "orders.billing.dead"),
        ("orders#ephemeral", "billing", "orders.billing.dead#ephemeral"),
        ("orders", "billing#ephemeral", "orders.billing.dead#ephemeral"),
        ("orders#ephemeral", "billing#ephemeral", "orders.billing.dead#ephemeral"),
        ("t" * 57, "c", "t" * 57 + ".c.dead"),
        ("t" * 58, "c", "t" * 50 + f"-{zlib.crc32(b't' * 58 + b'.c'):08x}.dead"),
    ],
)
def test_topic_is_named_after_topic_and_channel(topic: str, channel: str, expected: str) -> None:
    assert dead_letter_topic(topic, channel) == expected
    assert is_dead_letter_topic(expected)
    for other in (f"{expected}x", f"{expected}.x", expected.replace(".dead", ""), "dead"):
        assert not is_dead_letter_topic(other)


@pytest.mark.parametrize("end", ["", "#ephemeral"])
def test_topics_of_channels_whose_names_are_long_are_valid_and_differ(end: str) -> None:
    channels = ["c" * (63 - len(end)) + last + end for last in "abc"]
    names = {dead_letter_topic("t" * 64, channel) for channel in channels}
    assert len(names) == 3
    assert all(is_valid_name(name) and len(name) == 64 for name in names)
    assert all(is_ephemeral(name) == bool(end) for name in names)


@pytest.mark.parametrize("body", BODIES)
def test_letter_is_a_line_of_json_and_the_body(body: bytes) -> None:
    data = DeadLetter(**HEADER, body=body).encode()  # type: ignore[arg-type]
    header, _, rest = data.partition(b"\n")
    assert (json.loads(header), rest) == (HEADER, body)
    with_more = json.dumps(HEADER | {"more": [1]}).encode() + b"\n" + body
    assert DeadLetter.parse(data) == DeadLetter.parse(with_more) == DeadLetter(**HEADER, body=body)  # type: ignore[arg-type]


def test_header_has_room_for_all_there_can_be() -> None:
    most = {"id": "\xff" * 16, "topic": "t" * 64, "channel": "c" * 64, "timestamp": -(1 << 63), "attempts": 65535}
    most |= {"reason": "timed out", "died": -(1 << 63)}
    data = DeadLetter(**most, body=b"").encode()  # type: ignore[arg-type]
    assert len(data) < MAX_HEADER
    assert DeadLetter.parse(data).id == "\xff" * 16


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not begin with the header"),
        (b"body", "does not begin with the header"),
        (json.dumps(HEADER).encode(), "does not begin with the header"),
        (b"[]\n", "does not begin with the header"),
        (b"\xff\n", "does not begin with the header"),
        (b"[" * 500 + b"\n", "does not begin with the header"),
        (json.dumps(HEADER | {"more": "x" * 500}).encode() + b"\n", "does not begin with the header"),
        (b"{}\n", 'no "id"'),
        (json.dumps(HEADER | {"attempts": "5"}).encode() + b"\n", 'no "attempts"'),
        (json.dumps(HEADER | {"died": True}).encode() + b"\n", 'no "died"'),
        (json.dumps(HEADER | {"topic": "no name"}).encode() + b"\n", "not a name of a topic"),
    ],
)
def test_what_is_not_a_letter_is_reported(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        DeadLetter.parse(data)
