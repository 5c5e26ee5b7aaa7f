"""Delivery rules of a channel (contrib/docs/rules.md), by ordinary clients. Only ours has them."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import Instance, NotStarted, eventually
from kit.http_api import ask, refusals
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, finish, post, publish, wait_for

RULES = "/channel/rules?topic=t&channel=c"
NONE = {"rate": 0, "burst": 0, "ordered": False}
FILE = "gnsqd.rules.dat"


@pytest.fixture(params=["none", "process"])
def nsqd(request: pytest.FixtureRequest, gnsqd_factory: DaemonFactory) -> Instance:
    return created(gnsqd_factory(f"--durability={request.param}", "--mem-queue-size=5"))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def finished(client: NSQClient, count: int) -> list[bytes]:
    return [message.body for message in finish(client, count)]


def created(nsqd: Instance) -> Instance:
    create(nsqd, "t", "c")
    return nsqd


def rules(nsqd: Instance, changes: str = "") -> dict[str, Any]:
    status, answer = ask(nsqd, f"{'POST' if changes else 'GET'} {RULES}{changes}")
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def test_rate_limits_all_consumers_together_and_they_share_it(nsqd: Instance) -> None:
    assert rules(nsqd, "&rate=50") == {"rate": 50, "burst": 1, "ordered": False}
    assert rules(nsqd, "&burst=4") == {"rate": 50, "burst": 4, "ordered": False}
    publish(nsqd, "t", *numbers(0, 34))
    post(nsqd, "/channel/pause?topic=t&channel=c")
    with ExitStack() as stack:
        clients = [stack.enter_context(NSQClient(nsqd.tcp_address)) for _ in range(3)]
        for client in clients:
            client.identify(output_buffer_timeout=-1)
            client.subscribe("t", "c", 20)

        def of_clients(key: str) -> list[int]:
            return [client[key] for client in nsqd.channel_stats("t", "c")["clients"]]

        eventually(lambda: of_clients("ready_count") == [20] * 3)
        begun = time.monotonic()
        post(nsqd, "/channel/unpause?topic=t&channel=c")
        eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 0)
        assert time.monotonic() - begun >= 30 / 50
        counts = of_clients("message_count")
        assert sum(counts) == 34
        assert min(counts) >= 7


def test_waiting_for_a_token_costs_nothing(gnsqd_factory: DaemonFactory) -> None:
    nsqd = created(gnsqd_factory())
    assert rules(nsqd, "&rate=0.01&burst=4")["rate"] == 0.01
    publish(nsqd, "t", *numbers(0, 10))
    with ExitStack() as stack:
        clients = [stack.enter_context(NSQClient(nsqd.tcp_address)) for _ in range(20)]
        for client in clients:
            client.subscribe("t", "c", 5)
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 4)
        stat = Path(f"/proc/{nsqd.pid}/stat")
        if not stat.exists():
            pytest.skip("needs /proc")

        def ticks() -> int:
            return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))

        before = ticks()
        assert clients[-1].nothing_arrives(1)
        assert ticks() - before < 25  # hundredths of a second; a consumer that polls takes all of them
        assert rules(nsqd, "&rate=0") == NONE
        eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 0)


def test_ordered_channel_has_one_message_in_flight(nsqd: Instance) -> None:
    assert rules(nsqd, "&ordered=true") == NONE | {"ordered": True}
    publish(nsqd, "t", *numbers(0, 20))
    with NSQClient(nsqd.tcp_address) as first, NSQClient(nsqd.tcp_address) as second:
        for client in (first, second):
            client.identify(output_buffer_timeout=-1)
        first.subscribe("t", "c", 10)
        head = first.message()
        second.subscribe("t", "c", 10)
        assert first.nothing_arrives(0.05)
        assert second.nothing_arrives(0.05)
        first.command(b"REQ %b 0" % head.id)
        again = second.message()
        assert (again.id, again.attempts) == (head.id, 2)
        begun = time.monotonic()
        second.command(b"REQ %b 300" % head.id)
        assert first.message().id == head.id
        assert time.monotonic() - begun >= 0.3
        assert nsqd.channel_stats("t", "c")["in_flight_count"] == 1
        second.command(b"RDY 0")
        first.command(b"FIN " + head.id)
        assert [head.body, *finished(first, 10)] == numbers(0, 11)
        publish(nsqd, "t", *numbers(20, 25))
        assert finished(first, 14) == numbers(11, 25)


def test_ordered_channel_goes_on_when_its_consumer_disconnects(nsqd: Instance) -> None:
    publish(nsqd, "t", *numbers(0, 4))
    with NSQClient(nsqd.tcp_address) as third:
        with NSQClient(nsqd.tcp_address) as first, NSQClient(nsqd.tcp_address) as second:
            for client in (first, second, third):
                client.identify(output_buffer_timeout=-1)
            first.subscribe("t", "c", 1)
            assert first.message().body == b"0"
            first.close()  # its message stays in flight, as the channel is not ordered yet
            eventually(lambda: nsqd.channel_stats("t", "c")["client_count"] == 0)
            assert nsqd.channel_stats("t", "c")["in_flight_count"] == 1
            rules(nsqd, "&ordered=true")
            second.subscribe("t", "c", 10)
            again = second.message()
            third.subscribe("t", "c", 10)
        again_again = third.message()
        assert (again.body, again.attempts) == (b"0", 2)
        assert (again_again.id, again_again.attempts) == (again.id, 3)
        third.command(b"FIN " + again.id)
        assert finished(third, 3) == numbers(1, 4)
        stats = nsqd.channel_stats("t", "c")
        assert (stats["timeout_count"], stats["requeue_count"]) == (2, 0)


def test_ordered_message_does_not_wait_in_the_output_buffer(nsqd: Instance) -> None:
    rules(nsqd, "&ordered=true")
    publish(nsqd, "t", *numbers(0, 5))
    with NSQClient(nsqd.tcp_address) as client:
        client.identify(output_buffer_timeout=30_000)
        client.subscribe("t", "c", 10)
        finish(client, 5)  # each long before the buffer is flushed


def test_messages_that_are_cancelled_or_published_with_a_delay_hold_up_nobody(nsqd: Instance) -> None:
    rules(nsqd, "&ordered=true")
    post(nsqd, "/pub?topic=t&defer=600000", b"later")
    publish(nsqd, "t", *numbers(0, 8))
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        head = client.message()
        client.command(b"REQ %b 600000" % head.id)
        wait_for(nsqd, "t", "c", in_flight_count=0)
        assert client.nothing_arrives(0.05)
        post(nsqd, f"/channel/deferred/cancel?topic=t&channel=c&id={head.id.decode()}")
        assert finished(client, 7) == numbers(1, 8)
        post(nsqd, "/pub?topic=t&defer=1", b"soon")
        assert finished(client, 1) == [b"soon"]


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_order_survives_with_a_journal(gnsqd_factory: DaemonFactory, end: str) -> None:
    nsqd = created(gnsqd_factory("--durability=process", "--mem-queue-size=5"))
    rules(nsqd, "&ordered=true")
    publish(nsqd, "t", *numbers(0, 20))

    def start_again() -> None:
        getattr(nsqd, end)()
        nsqd.start()

    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        assert finished(client, 3) == numbers(0, 3)
        assert client.message().body == b"3"
        publish(nsqd, "t", *numbers(20, 21))  # with it, the journal has what came before
        start_again()
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        head = client.message()
        assert (head.body, head.attempts) == (b"3", 2)
        due = time.monotonic() + 1
        client.command(b"REQ %b 1000" % head.id)
        eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == 1)
        publish(nsqd, "t", *numbers(21, 22))
        start_again()
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        assert finished(client, 19) == numbers(3, 22)
        assert time.monotonic() >= due - 0.1


def test_rules_survive_exits_and_kills_and_go_with_the_channel(nsqd: Instance) -> None:
    path = nsqd.data_path / FILE
    assert not path.exists()
    set_to = {"rate": 2.5, "burst": 3, "ordered": True}
    assert rules(nsqd, "&rate=2.5&burst=3&ordered=true") == set_to
    nsqd.kill()
    assert json.loads(path.read_text()) == {"channels": [{"topic": "t", "channel": "c", **set_to}]}
    nsqd.start()
    assert rules(nsqd) == set_to
    nsqd.restart()
    assert rules(nsqd) == set_to
    assert nsqd.channel_stats("t", "c")["rules"] == set_to
    assert rules(nsqd, "&rate=100&ordered=false") == {"rate": 100, "burst": 1, "ordered": False}
    post(nsqd, "/channel/delete?topic=t&channel=c")
    assert not path.exists()
    assert rules(created(nsqd)) == NONE
    assert "rules" not in nsqd.channel_stats("t", "c")


def test_rules_of_an_ephemeral_channel_are_not_kept(nsqd: Instance) -> None:
    create(nsqd, "t", "e%23ephemeral")
    answer = post(nsqd, "/channel/rules?topic=t&channel=e%23ephemeral&rate=1")
    assert answer == b'{"rate":1,"burst":1,"ordered":false}'
    assert not (nsqd.data_path / FILE).exists()


REFUSED = {
    f"topic=t&channel=c&{query}": (400, f"INVALID_ARG_{name}")
    for name, queries in {
        "RATE": [f"rate={text}" for text in ("", "-1", "x", "nan", "inf", "1e7", "0.0001")],
        "BURST": [
            *(f"rate=5&burst={text}" for text in ("", "0", "-1", "1.5")),
            *("burst=0", "burst=5", "rate=0&burst=0", "rate=0&burst=5"),
        ],
        "ORDERED": [f"ordered={text}" for text in ("", "yes", "2")],
        "IDLE_TIMEOUT": [f"idle_timeout={text}" for text in ("5", "-1s", "never")],
        "IDLE_POLICY": ["idle_policy=drop"],
    }.items()
    for query in queries
}


def test_errors(gnsqd: Instance) -> None:
    created(gnsqd)
    assert refusals(gnsqd, REFUSED, "POST /channel/rules?") == REFUSED
    assert rules(gnsqd) == NONE


def test_option_has_the_rules_until_they_are_changed(gnsqd_factory: DaemonFactory) -> None:
    options = ("--channel-rules=t:c:rate=5:ordered=true", "--channel-rules=t:other:rate=7:burst=2")
    nsqd = created(gnsqd_factory(*options))
    by_option = {"rate": 5, "burst": 1, "ordered": True}
    assert rules(nsqd) == by_option
    assert not (nsqd.data_path / FILE).exists()
    assert rules(nsqd, "&rate=0&ordered=false") == NONE
    nsqd.restart(*options)
    assert rules(nsqd) == NONE
    assert rules(nsqd, "&rate=5&ordered=true") == by_option
    assert not (nsqd.data_path / FILE).exists()


@pytest.mark.parametrize(
    "content, reason",
    [
        ("{", "failed to parse rules in "),
        ('{"channels":[{"topic":"t","channel":"c","speed":1}]}', "unknown rule in {'speed': 1}"),
        ('{"channels":[{"topic":"t","channel":"c","rate":-1}]}', "invalid rate in {'rate': -1}"),
        ('{"channels":[{"topic":"t","channel":"c","idle_timeout":"x"}]}', "invalid idle_timeout"),
    ],
)
def test_file_that_is_not_valid_ends_the_start(gnsqd_factory: DaemonFactory, content: str, reason: str) -> None:
    nsqd = created(gnsqd_factory())
    nsqd.terminate()
    (nsqd.data_path / FILE).write_text(content)
    with pytest.raises(NotStarted) as failure:
        nsqd.start()
    assert reason in str(failure.value)


@pytest.mark.peer
def test_nsqd_leaves_the_file_alone(gnsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path]) -> None:
    nsqd = created(gnsqd_factory())
    rules(nsqd, "&rate=3")
    ours = nsqd.command
    for command in ([str(peer_binary("nsqd"))], ours):
        nsqd.terminate()
        nsqd.command = command
        nsqd.start()
        assert nsqd.channel_stats("t", "c")["depth"] == 0
    assert rules(nsqd)["rate"] == 3
