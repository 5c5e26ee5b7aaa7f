"""The cost of looking at greenlets; the pages are judged in behaviour/test_http_debug."""

import re
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import gevent
import pytest
from gevent import Greenlet
from gevent.event import Event

from gnsqd.observe.memory import MemoryStats
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import Request
from gnsqd.web.routes import Content


class Greenlets:
    """A Debug, and greenlets that wait until the end of the test."""

    def __init__(self) -> None:
        self.debug = Debug(dict, MemoryStats(), {})
        self.debug.start()
        self.end = Event()
        self.greenlets: list[Greenlet[..., object]] = []

    def spawn(self, name: str, body: Callable[[], object] | None = None) -> "Greenlet[..., object]":
        greenlet = Greenlet(body or self.end.wait)
        greenlet.name = name
        greenlet.start()
        self.greenlets.append(greenlet)
        return greenlet

    def ask(self, page: str, query: str = "") -> str:
        request = Request()
        request.query = query
        result = getattr(self.debug, page)(request)
        return result.body.decode() if isinstance(result, Content) else str(result)

    def names(self) -> list[str]:
        return [line for line in self.ask("goroutine").splitlines()[1:] if line and not line.startswith("\t")]


@pytest.fixture
def watched() -> Iterator[Greenlets]:
    watched = Greenlets()
    yield watched
    watched.debug.stop()
    watched.end.set()
    gevent.joinall(watched.greenlets)


def test_only_greenlets_that_live_are_shown_and_none_are_noted_after_stop(watched: Greenlets) -> None:
    ended, _ = watched.spawn("ended", lambda: None), watched.spawn("living")
    ended.join()
    watched.debug.stop()
    watched.spawn("late")
    assert watched.names().count("living") == 1
    assert not {"ended", "late"} & {*watched.names()}


def test_dump_of_many_greenlets_lets_others_have_turns(watched: Greenlets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    turns = 0

    def count() -> None:
        nonlocal turns
        while not watched.end.is_set():
            turns += 1
            gevent.sleep(0)

    watched.spawn("counter", count)
    for number in range(100):
        watched.spawn(f"waiter:{number}")
    gevent.sleep(0)
    before = turns
    assert len(watched.names()) > 100
    assert turns - before >= 100


def test_cpu_profile_shows_who_is_busy(watched: Greenlets) -> None:
    def burn() -> None:
        while not watched.end.is_set():
            sum(range(10_000))
            gevent.sleep(0)

    watched.spawn("burner:1", burn)
    watched.spawn("idle:1")
    lines = watched.ask("profile", "seconds=1").splitlines()
    assert all(re.fullmatch(r"[^;\s]+(;[^;\s]+)* [1-9]\d*", line) for line in lines), lines
    samples = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}
    assert len(samples) == len(lines)
    burning = sum(count for stack, count in samples.items() if stack.startswith("burner;") and ".burn" in stack)
    assert burning > sum(samples.values()) / 2
    assert not any(stack.startswith("idle") for stack in samples)
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_profile_lasts_half_a_minute_by_default(watched: Greenlets, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(watched.debug, "_stopped", cast(Any, type("Clock", (), {"wait": waited.append, "set": id})))
    for query in ("", "seconds=", "seconds=x", "seconds=0", "seconds=-3", "seconds=%zz", "seconds=2"):
        watched.ask("profile", query)
    assert waited == [30] * 6 + [2]


def test_freeing_memory_collects_garbage(watched: Greenlets) -> None:
    class Node:
        pass

    node: Any = Node()
    node.self = node
    reference = weakref.ref(node)
    del node
    watched.ask("free_memory")
    assert reference() is None
