"""Whole daemons hand a data path over by a clean exit, gnsqd to the real nsqd and the real nsqd to gnsqd."""

import re
from pathlib import Path

import pytest

from kit.daemons import eventually, run_to_end
from kit.handover import (
    HOUR,
    OURS,
    REAL,
    WITNESS,
    again,
    hand_over,
    is_ours,
    nothing_left,
    queued_and_in_flight,
    shape,
    started_with,
    stray_files,
    varied,
    witnessed,
)
from kit.nsq_client import NSQClient, ReceivedMessage
from kit.traffic import DaemonFactory, create, post, take, wait_for

pytestmark = pytest.mark.peer


def test_rolled_and_partly_read_queues_go_on_where_they_were(start_first: DaemonFactory) -> None:
    nsqd = start_first("--mem-queue-size=0", "--max-bytes-per-file=2000")
    create(nsqd, "t", WITNESS, "some_read", "most_read", "unread")
    messages = witnessed(nsqd, "t", *varied(200))
    assert take(nsqd, "t", "some_read", 37) == messages[:37]
    assert take(nsqd, "t", "most_read", 150) == messages[:150]
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "some_read", rdy=3)
        in_flight = [client.message() for _ in range(3)]
        assert in_flight == messages[37:40]
        hand_over(nsqd)
    assert len(list(nsqd.data_path.glob("t:unread.diskqueue.0*.dat"))) > 5

    depths = {WITNESS: 0, "some_read": 163, "most_read": 50, "unread": 200}
    started_with(nsqd, {"t": (False, 0, {name: (False, depth) for name, depth in depths.items()})})
    later = witnessed(nsqd, "t", *varied(50))
    received = take(nsqd, "t", "some_read", 213)
    assert received[:160] == messages[40:]
    assert sorted(received[160:163]) == sorted(again(in_flight))
    assert received[163:] == later
    assert take(nsqd, "t", "most_read", 100) == messages[150:] + later
    assert take(nsqd, "t", "unread", 250) == messages + later
    nothing_left(nsqd)

    hand_over(nsqd)
    started_with(nsqd, {"t": (False, 0, dict.fromkeys(depths, (False, 0)))})


def test_three_hand_overs_in_a_row_lose_nothing_and_deliver_nothing_twice(start_first: DaemonFactory) -> None:
    nsqd = start_first("--mem-queue-size=20", "--max-bytes-per-file=3000")
    create(nsqd, "t", WITNESS, "c")
    waiting: dict[bytes, ReceivedMessage] = {}  # how each is delivered next
    held_back: set[bytes] = set()  # by ours, for an hour, and not delivered since
    for _ in range(3):
        waiting.update((message.id, message) for message in witnessed(nsqd, "t", *varied(100)))
        with NSQClient(nsqd.tcp_address) as client:
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

    waiting.update((message.id, message) for message in witnessed(nsqd, "t", *varied(100)))
    assert len(waiting) == 4 * 100 - 3 * 30
    if not is_ours(nsqd):
        held_back.clear()
    expected = sorted(message for id, message in waiting.items() if id not in held_back)
    assert sorted(take(nsqd, "t", "c", len(expected))) == expected
    wait_for(nsqd, "t", "c", depth=0, in_flight_count=0, deferred_count=len(held_back))


def refusal(command: list[str], data_path: Path) -> tuple[int, list[str]]:
    """Returns exit code and output, without the times, of a daemon that does not start."""
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={data_path}"]
    done = run_to_end(command, *flags)
    return done.returncode, re.sub(r"\d{4}/\d\d/\d\d [\d:.]+ ", "", done.stdout + done.stderr).splitlines()


def test_both_refuse_a_data_path_that_is_held_with_the_same_words(start_first: DaemonFactory) -> None:
    nsqd = start_first()
    create(nsqd, "t")
    post(nsqd, "/topic/pause?topic=t")  # is answered when nsqd.dat has been written
    eventually(lambda: stray_files(nsqd) == set())
    before = sorted(path.name for path in nsqd.data_path.iterdir())
    code, lines = refusal(REAL, nsqd.data_path)
    assert code == 1
    assert "failed to lock data-path" in lines[-1]
    assert refusal(OURS, nsqd.data_path) == (code, lines)
    assert sorted(path.name for path in nsqd.data_path.iterdir()) == before
    assert shape(nsqd, "depth") == {"t": (True, 0, {})}
