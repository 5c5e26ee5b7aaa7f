"""Readers of ranges: turns and waits that no client can see."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from gnsqd.hub.cooperative import yield_turn
from gnsqd.hub.doorbell import Doorbell
from gnsqd.web import ranges as ranges_module
from gnsqd.web.ranges import Ranges


def fake_channel(queue: object) -> SimpleNamespace:
    return SimpleNamespace(queue=queue, finish_count=0, readers=0, mark_used=lambda: None)


def test_others_run_between_any_two_readers_that_waited_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    ranges = Ranges(nothing, nothing)
    events: list[str] = []
    bells: list[Doorbell] = []
    sizes: list[int] = []

    def wait(bell: Doorbell, timeout: float) -> None:
        bells.append(bell)
        bell.wait(timeout)

    def read(number: int, end: int, size: int, queue: object) -> tuple[list[bytes], int]:
        events.append("read")
        sizes.append(size)
        return [b""], end

    def run() -> None:
        while True:
            yield_turn()
            events.append("")

    position = {"next": 1, "2": 2}.__getitem__
    log = SimpleNamespace(next=1, is_open=True, wait=wait, read=read, position=position)
    monkeypatch.setattr(ranges, "_find_log", lambda name: (SimpleNamespace(exiting=False, name=name), log))
    request: Any = SimpleNamespace(query="topic=t&from=next&to=2&wait=10s&format=records", broken=False)
    readers = [gevent.spawn(ranges.get_messages, request) for _ in range(5)]
    gevent.sleep(0)
    other = gevent.spawn(run)
    log.next = 2
    for bell in bells:
        bell.ring()
    gevent.joinall(readers, raise_error=True)
    other.kill()
    assert events.count("read") == len(bells) == 5
    assert all(not before or not after for before, after in pairwise(events)), events
    log.next, sizes[:] = 2, []
    monkeypatch.setitem(ranges_module._FORMS, "json", (lambda payloads: b"", *ranges_module._FORMS["json"][1:]))
    for form in ("records", "json"):
        request.query = f"topic=t&from=next&to=2&format={form}"
        ranges.get_messages(request)
    assert sizes[1] <= sizes[0] // 4, "JSON takes longer"


def test_reader_waits_behind_what_its_channel_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    ranges = Ranges(nothing, nothing)
    waits: list[float] = []
    topic = SimpleNamespace(exiting=False, name="t", get_existing_channel=fake_channel)

    def read(number: int, end: int, size: int, queue: object) -> tuple[list[bytes], int]:
        return ([b"5"] if queue != "c" or number >= 5 else []), end

    def wait(bell: Doorbell, timeout: float) -> None:
        waits.append(timeout)
        log.next = 6

    log = SimpleNamespace(next=5, is_open=True, wait=wait, read=read, position=int)
    monkeypatch.setattr(ranges, "_find_log", lambda name: (topic, log))
    query = "topic=t&from=1&wait=10s&format=records"
    for channel, waited in (("other", 0), ("c", 1)):
        request: Any = SimpleNamespace(query=f"{query}&channel={channel}", broken=False)
        assert b"".join(ranges.get_messages(request).parts).endswith(b"5"), channel
        assert len(waits) == waited, channel
    request = SimpleNamespace(query="topic=t&from=6&to=6&wait=10s", broken=False)
    assert list(ranges.get_messages(request).parts) == []
    assert len(waits) == 1, "nothing can come before `to`"


def test_channel_is_advanced_at_once_while_its_topic_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    ranges = Ranges(nothing, nothing)
    sleeps: list[float] = []
    channel = fake_channel(2)
    topic = SimpleNamespace(
        paused=True, exiting=False, queue=5, get_existing_channel=lambda name: channel, commit=lambda: None
    )

    def hand_over(seconds: float) -> None:
        sleeps.append(seconds)
        topic.queue = 9

    monkeypatch.setattr(ranges_module, "sleep", hand_over)
    log = SimpleNamespace(next=9, channel_position=lambda queue: queue, advance=lambda queue, end: end)
    monkeypatch.setattr(ranges, "_find_log", lambda name: (topic, log))
    request: Any = SimpleNamespace(query="topic=t&channel=c&to=9", broken=False)
    assert ranges.advance(request)["messages"] == 5
    assert not sleeps, "it hands nothing over"
    topic.paused = False
    assert ranges.advance(request)["messages"] == 9
    assert len(sleeps) == 1
