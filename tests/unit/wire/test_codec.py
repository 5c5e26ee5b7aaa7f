"""The protocol's bytes, however they are cut: what the daemon's answers do not show (NSQD-COMPAT 2.1 and 2.4)."""

import itertools
import re
import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.options import Options
from gnsqd.wire.codec import ClientError, Decoder, LineTooLong
from gnsqd.wire.commands import command_table
from kit.nsq_client import mpub_body, sized

MAX_BODY = 1000
MAX_MSG = 100
TABLE = command_table(Options(max_body_size=MAX_BODY, max_msg_size=MAX_MSG))
# The bytes of a command, its words, the bodies that follow. Inner sizes decide where an MPUB ends, not the outer one.
STREAM: list[tuple[bytes, list[bytes], list[bytes]]] = [
    (b"IDENTIFY\n\x00\x00\x00\x02{}", [b"IDENTIFY"], [b"{}"]),
    (b"AUTH\n\x00\x00\x00\x06secret", [b"AUTH"], [b"secret"]),
    (b"SUB t c#ephemeral\r\n", [b"SUB", b"t", b"c#ephemeral"], []),
    (b"PUB t\r\n\x00\x00\x00\x05a\nb\r\n", [b"PUB", b"t"], [b"a\nb\r\n"]),
    (b"MPUB t\n\x00\x00\x00\x0f" + mpub_body(b"\n", b"PU"), [b"MPUB", b"t"], [b"\n", b"PU"]),
    (b"MPUB t\n\x00\x00\x00\x01" + mpub_body(b"abc", b"de"), [b"MPUB", b"t"], [b"abc", b"de"]),
    (b"MPUB t\n\x00\x00\x03\xe7" + mpub_body(b"abc", b"de"), [b"MPUB", b"t"], [b"abc", b"de"]),
    (b"DPUB t 100\n\x00\x00\x00\x01\x00", [b"DPUB", b"t", b"100"], [b"\x00"]),
    (b"RDY 1\n", [b"RDY", b"1"], []),
    (b"FIN 0123456789abcdef\n", [b"FIN", b"0123456789abcdef"], []),
    (b"REQ 0123456789abcdef 0\n", [b"REQ", b"0123456789abcdef", b"0"], []),
    (b"TOUCH 0123456789abcdef\n", [b"TOUCH", b"0123456789abcdef"], []),
    (b"CLS\n", [b"CLS"], []),
    # Lines are split on single spaces and lose one carriage return.
    (b"\n", [b""], []),
    (b"NOP\r\r\n", [b"NOP\r"], []),
    (b"SUB  t c\n", [b"SUB", b"", b"t", b"c"], []),
    (b"\xff\x00\tx\n", [b"\xff\x00\tx"], []),
]


