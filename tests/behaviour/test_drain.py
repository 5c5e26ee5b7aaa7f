"""Draining: publishers are refused, consumers go on, and the daemon exits when nothing is left or time is up. Only ours
has it."""

import json
import shlex
import signal
from collections.abc import Callable
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import Daemon, eventually
from kit.http_api import ask, message, topic_stats
from kit.nsq_client import ERROR, Client, Frame, mpub_body

UNIT = Path(__file__).parents[2] / "contrib" / "systemd" / "gnsqd.service"

NOW = "--drain-timeout=0s"
NEVER = "--drain-timeout=1h"


def drain(nsqd: Daemon, method: str = "POST") -> dict[str, Any]:
    status, body = ask(nsqd, f"{method} /drain")
    assert status == 200, body
    return dict(json.loads(body))


def hold_back(nsqd: Daemon, topic: str = "t", channel: str = "c") -> None:
    """Put one message where it waits for a consumer."""
    assert ask(nsqd, f"POST /topic/create?topic={topic}") == (200, "")
    assert ask(nsqd, f"POST /channel/create?topic={topic}&channel={channel}") == (200, "")
    assert ask(nsqd, f"POST /pub?topic={topic}", b"kept") == (200, "OK")


def finish_all(nsqd: Daemon, topic: str, channel: str, count: int) -> list[bytes]:
    """Consume until the daemon is gone; the bodies that came."""
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribe(topic, channel, rdy=1)
        bodies = []
        for _ in range(count):
            got = consumer.message()
            bodies.append(got.body)
            consumer.command(b"FIN " + got.id)
        assert consumer.recv_until_closed() == b""
    return bodies


def test_publishers_are_refused_and_keep_their_connections(gnsqd: Daemon) -> None:
    hold_back(gnsqd)
    with Client(gnsqd.tcp_address) as client:
        client.publish("t", b"before")
        drain(gnsqd)
        for topic in ("t", "new"):
            client.command(f"PUB {topic}".encode(), b"x")
            client.command(f"MPUB {topic}".encode(), mpub_body(b"x", b"y"))
            client.command(f"DPUB {topic} 1000".encode(), b"x")
            assert [client.frame() for _ in range(3)] == [
                Frame(ERROR, b"E_PUB_FAILED PUB failed draining"),
                Frame(ERROR, b"E_MPUB_FAILED MPUB failed draining"),
                Frame(ERROR, b"E_DPUB_FAILED DPUB failed draining"),
            ]
            assert ask(gnsqd, f"POST /pub?topic={topic}", b"x") == (503, message("DRAINING"))
            assert ask(gnsqd, f"POST /mpub?topic={topic}", b"x\ny") == (503, message("DRAINING"))
        # A wrong request is wrong before it is refused, and as fatal as before.
        assert ask(gnsqd, "POST /pub?topic=t") == (400, message("MSG_EMPTY"))
        client.command(b"PUB t", b"")
        assert client.error() == b"E_BAD_MESSAGE PUB invalid message body size 0"
        client.recv_until_closed()
    assert topic_stats(gnsqd, "t")["message_count"] == 2
    assert topic_stats(gnsqd, "new")["message_count"] == 0
    assert "_FAILED" not in gnsqd.log(), "a line for each refusal floods the log"


def test_consumers_go_on_and_the_last_finish_is_the_end(gnsqd: Daemon) -> None:
    with Client(gnsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        consumer.publish("t", b"held")
        held = consumer.message()
        drain(gnsqd)
        consumer.command(b"PUB t", b"derived")
        assert consumer.error() == b"E_PUB_FAILED PUB failed draining"
        consumer.command(b"TOUCH " + held.id)
        consumer.command(b"REQ " + held.id + b" 300")
        again = consumer.message()
        assert (again.id, again.attempts) == (held.id, 2)
        consumer.command(b"REQ " + held.id + b" 0")
        assert consumer.message().attempts == 3
        with Client(gnsqd.tcp_address) as late:
            late.subscribe("t", "c")
        consumer.command(b"FIN " + held.id)
        assert consumer.recv_until_closed() == b""
    assert gnsqd.wait() == 0
    assert "DRAIN: all queues are empty\n" in gnsqd.log()


@pytest.mark.parametrize("memory", ["0", "1", "100"])
def test_sigterm_drains_memory_and_disk(gnsqd_factory: Callable[..., Daemon], memory: str) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER, f"--mem-queue-size={memory}")
    bodies = [b"%d" % number for number in range(20)]
    hold_back(nsqd)
    with Client(nsqd.tcp_address) as publisher:
        publisher.publish("t", *bodies)
        publisher.command(b"DPUB t 300", b"deferred")
        assert publisher.response() == b"OK"
    nsqd.send_signal(signal.SIGTERM)
    eventually(lambda: drain(nsqd, "GET")["draining"])
    assert sorted(finish_all(nsqd, "t", "c", 22)) == sorted([*bodies, b"kept", b"deferred"])
    assert nsqd.wait() == 0
    nsqd.restart("--mem-queue-size=100")
    assert nsqd.channel_stats("t", "c")["depth"] == 0


