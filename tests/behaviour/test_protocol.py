"""Commands, states and errors of protocol V2, row by row (NSQD-COMPAT 2.1 to 2.4), judged on ours and on the real
nsqd. A row that is refused is sent without what would follow it, so an answer that waits for a body fails here."""

import socket
import struct

import pytest

from kit.daemons import Instance, eventually
from kit.nsq_client import ERROR, RESPONSE, Frame, NSQClient, mpub_body, sized, split_frames
from kit.traffic import DaemonFactory, create, post, take

LIMITS = ["--max-msg-size=100", "--max-body-size=1000", "--max-rdy-count=50", "--max-channel-consumers=2"]
ID = b"0123456789abcdef"
SUB = b"SUB errors c\n"
CLOSING = SUB + b"CLS\n"


@pytest.fixture(scope="module")
def nsqd(module_factory: DaemonFactory) -> Instance:
    return module_factory(*LIMITS)


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


def frames(*expected: bytes) -> list[Frame]:
    return [Frame(ERROR if data.startswith(b"E_") else RESPONSE, data) for data in expected]


def invalid_state(command: str) -> bytes:
    return f"E_INVALID cannot {command} in current state".encode()


# What is sent, and all that comes back before the connection closes.
REFUSED: list[tuple[bytes, list[bytes]]] = [
    # 2.1, 2.2: words and states
    (b"ASDF\n", [b"E_INVALID invalid command ASDF"]),
    (b"ASDF a b\r\n", [b"E_INVALID invalid command ASDF"]),
    (b"\n", [b"E_INVALID invalid command "]),
    (b"\r\n", [b"E_INVALID invalid command "]),
    (b" NOP\n", [b"E_INVALID invalid command "]),
    (b"pub t\n", [b"E_INVALID invalid command pub"]),
    (b"PUB\tt\n", [b"E_INVALID invalid command PUB\tt"]),
    (b"N\xff\x00P\n", [b"E_INVALID invalid command N\xff\x00P"]),
    (b"RDY 1\n", [invalid_state("RDY")]),
    (b"RDY x\n", [invalid_state("RDY")]),
    (b"FIN %b\n" % ID, [invalid_state("FIN")]),
    (b"FIN\n", [invalid_state("FIN")]),
    (b"REQ %b 0\n" % ID, [invalid_state("REQ")]),
    (b"TOUCH %b\n" % ID, [invalid_state("TOUCH")]),
    (b"CLS\n", [invalid_state("CLS")]),
    (SUB + b"IDENTIFY\n", [b"OK", invalid_state("IDENTIFY")]),
    (SUB + b"AUTH\n", [b"OK", invalid_state("AUTH")]),
    (SUB + b"SUB errors d\n", [b"OK", invalid_state("SUB")]),
    (CLOSING + b"CLS\n", [b"OK", b"CLOSE_WAIT", invalid_state("CLS")]),
    (CLOSING + b"SUB errors c\n", [b"OK", b"CLOSE_WAIT", invalid_state("SUB")]),
    (CLOSING + b"IDENTIFY\n", [b"OK", b"CLOSE_WAIT", invalid_state("IDENTIFY")]),
    (CLOSING + b"AUTH\n", [b"OK", b"CLOSE_WAIT", invalid_state("AUTH")]),
    # SUB
    (b"SUB\n", [b"E_INVALID SUB insufficient number of parameters"]),
    (b"SUB t\n", [b"E_INVALID SUB insufficient number of parameters"]),
    (b"SUB t$ c$\n", [b'E_BAD_TOPIC SUB topic name "t$" is not valid']),
    (b"SUB t c:d\n", [b'E_BAD_CHANNEL SUB channel name "c:d" is not valid']),
    (b"SUB t \n", [b'E_BAD_CHANNEL SUB channel name "" is not valid']),
    (b"SUB  c\n", [b'E_BAD_TOPIC SUB topic name "" is not valid']),
    (b'SUB a"\\\x01\xff\xc3\xa9\t c\n', [b'E_BAD_TOPIC SUB topic name "a\\"\\\\\\x01\\xff\xc3\xa9\\t" is not valid']),
    (b"SUB %b c\n" % (b"t" * 65), [b'E_BAD_TOPIC SUB topic name "%b" is not valid' % (b"t" * 65)]),
    (b"SUB t#eph c\n", [b'E_BAD_TOPIC SUB topic name "t#eph" is not valid']),
    (b"SUB t c#ephemeral#ephemeral\n", [b'E_BAD_CHANNEL SUB channel name "c#ephemeral#ephemeral" is not valid']),
    (b"SUB #ephemeral c\n", [b'E_BAD_TOPIC SUB topic name "#ephemeral" is not valid']),
    # PUB
    (b"PUB\n", [b"E_INVALID PUB insufficient number of parameters"]),
    (b"PUB t:x\n", [b'E_BAD_TOPIC PUB topic name "t:x" is not valid']),
    (b"PUB t\n" + int32(0), [b"E_BAD_MESSAGE PUB invalid message body size 0"]),
    (b"PUB t\n" + int32(-1), [b"E_BAD_MESSAGE PUB invalid message body size -1"]),
    (b"PUB t\n" + int32(101), [b"E_BAD_MESSAGE PUB message too big 101 > 100"]),
    (b"PUB t\n" + int32(2**31 - 1), [b"E_BAD_MESSAGE PUB message too big 2147483647 > 100"]),
    # MPUB
    (b"MPUB\n", [b"E_INVALID MPUB insufficient number of parameters"]),
    (b"MPUB t:x\n", [b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t:x" is not valid']),
    (b"MPUB t\n" + int32(0), [b"E_BAD_BODY MPUB invalid body size 0"]),
    (b"MPUB t\n" + int32(-7), [b"E_BAD_BODY MPUB invalid body size -7"]),
    (b"MPUB t\n" + int32(1001), [b"E_BAD_BODY MPUB body too big 1001 > 1000"]),
    (b"MPUB t\n" + int32(4) + int32(0), [b"E_BAD_BODY MPUB invalid message count 0"]),
    (b"MPUB t\n" + int32(4) + int32(-1), [b"E_BAD_BODY MPUB invalid message count -1"]),
    (b"MPUB t\n" + int32(4) + int32(200), [b"E_BAD_BODY MPUB invalid message count 200"]),
    (
        b"MPUB t\n" + int32(99) + int32(3) + sized(b"a") + int32(0),
        [b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"],
    ),
    (b"MPUB t\n" + int32(99) + int32(3) + int32(-2), [b"E_BAD_MESSAGE MPUB invalid message(0) body size -2"]),
    (b"MPUB t\n" + int32(999) + int32(3) + int32(101), [b"E_BAD_MESSAGE MPUB message too big 101 > 100"]),
    # DPUB
    (b"DPUB\n", [b"E_INVALID DPUB insufficient number of parameters"]),
    (b"DPUB t\n", [b"E_INVALID DPUB insufficient number of parameters"]),
    (b"DPUB t:x 1\n", [b'E_BAD_TOPIC DPUB topic name "t:x" is not valid']),
    (b"DPUB t 1s\n", [b"E_INVALID DPUB could not parse timeout 1s"]),
    (b"DPUB t -1\n", [b"E_INVALID DPUB could not parse timeout -1"]),
    (b"DPUB t \xb9\n", [b"E_INVALID DPUB could not parse timeout \xb9"]),
    (b"DPUB t 3600001\n", [b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"]),
    (b"DPUB t 18446744073709551615\n", [b"E_INVALID DPUB timeout 18446744073709551615 out of range 0-3600000"]),
    (b"DPUB t 1\n" + int32(0), [b"E_BAD_MESSAGE DPUB invalid message body size 0"]),
    (b"DPUB t 1\n" + int32(101), [b"E_BAD_MESSAGE DPUB message too big 101 > 100"]),
    # RDY
    (SUB + b"RDY x\n", [b"OK", b"E_INVALID RDY could not parse count x"]),
    (SUB + b"RDY -1\n", [b"OK", b"E_INVALID RDY could not parse count -1"]),
    (SUB + b"RDY +1\n", [b"OK", b"E_INVALID RDY could not parse count +1"]),
    (SUB + b"RDY 51\n", [b"OK", b"E_INVALID RDY count 51 out of range 0-50"]),
    # FIN, REQ, TOUCH
    (SUB + b"FIN\n", [b"OK", b"E_INVALID FIN insufficient number of params"]),
    (SUB + b"TOUCH\n", [b"OK", b"E_INVALID TOUCH insufficient number of params"]),
    (SUB + b"REQ %b\n" % ID, [b"OK", b"E_INVALID REQ insufficient number of params"]),
    (SUB + b"FIN \n", [b"OK", b"E_INVALID invalid message ID"]),
    (SUB + b"FIN %b0\n" % ID, [b"OK", b"E_INVALID invalid message ID"]),
    (SUB + b"TOUCH 0123456789abcde\n", [b"OK", b"E_INVALID invalid message ID"]),
    (SUB + b"REQ short x\n", [b"OK", b"E_INVALID invalid message ID"]),
    (SUB + b"REQ %b x\n" % ID, [b"OK", b"E_INVALID REQ could not parse timeout x"]),
    (SUB + b"REQ %b -1\n" % ID, [b"OK", b"E_INVALID REQ could not parse timeout -1"]),
    # AUTH; IDENTIFY has a module of its own
    (b"AUTH x\n", [b"E_INVALID AUTH invalid number of parameters"]),
    (b"AUTH \n", [b"E_INVALID AUTH invalid number of parameters"]),
    (b"AUTH\n" + int32(1001), [b"E_BAD_BODY AUTH body too big 1001 > 1000"]),
    (b"AUTH\n" + int32(0), [b"E_BAD_BODY AUTH invalid body size 0"]),
    (b"AUTH\n" + int32(-3), [b"E_BAD_BODY AUTH invalid body size -3"]),
    (b"AUTH\n" + sized(b"secret"), [b"E_AUTH_DISABLED AUTH disabled"]),
]


@pytest.mark.parametrize("sent, answers", REFUSED)
def test_refused_command_is_answered_in_its_words_and_the_connection_closes(
    client: NSQClient, sent: bytes, answers: list[bytes]
) -> None:
    client.send(sent)
    assert split_frames(client.recv_until_closed()) == frames(*answers)


def test_limit_of_0_allows_no_body(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=0", "--max-body-size=0")
    for line, of in ((b"PUB t", b"MESSAGE PUB message"), (b"MPUB t", b"BODY MPUB body"), (b"AUTH", b"BODY AUTH body")):
        with NSQClient(nsqd.tcp_address) as client:
            client.send(line + b"\n" + int32(13))
            assert client.error() == b"E_BAD_%b too big 13 > 0" % of


# What is sent before the client closes its half, and all that comes back.
CUT_OFF: list[tuple[bytes, list[bytes]]] = [
    (b"", []),
    (b"NO", []),
    (b"IDENTIFY\n", [b"E_BAD_BODY IDENTIFY failed to read body size"]),
    (b"IDENTIFY\n\x00\x00\x00", [b"E_BAD_BODY IDENTIFY failed to read body size"]),
    (b"IDENTIFY\n" + int32(2) + b"{", [b"E_BAD_BODY IDENTIFY failed to read body"]),
    (b"AUTH\n\x00", [b"E_BAD_BODY AUTH failed to read body size"]),
    (b"AUTH\n" + int32(3) + b"ab", [b"E_BAD_BODY AUTH failed to read body"]),
    (b"PUB t\n", [b"E_BAD_MESSAGE PUB failed to read message body size"]),
    (b"PUB t\n\x00\x00", [b"E_BAD_MESSAGE PUB failed to read message body size"]),
    (b"PUB t\n" + int32(9), [b"E_BAD_MESSAGE PUB failed to read message body"]),
    (b"PUB t\n" + int32(9) + b"12345678", [b"E_BAD_MESSAGE PUB failed to read message body"]),
    (b"DPUB t 1\n\x00", [b"E_BAD_MESSAGE DPUB failed to read message body size"]),
    (b"DPUB t 1\n" + int32(3) + b"ab", [b"E_BAD_MESSAGE DPUB failed to read message body"]),
    (b"MPUB t\n\x00", [b"E_BAD_BODY MPUB failed to read body size"]),
    (b"MPUB t\n" + int32(50), [b"E_BAD_BODY MPUB failed to read message count"]),
    (b"MPUB t\n" + int32(50) + b"\x00\x00\x00", [b"E_BAD_BODY MPUB failed to read message count"]),
    (b"MPUB t\n" + int32(50) + int32(2), [b"E_BAD_MESSAGE MPUB failed to read message(0) body size"]),
    (
        b"MPUB t\n" + int32(50) + int32(2) + sized(b"a") + b"\x00\x00",
        [b"E_BAD_MESSAGE MPUB failed to read message(1) body size"],
    ),
    (b"MPUB t\n" + int32(50) + int32(2) + int32(5), [b"E_BAD_MESSAGE MPUB failed to read message body"]),
    (
        b"MPUB t\n" + int32(50) + int32(2) + sized(b"a") + int32(5) + b"1234",
        [b"E_BAD_MESSAGE MPUB failed to read message body"],
    ),
    (b"PUB t\n" + sized(b"a") + b"NOP\nPUB t\n" + sized(b"b") + b"FI", [b"OK", b"OK"]),
]


@pytest.mark.parametrize("sent, answers", CUT_OFF)
def test_stream_that_ends_in_a_command_gets_what_is_missing(
    client: NSQClient, sent: bytes, answers: list[bytes]
) -> None:
    client.send(sent)
    client.sock.shutdown(socket.SHUT_WR)
    assert split_frames(client.recv_until_closed()) == frames(*answers)


@pytest.mark.parametrize("magic", [b"  V1", b"V2  ", b"GET ", b"\x00\x00\x00\x00"])
def test_other_magic_is_a_bad_protocol(nsqd: Instance, magic: bytes) -> None:
    with NSQClient(nsqd.tcp_address, magic=magic) as client:
        assert split_frames(client.recv_until_closed()) == [Frame(ERROR, b"E_BAD_PROTOCOL")]


def test_stream_that_ends_inside_the_magic_closes_without_a_frame(nsqd: Instance) -> None:
    with NSQClient(nsqd.tcp_address, magic=b"  V") as client:
        client.sock.shutdown(socket.SHUT_WR)
        assert client.recv_until_closed() == b""
    eventually(lambda: "failed to read protocol version - " in nsqd.log())


def test_magic_and_commands_may_come_byte_by_byte(nsqd: Instance, topic: str) -> None:
    with NSQClient(nsqd.tcp_address, magic=b"") as client:
        stream = b"  V2PUB %b\r\n" % topic.encode() + sized(b"one") + b"MPUB %b\n" % topic.encode()
        for byte in stream + sized(mpub_body(b"two", b"three")):
            client.send(bytes([byte]))
        assert [client.response(), client.response()] == [b"OK", b"OK"]
    assert nsqd.stats(topic)["topics"][0]["message_count"] == 3


@pytest.mark.parametrize(("bad", "error"), [(b"x" * 16384, []), (b"FIN\n", [invalid_state("FIN")])])
def test_answers_to_what_came_before_a_bad_line_still_arrive(
    client: NSQClient, nsqd: Instance, topic: str, bad: bytes, error: list[bytes]
) -> None:
    client.send(b"PUB %b\n" % topic.encode() + sized(b"kept") + bad)
    assert split_frames(client.recv_until_closed()) == frames(b"OK", *error)
    assert nsqd.stats(topic)["topics"][0]["message_count"] == 1


def test_pipelined_commands_are_answered_in_order(client: NSQClient, topic: str) -> None:
    name = topic.encode()
    client.send(
        b"NOP\nPUB %b\n" % name + sized(b"a") + b"MPUB %b\n" % name + sized(mpub_body(b"b", b"c")) + b"NOP\n"
        b"DPUB %b 0\n" % name + sized(b"d") + b"SUB %b c\n" % name + b"CLS\nNOP\nPUB %b\n" % name + sized(b"e")
    )
    assert [client.response() for _ in range(6)] == [b"OK", b"OK", b"OK", b"OK", b"CLOSE_WAIT", b"OK"]


# What a consumer of the topic t sends among PUBs to it, what comes back, and how many messages t gets.
AMONG_PUBS: list[tuple[bytes, list[bytes], int]] = [
    (b"", [], 0),
    (b"NOP\nRDY 0\n", [], 0),
    (b"PUB u\n" + sized(b"x"), [b"OK"], 0),
    (b"PUB t extra words\n" + sized(b"x") + b"PUB u\n" + sized(b"x"), [b"OK"] * 2, 1),
    (b"PUB t " + b"x" * 200 + b"\n" + sized(b"x"), [b"OK"], 1),
    (b"PUB t\r\n" + sized(b"x"), [b"OK"], 1),
    (b"PUB t\n" + sized(b"PUB t\n" + int32(9)), [b"OK"], 1),
    ((b"MPUB t\n" + sized(mpub_body(b"x", b"y"))) * 2, [b"OK"] * 2, 4),
    ((b"DPUB t 0\n" + sized(b"x")) * 70, [b"OK"] * 70, 70),
    (b"FIN %b\n" % ID, [b"E_FIN_FAILED FIN %b failed ID not in flight" % ID], 0),
    (b"CLS\n", [b"CLOSE_WAIT"], 0),
]
# The same where it is the end.
BEHIND_PUBS: list[tuple[bytes, list[bytes], int]] = [
    (b"PUB t\n" + sized(b""), [b"E_BAD_MESSAGE PUB invalid message body size 0"], 0),
    (b"PUB t\n" + int32(-1), [b"E_BAD_MESSAGE PUB invalid message body size -1"], 0),
    (b"PUB t\n" + sized(b"x" * 101), [b"E_BAD_MESSAGE PUB message too big 101 > 100"], 0),
    (b"PUB t:x\n" + sized(b"x"), [b'E_BAD_TOPIC PUB topic name "t:x" is not valid'], 0),
    (b"pub t\n" + sized(b"x"), [b"E_INVALID invalid command pub"], 0),
    (b"FIN\n", [b"E_INVALID FIN insufficient number of params"], 0),
]


@pytest.mark.parametrize("capacity", [10_000, 0, 200])
def test_pubs_in_a_row_are_as_one_by_one_and_so_is_what_is_among_them(
    nsqd_factory: DaemonFactory, capacity: int
) -> None:
    nsqd = nsqd_factory("--max-msg-size=100", f"--mem-queue-size={capacity}")
    bodies = [b"%d" % number + b"." * (number % 60) for number in range(260)]
    pubs = [b"PUB t\n" + sized(body) for body in bodies]
    for among, answers, count in AMONG_PUBS + BEHIND_PUBS:
        behind = (among, answers, count) in BEHIND_PUBS
        create(nsqd, "t", "c")
        with NSQClient(nsqd.tcp_address) as client:
            client.send(b"SUB t c\n" + b"".join(pubs[:130]) + among + b"".join(pubs[130:]) + b"\n")
            rest = [] if behind else [b"OK"] * 130 + [b"E_INVALID invalid command "]
            assert split_frames(client.recv_until_closed()) == frames(*[b"OK"] * 131, *answers, *rest), among
        kept = bodies[: 130 if behind else 260]
        assert nsqd.topic_stats("t")["message_count"] == len(kept) + count, among
        taken = [message.body for message in take(nsqd, "t", "c", len(kept) + count)]
        found = [body for body in taken if body in kept]
        if capacity == 200:  # what is partly on disk comes in another order
            found.sort(), kept.sort()
        assert found == kept, among
        post(nsqd, "/topic/delete?topic=t")


def test_pubs_in_a_row_may_be_as_large_as_pubs_may_be(nsqd_factory: DaemonFactory) -> None:
    # More than 1 MiB takes gnsqd more than one step.
    nsqd = nsqd_factory("--max-msg-size=5000000")
    create(nsqd, "t", "c")
    sizes = [1, 2_000_000, 2_000_000, 1, 70_000, 70_000, 1, 1, 5_000_000]
    with NSQClient(nsqd.tcp_address) as client:
        client.send(b"".join(b"PUB t\n" + sized(b"x" * size) for size in sizes))
        assert [client.response() for _ in sizes] == [b"OK"] * len(sizes)
    assert [len(message.body) for message in take(nsqd, "t", "c", len(sizes))] == sizes


def test_sizes_at_their_limits_are_taken(client: NSQClient, nsqd: Instance, topic: str) -> None:
    name = topic.encode()
    client.publish(topic, b"x" * 100)
    client.publish(topic, *[b"x" * 100] * 9, b"x" * 52)  # together 1000 bytes
    client.publish(topic, *[b"x"] * 199)
    client.command(b"DPUB %b 3600000" % name, b"x" * 100)
    assert client.response() == b"OK"
    client.command(b"DPUB %b " % name, b"an empty number is 0")
    assert client.response() == b"OK"
    assert nsqd.stats(topic)["topics"][0]["message_count"] == 1 + 10 + 199 + 2


def test_names_may_use_all_their_characters_and_64_of_them(nsqd: Instance) -> None:
    names = ["test", "test-with_period.", "test#ephemeral", "0", "-", "t" * 64, "t" * 54 + "#ephemeral"]
    for name in names:
        with NSQClient(nsqd.tcp_address) as client:
            client.subscribe(name, name)


def test_failing_mpub_creates_its_topic_without_messages_and_failing_pub_does_not(nsqd: Instance) -> None:
    for command in (b"PUB failing-pub\n", b"DPUB failing-dpub 0\n", b"MPUB failing-mpub\n" + int32(99) + int32(3)):
        with NSQClient(nsqd.tcp_address) as client:
            client.send(command + (sized(b"a") if b"MPUB" in command else b"") + int32(0))
            client.recv_until_closed()
    topics = {entry["topic_name"]: entry["message_count"] for entry in nsqd.stats()["topics"]}
    assert topics["failing-mpub"] == 0
    assert not topics.keys() & {"failing-pub", "failing-dpub"}


def test_inner_sizes_of_an_mpub_decide_where_it_ends(client: NSQClient, nsqd: Instance, topic: str) -> None:
    for outer in (1, 900):
        client.send(b"MPUB %b\n" % topic.encode() + int32(outer) + mpub_body(b"a", b"b") + b"PUB %b\n" % topic.encode())
        client.send(sized(b"c"))
        assert [client.response(), client.response()] == [b"OK", b"OK"]
    assert nsqd.stats(topic)["topics"][0]["message_count"] == 6


def test_inner_sizes_of_an_mpub_may_not_exceed_max_body_size_together(gnsqd_factory: DaemonFactory, topic: str) -> None:
    # Corrected (NSQD-COMPAT 0.1, item 24): the real daemon reads up to count x max-msg-size bytes.
    with NSQClient(gnsqd_factory(*LIMITS).tcp_address) as client:
        client.send(b"MPUB %b\n" % topic.encode() + int32(8) + int32(11) + sized(b"x" * 100) * 10 + int32(1))
        assert split_frames(client.recv_until_closed()) == frames(b"E_BAD_BODY MPUB body too big 1001 > 1000")


def test_numbers_beyond_64_bits_are_invalid(gnsqd_factory: DaemonFactory) -> None:
    # Corrected (NSQD-COMPAT 0.1, item 18): the real daemon takes them modulo 2**64.
    address = gnsqd_factory(*LIMITS).tcp_address
    for line, error in (
        (b"RDY 18446744073709551616", b"E_INVALID RDY count 18446744073709551616 out of range 0-50"),
        (b"RDY 9223372036854775808", b"E_INVALID RDY count 9223372036854775808 out of range 0-50"),
        (b"RDY 100000000000000000000000", b"E_INVALID RDY could not parse count 100000000000000000000000"),
        (b"DPUB t 18446744073709551617", b"E_INVALID DPUB timeout 18446744073709551617 out of range 0-3600000"),
    ):
        with NSQClient(address) as client:
            client.send(SUB + line + b"\n")
            assert split_frames(client.recv_until_closed()) == frames(b"OK", error)


def test_failed_fin_req_and_touch_do_not_close(client: NSQClient, topic: str) -> None:
    client.subscribe(topic, "c")
    for command in (b"FIN %b", b"TOUCH %b", b"REQ %b 0", b"REQ %b 99999999999", b"FIN %b extra words"):
        client.command(command % ID)
        name = command.split()[0]
        assert client.error() == b"E_%b_FAILED %b %b failed ID not in flight" % (name, name, ID)
    client.command(b"FIN \xff\x00\"'\\56789abcdef")
    assert client.error() == b"E_FIN_FAILED FIN \xff\x00\"'\\56789abcdef failed ID not in flight"
    client.publish(topic, b"still here")


def test_message_of_another_client_is_not_finished_requeued_or_touched(nsqd: Instance, topic: str) -> None:
    with NSQClient(nsqd.tcp_address) as owner, NSQClient(nsqd.tcp_address) as other:
        owner.subscribe(topic, "c", rdy=1)
        owner.publish(topic, b"mine")
        id = owner.message().id
        other.subscribe(topic, "c")
        for command in (b"FIN %b", b"TOUCH %b", b"REQ %b 0"):
            other.command(command % id)
            name = command.split()[0]
            assert other.error() == b"E_%b_FAILED %b %b failed client does not own message" % (name, name, id)
        owner.command(b"FIN " + id)
        eventually(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] == 0)


def test_consumers_beyond_max_channel_consumers_are_refused(nsqd: Instance, topic: str) -> None:
    with NSQClient(nsqd.tcp_address) as one, NSQClient(nsqd.tcp_address) as two, NSQClient(nsqd.tcp_address) as three:
        one.subscribe(topic, "c")
        two.subscribe(topic, "c")
        three.command(f"SUB {topic} c".encode())
        text = f"E_SUB_FAILED SUB failed consumers for {topic}:c exceeds limit of 2"
        assert split_frames(three.recv_until_closed()) == frames(text.encode())
        one.close()
        eventually(lambda: nsqd.channel_stats(topic, "c")["client_count"] == 1)
        with NSQClient(nsqd.tcp_address) as four:
            four.subscribe(topic, "c")


def test_rdy_without_a_number_is_1_and_with_an_empty_one_0(client: NSQClient, nsqd: Instance, topic: str) -> None:
    def ready_count() -> int:
        count: int = nsqd.channel_stats(topic, "c")["clients"][0]["ready_count"]
        return count

    client.subscribe(topic, "c", rdy=50)
    eventually(lambda: ready_count() == 50)
    client.command(b"RDY")
    eventually(lambda: ready_count() == 1)
    client.command(b"RDY ")
    eventually(lambda: ready_count() == 0)
    client.command(b"RDY 007 extra")
    eventually(lambda: ready_count() == 7)
    assert nsqd.channel_stats(topic, "c")["clients"][0]["state"] == 3


def test_cls_stops_delivery_and_lets_what_is_in_flight_be_finished(
    client: NSQClient, nsqd: Instance, topic: str
) -> None:
    client.subscribe(topic, "c", rdy=4)
    client.publish(topic, b"0", b"1", b"2", b"3")
    ids = [client.message().id for _ in range(4)]
    client.command(b"CLS")
    assert client.response() == b"CLOSE_WAIT"
    for line in (b"RDY 10", b"FIN " + ids[0], b"REQ %b 0" % ids[1], b"TOUCH " + ids[2], b"NOP"):
        client.command(line)
    client.publish(topic, b"4")
    stats = eventually(lambda: (found := nsqd.channel_stats(topic, "c"))["depth"] == 2 and found)
    assert (stats["in_flight_count"], stats["requeue_count"]) == (2, 1)
    assert [stats["clients"][0][key] for key in ("state", "ready_count", "finish_count")] == [4, 0, 1]
    assert client.nothing_arrives(0.3)


def test_failing_disk_is_named_and_shown_by_ping_until_a_write_works(nsqd_factory: DaemonFactory, topic: str) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=1")  # a file for each message
    with NSQClient(nsqd.tcp_address) as client:
        client.publish(topic, b"before")
        obstacle = nsqd.data_path / f"{topic}.diskqueue.000001.dat"
        obstacle.mkdir()
        reason = f"open {obstacle}: is a directory"
        for command, body in ((b"PUB", b"x"), (b"MPUB", mpub_body(b"x")), (b"DPUB", b"x")):
            with NSQClient(nsqd.tcp_address) as other:
                other.command(b"%b %b 0" % (command, topic.encode()), body)
                expected = b"E_%b_FAILED %b failed %b" % (command, command, reason.encode())
                assert split_frames(other.recv_until_closed()) == frames(expected)
        status, _, answer = nsqd.http("GET", "/ping")
        assert (status, answer) == (500, f"NOK - {reason}".encode())
        assert nsqd.stats(topic)["health"] == f"NOK - {reason}"
        obstacle.rmdir()
        client.publish(topic, b"after")
        assert nsqd.http("GET", "/ping")[0] == 200
        assert nsqd.stats(topic)["topics"][0]["message_count"] == 2
