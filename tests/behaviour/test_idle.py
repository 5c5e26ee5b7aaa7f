"""Idle channels (contrib/docs/rules.md): what is done to channels without consumers, and to which not."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator

from kit.daemons import DEADLINE, Instance, eventually, open_socket, wait_until_stopped
from kit.exposition import labels, series
from kit.http_api import ask, head
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, publish, take, wait_for

ROW = r"WARNING: CHANNEL\((\S+)\): (\w+), as it had no consumer for (\S+) - depth (\d+), (\d+) deferred"


def actions(nsqd: Instance) -> list[tuple[str, str, int, int]]:
    """Returns channel, deed, depth and number of deferred messages of each action in the log."""
    return [(name, deed, int(depth), int(late)) for name, deed, _, depth, late in re.findall(ROW, nsqd.log())]


def counts(nsqd: Instance) -> list[float]:
    found = series(nsqd.http("GET", "/metrics")[2])
    return [found["gnsqd_idle_channels_total", labels(policy=policy)] for policy in ("pause", "empty", "delete")]


def test_nothing_is_done_by_default(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    create(nsqd, "t", "c")
    assert not {"idle", "rules"} & set(nsqd.channel_stats("t", "c"))
    assert b"idle" not in nsqd.http("GET", "/metrics")[2]
    assert "idleLoop" not in ask(nsqd, "GET /debug/pprof/goroutine")[1]


def test_channel_is_paused_once_and_not_where_it_is_not_idle(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--channel-idle-timeout=300ms")
    create(nsqd, "other", "e%23ephemeral")
    create(nsqd, "t.idle.dead", "replay")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("other", "used")
        publish(nsqd, "t", b"1", b"2")
        create(nsqd, "t", "idle")  # has them before it is idle
        wait_for(nsqd, "t", "idle", paused=True)
        eventually(lambda: actions(nsqd) == [("t:idle", "paused", 2, 0)])
        (found,) = re.findall(ROW, nsqd.log())
        assert re.fullmatch(r"[3-9]\d\dms|[1-9][\d.]*s", found[2])
        create(nsqd, "t", "later")
        wait_for(nsqd, "t", "later", paused=True)
        eventually(lambda: len(actions(nsqd)) == 2)
        assert counts(nsqd) == [2, 0, 0]
        assert '{"name":"later","paused":true}' in (nsqd.data_path / "nsqd.dat").read_text()


def test_time_counts_from_the_last_consumer_or_the_unpausing(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--channel-idle-timeout=1h", "--durability=process")
    create(nsqd, "t", "c", "read", "beside")

    def idle(channel: str) -> int:
        time: int = nsqd.channel_stats("t", channel)["idle"]["time"]
        return time

    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c")
        assert "idle" not in nsqd.channel_stats("t", "c")
        eventually(lambda: idle("beside") > 300e6)
        begun = time.monotonic()
        consumer.close()
    eventually(lambda: nsqd.channel_stats("t", "c")["client_count"] == 0)
    post(nsqd, "/channel/pause?topic=t&channel=beside")
    assert "idle" not in nsqd.channel_stats("t", "beside")
    post(nsqd, "/channel/unpause?topic=t&channel=beside")
    post(nsqd, "/channel/advance?topic=t&channel=read&to=0")  # somebody reads it by ranges
    for channel in ("c", "read", "beside"):
        found = nsqd.channel_stats("t", channel)["idle"]
        assert found["policy"] == "pause"
        assert found["time"] + found["left"] == 3600e9
        assert found["time"] <= (time.monotonic() - begun) * 1e9, channel


def test_channel_is_emptied_again_and_again_but_not_while_it_is_empty(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--channel-idle-timeout=300ms", "--channel-idle-policy=empty")
    publish(nsqd, "once", b"1")
    publish(nsqd, "t", b"1", b"2")
    post(nsqd, "/pub?topic=t&defer=60000", b"late")
    create(nsqd, "once", "c")
    create(nsqd, "t", "c")
    first = [("once:c", "emptied", 1, 0), ("t:c", "emptied", 2, 1)]
    eventually(lambda: actions(nsqd) == first)
    wait_for(nsqd, "t", "c", depth=0, deferred_count=0, paused=False)
    publish(nsqd, "t", b"3")
    eventually(lambda: len(actions(nsqd)) > 2)
    assert actions(nsqd) == [*first, ("t:c", "emptied", 1, 0)]
    assert counts(nsqd) == [0, 3, 0]


def test_rules_of_a_channel_or_of_all_others_override_the_options(gnsqd_factory: DaemonFactory) -> None:
    every = "--channel-rules=t:*:idle_timeout=200ms:idle_policy=delete:rate=7"
    nsqd = gnsqd_factory(every, "--channel-rules=t:kept:rate=5")
    create(nsqd, "other", "c")
    create(nsqd, "t", "kept")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "ruled")
        rules = post(nsqd, "/channel/rules?topic=t&channel=ruled&idle_timeout=0&rate=0")
    none = {"rate": 0, "burst": 0, "ordered": False}
    assert json.loads(rules) == none | {"idle_timeout": 0, "idle_policy": "delete"}
    post(nsqd, "/channel/rules?topic=t&channel=kept&idle_timeout=3h")
    create(nsqd, "t", "gone")
    eventually(lambda: actions(nsqd) == [("t:gone", "deleted", 0, 0)])
    nsqd.kill()  # it was logged when it could not be undone any more
    assert '"gone"' not in (nsqd.data_path / "nsqd.dat").read_text()
    nsqd.start()
    assert [channel["channel_name"] for channel in nsqd.topic_stats("t")["channels"]] == ["kept", "ruled"]
    for channel, timeout in (("kept", 3 * 3600e9), ("ruled", 0)):
        assert nsqd.channel_stats("t", channel)["rules"]["idle_timeout"] == timeout
    rules = post(nsqd, "/channel/rules?topic=other&channel=c&idle_timeout=200ms&idle_policy=pause")
    assert json.loads(rules)["idle_timeout"] == 200e6
    wait_for(nsqd, "other", "c", paused=True)
    assert json.loads(post(nsqd, "/channel/rules?topic=other&channel=c&idle_timeout=&idle_policy=")) == none
    assert "rules" not in nsqd.channel_stats("other", "c")


def test_time_in_which_the_daemon_is_stopped_does_not_count(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--channel-idle-timeout=1500ms", "--channel-idle-policy=delete", "--durability=process")
    create(nsqd, "t", "subscribed", "read")
    publish(nsqd, "t", b"1")
    nsqd.send_signal(signal.SIGSTOP)
    wait_until_stopped(nsqd.pid)
    with NSQClient(nsqd.tcp_address) as consumer, open_socket(nsqd.http_address, DEADLINE) as reader:
        consumer.send(b"SUB t subscribed\nRDY 1\n")
        reader.sendall(head("GET /topic/range?topic=t&channel=read"))
        time.sleep(2)  # longer than the timeout
        nsqd.send_signal(signal.SIGCONT)
        assert consumer.response() == b"OK"
        assert consumer.message().body == b"1"
        assert reader.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert actions(nsqd) == []


def read(sock: socket.socket) -> Iterator[bytes]:
    return iter(lambda: sock.recv(65536), b"")


def test_channel_is_not_idle_while_a_request_of_its_reader_goes_on(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--channel-idle-timeout=1s", "--channel-idle-policy=delete", "--durability=process")
    create(nsqd, "t", "waiting", "streaming")
    body = b"x" * 1_000_000
    for _ in range(16):  # more than the buffers of both sockets hold
        publish(nsqd, "t", body)
    with open_socket(nsqd.http_address, DEADLINE) as waiting, open_socket(nsqd.http_address, DEADLINE) as streaming:
        waiting.sendall(head("GET /topic/messages?topic=t&channel=waiting&from=next&wait=60s"))
        range_request = "GET /topic/messages?topic=t&channel=streaming&from=first&format=records"
        streaming.sendall(head(range_request, "Connection: close"))
        create(nsqd, "t", "beside")
        eventually(lambda: [name for name, *_ in actions(nsqd)] == ["t:beside"])
        for channel in ("waiting", "streaming"):
            assert "idle" not in nsqd.channel_stats("t", channel)
        publish(nsqd, "t", b"late")
        assert b'"body":"late"' in b"".join(read(waiting))
        assert sum(map(len, read(streaming))) > 16 * len(body)
    eventually(lambda: all("idle" in nsqd.channel_stats("t", name) for name in ("waiting", "streaming")))


DROP_IDLE = ("--overflow-policy=drop-idle", "--channel-idle-timeout=200ms", "--channel-idle-policy=none")


def test_idle_channel_refuses_nobody_and_drops_its_oldest(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-channel-depth=5", *DROP_IDLE)
    create(nsqd, "t", "used", "idle")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "used")
        publish(nsqd, "t", *(b"%d" % number for number in range(5)))
        assert ask(nsqd, "POST /pub?topic=t", b"x")[0] == 503
        post(nsqd, "/channel/empty?topic=t&channel=used")
        eventually(lambda: ask(nsqd, "POST /pub?topic=t", b"5")[0] == 200)
        publish(nsqd, "t", b"6", b"7", b"8", b"9")
        reason = "channel t:used would hold more than 5 messages (--max-channel-depth)"
        assert ask(nsqd, "POST /pub?topic=t", b"x") == (503, f'{{"message":"FULL: {reason}"}}')
        wait_for(nsqd, "t", "idle", depth=5, paused=False)
        dropped = series(nsqd.http("GET", "/metrics")[2])
        assert dropped["gnsqd_channel_dropped_messages_total", labels(topic="t", channel="idle")] == 5
        assert dropped["gnsqd_channel_dropped_messages_total", labels(topic="t", channel="used")] == 0
        post(nsqd, "/channel/empty?topic=t&channel=used")
        assert [message.body for message in take(nsqd, "t", "idle", 1)] == [b"5"]
        publish(nsqd, "t", b"10")
        with NSQClient(nsqd.tcp_address) as other:
            other.subscribe("t", "idle")
            assert "channel t:idle" in ask(nsqd, "POST /pub?topic=t", b"x")[1]
    assert actions(nsqd) == []


def test_nothing_is_dropped_after_a_reader_of_ranges_came(gnsqd_factory: DaemonFactory) -> None:
    flags = (*DROP_IDLE, "--channel-idle-timeout=1s", "--durability=process")
    nsqd = gnsqd_factory("--max-channel-depth=5", *flags)
    create(nsqd, "t", "idle")
    publish(nsqd, "t", *(b"%d" % number for number in range(5)))
    eventually(lambda: ask(nsqd, "POST /pub?topic=t", b"5")[0] == 200)
    position = json.loads(ask(nsqd, "GET /topic/range?topic=t&channel=idle")[1])["position"]
    assert "channel t:idle" in ask(nsqd, "POST /pub?topic=t", b"x")[1]
    assert json.loads(ask(nsqd, "GET /topic/range?topic=t&channel=idle")[1])["position"] == position


def test_idle_channel_makes_room_for_the_bytes_of_others(gnsqd_factory: DaemonFactory) -> None:
    body = b"x" * 70  # 100 bytes in a disk queue
    nsqd = gnsqd_factory("--max-topic-bytes=1000", "--mem-queue-size=2", *DROP_IDLE)
    create(nsqd, "t", "used", "idle")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "used")
        publish(nsqd, "t", *([body] * 5))
        assert ask(nsqd, "POST /pub?topic=t", body)[0] == 503
        eventually(lambda: ask(nsqd, "POST /pub?topic=t", body)[0] == 200)
        publish(nsqd, "t", *([body] * 4))
        assert ask(nsqd, "POST /pub?topic=t", body)[0] == 503
        wait_for(nsqd, "t", "used", depth=10)
        wait_for(nsqd, "t", "idle", depth=0)
