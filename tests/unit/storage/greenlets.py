"""Waiting for what other greenlets, and threads, do."""

from collections.abc import Callable

import gevent


def eventually(condition: Callable[[], object]) -> None:
    """Lets other greenlets go on until it is true; raises gevent.Timeout after 30 s."""
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.001)
