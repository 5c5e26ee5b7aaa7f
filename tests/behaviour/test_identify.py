"""IDENTIFY: its fields and ranges, its answer to the byte, and the settings it makes (NSQD-COMPAT 2.1, 2.4, 2.5)."""

import json
import re
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from kit.daemons import Instance, eventually, is_readable
from kit.nsq_client import ERROR, HEARTBEAT, MESSAGE, RESPONSE, Frame, NSQClient, mpub_body, split_frames
from kit.traffic import DaemonFactory

DEFAULT_ANSWER = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    b'"output_buffer_size":16384,"output_buffer_timeout":250}'
)


@pytest.fixture(scope="module")
def nsqd(module_factory: DaemonFactory) -> Instance:
    return module_factory()


def bad_body(text: str) -> list[Frame]:
    return [Frame(ERROR, b"E_BAD_BODY IDENTIFY " + text.encode())]


def test_answer_has_every_key_in_order(client: NSQClient) -> None:
    assert client.identify(feature_negotiation=True) == (RESPONSE, DEFAULT_ANSWER)


def test_answer_without_negotiation_is_ok_and_upgrades_nothing(client: NSQClient, topic: str) -> None:
    assert client.identify(tls_v1=True, deflate=True, snappy=True) == (RESPONSE, b"OK")
    client.publish(topic, b"in clear")


def test_answer_has_the_options_and_what_was_asked_for(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(
        "--max-rdy-count=7", "--max-msg-timeout=30s", "--msg-timeout=2s", "--max-deflate-level=3", "--deflate=false",
        "--snappy=false", "--output-buffer-timeout=100ms",
    )  # fmt: skip
    asked = {"deflate": True, "deflate_level": 9, "snappy": True, "tls_v1": True}
    with NSQClient(nsqd.tcp_address) as client:
        assert client.identify(feature_negotiation=True, **asked).data == (
            b'{"max_rdy_count":7,"version":"1.3.0","max_msg_timeout":30000,"msg_timeout":2000,"tls_v1":false,'
            b'"deflate":false,"deflate_level":3,"max_deflate_level":3,"snappy":false,"sample_rate":0,'
            b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":100}'
        )


REFUSED_FIELDS = [
    ("heartbeat_interval", [-2, 1, 999, 60001], "heartbeat interval ({}) is invalid"),
    ("output_buffer_timeout", [-2, 1, 24, 30001], "output buffer timeout ({}) is invalid"),
    ("output_buffer_size", [-2, 1, 63, 65537], "output buffer size ({}) is invalid"),
    ("sample_rate", [-1, 100, 2**31 - 1, -(2**31)], "sample rate ({}) is invalid"),
    ("msg_timeout", [-1, 1, 999, 900001, 2**63 - 1], "msg timeout ({}) is invalid"),
]


@pytest.mark.parametrize("field, values, text", REFUSED_FIELDS, ids=[row[0] for row in REFUSED_FIELDS])
def test_value_out_of_range_is_refused_and_the_connection_closes(
    nsqd: Instance, field: str, values: list[int], text: str
) -> None:
    for value in values:
        with NSQClient(nsqd.tcp_address) as client:
            client.command(b"IDENTIFY", json.dumps({field: value}).encode())
            assert split_frames(client.recv_until_closed()) == bad_body(text.format(value))


ACCEPTED_FIELDS = [
    ({"heartbeat_interval": 1000}, {}),
    ({"heartbeat_interval": 60000}, {}),
    ({"heartbeat_interval": -1}, {}),
    ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
    ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
    ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
    ({"output_buffer_size": -1, "output_buffer_timeout": 500}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
    ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 25}),
    ({"output_buffer_timeout": 30000}, {"output_buffer_timeout": 30000}),
    ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0}),
    ({"sample_rate": 99}, {"sample_rate": 99}),
    ({"msg_timeout": 1000}, {"msg_timeout": 1000}),
    ({"msg_timeout": 900000}, {"msg_timeout": 900000}),
    ({"deflate_level": 1}, {"deflate_level": 6}),
    (dict.fromkeys(["heartbeat_interval", "output_buffer_size", "output_buffer_timeout", "msg_timeout"], 0), {}),
    (dict.fromkeys(["client_id", "heartbeat_interval", "output_buffer_size", "deflate", "sample_rate"]), {}),
    ({"unknown": [1, {"x": None}], "": 1}, {}),
]


