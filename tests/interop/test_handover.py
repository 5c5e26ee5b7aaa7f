"""Whole daemons hand a data path over by a clean exit, gnsqd to the real nsqd and the real nsqd to gnsqd."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, eventually
from kit.handover import (
    HOUR,
    OURS,
    REAL,
    WITNESS,
    DaemonFactory,
    again,
    all_done,
    channel_counts,
    create,
    hand_over,
    is_ours,
    nothing_left,
    post,
    publish,
    queued_and_in_flight,
    shape,
    started_with,
    stored,
    stray_files,
    take,
    varied,
)
from kit.http_api import topic_stats
from kit.nsq_client import Client, Message

pytestmark = pytest.mark.peer


def test_rolled_and_partly_read_queues_go_on_where_they_were(start_first: DaemonFactory) -> None:
    nsqd = start_first("--mem-queue-size=0", "--max-bytes-per-file=2000")
    create(nsqd, "t", WITNESS, "some_read", "most_read", "unread")
    messages = publish(nsqd, "t", *varied(200))
    assert take(nsqd, "t", "some_read", 37) == messages[:37]
    assert take(nsqd, "t", "most_read", 150) == messages[:150]
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "some_read", rdy=3)
        in_flight = [client.message() for _ in range(3)]
        assert in_flight == messages[37:40]
        hand_over(nsqd)
    assert len(list(nsqd.data_path.glob("t:unread.diskqueue.0*.dat"))) > 5

    depths = {WITNESS: 0, "some_read": 163, "most_read": 50, "unread": 200}
    started_with(nsqd, {"t": (False, 0, {name: (False, depth) for name, depth in depths.items()})})
    later = publish(nsqd, "t", *varied(50))
    received = take(nsqd, "t", "some_read", 213)
    assert received[:160] == messages[40:]
    assert sorted(received[160:163]) == sorted(again(in_flight))
    assert received[163:] == later
    assert take(nsqd, "t", "most_read", 100) == messages[150:] + later
    assert take(nsqd, "t", "unread", 250) == messages + later
    nothing_left(nsqd)

    hand_over(nsqd)
    started_with(nsqd, {"t": (False, 0, dict.fromkeys(depths, (False, 0)))})


def test_what_is_paused_stays_so_and_keeps_its_messages(start_first: DaemonFactory) -> None:
    nsqd = start_first()
    create(nsqd, "t", WITNESS, "paused", "open")
    create(nsqd, "held", "one", "two")
    create(nsqd, "held_lonely")
    create(nsqd, "lonely")
    create(nsqd, "unused")
    post(nsqd, "channel/pause", "t", "paused")
    post(nsqd, "channel/pause", "held", "two")
    for topic in ("held", "held_lonely"):
        post(nsqd, "topic/pause", topic)
    messages = publish(nsqd, "t", *varied(5))
    with Client(nsqd.tcp_address) as client:
        for topic in ("held", "held_lonely", "lonely"):
            client.publish(topic, *varied(3))
    hand_over(nsqd)
    started_with(
        nsqd,
        {
            "t": (False, 0, {WITNESS: (False, 0), "paused": (True, 5), "open": (False, 5)}),
            "held": (True, 3, {"one": (False, 0), "two": (True, 0)}),
            "held_lonely": (True, 3, {}),
            "lonely": (False, 3, {}),
            "unused": (False, 0, {}),
        },
    )
    in_topics = {topic: stored(nsqd, topic) for topic in ("held", "held_lonely", "lonely")}
    for found in in_topics.values():
        assert [(message.attempts, message.body) for message in found] == [(1, body) for body in varied(3)]

    assert take(nsqd, "t", "open", 5) == messages
    post(nsqd, "channel/unpause", "t", "paused")
    assert take(nsqd, "t", "paused", 5) == messages
    for topic in ("held", "held_lonely"):
        post(nsqd, "topic/unpause", topic)
    post(nsqd, "channel/unpause", "held", "two")
    for topic, channel in (("held", "one"), ("held", "two"), ("held_lonely", "new"), ("lonely", "new")):
        assert take(nsqd, topic, channel, 3) == in_topics[topic]
    nothing_left(nsqd)

    hand_over(nsqd)
    assert {paused for paused, *_ in shape(nsqd, "depth").values()} == {False}
    nothing_left(nsqd)


def test_attempts_go_on_where_they_were(start_first: DaemonFactory, tmp_path: Path) -> None:
    # Time-outs of a new channel come late from the real nsqd (NSQD-COMPAT 0.1 item 1), so it finds these.
    names = [{"name": name, "paused": False} for name in (WITNESS, "c")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "nsqd.dat").write_text(
        json.dumps({"topics": [{"name": "t", "paused": False, "channels": names}], "version": "1.3.0"})
    )
    nsqd = start_first(data_path=tmp_path / "data")
    expected: dict[bytes, Message] = {}  # how each is delivered next

    def note(message: Message) -> bytes:
        assert message == expected[message.id]
        expected[message.id] = again([message])[0]
        return message.id

    expected.update((message.id, message) for message in publish(nsqd, "t", b"timed out"))
    with Client(nsqd.tcp_address) as client:
        client.identify(msg_timeout=1000)
        client.subscribe("t", "c", rdy=1)
        timed_out = note(client.message())
        assert note(client.message()) == timed_out
        client.send(b"RDY 0\nREQ %b 0\n" % timed_out)
        for message in all_done(client):  # this client may have been too slow
            note(message)
    expected.update((message.id, message) for message in publish(nsqd, "t", b"a", b"b", b"c", b"d"))
    with Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as holder:
        client.subscribe("t", "c", rdy=1)
        for left in reversed(range(12)):
            id = note(client.message())
            client.send((b"" if left else b"RDY 0\n") + b"REQ %b 0\n" % id)
        assert all_done(client) == []
        holder.subscribe("t", "c", rdy=2)
        for _ in range(2):
            note(holder.message())
        eventually(lambda: channel_counts(nsqd, "t", "c") == (3, 2, 0))
        stats = nsqd.channel_stats("t", "c")
        assert stats["timeout_count"] >= 1
        assert stats["requeue_count"] >= 12
        hand_over(nsqd)

    started_with(nsqd, {"t": (False, 0, {WITNESS: (False, 0), "c": (False, 5)})})
    assert min(message.attempts for message in expected.values()) > 2
    assert sorted(take(nsqd, "t", "c", 5)) == sorted(expected.values())
    nothing_left(nsqd)


BIG_FILES, RECORDS_PER_FILE = 20, 5000


def test_100000_messages_over_20_files(start_first: DaemonFactory) -> None:
    record = 4 + 26 + 100
    nsqd = start_first("--mem-queue-size=0", f"--max-bytes-per-file={RECORDS_PER_FILE * record}")
    create(nsqd, "t", "c")
    count = BIG_FILES * RECORDS_PER_FILE
    bodies = [b"%0100d" % number for number in range(count)]
    with Client(nsqd.tcp_address) as client:
        for first in range(0, count, RECORDS_PER_FILE):
            client.publish("t", *bodies[first : first + RECORDS_PER_FILE])
    eventually(lambda: (topic_stats(nsqd, "t")["depth"], nsqd.channel_stats("t", "c")["depth"]) == (0, count))
    assert len(list(nsqd.data_path.glob("t:c.diskqueue.0*.dat"))) == BIG_FILES

    before = take(nsqd, "t", "c", 33_333, rdy=1000)
    eventually(lambda: nsqd.channel_stats("t", "c")["client_count"] == 0)
    left = count - len(before)
    hand_over(nsqd)
    started_with(nsqd, {"t": (False, 0, {"c": (False, left)})})
    after = take(nsqd, "t", "c", left, rdy=1000)
    nothing_left(nsqd)

    # What was sent behind the last one that was finished was in flight, and so is at the end of the queue.
    in_flight = sum(message.attempts == 2 for message in after)
    assert [message.attempts for message in before + after] == [1] * (count - in_flight) + [2] * in_flight
    assert [message.body for message in before] == bodies[: len(before)]
    assert [message.body for message in after[: left - in_flight]] == bodies[len(before) + in_flight :]
    assert sorted(message.body for message in after[left - in_flight :]) == bodies[len(before) :][:in_flight]
    assert len({message.id for message in before + after}) == count


def test_three_hand_overs_in_a_row_lose_nothing_and_deliver_nothing_twice(start_first: DaemonFactory) -> None:
    nsqd = start_first("--mem-queue-size=20", "--max-bytes-per-file=3000")
    create(nsqd, "t", WITNESS, "c")
    waiting: dict[bytes, Message] = {}  # how each is delivered next
    held_back: set[bytes] = set()  # by ours, for an hour, and not delivered since
    for _ in range(3):
        waiting.update((message.id, message) for message in publish(nsqd, "t", *varied(100)))
        with Client(nsqd.tcp_address) as client:
            client.subscribe("t", "c", rdy=60)
            received = [client.message() for _ in range(60)]
            client.send(b"RDY 0\n")
            ids = [message.id for message in received]
            assert received == [waiting.get(id) for id in ids]
            assert len(set(ids)) == 60
            assert not (is_ours(nsqd) and held_back & set(ids))
            held_back -= set(ids)
            waiting.update((message.id, message) for message in again(received))
            for id in ids[:30]:
                client.send(b"FIN %b\n" % id)
                del waiting[id]
            for id in ids[30:45]:
                client.send(b"REQ %b 0\n" % id)
            for id in ids[45:50]:
                client.send(b"REQ %b %b\n" % (id, HOUR))
            if is_ours(nsqd):
                held_back |= set(ids[45:50])
            eventually(lambda: queued_and_in_flight(nsqd, "t", "c") == (len(waiting) - 10, 10))
            hand_over(nsqd)
        started_with(nsqd, {"t": (False, 0, {WITNESS: (False, 0), "c": (False, len(waiting))})})

    waiting.update((message.id, message) for message in publish(nsqd, "t", *varied(100)))
    assert len(waiting) == 4 * 100 - 3 * 30
    if not is_ours(nsqd):
        held_back.clear()
    expected = sorted(message for id, message in waiting.items() if id not in held_back)
    assert sorted(take(nsqd, "t", "c", len(expected))) == expected
    eventually(lambda: channel_counts(nsqd, "t", "c") == (0, 0, len(held_back)))


def refusal(command: list[str], data_path: Path) -> tuple[int, list[str]]:
    """Exit code and output of a daemon that does not start; without the times."""
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={data_path}"]
    done = subprocess.run(
        [*command, *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    return done.returncode, re.sub(r"\d{4}/\d\d/\d\d [\d:.]+ ", "", done.stdout + done.stderr).splitlines()


def test_both_refuse_a_data_path_that_is_held_with_the_same_words(start_first: DaemonFactory) -> None:
    nsqd = start_first()
    create(nsqd, "t")
    post(nsqd, "topic/pause", "t")  # is answered when nsqd.dat has been written
    eventually(lambda: stray_files(nsqd) == set())
    before = sorted(path.name for path in nsqd.data_path.iterdir())
    code, lines = refusal(REAL, nsqd.data_path)
    assert code == 1
    assert "failed to lock data-path" in lines[-1]
    assert refusal(OURS, nsqd.data_path) == (code, lines)
    assert sorted(path.name for path in nsqd.data_path.iterdir()) == before
    assert shape(nsqd, "depth") == {"t": (True, 0, {})}