def test_empty_daemon_that_is_drained_exits_at_once(gnsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = gnsqd_factory(NEVER)
    assert drain(nsqd)["draining"]
    assert nsqd.wait() == 0


def test_what_is_left_at_the_deadline_is_named_and_kept(gnsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = gnsqd_factory("--drain-timeout=300ms", "--sigterm=drain")
    hold_back(nsqd)
    assert ask(nsqd, "POST /pub?topic=lonely", b"kept") == (200, "OK")
    hold_back(nsqd, "u", "halted")
    assert ask(nsqd, "POST /channel/pause?topic=u&channel=halted") == (200, "")
    nsqd.send_signal(signal.SIGTERM)
    assert nsqd.wait() == 0
    holders = "3 messages in 3 queues: t:c 1 (no consumer), lonely 1 (no channel), u:halted 1 (paused)\n"
    assert f"INFO: DRAIN: waiting for {holders}" in nsqd.log()
    assert f"WARNING: DRAIN: timed out with {holders}" in nsqd.log()
    nsqd.restart(NOW)
    assert nsqd.channel_stats("t", "c")["depth"] == 1
    assert nsqd.channel_stats("u", "halted")["depth"] == 1
    assert topic_stats(nsqd, "lonely")["depth"] == 1
    drain(nsqd)
    assert nsqd.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_the_drain(gnsqd_factory: Callable[..., Daemon], second: signal.Signals) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER)
    hold_back(nsqd)
    nsqd.send_signal(signal.SIGTERM)
    eventually(lambda: drain(nsqd, "GET")["draining"])
    nsqd.send_signal(second)
    assert nsqd.wait() == 0
    nsqd.restart("--sigterm=exit")
    assert nsqd.channel_stats("t", "c")["depth"] == 1


def test_sigterm_joins_a_drain_that_was_begun_over_http(gnsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER)
    hold_back(nsqd)
    drain(nsqd)
    nsqd.send_signal(signal.SIGTERM)
    assert finish_all(nsqd, "t", "c", 1) == [b"kept"]
    assert nsqd.wait() == 0
    assert nsqd.log().count("DRAIN: refusing") == 1


def test_sigterm_ends_a_drain_unless_it_drains_itself(gnsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = gnsqd_factory(NEVER)
    hold_back(nsqd)
    drain(nsqd)
    assert nsqd.terminate() == 0


def test_cancelled_drain_leaves_a_daemon_as_before(gnsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = gnsqd_factory("--sigterm=drain", NEVER)
    hold_back(nsqd)
    nsqd.send_signal(signal.SIGTERM)
    eventually(lambda: drain(nsqd, "GET")["draining"])
    assert drain(nsqd, "DELETE")["draining"] is False
    assert ask(nsqd, "GET /readyz") == (200, "OK")
    assert drain(nsqd, "DELETE")["draining"] is False
    assert ask(nsqd, "POST /topic/empty?topic=t") == (200, "")
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.command(b"FIN " + client.message().id)
        client.publish("t", b"after")
        after = client.message()
        assert after.body == b"after"
        # Signals are also counted from zero again.
        nsqd.send_signal(signal.SIGTERM)
        eventually(lambda: drain(nsqd, "GET")["draining"])
        client.command(b"FIN " + after.id)
        assert nsqd.wait() == 0
    assert nsqd.log().count("DRAIN: cancelled\n") == 1
    assert nsqd.log().count("DRAIN: all queues are empty\n") == 1


def test_state_of_a_drain_is_reported(gnsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = gnsqd_factory("--drain-timeout=1h")
    assert drain(nsqd, "GET") == {"draining": False, "remaining": 0, "messages": 0, "holding": []}
    hold_back(nsqd)
    hold_back(nsqd)
    assert ask(nsqd, "POST /pub?topic=lonely", b"kept") == (200, "OK")
    eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 2)
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


def test_probes_distinguish_a_daemon_that_works_from_one_to_send_messages_to(
    gnsqd_factory: Callable[..., Daemon],
) -> None:
    nsqd = gnsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=40")
    for path in ("/healthz", "/readyz"):
        status, headers, body = nsqd.http("GET", path)
        assert (status, body, headers["X-Nsq-Content-Type"]) == (200, b"OK", None)
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert ask(nsqd, "POST /pub?topic=t", b"fits") == (200, "OK")
    (nsqd.data_path / "t.diskqueue.000001.dat").mkdir()
    assert ask(nsqd, "POST /pub?topic=t", b"x") == (503, message("EXITING"))
    status, reason = ask(nsqd, "GET /readyz")
    assert (status, ask(nsqd, "GET /ping")) == (503, (500, reason))
    assert reason.endswith("t.diskqueue.000001.dat: is a directory")
    assert ask(nsqd, "GET /healthz") == (200, "OK")
    assert ask(nsqd, "POST /pub?topic=other", b"x") == (200, "OK")
    assert ask(nsqd, "GET /readyz") == (200, "OK")
    drain(nsqd)
    assert ask(nsqd, "GET /readyz") == (503, "NOK - draining")
    assert ask(nsqd, "GET /healthz") == (200, "OK")
    assert ask(nsqd, "GET /ping") == (200, "OK")
    assert nsqd.terminate() == 0


def test_systemd_unit_gives_the_drain_its_time(gnsqd_factory: Callable[..., Daemon]) -> None:
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