@pytest.mark.parametrize("fields, changed", ACCEPTED_FIELDS)
def test_value_in_range_is_taken_over(client: NSQClient, fields: dict[str, object], changed: dict[str, int]) -> None:
    answer = json.loads(client.identify(feature_negotiation=True, **fields).data)
    assert answer == json.loads(DEFAULT_ANSWER) | changed


# Bodies that are not a JSON object with the right types.
NOT_DECODED = [
    b"x", b"{", b"[]", b'"x"', b"1", b"true", b"{}x", b"{'client_id':'x'}", b"\xff", b" ", b'{"client_id":"\x01"}',
    b'{"sample_rate":1.5}', b'{"heartbeat_interval":"1000"}',
    b'{"feature_negotiation":1}', b'{"client_id":5}', b'{"sample_rate":2147483648}',
    b'{"msg_timeout":9223372036854775808}', b'{"output_buffer_size":1e3}',
]  # fmt: skip


def test_body_that_is_not_an_object_of_the_right_types_is_refused(nsqd: Instance) -> None:
    for body in NOT_DECODED:
        with NSQClient(nsqd.tcp_address) as client:
            client.command(b"IDENTIFY", body)
            assert split_frames(client.recv_until_closed()) == bad_body("failed to decode JSON body"), body


def test_keys_match_in_any_case_and_null_is_not_a_value(nsqd: Instance) -> None:
    for body, rate in (
        (b'{"FEATURE_NEGOTIATION":true,"Sample_Rate":7}', 7),
        (b' {"feature_negotiation":true,"sample_rate":7,"sample_rate":8}\n', 8),
        (b'{"feature_negotiation":true,"sample_rate":7,"sample_rate":null}', 7),
    ):
        with NSQClient(nsqd.tcp_address) as client:
            client.command(b"IDENTIFY", body)
            assert json.loads(client.response())["sample_rate"] == rate, body
            client.command(b"IDENTIFY", b"null")
            assert client.response() == b"OK"


def test_size_of_the_body_is_checked_before_it_is_read(nsqd_factory: DaemonFactory) -> None:
    address = nsqd_factory("--max-body-size=1000").tcp_address
    for size, text in ((1001, "body too big 1001 > 1000"), (0, "invalid body size 0"), (-9, "invalid body size -9")):
        with NSQClient(address) as client:
            client.send(b"IDENTIFY\n" + struct.pack(">i", size))
            assert split_frames(client.recv_until_closed()) == bad_body(text)
    with NSQClient(address) as client:
        client.command(b"IDENTIFY ignored words", b'{"client_id":"x"}'.ljust(1000))
        assert client.response() == b"OK"


def test_nothing_that_a_client_sends_makes_another_line_of_the_log(gnsqd_factory: DaemonFactory) -> None:
    # The real daemon prints all of it as it comes.
    gnsqd = gnsqd_factory("--log-level=debug")
    genuine = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} [A-Z]+: [^\0-\x1f\x7f-\x9f\u2028\u2029]*")
    forged = "\n\r[nsqd] forged\x1b[2J\u2028"
    with NSQClient(gnsqd.tcp_address, magic=forged.encode()[:4]) as client:
        client.recv_until_closed()
    with NSQClient(gnsqd.tcp_address) as client:
        client.identify(client_id=forged, hostname=forged, user_agent=forged)
        client.subscribe("t", "c", rdy=1)
        client.publish("t", forged.encode())
        client.message()
        client.command(b"\x1b[2J\rforged \r forged")
        client.recv_until_closed()
    assert gnsqd.http("POST", f"/mpub?topic=t&binary={quote(forged)}", mpub_body(b"x"))[0] == 200
    assert gnsqd.http("POST", f"/pub?topic={quote(forged)}", b"x")[0] == 400
    assert gnsqd.terminate() == 0
    lines = gnsqd.log().removesuffix("\n").split("\n")
    assert [line for line in lines if not genuine.fullmatch(line)] == []
    assert gnsqd.log().count(r"\n\r[nsqd] forged\x1b[2J\u2028") > 4


