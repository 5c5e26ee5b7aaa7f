"""Columns that are cut out of received bytes are the messages that a parser of single messages finds there."""

from hypothesis import given
from hypothesis import strategies as st

from gnsqd.shared.client import Frames, PushedMessage
from pyspark_nsq.columns import Messages, pack, rows_of, unpack
from spark.unit.fake_nsqd import frames_of

CONSTANTS = {"topic": "t", "channel": "c", "nsqd": "n:4150"}


def message(number: int, attempts: int = 1, body: bytes = b"x") -> PushedMessage:
    return PushedMessage(1_795_228_294_480_321_688 + number, attempts, b"%016x" % number, body)


def rows(messages: Messages) -> list[tuple[int, int, bytes, bytes]]:
    table = rows_of(messages, **CONSTANTS).to_pylist()
    return [(row["timestamp_ns"], row["attempts"], row["message_id"].encode(), row["value"]) for row in table]


def messages(attempts: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[PushedMessage]]]:
    ids = st.integers(0, 99).map(lambda number: b"%016x" % number)
    one = st.builds(PushedMessage, st.integers(0, 2**63 - 1), attempts, ids, st.binary(max_size=300))
    return st.lists(st.lists(one, min_size=1, max_size=20), min_size=1, max_size=4)


@given(messages(st.just(1)) | messages(st.integers(0, 65535)))
def test_columns_are_the_messages_of_the_frames(groups: list[list[PushedMessage]]) -> None:
    received = [frames_of(group) for group in groups]
    everything = [message for group in groups for message in group]
    assert [message for frames in received for message in frames.messages()] == everything
    assert rows(Messages.of(received)) == everything


def test_frames_may_stand_anywhere_in_what_was_received() -> None:
    data, edges = frames_of([message(1, body=b""), message(2, body=b"yy")])
    shifted = Frames(b"head" + data + b"tail", [4 + edge for edge in edges])
    assert rows(Messages.of([shifted])) == [message(1, body=b""), message(2, body=b"yy")]
    assert (shifted.ids(), shifted.body_bytes) == ([message(1).id, message(2).id], 2)


def test_rows_that_are_packed_come_back() -> None:
    batch = rows_of(Messages.of([frames_of([message(1), message(2, body=b"")])]), **CONSTANTS)
    assert unpack(pack(batch)).equals(batch)
    assert unpack(pack(batch.slice(1))).equals(batch.slice(1))
    assert len(pack(batch.slice(1))) < len(pack(batch)), "a task gets its own rows only"