def decode(pieces: Iterable[bytes]) -> list[tuple[list[bytes], list[bytes]]]:
    """Returns the words and the bodies of every command that is complete."""
    decoder = Decoder(TABLE)
    decoded = []
    command = None
    for piece in pieces:
        decoder.feed(piece)
        while True:
            command = command or decoder.next_command()
            if command is None or not decoder.complete(command):
                break
            decoded.append((command.params, command.bodies))
            command = None
    return decoded


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Yields `data` whole, in two pieces cut at every position, in pieces of one byte, of two, and so on."""
    yield [data]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    for size in (1, 2, 3, 5, 7, 11):
        yield [data[at : at + size] for at in range(0, len(data), size)]


def test_commands_are_the_same_however_they_are_cut() -> None:
    data = b"".join(raw for raw, _, _ in STREAM)
    expected = [(params, bodies) for _, params, bodies in STREAM]
    for pieces in cuts(data):
        assert decode(pieces) == expected, pieces


def test_one_mpub_may_reach_the_limits_and_leaves_nothing_behind_for_the_next() -> None:
    bodies = [b"x" * MAX_MSG] * (MAX_BODY // MAX_MSG)
    two = (b"MPUB t\n" + MAX_BODY.to_bytes(4) + mpub_body(*bodies)) * 2
    for pieces in cuts(two):
        assert decode(pieces) == [([b"MPUB", b"t"], bodies)] * 2


def test_line_may_have_16384_bytes_with_its_end() -> None:
    longest = b"x" * 16383 + b"\n"
    for cut in (0, 1, 8000, 16382, 16383):
        assert decode([longest[:cut], longest[cut:]]) == [([b"x" * 16383], [])]
    for pieces in ([b"x" * 16384 + b"\n"], [b"x" * 16384], [b"x" * 16000, b"x" * 384], [b"x"] * 16384):
        with pytest.raises(LineTooLong):
            decode(pieces)


def test_bytes_behind_a_command_belong_to_the_upgraded_stream() -> None:
    decoder = Decoder(TABLE)
    decoder.feed(b"NOP\nre")
    decoder.feed(b"st")
    assert next_params(decoder) == [b"NOP"]
    assert (decoder.buffered, decoder.take_rest(), decoder.buffered, decoder.take_rest()) == (4, b"rest", 0, b"")


@pytest.mark.parametrize("name", ["PUB", "MPUB of one", "MPUB of many"])
def test_body_in_many_pieces_costs_no_more_than_its_length(name: str) -> None:
    # About 0.1 s. If each of the 40,000 pieces were joined to all before it, 400 GB would have to be copied.
    size = 20 << 20
    bodies = [b"x" * 200] * (size // 204) if name == "MPUB of many" else [b"x" * size]
    data = sized(b"".join(bodies) if name == "PUB" else mpub_body(*bodies))
    decoder = Decoder(command_table(Options(max_body_size=1 << 30, max_msg_size=1 << 30)))
    decoder.feed(name.split()[0].encode() + b" t\n")
    command = decoder.next_command()
    assert command is not None
    pieces = [data[at : at + 512] for at in range(0, len(data), 512)]
    began = time.process_time()
    for piece in pieces[:-1]:
        decoder.feed(piece)
        assert not decoder.complete(command)
    decoder.feed(pieces[-1])
    assert decoder.complete(command)
    assert time.process_time() - began < 5


def test_command_with_the_line_of_the_last_one_has_nothing_else_of_it() -> None:
    decoder = Decoder(TABLE)
    decoder.feed((b"PUB t\n" + sized(b"x")) * 2)
    for command in iter(decoder.next_command, None):
        assert [command.size, *command.bodies, command.topic, command.may_yield] == [0, None, False]
        assert decoder.complete(command)
        assert command.bodies == [b"x"]
        command.may_yield, command.topic = True, object()
    assert (command.bodies, command.topic) == ([], None)


# Runs of FINs

IDS = [b"%016x" % number for number in range(1200)]


def test_fins_in_a_row_come_at_once_and_the_rest_stays() -> None:
    decoder = Decoder(TABLE)
    fins = b"".join(b"FIN %b\n" % id for id in IDS)
    decoder.feed(fins + b"RDY 5\nFIN 01")
    runs = [decoder.next_fins() for _ in range(4)]
    assert (b"".join(runs), [len(run) // 21 for run in runs]) == (fins, [512, 512, 176, 0])
    assert next_params(decoder) == [b"RDY", b"5"]
    assert decoder.next_fins() == b""
    decoder.feed(b"23456789abcdef\n")
    assert next_params(decoder) == [b"FIN", b"0123456789abcdef"]


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
    one_by_one, in_runs = Decoder(TABLE), Decoder(TABLE)
    for decoder in (one_by_one, in_runs):
        decoder.feed(b"".join(lines))
    expected = []
    while (command := one_by_one.next_command()) is not None:
        expected.append(command.params)
    seen = []
    while True:
        fins = in_runs.next_fins()
        in_flight = list(itertools.takewhile(IN_FLIGHT.__contains__, re.findall(b"FIN (.*)\n", fins)))
        in_runs.put_back(len(fins) - 21 * len(in_flight))
        seen += [[b"FIN", id] for id in in_flight]
        if (command := in_runs.next_command()) is None:
            break
        seen.append(command.params)
    assert seen == expected


# Runs of PUBs

COMMANDS = [
    *[b"PUB t\n" + sized(b"x" * size) for size in (1, 2, 3, MAX_MSG)] * 3,
    b"PUB t\n" + sized(b"x" * (MAX_MSG + 1)),
    b"PUB t\n" + sized(b""),
    b"PUB t\r\n" + sized(b"x"),
    b"PUB tt\n" + sized(b"x"),
    *[b"DPUB t 1\n" + sized(b"x")] * 3,
    b"MPUB t\n" + sized(mpub_body(b"x", b"y")),
    b"NOP\n",
]


def decode_until_refused(pieces: Iterable[bytes], most: int) -> list[object]:
    """Decodes up to `most` commands with the same line together."""
    decoder = Decoder(TABLE)
    decoded: list[object] = []
    last = command = None
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (command := command or decoder.next_command()) is not None and decoder.complete(command):
                if command is last and not command.spec.has_messages:
                    decoder.add_repeated(command, most)
                    assert len(command.bodies) <= most
                    decoded += [(command.params, [body]) for body in command.bodies]
                else:
                    decoded.append((command.params, command.bodies))
                last, command = command, None
    except ClientError as error:
        decoded.append(str(error))
    return [*decoded, decoder.buffered]


@given(st.lists(st.sampled_from(COMMANDS), max_size=12), st.lists(st.integers(0, 1000), max_size=3), st.integers(1, 9))
def test_runs_of_pubs_are_the_commands_that_they_would_be_otherwise(
    commands: list[bytes], at: list[int], most: int
) -> None:
    data = b"".join(commands)
    pieces = [data[begin:end] for begin, end in itertools.pairwise([0, *sorted(at), len(data)])]
    assert decode_until_refused(pieces, most) == decode_until_refused(pieces, 1)


def test_run_of_pubs_has_64_kb_at_most() -> None:
    decoder = Decoder(command_table(Options()))
    pub = b"PUB t\n" + sized(b"x" * 10_000)
    decoder.feed(pub * 20)
    command = decoder.next_command()
    assert command is not None
    assert decoder.complete(command)
    decoder.add_repeated(command, 64)
    assert command.bodies == [b"x" * 10_000] * 6
    assert decoder.buffered == 14 * len(pub)
