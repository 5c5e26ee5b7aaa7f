"""The doorbell: no ring is lost, none wakes twice, a wait with a time-out ends by itself."""

import time

import pytest
from gevent import Timeout, get_hub, getcurrent, sleep, spawn

from gnsqd.hub.doorbell import Doorbell


def waits(bell: Doorbell, timeout: float = -1.0) -> "list[int]":
    """Starts a greenlet that waits again and again; the list grows with each return."""
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


@pytest.mark.parametrize("timeout", [-1, 30])
def test_rings_wake_the_waiter_once_and_never_at_once(timeout: float) -> None:
    bell = Doorbell()
    woken = waits(bell, timeout)
    for count in (1, 2):
        for _ in range(3):
            bell.ring()
        assert len(woken) == count - 1  # whoever rings finishes its step first
        settle()
        assert len(woken) == count


def test_wait_ends_after_its_timeout_and_the_bell_still_works() -> None:
    bell = Doorbell()
    with Timeout(5):
        bell.wait(0.01)
        bell.wait(0)
    woken = waits(bell)
    bell.ring()
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


def test_answer_is_given_on_the_hub_until_it_is_false_also_to_a_ring_while_it_is_given() -> None:
    bell = Doorbell()
    answers = [True, True, False]

    def answer() -> bool:
        assert getcurrent() is get_hub()
        if len(answers) == 3:
            bell.ring()
        return answers.pop(0)

    waiter = spawn(bell.wait, -1.0, answer)
    settle()
    bell.ring()
    settle()
    assert (answers, waiter.dead) == ([False], False)
    bell.ring()
    settle()
    assert (answers, waiter.dead) == ([], True)


def test_error_of_an_answer_is_the_waiters() -> None:
    bell = Doorbell()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            bell.wait(-1.0, lambda: bool(1 // 0))
        except ZeroDivisionError as error:
            caught.append(error)
        bell.wait()

    waiter = spawn(wait)
    for ring, dead in ((False, False), (True, False), (True, True)):
        if ring:
            bell.ring()
        settle()
        assert (len(caught), waiter.dead) == (int(ring), dead)
