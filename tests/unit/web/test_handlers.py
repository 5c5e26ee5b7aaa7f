"""What endpoints do when the broker or the disk refuses, and in which order they do it: what no daemon can be made to
show from outside. Everything else about them is in behaviour/test_http."""

import io
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnsqd.broker.bounds import OutOfBounds
from gnsqd.broker.registry import Registry, TopicNotFound
from gnsqd.broker.topic import ChannelNotFound, Draining
from gnsqd.errors import BrokerError, StorageError
from gnsqd.log import Level, Logger
from gnsqd.observe.stats import MemoryStats, held
from gnsqd.options import Options
from gnsqd.web.debug import Debug
from gnsqd.web.handlers import API
from gnsqd.web.http11 import Request, RequestReader
from gnsqd.web.routes import Content, HTTPError
from gnsqd.web.status import Status


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


class World:
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
        debug = Debug(partial(held, registry), MemoryStats(), {})
        drain = cast(Any, Thing(self.calls))
        tcp_server = cast(Any, SimpleNamespace(port=4150, clients={}, producers=list))
        metadata_file = cast(Any, Thing(self.calls))
        lookup = cast(Any, Thing(self.calls))
        status = Status(self.options, registry, drain, debug, tcp_server, lookup, -1, lambda: self.exiting)
        self.api = API(self.options, registry, log, metadata_file, lookup, status, debug)

    def ask(self, handler: str, query: str = "topic=t&channel=c", body: bytes = b"", *headers: bytes) -> object:
        lines = [b"POST /x?%s HTTP/1.1" % query.encode(), b"Host: x", b"Content-Length: %d" % len(body), *headers]
        reader = RequestReader(lambda request: self.options.max_body_size, {})
        (request,) = reader.feed(b"\r\n".join([*lines, b"", b""]) + body)
        return self.call(handler, request)

    def call(self, handler: str, request: Request) -> object:
        method: Callable[[Request], object] = attrgetter(handler)(self.api)
        return method(request)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("handler", ["pub", "mpub"])
def test_publisher_hears_ok_only_after_the_commit(world: World, handler: str) -> None:
    assert world.ask(handler, body=b"hello") == "OK"
    assert world.calls == ["publish", "commit"]


@pytest.mark.parametrize("handler", ["pub", "mpub"])
@pytest.mark.parametrize("step", ["publish", "commit"])
@pytest.mark.parametrize("error", [BrokerError("exiting"), StorageError("disk full")])
def test_publish_that_is_not_kept_is_answered_as_exiting(
    world: World, handler: str, step: str, error: Exception
) -> None:
    world.topic.failures[step] = error
    with pytest.raises(HTTPError) as caught:
        world.ask(handler, body=b"hello")
    assert (caught.value.status, caught.value.code) == (503, "EXITING")


@pytest.mark.parametrize("handler", ["pub", "mpub"])
def test_publish_to_a_daemon_that_drains_is_answered_as_draining(world: World, handler: str) -> None:
    world.topic.failures["publish"] = Draining()
    with pytest.raises(HTTPError) as caught:
        world.ask(handler, body=b"hello")
    assert (caught.value.status, caught.value.code) == (503, "DRAINING")


@pytest.mark.parametrize("handler", ["pub", "mpub"])
def test_publish_beyond_a_bound_is_answered_with_what_is_full(world: World, handler: str) -> None:
    world.topic.failures["publish"] = OutOfBounds("topic t is")
    with pytest.raises(HTTPError) as caught:
        world.ask(handler, body=b"hello")
    assert (caught.value.status, caught.value.code) == (503, "FULL: topic t is")


def test_daemon_that_exits_is_not_ready_but_works(world: World) -> None:
    world.exiting = True
    world.registry.set_health(StorageError("disk full"))
    with pytest.raises(HTTPError) as caught:
        world.ask("status.readyz")
    assert (caught.value.status, caught.value.code) == (503, "NOK - exiting")
    assert world.ask("status.healthz") == "OK"


@pytest.mark.parametrize("handler", ["status.start_drain", "status.cancel_drain"])
def test_drain_cannot_be_switched_once_the_daemon_exits(world: World, handler: str) -> None:
    world.exiting = True
    with pytest.raises(HTTPError) as caught:
        world.ask(handler)
    assert (caught.value.status, caught.value.code) == (503, "EXITING")
    assert world.calls == []


