"""The time for which the loop is kept awake for input that may come at once."""

import time

import gevent
import pytest

from gnsqd.net.connection import WINDOW, Polling

DEADLINE = 30.0


@pytest.fixture
def polling() -> Polling:
    return Polling()


def make_look(polling: Polling) -> None:
    deadline = time.monotonic() + DEADLINE
    while not polling.looking:  # a pause of the machine between two inputs makes them slow ones
        assert time.monotonic() < deadline
        polling.note()


def test_slow_input_does_not(polling: Polling) -> None:
    for _ in range(3):
        polling.note()
        assert not polling.looking
        time.sleep(2 * WINDOW)


def test_quick_input_keeps_the_loop_awake_until_no_more_comes(polling: Polling) -> None:
    polling.note()
    assert not polling.looking, "one input is not enough"
    make_look(polling)
    with gevent.Timeout(DEADLINE):
        while polling.looking:
            gevent.sleep(0.001)
    make_look(polling)


def test_others_get_their_turn_meanwhile(polling: Polling) -> None:
    # The loop serves its other events between two looks.
    looking = []
    make_look(polling)
    done = gevent.spawn_later(0.0, lambda: looking.append(polling.looking))
    deadline = time.monotonic() + DEADLINE
    while not looking:
        assert time.monotonic() < deadline
        polling.note()
        gevent.sleep(0)
    done.get()
