"""What stands behind each row of ROUTES: one method per endpoint.

The checks of every method come in the real daemon's order, because a client sees the first that fails (NSQD-COMPAT
5.2); publishing therefore creates the topic before it looks at the messages.
"""

import socket
from collections.abc import Callable, Iterable, Iterator
from time import monotonic_ns

from gnsqd.broker.bounds import OutOfBounds
from gnsqd.broker.channel import Channel
from gnsqd.broker.consumer import Consumer
from gnsqd.broker.drain import Drain
from gnsqd.broker.registry import Registry, TopicNotFound
from gnsqd.broker.topic import ChannelNotFound, Draining, Topic
from gnsqd.errors import BrokerError, StorageError
from gnsqd.gotext import parse_int
from gnsqd.hub.cooperative import Turns, give_way
from gnsqd.log import Logger
from gnsqd.names import is_valid_name
from gnsqd.observe.stats import MemoryStats, snapshot
from gnsqd.options import MILLISECOND, Options
from gnsqd.version import NSQD_VERSION
from gnsqd.web import config, peek
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import Request
from gnsqd.web.routes import JSON, Content, HTTPError, parse_query
from gnsqd.web.stats_page import stats_page
from gnsqd.wire.codec import CodecError, Decoder
from gnsqd.wire.limits import NoRoom, Room

