"""Requests to the HTTP API of both daemons: their effects. test_http_matrix.py has every answer of every endpoint."""

import json
import re
import socket
import time

import pytest

from kit.daemons import Instance
from kit.http_api import ask, message
from kit.nsq_client import NSQClient, mpub_body
from kit.traffic import DaemonFactory, create, post, wait_for


@pytest.fixture(scope="module")
def shared(module_factory: DaemonFactory) -> Instance:
    return module_factory()


# Publishing


def test_published_messages_reach_consumers_as_they_are(shared: Instance, topic: str) -> None:
    with NSQClient(shared.tcp_address) as client:
        client.subscribe(topic, "c", rdy=10)
        post(shared, f"/pub?topic={topic}", b"a\r\nb\n\x00\xff")
        assert client.message().body == b"a\r\nb\n\x00\xff"
        post(shared, f"/mpub?topic={topic}", b"one\r\n\n\ntwo\x00\nthree")
        assert sorted(client.message().body for _ in range(3)) == [b"one\r", b"three", b"two\x00"]
        post(shared, f"/mpub?topic={topic}&binary=true", mpub_body(b"a\nb", b"\n"))
        assert sorted(client.message().body for _ in range(2)) == [b"\n", b"a\nb"]
        post(shared, f"/pub?topic={topic}&defer=3600000", b"later")
        wait_for(shared, topic, "c", deferred_count=1, depth=0)


def test_mpub_text_has_lines_of_any_length(shared: Instance, topic: str) -> None:
    sizes = (65535, 65536, 1, 65537, 0, 0, 131072, 3, 1 << 20, 65534, 200_000)
    expected = [0, 0]

    def count() -> list[int]:
        stats = shared.topic_stats(topic)
        return [stats["message_count"], stats["message_bytes"]]

    for end in (b"", b"\n", b"\n\n"):
        for number in (1, 3, len(sizes)):
            lines = [b"x" * size for size in sizes[:number]]
            post(shared, f"/mpub?topic={topic}&more=nonsense", b"\n".join(lines) + end)
            expected[0] += sum(map(bool, lines))
            expected[1] += sum(map(len, lines))
            assert count() == expected
    too_long = b"y\n" + b"x" * ((1 << 20) + 1) + b"\ny"
    assert ask(shared, f"POST /mpub?topic={topic}", too_long) == (413, message("MSG_TOO_BIG"))
    assert count() == expected


def test_trouble_with_the_disk_is_answered_and_shown_in_health(nsqd_factory: DaemonFactory) -> None:
    # The topic t cannot be written on, nor can what there is of topic u and its channel be removed.
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=40")
    create(nsqd, "u", "c")
    for topic in "ut":
        post(nsqd, f"/pub?topic={topic}", b"fits")
    wait_for(nsqd, "u", "c", backend_depth=1)
    (nsqd.data_path / "t.diskqueue.000001.dat").mkdir()
    for queue in ("u", "u:c"):
        file = nsqd.data_path / f"{queue}.diskqueue.000000.dat"
        file.unlink()
        (file / "not empty").mkdir(parents=True)
    for request, body, status, answer in [
        ("GET /ping", b"", 200, "OK"),
        ("POST /pub?topic=t", b"x", 503, message("EXITING")),
        ("GET /ping", b"", 500, "NOK - open .*/t.diskqueue.000001.dat: is a directory"),
        ("POST /mpub?topic=t", b"x\ny", 503, message("EXITING")),
        ("POST /mpub?topic=t&binary=1", mpub_body(b"x", b""), 413, message("BAD_MESSAGE")),
        ("POST /mpub?topic=t&binary=1", mpub_body(b"x"), 503, message("EXITING")),
        ("GET /stats", b"", 200, r"nsqd v1(?s:.*)\n\nHealth: NOK - open .*: is a directory\n(?s:.*)"),
        ("GET /stats?format=json", b"", 200, '.*,"health":"NOK - open .*: is a directory",.*'),
        ("POST /pub?topic=other", b"x", 200, "OK"),
        ("GET /ping", b"", 200, "OK"),
        ("POST /channel/empty?topic=u&channel=c", b"", 500, message("INTERNAL_ERROR")),
        ("POST /topic/empty?topic=u", b"", 500, message("INTERNAL_ERROR")),
    ]:
        found = ask(nsqd, request, body)
        assert found[0] == status, (request, found)
        assert re.fullmatch(answer, found[1]), (request, found)


# Topics and channels


def paused_in_metadata(nsqd: Instance) -> list[bool]:
    (topic,) = json.loads((nsqd.data_path / "nsqd.dat").read_text())["topics"]
    return [topic["paused"], topic["channels"][0]["paused"]]


def test_pausing_takes_effect_and_is_on_disk_when_it_is_answered(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    for target, expected in [
        ("/topic/pause?topic=t", [True, False]),
        ("/channel/pause?topic=t&channel=c", [True, True]),
        ("/topic/unpause?topic=t", [False, True]),
        ("/topic/unpause?topic=t", [False, True]),
        ("/channel/unpause?topic=t&channel=c", [False, False]),
    ]:
        post(nsqd, target)
        assert paused_in_metadata(nsqd) == expected
        assert [nsqd.topic_stats("t")["paused"], nsqd.channel_stats("t", "c")["paused"]] == expected


def test_info_reports_addresses_and_limits(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--broadcast-address=a<b", "--max-heartbeat-interval=2m", "--max-output-buffer-timeout=3s")
    status, body = ask(nsqd, "GET /info")
    assert status == 200
    start_time = int(re.findall(r'"start_time":(\d+)', body)[0])
    assert abs(start_time - time.time()) < 60
    assert body == (
        '{"version":"1.3.0","broadcast_address":"a\\u003cb",'
        f'"hostname":"{socket.gethostname()}","http_port":{nsqd.http_address[1]},"tcp_port":{nsqd.tcp_address[1]},'
        f'"start_time":{start_time},"max_heartbeat_interval":120000000000,"max_output_buffer_size":65536,'
        '"max_output_buffer_timeout":3000000000,"max_deflate_level":6}'
    )
