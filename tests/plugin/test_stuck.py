"""Reports of a daemon about its queues and itself, for a test that waits for what does not come."""

import asyncio
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from behaviour.test_http_auth import token_flags
from gnsqd import testing
from gnsqd.testing import Daemon, NotEmpty
from kit.certificates import issue
from kit.daemons import DEADLINE, eventually, wait_until_stopped
from kit.nsq_client import NSQClient
from plugin.test_starting import client, pid_of

HANGS = "\n    It hangs or does not finish messages. See the consumer's log."  # after a second


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "data")
    daemon.start()
    yield daemon
    daemon.kill()


def post(daemon: Daemon, path: str) -> None:
    urllib.request.urlopen(f"http://{daemon.http_address}{path}", b"", timeout=DEADLINE).close()


def create_channel(daemon: Daemon, topic: str, channel: str, *paths: str) -> None:
    """Creates the topic and the channel, and posts to these paths of the channel."""
    names = f"?topic={topic}&channel={channel}"
    for path in (f"/topic/create{names}", f"/channel/create{names}", *(path.format(names) for path in paths)):
        post(daemon, path)


def answer(consumer: NSQClient, command: str) -> None:
    """Sends a command about the next message."""
    name, *parameters = command.split()
    consumer.command(b" ".join([name.encode(), consumer.message().id, *(word.encode() for word in parameters)]))


def test_each_queue_has_a_line_and_advice(daemon: Daemon) -> None:
    assert daemon.queues() == "no topics"
    create_channel(daemon, "orders", "biling")
    create_channel(daemon, "orders", "archive")
    create_channel(daemon, "paused", "c", "/channel/pause{}", "/topic/pause{}")
    create_channel(daemon, "timed.out", "c", "/channel/rules{}&ordered=true")
    post(daemon, "/topic/create?topic=new")
    with ExitStack() as stack:

        def consume(topic: str, channel: str, rdy: int, **identify: object) -> NSQClient:
            consumer = stack.enter_context(client(daemon))
            consumer.identify(**identify)
            consumer.subscribe(topic, channel, rdy)
            return consumer

        consume("rdy", "c", 0)
        requeuing, finishing, touching = (consume(topic, "c", 1) for topic in ("requeued", "finished", "touched"))
        consume("orders", "billing", 0), consume("orders", "billing", 7)
        consume("own", "c", 1, msg_timeout=120_000)
        leaving = consume("timed.out", "c", 1)
        with client(daemon) as publisher:
            for topic in ("order", "orders", "own", "paused", "rdy", "requeued", "finished", "touched", "timed.out"):
                publisher.publish(topic, b"a message")
        post(daemon, "/channel/empty?topic=orders&channel=archive")
        answer(requeuing, "REQ 1800000")
        answer(finishing, "FIN")
        answer(touching, "TOUCH")
        leaving.message()
        leaving.close()
        consume("timed.out", "c", 1).message()
        expected = [
            "finished/c: empty, 1 finished, 1 consumer at RDY 1",
            "new: empty, no channel",
            "order: 1 queued, no channel (did you mean orders?)",
            "    Start a consumer, which creates its channel; or create a channel.",
            "orders/archive: empty, no consumer",
            "orders/biling: 1 queued, no consumer (did you mean orders/billing?)",
            "    Start its consumers, or find out why they cannot connect.",
            "orders/billing: 1 message in flight for N s of 60 s --msg-timeout, 2 consumers at RDY 0 to 7",
            "own/c: 1 message in flight for N s of 120 s msg_timeout of its consumer, or of TOUCH, 1 consumer at RDY 1",
            "paused: 1 queued, paused: its channels get no messages",
            "paused/c: empty, no consumer, paused: its consumers get no messages",
            "rdy/c: 1 queued, 1 consumer at RDY 0",
            "    They have sent no RDY, are in backoff after failures, are shutting down, or their max_in_flight is "
            "smaller than the number of nodes; see their logs.",
            "requeued/c: 1 deferred until TIME (in N s), 1 requeued, 1 consumer at RDY 1",
            "    Processing fails; see the consumers' logs.",
            "timed.out/c: 1 message in flight for N s of 60 s --msg-timeout, 1 timed out, 1 consumer at RDY 1",
            "    Processing takes longer than the msg-timeout of the consumers or the node. Consumers can TOUCH "
            "messages, set a longer msg_timeout, or reduce max_in_flight.",
            "touched/c: 1 message in flight for N s of N s msg_timeout of its consumer, or of TOUCH, 1 consumer at "
            "RDY 1",
        ]

        def shown() -> list[str]:
            text = re.sub(r"\d\d:\d\d:\d\d", "TIME", daemon.queues().replace(HANGS, ""))
            return re.sub(
                r"(?<=for )[\d.]+(?= s)|(?<=in )[\d.]+(?= s)|(?<=of )60[\d.]*(?= s msg)", "N", text
            ).splitlines()

        eventually(lambda: len(shown()) == len(expected) and "1 finished" in shown()[0], "the answers of the consumers")
        assert shown() == expected
        eventually(lambda: daemon.queues().count(HANGS) == 3, "a second in flight")


