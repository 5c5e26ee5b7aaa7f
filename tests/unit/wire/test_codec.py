"""The protocol's bytes, however they are cut. References: NSQD-COMPAT 2.1 and 2.4, a session recorded from the real
nsqd (tests/golden/wire/session.json)."""

import itertools
import json
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.wire.codec import (
    FRAME_TYPE_ERROR,
    FRAME_TYPE_RESPONSE,
    GRAMMAR,
    MAGIC_V2,
    MAX_LINE,
    CodecError,
    Command,
    Decoder,
    LineTooLong,
    Tail,
    frame,
)
from gnsqd.wire.commands import HANDLERS

MAX_BODY = 1000
MAX_MSG = 100
MAX_COUNT = 199  # (max-body-size - 4) / 5, integer

# One of each command, as (bytes, words, what follows the line).
STREAM: list[tuple[bytes, list[bytes], object]] = [
    (b"IDENTIFY\n\x00\x00\x00\x02{}", [b"IDENTIFY"], b"{}"),
    (b"AUTH\n\x00\x00\x00\x06secret", [b"AUTH"], b"secret"),
    (b"SUB t c#ephemeral\r\n", [b"SUB", b"t", b"c#ephemeral"], None),
    (b"PUB t\r\n\x00\x00\x00\x05a\nb\r\n", [b"PUB", b"t"], b"a\nb\r\n"),
    (
        b"MPUB t\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x01\n\x00\x00\x00\x02PU",
        [b"MPUB", b"t"],
        [b"\n", b"PU"],
    ),
    (b"DPUB t 100\n\x00\x00\x00\x01\x00", [b"DPUB", b"t", b"100"], b"\x00"),
    (b"RDY 1\n", [b"RDY", b"1"], None),
    (b"FIN 0123456789abcdef\n", [b"FIN", b"0123456789abcdef"], None),
    (b"REQ 0123456789abcdef 0\n", [b"REQ", b"0123456789abcdef", b"0"], None),
    (b"TOUCH 0123456789abcdef\n", [b"TOUCH", b"0123456789abcdef"], None),
    (b"NOP\n", [b"NOP"], None),
    (b"CLS\n", [b"CLS"], None),
]


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub(*bodies: bytes) -> bytes:
    """What follows MPUB's line, without its outer size."""
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))


def tail_of(decoder: Decoder, command: Command) -> object:
    """The rest of `command` as a command asks for it; Ellipsis while it isn't there."""
    tail = GRAMMAR.get(command.params[0], Tail.NOTHING)
    if tail is Tail.NOTHING:
        return None
    if command.size is None:
        command.size = decoder.size()
    if command.size is None:
        return ...
    if tail is Tail.MESSAGES:
        bodies = decoder.messages(MAX_BODY, MAX_MSG)
        return ... if bodies is None else bodies
    if command.body is None:
        command.body = decoder.body(command.size)
    return ... if command.body is None else command.body


def decode(pieces: Iterable[bytes]) -> list[tuple[list[bytes], object]]:
    """(words, what follows) of every command that is complete."""
    decoder = Decoder()
    decoded: list[tuple[list[bytes], object]] = []
    command = None
    for piece in pieces:
        decoder.feed(piece)
        while True:
            command = command or decoder.next_command()
            if command is None or (tail := tail_of(decoder, command)) is ...:
                break
            decoded.append((command.params, tail))
            command = None
    return decoded


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """`data` whole, in two pieces cut at every position, in pieces of one byte, of two, and so on."""
    yield [data]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    for size in (1, 2, 3, 5, 7, 11):
        yield [data[at : at + size] for at in range(0, len(data), size)]


@pytest.fixture
def session() -> dict[str, bytes]:
    """What each of the two clients of the recorded session sent."""
    path = Path(__file__).parents[2] / "golden" / "wire" / "session.json"
    sent = {"consumer": b"", "producer": b""}
    for step in json.loads(path.read_text()):
        if step["dir"] == "C":
            sent[step["conn"]] += bytes.fromhex(step["hex"])
    return sent


def test_commands_are_the_same_however_they_are_cut() -> None:
    data = b"".join(raw for raw, _, _ in STREAM)
    expected = [(params, tail) for _, params, tail in STREAM]
    for pieces in cuts(data):
        assert decode(pieces) == expected, pieces