_PIECE = 65536
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class API:
    """The endpoints of one daemon.

    tcp_port, http_port  where it listens, -1 on a unix socket
    producers()          the clients that have published
    persist_metadata()   write nsqd.dat with what is so now; when it fails, that has been logged
    wait_persisted()     wait for the write, if one is due, of what was created until now; likewise
    render_metrics(accept)  the Prometheus page and its content type
    exiting()            whether the daemon's exit has begun
    set_lookupd_addresses(addresses)  announce the daemon there, and nowhere else
    debug                the endpoints under /debug
    """

    def __init__(
        self,
        *,
        options: Options,
        registry: Registry,
        log: Logger,
        tcp_port: int,
        http_port: int,
        memory: MemoryStats,
        producers: Callable[[], Iterable[Consumer]],
        persist_metadata: Callable[[], None],
        wait_persisted: Callable[[], None],
        render_metrics: Callable[[str], tuple[bytes, str]],
        drain: Drain,
        exiting: Callable[[], bool],
        set_lookupd_addresses: Callable[[list[str]], None],
        debug: Debug,
    ) -> None:
        self.debug = debug
        self._options = options
        self._registry = registry
        self._room = Room(registry, options)
        self._log = log
        self._tcp_port = tcp_port
        self._http_port = http_port
        self._memory = memory
        self._producers = producers
        self._persist_metadata = persist_metadata
        self._wait_persisted = wait_persisted
        self._render_metrics = render_metrics
        self._drain = drain
        self._exiting = exiting
        self._set_lookupd_addresses = set_lookupd_addresses
        self._started = monotonic_ns()

    # About the daemon

    def ping(self, request: Request) -> str:
        if not self._registry.healthy:
            raise HTTPError(500, self._registry.health)
        return self._registry.health

    def healthz(self, request: Request) -> str:
        return "OK"

    def readyz(self, request: Request) -> str:
        if self._exiting():
            raise HTTPError(503, "NOK - exiting")
        if self._registry.draining:
            raise HTTPError(503, "NOK - draining")
        if not self._registry.healthy:
            raise HTTPError(503, self._registry.health)
        return "OK"

    def drain(self, request: Request) -> dict[str, object]:
        return self._drain.state()

    def start_drain(self, request: Request) -> dict[str, object]:
        return self._switch_drain(self._drain.start)

    def cancel_drain(self, request: Request) -> dict[str, object]:
        return self._switch_drain(self._drain.cancel)

    def _switch_drain(self, switch: Callable[[], None]) -> dict[str, object]:
        if self._exiting():
            raise HTTPError(503, "EXITING")
        switch()
        return self._drain.state()

    def info(self, request: Request) -> dict[str, object]:
        options = self._options
        return {
            "version": NSQD_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self._http_port,
            "tcp_port": self._tcp_port,
            "start_time": self._registry.start_time,
            "max_heartbeat_interval": options.max_heartbeat_interval,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout,
            "max_deflate_level": options.max_deflate_level,
        }

    def stats(self, request: Request) -> str | dict[str, object]:
        parameters = self._parameters(request)
        include_clients = _BOOLS.get(parameters.get("include_clients", ""), True)
        stats = snapshot(
            self._registry,
            self._producers,
            parameters.get("topic", ""),
            parameters.get("channel", ""),
            include_clients,
        )
        memory = self._memory.row() if _BOOLS.get(parameters.get("include_mem", ""), True) else None
        registry = self._registry
        if parameters.get("format") != "json":
            uptime = monotonic_ns() - self._started
            lines = stats_page(stats, memory, registry.health, registry.start_time, uptime)
            return "".join(f"{line}\n" for line in Turns().over(lines))
        answer = {
            "version": NSQD_VERSION,
            "health": registry.health,
            "start_time": registry.start_time,
            "topics": stats.topics,
            "memory": memory,
            "producers": stats.producers,
        }
        if memory is None:
            del answer["memory"]
        return answer

    def metrics(self, request: Request) -> Content:
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        return Content(*self._render_metrics(accept))

    # Publishing

    def pub(self, request: Request) -> str:
        if request.too_big:
            raise HTTPError(413, "MSG_TOO_BIG")
        if request.broken:
            raise HTTPError(500, "INTERNAL_ERROR")
        if not request.body:
            raise HTTPError(400, "MSG_EMPTY")
        parameters = self._query(request)
        topic = self._get_topic(parameters)
        deferred = self._parse_defer(parameters["defer"]) if "defer" in parameters else 0
        self._put(topic, [request.body], deferred)
        return "OK"

    def _parse_defer(self, text: str) -> int:
        try:
            deferred = parse_int(text) * MILLISECOND
        except ValueError:
            deferred = -1
        if not 0 <= deferred <= self._options.max_req_timeout:
            raise HTTPError(400, "INVALID_DEFER")
        return deferred

    def mpub(self, request: Request) -> str:
        if request.too_big and request.announced:
            raise HTTPError(413, "BODY_TOO_BIG")
        parameters = self._query(request)
        topic = self._get_topic(parameters)
        bodies = self._split_binary(request) if self._wants_binary(parameters) else self._split_lines(request)
        self._put(topic, bodies)
        return "OK"

    def _wants_binary(self, parameters: dict[str, str]) -> bool:
        value = parameters.get("binary", "false")
        if value not in _BOOLS:
            self._log.warn("deprecated value '%s' used for /mpub binary param", value)
        return _BOOLS.get(value, True)

    def _split_binary(self, request: Request) -> list[bytes]:
        decoder = Decoder()
        try:
            for piece in _pieces(request.body):
                decoder.feed(piece)
                bodies = decoder.messages(self._options.max_body_size, self._options.max_msg_size)
                if bodies is not None:
                    return bodies
            raise decoder.messages_cut_off()
        except CodecError as error:
            raise HTTPError(413, error.code.removeprefix("E_")) from error

    def _split_lines(self, request: Request) -> list[bytes]:
        bodies: list[bytes] = []
        rest = b""
        for piece in _line_pieces(request.body):
            *lines, rest = piece.split(b"\n")
            if max(map(len, lines), default=0) > self._options.max_msg_size:
                raise HTTPError(413, "MSG_TOO_BIG")
            bodies += filter(None, lines)
        if request.too_big:
            raise HTTPError(413, "BODY_TOO_BIG")
        if request.broken:
            raise HTTPError(500, "INTERNAL_ERROR")
        if len(rest) > self._options.max_msg_size:
            raise HTTPError(413, "MSG_TOO_BIG")
        if rest:
            bodies.append(rest)
        return bodies

    def _put(self, topic: Topic, bodies: list[bytes], deferred: int = 0) -> None:
        try:
            topic.publish(bodies, deferred)
            topic.commit()
        except Draining as error:
            raise HTTPError(503, "DRAINING") from error
        except OutOfBounds as error:
            raise HTTPError(503, f"FULL: {error}") from error
        except (BrokerError, StorageError) as error:
            raise HTTPError(503, "EXITING") from error

    # Topics

    def create_topic(self, request: Request) -> None:
        self._get_topic(self._query(request))
        self._wait_persisted()

    def delete_topic(self, request: Request) -> None:
        name = _required(self._parameters(request), "topic")
        try:
            self._registry.delete_existing_topic(name)
        except TopicNotFound as error:
            raise HTTPError(404, "TOPIC_NOT_FOUND") from error
        self._persist_metadata()

    def empty_topic(self, request: Request) -> None:
        name = _required(self._parameters(request), "topic")
        if not is_valid_name(name):
            raise HTTPError(400, "INVALID_TOPIC")
        self._get_existing_topic(name).empty()

    def pause_topic(self, request: Request) -> None:
        topic = self._get_existing_topic(_required(self._parameters(request), "topic"))
        topic.pause()
        self._persist_metadata()

    def unpause_topic(self, request: Request) -> None:
        topic = self._get_existing_topic(_required(self._parameters(request), "topic"))
        topic.unpause()
        self._persist_metadata()

    def peek_topic(self, request: Request) -> dict[str, object]:
        parameters = self._parameters(request)
        return peek.show(self._get_existing_topic(_required(parameters, "topic")), parameters)

    # Channels

    def create_channel(self, request: Request) -> None:
        topic, name = self._get_topic_and_channel_name(request)
        try:
            self._room.check_channel(topic, name)
        except NoRoom as error:
            raise HTTPError(503, "TOO_MANY_CHANNELS") from error
        topic.get_channel(name)
        self._wait_persisted()

    def delete_channel(self, request: Request) -> None:
        topic, name = self._get_topic_and_channel_name(request)
        try:
            topic.delete_existing_channel(name)
        except ChannelNotFound as error:
            raise HTTPError(404, "CHANNEL_NOT_FOUND") from error
        self._persist_metadata()

    def empty_channel(self, request: Request) -> None:
        self._get_existing_channel(request).empty()

    def pause_channel(self, request: Request) -> None:
        self._get_existing_channel(request).pause()
        self._persist_metadata()

    def unpause_channel(self, request: Request) -> None:
        self._get_existing_channel(request).unpause()
        self._persist_metadata()

    def peek_channel(self, request: Request) -> dict[str, object]:
        return peek.show(self._get_existing_channel(request), self._query(request))

    # Options

    def get_config(self, request: Request) -> str | JSON:
        return config.show(self._options, config.find_option(request.path.removeprefix("/config/")))

    def put_config(self, request: Request) -> str | JSON:
        if request.broken and not request.too_big:
            raise HTTPError(500, "INTERNAL_ERROR")
        if request.too_big or not 0 < len(request.body) <= config.MAX_VALUE:
            raise HTTPError(413, "INVALID_VALUE")
        option = config.find_option(request.path.removeprefix("/config/"))
        config.change(self._options, option, request.body)
        self._log.level = self._options.log_level
        self._set_lookupd_addresses(self._options.nsqlookupd_tcp_addresses or [])
        return config.show(self._options, option)

    # What they share

    def _query(self, request: Request) -> dict[str, str]:
        try:
            return parse_query(request.query)
        except ValueError as error:
            self._log.error("failed to parse request params - %s", error)
            raise HTTPError(400, "INVALID_REQUEST") from error

    def _parameters(self, request: Request) -> dict[str, str]:
        """For endpoints that read a body and make nothing of it."""
        parameters = self._query(request)
        if request.broken:
            self._log.error("failed to parse request params - unexpected EOF")
            raise HTTPError(400, "INVALID_REQUEST")
        return parameters

    def _get_topic(self, parameters: dict[str, str]) -> Topic:
        name = _required(parameters, "topic")
        if not is_valid_name(name):
            raise HTTPError(400, "INVALID_TOPIC")
        if self._options.max_topics:
            self._check_room(name)
        return self._registry.get_topic(name)

    def _check_room(self, topic_name: str) -> None:
        try:
            self._room.check_topic(topic_name)
        except NoRoom as error:
            raise HTTPError(503, "TOO_MANY_TOPICS") from error

    def _get_existing_topic(self, name: str) -> Topic:
        try:
            return self._registry.get_existing_topic(name)
        except TopicNotFound as error:
            raise HTTPError(404, "TOPIC_NOT_FOUND") from error

    def _get_topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        parameters = self._parameters(request)
        topic_name = _required(parameters, "topic")
        if not is_valid_name(topic_name):
            raise HTTPError(400, "INVALID_ARG_TOPIC")
        channel_name = _required(parameters, "channel")
        if not is_valid_name(channel_name):
            raise HTTPError(400, "INVALID_ARG_CHANNEL")
        return self._get_existing_topic(topic_name), channel_name

    def _get_existing_channel(self, request: Request) -> Channel:
        topic, name = self._get_topic_and_channel_name(request)
        try:
            return topic.get_existing_channel(name)
        except ChannelNotFound as error:
            raise HTTPError(404, "CHANNEL_NOT_FOUND") from error


def _required(parameters: dict[str, str], name: str) -> str:
    if name not in parameters:
        raise HTTPError(400, f"MISSING_ARG_{name.upper()}")
    return parameters[name]


def _line_pieces(body: bytes) -> Iterator[bytes]:
    """As `_pieces`, but each ends with a line, and is longer where that line is. Linear, whatever the lines."""
    first = 0
    while first < len(body):
        if first:
            give_way()
        end = body.rfind(b"\n", first, first + _PIECE) + 1 or body.find(b"\n", first + _PIECE) + 1 or len(body)
        yield body[first:end]
        first = end


def _pieces(body: bytes) -> Iterator[bytes]:
    """A body bit by bit, with a turn for everybody else in between: it may hold a million messages."""
    for first in range(0, len(body), _PIECE):
        if first:
            give_way()
        yield body[first : first + _PIECE]
