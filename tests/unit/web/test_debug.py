"""What /debug shows of greenlets and memory, and that looking holds nobody up: inside one process, without a daemon."""

import re
import signal
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import gevent
import pytest
from gevent import Greenlet
from gevent.event import Event

from gnsqd.broker.registry import Registry
from gnsqd.observe.stats import MemoryStats, held
from gnsqd.web import debug
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import Request
from gnsqd.web.routes import Content, HTTPError


class Part:
    """A topic or channel as statistics see it."""

    def __init__(self, depth: int, backend_depth: int, in_flight_count: int = 0, deferred_count: int = 0) -> None:
        self.depth = depth
        self.backend_depth = backend_depth
        self.in_flight_count = in_flight_count
        self.deferred_count = deferred_count
        self.channels: dict[str, Part] = {}


class Watched:
    """A Debug, and greenlets that wait until the end of the test."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.debug = Debug(partial(held, self.registry), MemoryStats(), {})
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
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.debug.stop()
    watched.end.set()
    gevent.joinall(watched.greenlets)


def waiting_alone(watched: Watched) -> None:
    watched.end.wait()


def test_greenlets_with_the_same_stack_stand_together_by_name(watched: Watched) -> None:
    watched.spawn("pump:b")
    watched.spawn("other", lambda: waiting_alone(watched))
    watched.spawn("pump:a")
    gevent.sleep(0)
    page = watched.ask("goroutine")
    assert re.search(r"^pump:a\npump:b\n", page, re.MULTILINE)
    assert re.search(r"^other\n(\t.*\n)*\t\S+\.waiting_alone \S+test_debug\.py:\d+\n", page, re.MULTILINE)
    block = watched.ask("block")
    assert block.startswith("--- contention:\n2\tpump\t")


def test_greenlets_that_have_ended_are_not_shown(watched: Watched) -> None:
    ended, living = watched.spawn("ended", lambda: None), watched.spawn("living")
    ended.join()
    assert "living" in watched.names()
    assert "ended" not in watched.names()
    assert not living.dead


def test_greenlets_are_no_longer_noted_after_stop(watched: Watched) -> None:
    watched.debug.stop()
    watched.spawn("late")
    assert "late" not in watched.names()


def test_dump_of_many_greenlets_lets_others_have_turns(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_cpu_profile_shows_who_is_busy(watched: Watched) -> None:
    def burn() -> None:
        while not watched.end.is_set():
            sum(range(10_000))
            gevent.sleep(0)

    watched.spawn("burner:1", burn)
    watched.spawn("idle:1")
    lines = watched.ask("profile", "seconds=1").splitlines()
    samples = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}
    burning = sum(count for stack, count in samples.items() if stack.startswith("burner;") and ".burn" in stack)
    assert burning > sum(samples.values()) / 2
    assert not any(stack.startswith("idle") for stack in samples)


def test_stop_ends_a_profile(watched: Watched) -> None:
    profile = watched.spawn("profile", lambda: watched.ask("profile", f"seconds={debug.MAX_SECONDS}"))
    gevent.sleep(0)
    with pytest.raises(HTTPError) as caught:
        watched.ask("profile")
    assert caught.value.status == 500
    watched.debug.stop()
    profile.join(20)
    assert profile.successful()
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.parametrize("query", ["", "seconds=", "seconds=x", "seconds=0", "seconds=-3", "seconds=%zz"])
def test_profile_lasts_half_a_minute_unless_told_otherwise(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(watched.debug, "_stopped", cast(Any, type("Clock", (), {"wait": waited.append, "set": id})))
    watched.ask("profile", query)
    assert waited == [30]


def test_memory_page_counts_messages_of_topics_and_channels(watched: Watched) -> None:
    topic = Part(depth=10, backend_depth=4)
    topic.channels = {"a": Part(5, 5, in_flight_count=3), "b": Part(7, 0, deferred_count=2)}
    watched.registry.topics["t"] = cast(Any, topic)
    figures = dict(re.findall(r"^(\w+) = (.*)$", watched.ask("heap"), re.MULTILINE))
    expected = {"topics": "1", "channels": "2", "messages_in_memory": "13", "in_flight": "3", "deferred": "2"}
    assert {name: figures[name] for name in expected} == expected


def test_freeing_memory_collects_garbage(watched: Watched) -> None:
    class Node:
        pass

    node: Any = Node()
    node.self = node
    reference = weakref.ref(node)
    del node
    watched.ask("free_memory")
    assert reference() is None
