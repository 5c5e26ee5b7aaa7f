"""A short soak, and what a long one is judged by; `make soak` takes an hour."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults import soak
from faults.tally import Tally
from kit.daemons import own_command


def test_everything_is_finished_once_and_counted(tmp_path: Path) -> None:
    lines: list[str] = []
    outcome = soak.run(
        own_command(), tmp_path, "--durability=process", seconds=3, seed=1, share=0.5, report=lines.append
    )
    # Too short to judge what grows while there are clients; without them it is as before.
    assert [complaint for complaint in outcome.complaints if not complaint.endswith("not flat")] == []
    assert [row.what for row in outcome.rows[3:] if not row.is_flat] == []
    assert all(tally.count for tally in outcome.tallies)
    assert {"reconnects", "come and gone"} <= set(outcome.counts)
    assert len(lines) > 2
    assert "| u | two |" in "\n".join(soak.tables(outcome))


def samples(memory: Callable[[int], float], files: Callable[[int], int]) -> list[soak.Sample]:
    return [soak.Sample(minute * 60, memory(minute), files(minute), 20) for minute in range(60)]


@pytest.mark.parametrize(
    ("memory", "files", "growing"),
    [
        (lambda minute: 40.0, lambda minute: 30, []),
        (lambda minute: min(30.0 + 5 * minute, 60.0), lambda minute: 30 + 10 * (minute % 3), []),
        (lambda minute: 40.0 + 0.1 * minute, lambda minute: 30, ["resident memory, MB"]),
        (lambda minute: 40.0, lambda minute: 30 + minute // 2, ["open files"]),
    ],
    ids=["level", "warming up", "a leak of memory", "a leak of files"],
)
def test_what_still_rises_after_the_beginning_is_not_flat(
    memory: Callable[[int], float], files: Callable[[int], int], growing: list[str]
) -> None:
    rows = soak.compare(samples(memory, files))
    assert [row.what for row in rows if not row.is_flat] == growing


def finished_tally() -> tuple[Tally, dict[str, Any]]:
    """Of two messages, one of which was requeued and timed out before; and what a daemon says of it."""
    tally = Tally("t", ["c"])
    bodies = tally.new_bodies([30, 40])
    tally.acknowledge(bodies)
    receipts = tally.channels["c"]
    for number, attempts in ((0, 1), (0, 2), (1, 1), (0, 3)):
        receipts.deliver(number, attempts)
    receipts.requeue(1)
    receipts.finish([0, 1])
    counts = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}
    channel = counts | {"channel_name": "c", "message_count": 2, "requeue_count": 1, "timeout_count": 1}
    return tally, {"depth": 0, "message_count": 2, "message_bytes": 70, "channels": [channel]}


def test_exact_tally_has_no_complaints() -> None:
    tally, stats = finished_tally()
    assert tally.finished()
    assert tally.complaints(stats) == []


@pytest.mark.parametrize("key", ["message_count", "requeue_count", "timeout_count", "in_flight_count"])
def test_tally_complains_of_a_counter_that_is_wrong(key: str) -> None:
    tally, stats = finished_tally()
    stats["channels"][0][key] += 1
    (complaint,) = tally.complaints(stats)
    assert complaint.startswith(f"topic t: channel c: {key} ")


def test_tally_complains_of_a_message_that_is_lost() -> None:
    tally, stats = finished_tally()
    tally.acknowledge(tally.new_bodies([30]))
    assert not tally.finished()
    assert "topic t: channel c: 1 messages lost, such as [2]" in tally.complaints(stats)


def test_tally_complains_of_a_finished_message_that_comes_again() -> None:
    tally, stats = finished_tally()
    tally.channels["c"].deliver(1, 1)  # one that was on its way for long
    assert tally.complaints(stats) == []
    tally.channels["c"].deliver(1, 2)
    assert "topic t: channel c: 1 finished messages delivered again, such as [1]" in tally.complaints(stats)


def test_tally_knows_a_body_that_was_never_published() -> None:
    tally, _ = finished_tally()
    for body in (b"u 0 30 ".ljust(30, b"."), b"t 2 30 ".ljust(30, b"."), b"t 0 30 ".ljust(29, b"."), b"x"):
        with pytest.raises(AssertionError):
            tally.number(body)
