"""The death of a greenlet; faults/test_crashes.py kills those of a running daemon."""

import io
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from gnsqd.log import Level, Logger
from gnsqd.shared.errors import StorageError
from gnsqd.supervisor import DaemonProcess, Supervisor


class Supervised:
    """A supervisor, its log, and how often it asked for the end."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.ends = 0
        self.it = Supervisor(Logger("", Level.INFO, self.log), self._end)

    def _end(self) -> None:
        self.ends += 1

    @property
    def text(self) -> str:
        return self.log.getvalue()


@pytest.fixture
def watched() -> Iterator[Supervised]:
    hub: Any = gevent.get_hub()
    found = Supervised()
    found.it.watch()
    yield found
    del hub.handle_error


def crash() -> None:
    raise LookupError("a bug")


def test_one_that_serves_a_client_ends_nothing_else(watched: Supervised) -> None:
    watched.it.spawn_for_client("IOLoop:127.0.0.1:5", crash).join()
    watched.it.spawn_for_client("IOLoop:127.0.0.1:6", crash).join()
    assert (watched.it.crashes, watched.ends) == ({"IOLoop": 2}, 0)
    assert " ERROR: greenlet IOLoop:127.0.0.1:6 died\nTraceback" in watched.text


def test_greenlets_that_others_start_are_watched(watched: Supervised) -> None:
    greenlet = gevent.spawn(crash)
    greenlet.name = "sync:t"
    with pytest.raises(LookupError):
        greenlet.get()
    assert (watched.it.crashes, watched.ends) == ({"sync": 1}, 1)
    assert " FATAL: greenlet sync:t died\nTraceback" in watched.text


def test_callbacks_of_the_hub_are_watched(watched: Supervised) -> None:
    loop = gevent.get_hub().loop
    loop.run_callback(crash)
    timer = loop.timer(0.001)
    timer.start(crash)
    done = gevent.event.Event()
    done.rawlink(lambda _: crash())
    done.set()
    gevent.sleep(0.01)
    timer.close()
    assert watched.it.crashes == {"hub": 3}
    assert watched.text.count(" FATAL: greenlet hub died\n") == 3


def test_what_a_thread_raises_is_for_who_waits_for_it(watched: Supervised, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise StorageError("no disk")

    with pytest.raises(StorageError):
        gevent.get_hub().threadpool.apply(fail)
    assert (watched.it.crashes, watched.ends, watched.text) == ({}, 0, "")


def test_who_is_asked_to_end_has_not_crashed(watched: Supervised) -> None:
    for spawn in (watched.it.spawn, watched.it.spawn_for_client):
        greenlet = spawn("aLoop", lambda: gevent.sleep(100))
        gevent.sleep(0)
        greenlet.kill()
    assert (watched.it.crashes, watched.ends, watched.text) == ({}, 0, "")


@pytest.mark.parametrize("lane, lines", [("plain", 1), ("compiled", 0)])
def test_busy_daemon_without_compiled_modules_logs_once_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, lane: str, lines: int
) -> None:
    class Daemon(DaemonProcess):
        def start(self) -> None: ...

        def exit(self) -> int:
            return 0

    monkeypatch.setattr("gnsqd.supervisor.lane", lambda: lane)
    log = io.StringIO()
    daemon = Daemon(Logger("", Level.INFO, log))
    daemon.note_use(0.4)
    assert log.getvalue() == ""
    daemon.note_use(0.6)
    daemon.note_use(0.9)
    assert log.getvalue().count("GNSQD_COMPILE=1") == lines