def test_commands_cut_into_three_pieces_are_the_same() -> None:
    data = b"".join(raw for raw, _, _ in STREAM[3:6])
    expected = [(params, tail) for _, params, tail in STREAM[3:6]]
    for first in range(len(data)):
        for second in range(first, len(data)):
            assert decode([data[:first], data[first:second], data[second:]]) == expected, (first, second)


def test_recorded_session_decodes_to_its_commands(session: dict[str, bytes]) -> None:
    decoder = Decoder()
    decoder.feed(session["producer"])
    assert decoder.magic() == MAGIC_V2 == b"  V2"
    expected = [
        ([b"PUB", b"wt"], b"hello"),
        ([b"MPUB", b"wt"], [b"1", b"22"]),
        ([b"DPUB", b"wt", b"100"], b"later"),
        ([b"BAD", b"x"], None),
    ]
    for pieces in cuts(session["producer"].removeprefix(MAGIC_V2)):
        assert decode(pieces) == expected
    words = [params[0] for params, _ in decode([session["consumer"].removeprefix(MAGIC_V2)])]
    assert words == b"IDENTIFY SUB RDY TOUCH REQ FIN FIN FIN FIN FIN NOP CLS".split()


def test_every_command_has_grammar_and_handler() -> None:
    assert GRAMMAR.keys() == HANDLERS.keys() == {params[0] for _, params, _ in STREAM}
    assert {name for name, tail in GRAMMAR.items() if tail is Tail.BODY} == {b"IDENTIFY", b"AUTH", b"PUB", b"DPUB"}
    assert {name for name, tail in GRAMMAR.items() if tail is Tail.MESSAGES} == {b"MPUB"}


@pytest.mark.parametrize(
    "line, params",
    [
        (b"\n", [b""]),
        (b"\r\n", [b""]),
        (b"NOP\r\n", [b"NOP"]),
        (b"NOP\r\r\n", [b"NOP\r"]),
        (b"NOP \n", [b"NOP", b""]),
        (b"SUB  t c\n", [b"SUB", b"", b"t", b"c"]),
        (b" SUB t\n", [b"", b"SUB", b"t"]),
        (b"sub t c\n", [b"sub", b"t", b"c"]),
        (b"\xff\x00\tx\n", [b"\xff\x00\tx"]),
    ],
)
def test_line_is_split_on_single_spaces_and_loses_one_carriage_return(line: bytes, params: list[bytes]) -> None:
    for pieces in cuts(line):
        assert decode(pieces) == [(params, None)]


def test_line_may_have_16384_bytes_with_its_end() -> None:
    assert MAX_LINE == 16384
    longest = b"x" * 16383 + b"\n"
    for cut in (0, 1, 8000, 16382, 16383):
        assert decode([longest[:cut], longest[cut:]]) == [([b"x" * 16383], None)]


@pytest.mark.parametrize("pieces", [[b"x" * 16384 + b"\n"], [b"x" * 16384], [b"x" * 16000, b"x" * 384], [b"x"] * 16384])
def test_line_that_can_only_be_too_long_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(LineTooLong):
        decode(pieces)


def test_line_too_long_is_found_behind_good_commands() -> None:
    decoder = Decoder()
    decoder.feed(b"NOP\n" + b"x" * 16384)
    command = decoder.next_command()
    assert command is not None
    assert command.params == [b"NOP"]
    with pytest.raises(LineTooLong):
        decoder.next_command()


def test_command_comes_out_before_its_size_and_body() -> None:
    decoder = Decoder()
    decoder.feed(b"PUB t\n\x00")
    command = decoder.next_command()
    assert command is not None
    assert (command.params, command.size, command.body) == ([b"PUB", b"t"], None, None)
    assert decoder.size() is None
    decoder.feed(b"\x00\x00\x03a")
    assert decoder.size() == 3
    assert decoder.body(3) is None
    decoder.feed(b"bcNOP\n")
    assert decoder.body(3) == b"abc"
    assert decoder.buffered == 4


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 2**31 - 1])
def test_size_that_cannot_be_is_given_to_the_caller_as_it_is(size: int) -> None:
    decoder = Decoder()
    decoder.feed(b"PUB t\n" + struct.pack(">i", size) + b"rest")
    command = decoder.next_command()
    assert command is not None
    assert (command.size, command.body) == (size, None)
    assert decoder.take_rest() == b"rest"


