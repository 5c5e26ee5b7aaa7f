"""The doorbell: no ring is lost, none wakes twice, a wait with a time-out ends by itself."""

import time

import pytest
from gevent import Timeout, sleep, spawn

from gnsqd.hub.doorbell import Doorbell


def waits(bell: Doorbell, timeout: float = -1.0) -> "list[int]":
    """A greenlet that waits again and again; the list grows with each return."""
    woken: list[int] = []

    def wait() -> None:
        while True:
            bell.wait(timeout)
            woken.append(1)

    spawn(wait)
    sleep(0)
    return woken


def settle() -> None:
    for _ in range(5):
        sleep(0)


def test_ring_before_the_wait_is_not_lost() -> None:
    bell = Doorbell()
    bell.ring()
    with Timeout(5):
        bell.wait()
    sleep(0)  # resumed by a callback, a timer begins with the present, not with the loop's last turn
    began = time.monotonic()
    bell.wait(0.05)  # it has been used up
    assert time.monotonic() - began > 0.04


def test_ring_wakes_the_waiter_and_many_rings_wake_it_once() -> None:
    bell = Doorbell()
    woken = waits(bell)
    assert woken == []
    for _ in range(3):
        bell.ring()
    settle()
    assert len(woken) == 1
    bell.ring()
    settle()
    assert len(woken) == 2


def test_ring_never_runs_the_waiter_at_once() -> None:
    bell = Doorbell()
    woken = waits(bell)
    bell.ring()
    assert woken == []  # whoever rings finishes its step first
    settle()
    assert len(woken) == 1


def test_wait_ends_after_its_timeout_and_the_bell_still_works() -> None:
    bell = Doorbell()
    with Timeout(5):
        bell.wait(0.01)
        bell.wait(0)
    woken = waits(bell)
    bell.ring()
    settle()
    assert len(woken) == 1


def test_ring_shortly_before_the_timeout_wakes_once() -> None:
    bell = Doorbell()
    woken = waits(bell, 0.2)
    bell.ring()
    settle()
    assert len(woken) == 1
    settle()
    assert len(woken) == 1


def test_waiter_that_is_killed_leaves_a_working_bell() -> None:
    bell = Doorbell()
    with pytest.raises(Timeout), Timeout(0.01):
        bell.wait()
    bell.ring()
    settle()
    with Timeout(5):
        bell.wait()