def test_second_identify_overwrites_the_first(client: NSQClient, nsqd: Instance, topic: str) -> None:
    client.identify(client_id="one", hostname="host", user_agent="agent/1", msg_timeout=5000)
    answer = json.loads(client.identify(client_id="two", feature_negotiation=True, sample_rate=3).data)
    assert (answer["msg_timeout"], answer["sample_rate"]) == (5000, 3)
    client.subscribe(topic, "c")
    stats = nsqd.channel_stats(topic, "c")["clients"][0]
    assert [stats[key] for key in ("client_id", "hostname", "user_agent", "sample_rate")] == ["two", "", "", 3]


def test_client_that_never_identified_is_called_by_its_address(client: NSQClient, nsqd: Instance, topic: str) -> None:
    client.subscribe(topic, "c")
    stats = nsqd.channel_stats(topic, "c")["clients"][0]
    host, port = client.sock.getsockname()
    assert [stats[key] for key in ("client_id", "hostname", "user_agent")] == [host, host, ""]
    assert (stats["remote_address"], stats["version"], stats["state"]) == (f"{host}:{port}", "V2", 3)


def test_sub_with_heartbeats_disabled_is_refused(client: NSQClient) -> None:
    assert client.identify(heartbeat_interval=-1).data == b"OK"
    client.command(b"SUB t c")
    expected = [Frame(ERROR, b"E_INVALID cannot SUB with heartbeats disabled")]
    assert split_frames(client.recv_until_closed()) == expected


# Heartbeats, with the shortest interval there is; the cases wait side by side.


def test_heartbeats_come_each_interval_and_silence_of_two_closes_the_connection(nsqd: Instance, topic: str) -> None:
    def connect() -> NSQClient:
        client = NSQClient(nsqd.tcp_address)
        assert client.identify(heartbeat_interval=1000).data == b"OK"
        return client

    def silent() -> None:
        began = time.monotonic()
        with connect() as client:
            assert client.response() == HEARTBEAT
            assert time.monotonic() - began > 0.8
            # Both are due at 2.0 s: the second heartbeat may win or lose against the close.
            assert split_frames(client.recv_until_closed()) in ([], [Frame(RESPONSE, HEARTBEAT)])
            assert time.monotonic() - began > 1.8
            address = "{}:{}".format(*client.sock.getsockname())
            text = f"ERROR: client({address}) - failed to read command - read tcp "
            eventually(lambda: text in nsqd.log())
            assert f"->{address}: i/o timeout" in nsqd.log()

    def answering(line: bytes, *before: bytes) -> None:
        with connect() as client:
            for command in before:
                client.command(command)
                client.response()
            for _ in range(4):
                while not is_readable(client.sock, 0.25):  # oftener than heartbeats, as a busy machine delays answers
                    client.command(line)
                assert client.response() == HEARTBEAT
            client.publish(topic, b"still here")

    def stuck_in_a_body() -> None:
        with connect() as client:
            client.send(b"PUB t\n\x00\x00\x00\x64")
            for _ in range(3):
                time.sleep(0.2)  # heartbeats may come meanwhile
                client.send(b"x")
            frames = [frame for frame in split_frames(client.recv_until_closed()) if frame.data != HEARTBEAT]
            assert frames == [Frame(ERROR, b"E_BAD_MESSAGE PUB failed to read message body")]

    def without_heartbeats() -> None:
        with NSQClient(nsqd.tcp_address) as client:
            client.identify(heartbeat_interval=-1)
            assert client.nothing_arrives(2.5)
            client.command(b"NOP")
            client.publish(topic, b"still here")

    def switched_on_later() -> None:
        """Changes the deadlines only: no heartbeat comes, and silence still closes the connection."""
        with NSQClient(nsqd.tcp_address) as client:
            client.identify(heartbeat_interval=-1)
            client.identify(heartbeat_interval=1000)
            assert client.recv_until_closed() == b""

    subscribe = f"SUB {topic} c".encode()
    with ThreadPoolExecutor(8) as pool:
        cases = [pool.submit(case) for case in (silent, without_heartbeats, stuck_in_a_body, switched_on_later)]
        cases += [pool.submit(answering, b"NOP"), pool.submit(answering, b"RDY 0", subscribe)]
        cases += [pool.submit(answering, b"NOP", subscribe, b"CLS")]
        for case in cases:
            case.result()