def test_it_waits_until_a_channel_is_empty(daemon: Daemon) -> None:
    with client(daemon) as consumer:
        consumer.subscribe("t", "c#ephemeral", rdy=1)
        consumer.publish("t", b"a message")
        with pytest.raises(NotEmpty, match=r"^t/c#ephemeral is not empty after [\d.]+ s:\nt/c#ephemeral: 1 mess"):
            daemon.wait_until_empty("t", "c#ephemeral", timeout=0.01)
        answer(consumer, "REQ 3600000")
        with pytest.raises(NotEmpty, match="1 deferred"):
            daemon.wait_until_empty("t", "c#ephemeral", timeout=0.01)
        post(daemon, "/channel/empty?topic=t&channel=c%23ephemeral")
        daemon.wait_until_empty("t", "c#ephemeral", timeout=DEADLINE)
        for missing, meant in (("c.ephemeral", " (did you mean t/c#ephemeral?)"), ("\u00fc d&", "")):
            with pytest.raises(AssertionError) as raised:
                daemon.wait_until_empty("t", missing, timeout=0)
            assert re.match(rf"t/{missing} does not exist after [\d.]+ s{re.escape(meant)}:\n", str(raised.value))
        post(daemon, "/topic/pause?topic=t")
        consumer.publish("t", b"a message")
        with pytest.raises(NotEmpty, match="t: 1 queued, paused"):
            daemon.wait_until_empty("t", "c#ephemeral", timeout=0.01)
    assert "/stats?" in daemon.log()
    assert "/stats?" not in daemon.report()
    os.kill(pid_of(daemon), signal.SIGKILL)
    with pytest.raises(NotEmpty, match=r" after 1?\d\.\d s:\nqueues unknown: the daemon has exited with code -9"):
        daemon.wait_until_empty("t", "c#ephemeral", timeout=DEADLINE)


def test_a_daemon_that_does_not_show_its_queues_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: Daemon, peer_binary: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(testing, "ASK_SECONDS", 0.1)
    os.kill(pid_of(daemon), signal.SIGSTOP)
    wait_until_stopped(pid_of(daemon))
    asked = time.monotonic()
    assert daemon.queues() == f"queues unknown: no answer from {daemon.http_address}: timed out"
    assert time.monotonic() - asked < testing.START_SECONDS
    monkeypatch.undo()
    daemon.kill()
    assert daemon.queues() == "queues unknown: the daemon has stopped"
    cert, key = issue("server").write(tmp_path / "server")
    for flags, text in (
        (token_flags(tmp_path), 'the daemon answers 401 {"message":"UNAUTHORIZED"}'),
        (["--tls-required=true", f"--tls-cert={cert}", f"--tls-key={key}"], 'answers 403 {"message": "TLS_REQUIRED", '),
        (["--http-address="], "no answer from a daemon without HTTP: "),
    ):
        with testing.running(*flags) as other:
            assert text in other.queues()
            assert "\n" not in other.queues()
    with testing.running(command=[str(peer_binary("nsqd"))]) as nsqd:
        command = f"gnsqadmin doctor --nsqd-http-address={nsqd.http_address}"
        assert nsqd.queues() == f"queues unknown: this is not gnsqd; `{command}` examines it while it runs"


def test_a_daemon_shows_its_ports(tmp_path: Path) -> None:
    with testing.running("--admin-http-address=127.0.0.1:0") as daemon:
        addresses = f"TCP {daemon.tcp_address}, HTTP {daemon.http_address}"
        assert repr(daemon) == f"<gnsqd: {addresses}, data in {daemon.data_path}, running>"
        title = subprocess.run(["ps", "-o", "args=", "-p", f"{pid_of(daemon)}"], capture_output=True, text=True).stdout
        assert title.startswith(f"gnsqd --tcp-address={daemon.tcp_address} --http-address={daemon.http_address} ")
        assert re.search(r"ADMIN: listening on (\S+)", daemon.log()).group(1) == daemon.admin_address  # type: ignore
        assert daemon.stats()["health"] == "OK"
        os.kill(pid_of(daemon), signal.SIGTERM)
        eventually(lambda: repr(daemon).endswith(", exited with code 0>"))
    assert repr(daemon).endswith(", stopped>")
    assert Daemon(tmp_path / "data").admin_address == ""


def test_an_exception_that_leaves_the_block_has_the_queues_and_the_log_as_a_note() -> None:
    async def fail() -> None:
        async with testing.running_async() as daemon:
            await asyncio.to_thread(post, daemon, "/topic/create?topic=t")
            raise TimeoutError

    def fail_without() -> None:
        with testing.running() as daemon:
            post(daemon, "/topic/create?topic=t")
            raise TimeoutError

    for run in (fail_without, lambda: asyncio.run(fail())):
        with pytest.raises(TimeoutError) as raised:
            run()
        (note,) = raised.value.__notes__
        assert re.match(r"<gnsqd: TCP .*running>\nt: empty, no channel\n\n\[nsqd\] .* INFO: nsqd v1.3.0", note)
        assert "TOPIC(t): created" in note
