"""Message ids. Reference: the bits of NSQD-COMPAT 2.7; ids and timestamps of the session recorded from the real nsqd,
whose node id was 777 (tests/golden/wire/session.json)."""

import json
from pathlib import Path

import pytest

from gnsqd.queues.message import GuidFactory

TICK = 1 << 20  # ns
NOW = 1_800_000_000_000_000_000 // TICK * TICK


def parts(id: bytes) -> tuple[int, int, int]:
    """Returns (tick since the epoch of ids, node id, sequence)."""
    number = int(id, 16)
    return number >> 22, number >> 12 & 0x3FF, number & 0xFFF


def next_ids(ids: GuidFactory, now: int, count: int) -> list[bytes]:
    return [b"%016x" % ids.reserve(now, 1) for _ in range(count)]


def test_id_is_tick_node_and_sequence() -> None:
    for node_id in (0, 617, 1023):
        ids = GuidFactory(node_id)
        made = next_ids(ids, NOW + 5, 2) + next_ids(ids, NOW + TICK, 1)
        tick = (NOW >> 20) - 1288834974288
        assert [parts(id) for id in made] == [(tick, node_id, 0), (tick, node_id, 1), (tick + 1, node_id, 0)]


def test_ids_are_what_the_real_daemon_made_of_the_same_time() -> None:
    path = Path(__file__).parents[2] / "golden" / "wire" / "session.json"
    frames = [bytes.fromhex(step["hex"]) for step in json.loads(path.read_text()) if step["dir"] == "S"]
    first = next(frame for frame in frames if frame[4:8] == b"\x00\x00\x00\x02")
    timestamp, id = int.from_bytes(first[8:16], "big"), first[18:34]
    assert next_ids(GuidFactory(777), timestamp, 1) == [id]


def test_ids_needed_at_once_are_consecutive_numbers_of_one_tick() -> None:
    ids = GuidFactory(7)
    first = [parts(b"%016x" % ids.reserve(NOW, count)) for count in (4095, 1, 1, 4096, 2048, 2049)]
    tick = first[0][0]
    assert first == [(tick + late, 7, at) for late, at in ((0, 0), (0, 4095), (1, 0), (2, 0), (3, 0), (4, 0))]


@pytest.mark.parametrize("back", [TICK, 3600 * 10**9])
def test_clock_that_goes_back_makes_no_id_twice(back: int) -> None:
    ids = GuidFactory(7)
    made = [id for now in (NOW, NOW - back, NOW, NOW - back) for id in next_ids(ids, now, 1)]
    made += next_ids(ids, NOW + TICK, 1)
    assert made == sorted(set(made))
