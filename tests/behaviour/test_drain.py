"""Draining: publishers are refused, consumers go on, and the daemon exits when nothing is left or time is up. Only ours
has it."""

import json
import shlex
import signal
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import Instance, eventually
from kit.http_api import ask, message
from kit.nsq_client import NSQClient, mpub_body
from kit.traffic import DaemonFactory, create, finish, post, publish, wait_for

UNIT = Path(__file__).parents[2] / "contrib" / "systemd" / "gnsqd.service"

NOW = "--drain-timeout=0s"
NEVER = "--drain-timeout=1h"


def drain(nsqd: Instance, method: str = "POST") -> dict[str, Any]:
    status, body = ask(nsqd, f"{method} /drain")
    assert status == 200, body
    return dict(json.loads(body))


def hold_back(nsqd: Instance, topic: str = "t", channel: str = "c") -> None:
    create(nsqd, topic, channel)
    publish(nsqd, topic, b"kept")


def terminate_by_drain(nsqd: Instance) -> None:
    nsqd.send_signal(signal.SIGTERM)
    eventually(lambda: drain(nsqd, "GET")["draining"])


def test_publishers_are_refused_and_keep_their_connections(gnsqd: Instance) -> None:
    hold_back(gnsqd)
    with NSQClient(gnsqd.tcp_address) as client:
        client.publish("t", b"before")
        drain(gnsqd)
        for topic in ("t", "new"):
            for name, arguments, body in (
                ("PUB", "", b"x"),
                ("MPUB", "", mpub_body(b"x", b"y")),
                ("DPUB", " 1000", b"x"),
            ):
                client.command(f"{name} {topic}{arguments}".encode(), body)
                assert client.error() == f"E_{name}_FAILED {name} failed draining".encode()
            for command in ("pub", "mpub"):
                assert ask(gnsqd, f"POST /{command}?topic={topic}", b"x\ny") == (503, message("DRAINING"))
        client.send(b"PUB t\n\0\0\0\1x" * 100)
        assert {client.error() for _ in range(100)} == {b"E_PUB_FAILED PUB failed draining"}
        # A wrong request is wrong before it is refused, and as fatal as before.
        assert ask(gnsqd, "POST /pub?topic=t") == (400, message("MSG_EMPTY"))
        client.command(b"PUB t", b"")
        assert client.error() == b"E_BAD_MESSAGE PUB invalid message body size 0"
        client.recv_until_closed()
    assert gnsqd.topic_stats("t")["message_count"] == 2
    assert gnsqd.topic_stats("new")["message_count"] == 0
    assert "_FAILED" not in gnsqd.log(), "a line for each refusal floods the log"


def test_consumers_go_on_and_the_last_finish_is_the_end(gnsqd: Instance) -> None:
    with NSQClient(gnsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        consumer.publish("t", b"held")
        held = consumer.message()
        assert drain(gnsqd)["holding"] == [{"topic": "t", "channel": "c", "messages": 1, "remark": ""}]
        consumer.command(b"PUB t", b"derived")
        assert consumer.error() == b"E_PUB_FAILED PUB failed draining"
        consumer.command(b"TOUCH " + held.id)
        consumer.command(b"REQ " + held.id + b" 300")
        again = consumer.message()
        assert (again.id, again.attempts) == (held.id, 2)
        consumer.command(b"REQ " + held.id + b" 0")
        assert consumer.message().attempts == 3
        with NSQClient(gnsqd.tcp_address) as late:
            late.subscribe("t", "c")
        consumer.command(b"FIN " + held.id)
        assert consumer.recv_until_closed() == b""
    assert gnsqd.wait() == 0
    assert "DRAIN: all queues are empty\n" in gnsqd.log()


@pytest.mark.parametrize("memory", ["0", "1", "100"])
def test_sigterm_drains_memory_and_disk(gnsqd_factory: DaemonFactory, memory: str) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER, f"--mem-queue-size={memory}")
    bodies = [b"%d" % number for number in range(20)]
    hold_back(nsqd)
    publish(nsqd, "t", *bodies)
    post(nsqd, "/pub?topic=t&defer=300", b"deferred")
    terminate_by_drain(nsqd)
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        found = [message.body for message in finish(consumer, 22)]
        assert consumer.recv_until_closed() == b""
    assert sorted(found) == sorted([*bodies, b"kept", b"deferred"])
    assert nsqd.wait() == 0
    nsqd.restart("--mem-queue-size=100")
    assert nsqd.channel_stats("t", "c")["depth"] == 0


def test_what_is_left_at_the_deadline_is_named_and_kept(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--drain-timeout=300ms", "--sigterm=drain")
    hold_back(nsqd)
    publish(nsqd, "lonely", b"kept")
    hold_back(nsqd, "u", "halted")
    post(nsqd, "/channel/pause?topic=u&channel=halted")
    nsqd.send_signal(signal.SIGTERM)
    assert nsqd.wait() == 0
    holders = "3 messages in 3 queues: t:c 1 (no consumer), lonely 1 (no channel), u:halted 1 (paused)\n"
    assert f"INFO: DRAIN: waiting for {holders}" in nsqd.log()
    assert f"WARNING: DRAIN: timed out with {holders}" in nsqd.log()
    nsqd.restart(NOW)
    assert nsqd.channel_stats("t", "c")["depth"] == 1
    assert nsqd.channel_stats("u", "halted")["depth"] == 1
    assert nsqd.topic_stats("lonely")["depth"] == 1
    drain(nsqd)
    assert nsqd.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_the_drain(gnsqd_factory: DaemonFactory, second: signal.Signals) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER)
    hold_back(nsqd)
    terminate_by_drain(nsqd)
    nsqd.send_signal(second)
    assert nsqd.wait() == 0
    nsqd.restart("--sigterm=exit")
    assert nsqd.channel_stats("t", "c")["depth"] == 1


