"""Server-sent events: the live part of a page, rendered again every two seconds while somebody looks at it.

All streams take their numbers from one Monitor, which queries the nodes once for all of them.
"""

import json
from collections.abc import Callable, Generator

from gevent.event import Event

from gnsqd.web.routes import HTTPError, Stream
from nsqadmin_cli.web.monitor import INTERVAL

MOST_STREAMS = 32

Render = Callable[[], str]


class Live:
    """Counts the streams. `run` calls a function in a thread and returns what it returned."""

    def __init__(self, run: Callable[[Render], str]) -> None:
        self._run = run
        self._streams = 0
        self._closed = Event()

    def close(self) -> None:
        """End all streams."""
        self._closed.set()

    def stream(self, render: Render, is_permitted: Callable[[], bool]) -> Stream:
        """Events with what `render` returns, where it changed, as long as the client is there and it is permitted;
        HTTPError if there are too many streams."""
        if self._streams >= MOST_STREAMS:
            raise HTTPError(503, "too many live pages are open")
        return Stream("text/event-stream", self._events(render, is_permitted))

    def _events(self, render: Render, is_permitted: Callable[[], bool]) -> Generator[bytes]:
        self._streams += 1
        try:
            yield b"retry: 5000\n\n"
            last = ""
            while not self._closed.wait(INTERVAL) and is_permitted():
                html = self._run(render)
                # An empty event finds out whether the client is there.
                yield b":\n\n" if html == last else b"data: %s\n\n" % json.dumps(html).encode()
                last = html
        finally:
            self._streams -= 1
