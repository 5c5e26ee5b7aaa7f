"""Calls in threads, while greenlets go on."""

import os
import threading
from collections.abc import Iterator

import gevent
import pytest

from gnsqd.storage.syncer import THREADS, Syncer
from unit.storage.greenlets import eventually

PATIENCE = 10.0  # seconds


@pytest.fixture
def threads() -> Iterator[Syncer]:
    threads = Syncer()
    yield threads
    threads.stop()


def test_what_a_call_returns_or_raises_comes_back(threads: Syncer) -> None:
    assert threads.run(lambda *numbers: (threading.get_ident(), sum(numbers)), 1, 2)[1] == 3
    assert threads.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        threads.run(lambda: 1 // 0)
    with pytest.raises(SystemExit):  # the thread serves on
        threads.run(exit)
    assert threads.run(int, "5") == 5


def test_greenlets_go_on_and_at_most_that_many_calls_are_under_way(threads: Syncer) -> None:
    gates = [threading.Event() for _ in range(THREADS + 1)]
    begun: list[int] = []  # in which thread

    def pass_gate(gate: threading.Event) -> bool:
        begun.append(threading.get_native_id())
        return gate.wait(PATIENCE)

    calls = [gevent.spawn(threads.run, pass_gate, gate) for gate in gates]
    eventually(lambda: len(begun) == THREADS)
    gates[1].set()
    assert calls[1].get(timeout=PATIENCE)
    eventually(lambda: len(begun) == THREADS + 1)
    assert not calls[0].ready()
    first = threads.lag
    eventually(lambda: threads.lag > first > 0)
    for gate in gates:
        gate.set()
    assert all(call.get(timeout=PATIENCE) for call in calls)
    assert len(set(begun)) == THREADS
    assert threads.lag == 0


def test_whoever_waits_may_be_killed(threads: Syncer) -> None:
    gate = threading.Event()
    victim = gevent.spawn(threads.run, gate.wait, PATIENCE)
    gevent.sleep(0)
    victim.kill()
    gate.set()
    assert threads.run(int, "1") == 1


def test_closing_waits_for_what_is_under_way_and_ends_the_threads() -> None:
    threads = Syncer()
    gate = threading.Event()
    begun: set[int] = set()

    def pass_gate() -> bool:
        begun.add(threading.get_native_id())
        return gate.wait(PATIENCE)

    calls = [gevent.spawn(threads.run, pass_gate) for _ in range(THREADS)]
    eventually(lambda: len(begun) == THREADS)
    closing = gevent.spawn(threads.stop)
    gevent.sleep(0)
    assert not closing.ready()
    gate.set()
    closing.get(timeout=PATIENCE)
    assert all(call.get(timeout=PATIENCE) for call in calls)
    eventually(lambda: not begun & {int(thread) for thread in os.listdir("/proc/self/task")})