@pytest.mark.parametrize("flags", [(), ("--sigterm=drain",)], ids=["exits", "drains"])
def test_sigterm_joins_a_drain_or_ends_it(gnsqd_factory: DaemonFactory, flags: tuple[str, ...]) -> None:
    nsqd = gnsqd_factory(NEVER, *flags)
    hold_back(nsqd)
    drain(nsqd)
    nsqd.send_signal(signal.SIGTERM)
    if flags:
        with NSQClient(nsqd.tcp_address) as consumer:
            consumer.subscribe("t", "c", rdy=1)
            finish(consumer, 1)
            consumer.recv_until_closed()
    assert nsqd.wait() == 0
    assert nsqd.log().count("DRAIN: refusing") == 1
    nsqd.start()
    assert nsqd.channel_stats("t", "c")["depth"] == (0 if flags else 1)
    post(nsqd, "/channel/empty?topic=t&channel=c")
    drain(nsqd)
    assert nsqd.wait() == 0, "an empty daemon exits at once"


def test_cancelled_drain_leaves_a_daemon_as_before(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER)
    hold_back(nsqd)
    terminate_by_drain(nsqd)
    assert drain(nsqd, "DELETE")["draining"] is False
    assert ask(nsqd, "GET /readyz") == (200, "OK")
    assert drain(nsqd, "DELETE")["draining"] is False
    post(nsqd, "/topic/empty?topic=t")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.command(b"FIN " + client.message().id)
        client.publish("t", b"after")
        after = client.message()
        assert after.body == b"after"
        # Signals are also counted from zero again.
        terminate_by_drain(nsqd)
        client.command(b"FIN " + after.id)
        assert nsqd.wait() == 0
    assert nsqd.log().count("DRAIN: cancelled\n") == 1
    assert nsqd.log().count("DRAIN: all queues are empty\n") == 1


def test_state_of_a_drain_is_reported(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--drain-timeout=1h")
    assert drain(nsqd, "GET") == {"draining": False, "remaining": 0, "messages": 0, "holding": []}
    hold_back(nsqd)
    hold_back(nsqd)
    publish(nsqd, "lonely", b"kept")
    wait_for(nsqd, "t", "c", depth=2)
    begun = drain(nsqd)
    remaining = begun.pop("remaining")
    assert 0 < remaining <= 3_600_000_000_000
    assert begun == {
        "draining": True,
        "messages": 3,
        "holding": [
            {"topic": "t", "channel": "c", "messages": 2, "remark": "no consumer"},
            {"topic": "lonely", "channel": "", "messages": 1, "remark": "no channel"},
        ],
    }
    assert drain(nsqd)["remaining"] < remaining, "asking twice does not begin again"
    nsqd.send_signal(signal.SIGINT)
    assert nsqd.wait() == 0


def test_probes_distinguish_a_daemon_that_works_from_one_to_send_messages_to(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=40")
    for path in ("/healthz", "/readyz"):
        status, headers, body = nsqd.http("GET", path)
        assert (status, body, headers["X-Nsq-Content-Type"]) == (200, b"OK", None)
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
    publish(nsqd, "t", b"fits")
    (nsqd.data_path / "t.diskqueue.000001.dat").mkdir()
    assert ask(nsqd, "POST /pub?topic=t", b"x") == (503, message("EXITING"))
    status, reason = ask(nsqd, "GET /readyz")
    assert (status, ask(nsqd, "GET /ping")) == (503, (500, reason))
    assert reason.endswith("t.diskqueue.000001.dat: is a directory")
    assert ask(nsqd, "GET /healthz") == (200, "OK")
    publish(nsqd, "other", b"x")
    assert ask(nsqd, "GET /readyz") == (200, "OK")
    drain(nsqd)
    assert ask(nsqd, "GET /readyz") == (503, "NOK - draining")
    assert ask(nsqd, "GET /healthz") == (200, "OK")
    assert ask(nsqd, "GET /ping") == (200, "OK")
    assert nsqd.terminate() == 0


def test_systemd_unit_gives_the_drain_its_time(gnsqd_factory: DaemonFactory) -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    service = unit["Service"]
    flags = [word for word in shlex.split(service["ExecStart"])[1:] if "data-path" not in word]
    assert service["KillSignal"] == "SIGTERM"
    (timeout,) = (flag.removeprefix("--drain-timeout=") for flag in flags if flag.startswith("--drain-timeout="))
    assert int(timeout.removesuffix("s")) + 15 <= int(service["TimeoutStopSec"])
    nsqd = gnsqd_factory(*flags)
    hold_back(nsqd)
    nsqd.send_signal(signal.Signals[service["KillSignal"]])
    eventually(lambda: drain(nsqd, "GET")["draining"])
    nsqd.send_signal(signal.SIGINT)
    assert nsqd.wait() == 0