@pytest.mark.parametrize("what", ["pause", "unpause"])
@pytest.mark.parametrize("level", ["topic", "channel"])
def test_pausing_is_written_down_before_it_is_answered(world: World, what: str, level: str) -> None:
    assert world.ask(f"{what}_{level}") is None
    assert world.calls[-2:] == [what, "persist"]


@pytest.mark.parametrize(
    "handler, calls",
    [
        ("create_topic", ["wait"]),
        ("create_channel", ["get_channel", "wait"]),
        ("delete_topic", ["delete", "wait"]),
        ("delete_channel", ["delete_existing_channel", "wait"]),
    ],
)
def test_creation_and_deletion_are_written_down_before_they_are_answered(
    world: World, handler: str, calls: list[str]
) -> None:
    vars(world.topic)["exiting"] = False
    assert world.ask(handler) is None
    assert world.calls == calls


def test_deletion_that_somebody_else_has_begun_is_written_down_before_it_is_answered(world: World) -> None:
    vars(world.topic)["exiting"] = True
    assert world.ask("delete_topic") is None
    assert world.calls == ["wait"]


def test_channel_that_goes_away_meanwhile_is_not_found(world: World) -> None:
    world.topic.failures["delete_existing_channel"] = ChannelNotFound("channel does not exist")
    with pytest.raises(ChannelNotFound):
        world.ask("delete_channel")
    assert "wait" not in world.calls


def test_topic_that_goes_away_meanwhile_is_not_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise TopicNotFound("topic does not exist")

    monkeypatch.setattr(world.registry, "delete_existing_topic", gone)
    with pytest.raises(TopicNotFound):
        world.ask("delete_topic")
    assert "wait" not in world.calls


def test_ping_tells_the_last_failure_to_write(world: World) -> None:
    assert world.ask("status.ping") == "OK"
    world.registry.set_health(StorageError("disk full"))
    with pytest.raises(HTTPError) as caught:
        world.ask("status.ping")
    assert (caught.value.status, caught.value.code) == (500, "NOK - disk full")
    world.registry.set_health(None)
    assert world.ask("status.ping") == "OK"


def test_info_shows_the_ports_it_was_given(world: World) -> None:
    info = world.ask("status.info")
    assert isinstance(info, dict)
    assert (info["tcp_port"], info["http_port"]) == (4150, -1)


def test_metrics_are_rendered_for_the_accept_header(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Metrics:
        def __init__(self, **parts: object) -> None: ...

        def render(self, accept: str) -> tuple[bytes, str]:
            return f"page for {accept}".encode(), "text/page"

    monkeypatch.setattr("gnsqd.observe.prometheus.Metrics", Metrics)
    assert world.ask("status.metrics", "", b"", b"Accept: text/plain") == Content(b"page for text/plain", "text/page")


def test_strange_value_of_binary_is_warned_of(world: World) -> None:
    with pytest.raises(HTTPError) as caught:
        world.ask("mpub", "topic=t&binary=yes", b"x")
    assert caught.value.code == "BAD_BODY"
    assert "WARNING: deprecated value 'yes' used for /mpub binary param" in world.log.getvalue()


def test_value_of_binary_forges_no_line_of_the_log(world: World) -> None:
    with pytest.raises(HTTPError):
        world.ask("mpub", "topic=t&binary=x%0a%0d%1b[0m%C2%85[nsqd]%20FATAL:%20forged", b"x")
    assert len(world.log.getvalue().splitlines()) == 1
    assert world.log.getvalue().rstrip("\n").isprintable()


@pytest.mark.parametrize("body", [b"x" * (24 << 20), b"x\n" * (1 << 20)], ids=["one line", "many lines"])
def test_text_is_split_in_linear_time_and_in_turns(world: World, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.web.handlers.give_way", lambda: turns.append(None))
    world.options.max_msg_size = len(body)
    request = Request()
    request.body = body
    request.query = "topic=t"
    began = time.thread_time()
    assert world.call("mpub", request) == "OK"
    assert time.thread_time() - began < 3  # a hundred times what it takes: in quadratic time it would be ten seconds
    assert len(turns) >= min(body.count(b"\n"), len(body) // 65536 - 1)


def test_others_have_turns_between_the_lines_of_the_text_of_stats(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.give_way", lambda: turns.append(None))
    text = world.ask("status.stats", "topic=nope")
    assert isinstance(text, str)
    assert len(turns) == text.count("\n") > 10