# Output buffering


def buffering(nsqd: Instance, topic: str, rdy: int, **fields: int) -> NSQClient:
    client = NSQClient(nsqd.tcp_address)
    assert client.identify(**fields).data == b"OK"
    client.subscribe(topic, "c", rdy=rdy)
    eventually(lambda: nsqd.channel_stats(topic, "c")["clients"][0]["ready_count"] == rdy)
    return client


LONG = {"output_buffer_timeout": 30000}  # no message of these tests leaves by the clock


def test_message_that_fills_the_window_is_sent_at_once(nsqd: Instance, publisher: NSQClient, topic: str) -> None:
    with buffering(nsqd, topic, 1, **LONG) as client:
        for body in (b"a", b"b"):
            publisher.publish(topic, body)
            message = client.message(timeout=10)
            assert message.body == body
            client.command(b"FIN " + message.id)


def answer_to(client: NSQClient, nsqd: Instance, topic: str) -> None:
    client.command(f"PUB other-{topic}".encode(), b"x")


def rdy_0(client: NSQClient, nsqd: Instance, topic: str) -> None:
    client.command(b"RDY 0")


def pause(client: NSQClient, nsqd: Instance, topic: str) -> None:
    nsqd.http("POST", f"/channel/pause?topic={topic}&channel=c")


def full_window(client: NSQClient, nsqd: Instance, topic: str) -> None:
    for _ in range(8):
        nsqd.http("POST", f"/pub?topic={topic}", b"x")


@pytest.mark.parametrize("event", [answer_to, rdy_0, pause, full_window])
def test_messages_wait_in_the_buffer_until_something_happens(
    nsqd: Instance, publisher: NSQClient, topic: str, event: Callable[[NSQClient, Instance, str], None]
) -> None:
    with buffering(nsqd, topic, 10, **LONG) as client:
        publisher.publish(topic, b"0", b"1")
        assert client.nothing_arrives(0.3)
        event(client, nsqd, topic)
        assert [client.message(timeout=10).body for _ in range(2)] == [b"0", b"1"]
        assert event is not answer_to or client.response() == b"OK"


@pytest.mark.parametrize("size", [64, 500])
def test_full_buffer_is_sent(nsqd: Instance, publisher: NSQClient, topic: str, size: int) -> None:
    with buffering(nsqd, topic, 100, output_buffer_size=size, **LONG) as client:
        for _ in range(6):
            publisher.publish(topic, b"x" * 200)
        # The real daemon's buffer may keep the end of the last message, so that one isn't asked for.
        assert [client.message(timeout=10).body for _ in range(4)] == [b"x" * 200] * 4