def test_rest_after_a_command_is_what_was_not_decoded() -> None:
    decoder = Decoder()
    decoder.feed(b"NOP\nab")
    decoder.feed(b"cd")
    assert decoder.next_command() is not None
    assert (decoder.buffered, decoder.take_rest(), decoder.buffered, decoder.take_rest()) == (4, b"abcd", 0, b"")
    decoder.feed(b"NOP\n")
    assert decoder.next_command() is not None


def messages(data: bytes) -> list[bytes] | None:
    decoder = Decoder()
    decoder.feed(data)
    return decoder.messages(MAX_BODY, MAX_MSG)


def count(number: int) -> bytes:
    return struct.pack(">i", number)


# The rows of MPUB that its inner bytes decide; nothing after the bytes shown is needed to refuse them.
BAD_MESSAGES = [
    (count(0), "E_BAD_BODY", "invalid message count 0"),
    (count(-1), "E_BAD_BODY", "invalid message count -1"),
    (count(MAX_COUNT + 1), "E_BAD_BODY", "invalid message count 200"),
    (count(2) + count(0), "E_BAD_MESSAGE", "invalid message(0) body size 0"),
    (count(2) + sized(b"a") + count(-5), "E_BAD_MESSAGE", "invalid message(1) body size -5"),
    (count(2) + sized(b"a") + count(MAX_MSG + 1), "E_BAD_MESSAGE", "message too big 101 > 100"),
    (count(11) + sized(b"x" * 100) * 10 + count(1), "E_BAD_BODY", "body too big 1001 > 1000"),
]


@pytest.mark.parametrize("data, code, reason", BAD_MESSAGES)
def test_bad_messages_are_refused_as_soon_as_they_show(data: bytes, code: str, reason: str) -> None:
    for pieces in cuts(data):
        decoder = Decoder()
        for piece in pieces[:-1]:
            decoder.feed(piece)
            assert decoder.messages(MAX_BODY, MAX_MSG) is None
        decoder.feed(pieces[-1])
        with pytest.raises(CodecError) as caught:
            decoder.messages(MAX_BODY, MAX_MSG)
        assert (caught.value.code, caught.value.reason) == (code, reason)


def test_messages_may_reach_every_limit() -> None:
    assert messages(mpub(*[b"x"] * MAX_COUNT)) == [b"x"] * MAX_COUNT
    assert messages(mpub(*[b"x" * MAX_MSG] * 10)) == [b"x" * MAX_MSG] * 10  # together max-body-size


def test_inner_sizes_decide_where_mpub_ends_not_the_outer_one() -> None:
    for outer in (1, 12, 13, 14, 999):
        stream = b"MPUB t\n" + count(outer) + mpub(b"abc", b"de") + b"NOP\n"
        for pieces in cuts(stream):
            assert decode(pieces) == [([b"MPUB", b"t"], [b"abc", b"de"]), ([b"NOP"], None)]


def test_one_mpub_leaves_nothing_behind_for_the_next() -> None:
    two = (b"MPUB t\n" + sized(mpub(*[b"x" * MAX_MSG] * 9))) * 2
    assert decode([two]) == [([b"MPUB", b"t"], [b"x" * MAX_MSG] * 9)] * 2


def test_stream_that_ends_inside_mpub_has_the_words_of_what_is_missing() -> None:
    data = mpub(b"abc", b"de")
    missing = (
        ["E_BAD_BODY failed to read message count"] * 4
        + ["E_BAD_MESSAGE failed to read message(0) body size"] * 4
        + ["E_BAD_MESSAGE failed to read message body"] * 3
        + ["E_BAD_MESSAGE failed to read message(1) body size"] * 4
        + ["E_BAD_MESSAGE failed to read message body"] * 2
    )
    assert len(missing) == len(data)
    for length, text in enumerate(missing):
        decoder = Decoder()
        decoder.feed(data[:length])
        assert decoder.messages(MAX_BODY, MAX_MSG) is None
        assert str(decoder.messages_cut_off()) == text, length


