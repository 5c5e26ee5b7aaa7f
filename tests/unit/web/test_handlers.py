"""Endpoints when the broker or the disk refuses, and their order: what no daemon can be made to show from outside."""

import io
import time
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnsqd.broker.bounds import OutOfBounds
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Draining
from gnsqd.log import Level, Logger
from gnsqd.observe.memory import MemoryStats
from gnsqd.options import Options
from gnsqd.shared.errors import BrokerError, NotFound, StorageError
from gnsqd.web.debug import Debug
from gnsqd.web.handlers import BrokerAPI, DaemonAPI
from gnsqd.web.http11 import Request
from gnsqd.web.publishing import Publishing
from gnsqd.web.ranges import Ranges
from gnsqd.web.routes import HTTPError


class Thing:
    """A topic or channel that writes down what is done to it, and fails where it is asked to."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.failures: dict[str, Exception] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: object) -> Any:
            self.calls.append(name)
            if name in self.failures:
                raise self.failures[name]
            return self if name.startswith("get_") else None

        return call


class OneTopic:
    """An API over one topic that is there (`t`, with channel `c`), and the order of what happened."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.topic = Thing(self.calls)
        self.health: Exception | None = None
        self.exiting = False
        self.log = io.StringIO()
        self.options = Options(max_msg_size=10, max_body_size=30)
        registry = Registry()
        registry.topics["t"] = cast(Any, self.topic)
        self.registry = registry
        log = Logger("", Level.INFO, self.log)
        debug = Debug(registry.held, MemoryStats(), {})
        drain = cast(Any, Thing(self.calls))
        tcp_server = cast(Any, SimpleNamespace(port=4150, clients={}, producers=list))
        metadata_file = cast(Any, Thing(self.calls))
        lookup = cast(Any, Thing(self.calls))
        daemon = DaemonAPI(self.options, registry, drain, debug, tcp_server, lookup, -1, lambda: self.exiting, log)
        publishing = Publishing(self.options, registry, log)
        endpoints = (publishing, daemon, debug, Ranges(registry, log))
        self.api = BrokerAPI(self.options, registry, metadata_file, *endpoints)

    def ask(self, handler: str, query: str = "topic=t&channel=c", body: bytes = b"") -> object:
        request = Request()
        request.query, request.body = query, body
        method: Callable[[Request], object] = attrgetter(handler)(self.api)
        return method(request)


@pytest.fixture
def world() -> OneTopic:
    return OneTopic()


def refusal(world: OneTopic, handler: str, body: bytes = b"", query: str = "topic=t&channel=c") -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        world.ask(handler, query, body)
    return caught.value.status, caught.value.code


@pytest.mark.parametrize("handler", ["publishing.pub", "publishing.mpub"])
def test_publisher_hears_ok_only_after_the_commit(world: OneTopic, handler: str) -> None:
    assert world.ask(handler, body=b"hello") == "OK"
    assert world.calls == ["publish", "commit"]


@pytest.mark.parametrize("handler", ["publishing.pub", "publishing.mpub"])
@pytest.mark.parametrize("step", ["publish", "commit"])
@pytest.mark.parametrize(
    "error, code",
    [
        (BrokerError("exiting"), "EXITING"),
        (StorageError("disk full"), "EXITING"),
        (Draining("draining"), "DRAINING"),
        (OutOfBounds("topic t is"), "FULL: topic t is"),
    ],
)
def test_publish_that_is_not_kept_is_answered_with_the_reason(
    world: OneTopic, handler: str, step: str, error: Exception, code: str
) -> None:
    world.topic.failures[step] = error
    assert refusal(world, handler, b"hello") == (503, code)


def test_daemon_that_exits_is_not_ready_but_works_and_its_drain_cannot_be_switched(world: OneTopic) -> None:
    world.exiting = True
    world.registry.error = StorageError("disk full")
    assert refusal(world, "daemon.readyz") == (503, "NOK - exiting")
    assert world.ask("daemon.healthz") == "OK"
    for handler in ("daemon.start_drain", "daemon.cancel_drain"):
        assert refusal(world, handler) == (503, "EXITING")
    assert world.calls == []


@pytest.mark.parametrize(
    "handler, exiting, calls",
    [
        ("create_topic", False, ["wait"]),
        ("create_channel", False, ["get_channel", "wait"]),
        ("delete_topic", False, ["delete", "wait"]),
        ("delete_topic", True, ["wait"]),  # somebody else deletes it
        ("delete_channel", False, ["delete_existing_channel", "commit", "wait"]),
    ],
)
def test_creation_and_deletion_are_written_down_before_they_are_answered(
    world: OneTopic, handler: str, exiting: bool, calls: list[str]
) -> None:
    vars(world.topic)["exiting"] = exiting
    assert world.ask(handler) is None
    assert world.calls == calls


def test_topic_or_channel_that_goes_away_meanwhile_is_not_found(
    world: OneTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(name: str) -> None:
        raise NotFound("topic")

    world.topic.failures["delete_existing_channel"] = NotFound("channel")
    with pytest.raises(NotFound, match="channel does not exist"):
        world.ask("delete_channel")
    monkeypatch.setattr(world.registry, "delete_existing_topic", gone)
    with pytest.raises(NotFound, match="topic does not exist"):
        world.ask("delete_topic")
    assert "wait" not in world.calls


@pytest.mark.parametrize("body", [b"x" * (24 << 20), b"x\n" * (1 << 20)], ids=["one line", "many lines"])
def test_text_is_split_in_linear_time_and_in_turns(
    world: OneTopic, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.web.publishing.stand_in_line", lambda: turns.append(None))
    world.options.max_msg_size = len(body)
    began = time.thread_time()
    assert world.ask("publishing.mpub", body=body) == "OK"
    assert time.thread_time() - began < 3  # a hundred times what it takes: in quadratic time it would be ten seconds
    assert len(turns) >= min(body.count(b"\n"), len(body) // 65536 - 1)


@pytest.mark.parametrize("binary", ["false", "true"])
def test_a_large_body_that_is_split_within_one_turn_waits_for_nobody(
    world: OneTopic, monkeypatch: pytest.MonkeyPatch, binary: str
) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.web.publishing.stand_in_line", lambda: turns.append(None))
    world.options.max_msg_size = world.options.max_body_size = 1 << 20
    one = b"x" * 99999
    body = 10 * (one + b"\n")
    if binary == "true":
        body = (10).to_bytes(4, "big") + 10 * (len(one).to_bytes(4, "big") + one)
    for seconds, least, most in ((9.0, 0, 0), (0, 9, 16)):
        monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", seconds)
        turns.clear()
        assert world.ask("publishing.mpub", f"topic=t&binary={binary}", body=body) == "OK"
        assert least <= len(turns) <= most


def test_others_have_turns_between_the_lines_of_stats(world: OneTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", lambda: turns.append(None))
    text = world.ask("daemon.stats", "topic=nope")
    assert isinstance(text, str)
    assert len(turns) == text.count("\n") > 10