def test_buffered_message_leaves_with_the_flush_tick(nsqd: Instance, publisher: NSQClient, topic: str) -> None:
    client = NSQClient(nsqd.tcp_address)
    began = time.monotonic()
    client.identify(output_buffer_timeout=1000)
    client.subscribe(topic, "c", rdy=10)
    publisher.publish(topic, b"buffered")
    assert client.message(timeout=20).body == b"buffered"
    assert 0.9 < time.monotonic() - began < 10


def test_by_default_a_buffered_message_waits_for_a_quarter_second_at_most(
    nsqd: Instance, publisher: NSQClient, topic: str
) -> None:
    with buffering(nsqd, topic, 10) as client:
        for _ in range(3):
            publisher.publish(topic, b"x")
            assert client.message(timeout=5)


def test_unbuffered_client_gets_every_message_at_once(nsqd: Instance, publisher: NSQClient, topic: str) -> None:
    with buffering(nsqd, topic, 10, output_buffer_size=-1) as client:
        for body in (b"a", b"b"):
            publisher.publish(topic, body)
            assert client.message(timeout=10).body == body


def test_buffer_without_a_timeout_strands_no_message(gnsqd: Instance, topic: str) -> None:
    # Corrected (NSQD-COMPAT 0.1, item 2): the real daemon flushes it with the next heartbeat, after up to 30 s.
    with buffering(gnsqd, topic, 10, output_buffer_timeout=-1) as client, NSQClient(gnsqd.tcp_address) as publisher:
        publisher.publish(topic, b"x")
        assert client.message(timeout=10).body == b"x"


def in_flight_of(nsqd: Instance, topic: str, count: int) -> int:
    """Returns how many messages are in flight once all `count` of them have been looked at.

    The real daemon counts one figure after the other, so two looks in a row must have the same.
    """
    looks: list[dict[str, Any]] = [{}]

    def drained() -> dict[str, Any] | None:
        looks.append(nsqd.channel_stats(topic, "c"))
        before, found = looks[-2:]
        return found if found == before and (found["message_count"], found["depth"]) == (count, 0) else None

    in_flight: int = eventually(drained)["in_flight_count"]
    return in_flight


def test_sample_rate_gives_about_that_share_of_the_messages(nsqd_factory: DaemonFactory, topic: str) -> None:
    nsqd = nsqd_factory("--max-rdy-count=20000", "--mem-queue-size=20000")
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as publisher:
        answer = client.identify(feature_negotiation=True, sample_rate=42)
        assert json.loads(answer.data)["sample_rate"] == 42
        client.subscribe(topic, "c", rdy=20000)
        publisher.publish(topic, *[b"x"] * 10000)
        in_flight = in_flight_of(nsqd, topic, 10000)
        assert 3700 < in_flight < 4700  # as in nsqd's own test
        received = [client.message(timeout=10) for _ in range(in_flight)]
        assert {message.attempts for message in received} == {1}


def test_sample_rate_of_1_gives_one_in_a_hundred(gnsqd_factory: DaemonFactory, topic: str) -> None:
    # Corrected (NSQD-COMPAT 0.1, item 15): the real daemon gives N + 1 %.
    nsqd = gnsqd_factory("--max-rdy-count=20000", "--mem-queue-size=20000")
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as publisher:
        client.identify(sample_rate=1)
        client.subscribe(topic, "c", rdy=20000)
        publisher.publish(topic, *[b"x"] * 20000)
        assert 120 < in_flight_of(nsqd, topic, 20000) < 290  # 200, give or take six deviations


def test_sampling_client_goes_on_after_a_message_it_was_not_given(
    nsqd: Instance, publisher: NSQClient, topic: str
) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        client.identify(sample_rate=50)
        client.subscribe(topic, "c", rdy=100)
        for _ in range(40):
            publisher.publish(topic, b"x")
            eventually(lambda: nsqd.channel_stats(topic, "c")["depth"] == 0, timeout=10)
        assert {client.frame(timeout=10).type for _ in range(2)} == {MESSAGE}