def test_frame_is_size_type_data() -> None:
    assert frame(FRAME_TYPE_RESPONSE, b"OK") == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert frame(FRAME_TYPE_ERROR, b"E_INVALID x") == b"\x00\x00\x00\x0f\x00\x00\x00\x01E_INVALID x"


def read_body(decoder: Decoder, size: int) -> object:
    return decoder.body(size)


def read_messages(decoder: Decoder, size: int) -> object:
    return decoder.messages(1 << 30, 1 << 30)


def seconds_to_read(data: bytes, read: Callable[[Decoder, int], object]) -> float:
    """The CPU time that `data` in small pieces takes, `read` being tried after each."""
    pieces = [data[at : at + 512] for at in range(0, len(data), 512)]
    decoder = Decoder()
    began = time.process_time()
    for piece in pieces[:-1]:
        decoder.feed(piece)
        assert read(decoder, len(data)) is None
    decoder.feed(pieces[-1])
    assert read(decoder, len(data)) is not None
    return time.process_time() - began


@pytest.mark.parametrize(
    "read, build",
    [
        (read_body, lambda size: b"x" * size),
        (read_messages, lambda size: mpub(b"x" * size)),
        (read_messages, lambda size: mpub(*[b"x" * 200] * (size // 204))),
    ],
    ids=["PUB", "MPUB of one", "MPUB of many"],
)
def test_body_in_many_pieces_costs_no_more_than_its_length(
    read: Callable[[Decoder, int], object], build: Callable[[int], bytes]
) -> None:
    # About 0.1 s. If each of the 40,000 pieces were joined to all before it, 400 GB would have to be copied.
    assert seconds_to_read(build(20 << 20), read) < 5


# Runs of FINs

IDS = [b"%016x" % number for number in range(1200)]


def test_fins_in_a_row_give_their_ids_at_once_and_the_rest_stays() -> None:
    decoder = Decoder()
    decoder.feed(b"".join(b"FIN %b\n" % id for id in IDS) + b"RDY 5\nFIN 01")
    found: list[bytes] = []
    while ids := decoder.finished_ids():
        found += ids
    assert found == IDS
    assert next_params(decoder) == [b"RDY", b"5"]
    assert decoder.finished_ids() == []
    decoder.feed(b"23456789abcdef\n")
    assert next_params(decoder) == [b"FIN", b"0123456789abcdef"]


def test_fins_that_are_taken_back_come_as_commands() -> None:
    decoder = Decoder()
    decoder.feed(b"".join(b"FIN %b\n" % id for id in IDS[:5]))
    assert decoder.finished_ids() == IDS[:5]
    decoder.take_back(2)
    assert [next_params(decoder), next_params(decoder), decoder.next_command()] == [
        [b"FIN", IDS[3]],
        [b"FIN", IDS[4]],
        None,
    ]


def next_params(decoder: Decoder) -> list[bytes]:
    command = decoder.next_command()
    assert command is not None
    return command.params


IN_FLIGHT = {b"0123456789abcdef", b"fedcba9876543210"}
LINES = [
    *(b"FIN %b\n" % id for id in sorted(IN_FLIGHT)),
    b"FIN 0123456789abcde\n",
    b"FIN 0123456789abcdef0\n",
    b"FIN\n",
    b"FINN0123456789abcdef\n",
    b"fin 0123456789abcdef\n",
    b"GIN 0123456789abcdef\n",
    b"FIN 0123456789abcde\r\n",
    b"TOUCH 0123456789ab\n",
    b"RDY 1\n",
    b"\n",
]


@given(st.lists(st.sampled_from(LINES), max_size=12))
def test_runs_of_fins_are_the_commands_that_they_would_be_otherwise(lines: list[bytes]) -> None:
    one_by_one, in_runs = Decoder(), Decoder()
    for decoder in (one_by_one, in_runs):
        decoder.feed(b"".join(lines))
    expected = []
    while (command := one_by_one.next_command()) is not None:
        expected.append(command.params)
    seen = []
    while True:
        ids = in_runs.finished_ids()
        in_flight = list(itertools.takewhile(IN_FLIGHT.__contains__, ids))
        in_runs.take_back(len(ids) - len(in_flight))
        seen += [[b"FIN", id] for id in in_flight]
        if (command := in_runs.next_command()) is None:
            break
        seen.append(command.params)
    assert seen == expected
