"""The handlers of ROUTES: one method per endpoint.

The checks of every method come in the real daemon's order, because a client sees the first that fails (NSQD-COMPAT
5.2).
"""

import socket
import time
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from sys import maxsize
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from gevent import get_hub

from gnsqd.broker.channel import Channel
from gnsqd.broker.drain import Drain
from gnsqd.broker.registry import Registry
from gnsqd.broker.rules import InvalidRule, Rules
from gnsqd.broker.topic import Topic
from gnsqd.cluster.lookup import Lookup
from gnsqd.gotext import decode_strings, dumps, parse_duration, parse_int
from gnsqd.hub.cooperative import Turns
from gnsqd.log import Level, Logger
from gnsqd.options import MINUTE, OPTIONS, Kind, Option, Options
from gnsqd.queues.message import Message
from gnsqd.queues.moment import parse_moment
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import NotFound
from gnsqd.shared.names import check_limit, is_ephemeral, is_valid_name
from gnsqd.shared.record import Record
from gnsqd.shared.version import NSQD_VERSION
from gnsqd.storage.metadata import MetadataFile
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import Request
from gnsqd.web.publishing import Publishing
from gnsqd.web.ranges import Ranges
from gnsqd.web.routes import (
    BOOLS,
    Content,
    HTTPError,
    check_complete,
    parse_query,
    parsed,
    read_parameters,
    required,
    topic_and_channel,
)  # fmt: skip
from gnsqd.wire.tcp import TCPServer

if TYPE_CHECKING:
    from gnsqd.observe.prometheus import MetricsPage
    from gnsqd.queues.journal.history import TopicHistory

DEFAULT_PEEK = 10
MAX_PEEK = 1000  # messages
MAX_PEEK_BYTES = 1024 * 1024  # of all messages, except for a single larger one
DUE_WITHIN = (MINUTE, 60 * MINUTE, 24 * 60 * MINUTE, 7 * 24 * 60 * MINUTE)
MAX_SHOWN_BODY = 32 * 1024  # bytes that are shown of one body
MAX_VALUE = 32768  # bytes of an option: a thousand addresses, and some ms to look through when they are none

_BY_KEY = {option.cfg: option for option in OPTIONS if option.cfg}


class BrokerAPI(Record):
    """The endpoints of topics and channels. Further ones are in `publishing`, `daemon`, `debug` and `ranges`."""

    _options: Options
    _registry: Registry
    _metadata_file: MetadataFile
    publishing: Publishing
    daemon: "DaemonAPI"
    debug: Debug
    ranges: Ranges

    def create_topic(self, request: Request) -> None:
        self.publishing.get_topic(request, parse_query(request.query))
        self._metadata_file.wait()

    def delete_topic(self, request: Request) -> None:
        self._registry.delete_existing_topic(required(read_parameters(request), "topic"))
        self._metadata_file.wait()

    def empty_topic(self, request: Request) -> None:
        name = required(read_parameters(request), "topic")
        if not is_valid_name(name):
            raise HTTPError(400, "INVALID_TOPIC")
        topic = self._registry.get_existing_topic(name)
        topic.queue.empty()
        topic.commit()

    def pause_topic(self, request: Request) -> None:
        self._pause(self._find_topic(request), request)

    def _pause(self, thing: Topic | Channel, request: Request) -> None:
        thing.pause(not request.path.endswith("/unpause"))
        self._metadata_file.persist(thing.topic_name if isinstance(thing, Channel) else thing.name)

    def peek_topic(self, request: Request) -> dict[str, object]:
        return self._peek(self._find_topic(request).queue, request)

    def get_retention(self, request: Request) -> dict[str, object]:
        history = _history(self._find_topic(request))
        retention = history.retention
        return {
            "bytes": retention.max_bytes,
            "time": retention.max_age,
            "messages": history.count,
            "since": history.oldest,
            "used": history.size,
        }

    def set_retention(self, request: Request) -> dict[str, object]:
        history = _history(self._find_topic(request))
        parameters = read_parameters(request)
        max_bytes = parsed(parse_int, required(parameters, "bytes"), "INVALID_ARG_BYTES", 0)
        longest = maxsize if max_bytes else 0
        max_age = parsed(parse_duration, parameters.get("time", "0"), "INVALID_ARG_TIME", 0, longest)
        history.retention.retain(max_bytes, max_age)
        return self.get_retention(request)

    def create_channel(self, request: Request) -> None:
        topic, name = self._find_topic_and_channel_name(request)
        check_limit(name, topic.channels, self._options.max_channels, "channels")
        parameters = read_parameters(request)
        if "from" in parameters:
            begin = parsed(_retained(topic, name).position, parameters["from"], "INVALID_ARG_FROM")
            if name in topic.channels or not topic.create_channel(name, begin):
                raise HTTPError(400, "CHANNEL_EXISTS")
        topic.get_channel(name)
        self._metadata_file.wait()

    def delete_channel(self, request: Request) -> None:
        topic, name = self._find_topic_and_channel_name(request)
        topic.delete_existing_channel(name)
        topic.commit()
        self._metadata_file.wait()

    def empty_channel(self, request: Request) -> None:
        self._find_channel(request).empty()
        self._find_topic(request).commit()

    def pause_channel(self, request: Request) -> None:
        self._pause(self._find_channel(request), request)

    def peek_channel(self, request: Request) -> dict[str, object]:
        return self._peek(self._find_channel(request).queue, request)

    def plan_rewind(self, request: Request) -> dict[str, object]:
        """Returns what `rewind_channel` would do now."""
        channel, history, begin, end = self._find_rewind(request)
        count, first, last = history.rewindable(channel.queue, begin, end)
        return {
            "messages": count,
            "first": first,
            "last": last,
            "retained_since": history.oldest,
            "depth": channel.depth,
            "in_flight": len(channel.in_flight),
            "deferred": channel.deferred_count,
        }

    def rewind_channel(self, request: Request) -> dict[str, object]:
        channel, history, begin, end = self._find_rewind(request)
        count = history.rewind(channel.queue, begin, end)
        self._registry.get_existing_topic(channel.topic_name).commit()
        return {"messages": count}

    def get_rules(self, request: Request) -> dict[str, object]:
        return self._find_channel(request).rules.settings()

    def set_rules(self, request: Request) -> dict[str, object]:
        topic, name = self._find_topic_and_channel_name(request)
        channel = topic.get_existing_channel(name)
        parameters = read_parameters(request)
        if not any(rule in parameters for rule in Rules._fields):
            raise HTTPError(400, "MISSING_ARG_RATE")
        try:
            rules = channel.rules.changed(parameters)
        except InvalidRule as error:
            raise HTTPError(400, f"INVALID_ARG_{error.name.upper()}") from error
        topic.set_rules(channel, rules)
        self._metadata_file.persist(topic.name)
        return rules.settings()

    def _find_rewind(self, request: Request) -> "tuple[Channel, TopicHistory, int, int]":
        topic, name = self._find_topic_and_channel_name(request)
        topic.get_existing_channel(name)
        history = _retained(topic, name)
        parameters = read_parameters(request)
        begin = parsed(history.position, required(parameters, "to"), "INVALID_ARG_TO")
        end = maxsize
        if "until" in parameters:
            end = parsed(history.position, parameters["until"], "INVALID_ARG_UNTIL")
        is_before = end < begin
        with suppress(ValueError):  # a point need not be a time
            is_before |= parse_moment(parameters["to"]) > parse_moment(parameters.get("until", ""))
        if is_before:
            raise HTTPError(400, "UNTIL_BEFORE_TO")
        return topic.get_existing_channel(name), history, begin, end

    def list_deferred(self, request: Request) -> dict[str, object]:
        """Returns how many deferred messages are due in some times, and some of them, from `from` on, or of `id`."""
        deferred = self._find_channel(request).deferred
        parameters = parse_query(request.query)
        limit = _limit(parameters)
        now, clock = monotonic_ns(), time_ns() - monotonic_ns()
        begin = parsed(parse_moment, parameters["from"], "INVALID_ARG_FROM") - clock if "from" in parameters else 0
        messages = [self._find_deferred(request)] if "id" in parameters else deferred.look(begin, limit, MAX_PEEK_BYTES)
        return {
            "deferred": len(deferred),
            "due": [{"within": within, "messages": deferred.count_before(now + within)} for within in DUE_WITHIN],
            "messages": [_message_row(message, due=clock + due) for due, message in messages],
        }

    def cancel_deferred(self, request: Request) -> None:
        due, message = self._find_deferred(request)
        self._find_channel(request).cancel(due, message)
        self._find_topic(request).commit()

    def _find_deferred(self, request: Request) -> tuple[int, Message]:
        """Returns the deferred message with the given id, and when it is due (monotonic ns). May yield."""
        topic, name = self._find_topic_and_channel_name(request)
        queue = topic.get_existing_channel(name).queue
        id = required(read_parameters(request), "id")
        entry = topic.get_existing_channel(name).deferred.find(id.encode())
        if entry is None and topic.write_ahead is not None:
            try:
                entry = topic.write_ahead.history.find_deferred(queue, id)
            except ValueError as error:
                raise HTTPError(400, "INVALID_ARG_ID") from error
        if entry is None:
            raise NotFound("message", "is not deferred")
        return entry

    def _peek(self, queue: Queue, request: Request) -> dict[str, object]:
        """Returns the first `limit` messages, without consuming them: the next ones in memory, then those on disk.
        Their number, their total size, and the part of each body shown are limited, so that nothing is blocked."""
        messages = queue.look(_limit(parse_query(request.query)), MAX_PEEK_BYTES)
        return {
            "depth": queue.count(),
            "backend_depth": queue.backend.count,
            "messages": [_message_row(message, on_disk=on_disk) for message, on_disk in messages],
        }

    def _find_topic(self, request: Request) -> Topic:
        return self._registry.get_existing_topic(required(read_parameters(request), "topic"))

    def _find_topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic_name, channel_name = topic_and_channel(read_parameters(request))
        return self._registry.get_existing_topic(topic_name), channel_name

    def _find_channel(self, request: Request) -> Channel:
        topic, name = self._find_topic_and_channel_name(request)
        return topic.get_existing_channel(name)


def _history(topic: Topic) -> "TopicHistory":
    if topic.write_ahead is None:
        raise HTTPError(400, "NO_JOURNAL")
    return topic.write_ahead.history


def _retained(topic: Topic, channel_name: str) -> "TopicHistory":
    history = _history(topic)
    if not history.retention.max_bytes:
        raise HTTPError(400, "NO_RETENTION")
    if is_ephemeral(channel_name):
        raise HTTPError(400, "CHANNEL_EPHEMERAL")
    return history


def _limit(parameters: Mapping[str, str]) -> int:
    return parsed(parse_int, parameters.get("limit", str(DEFAULT_PEEK)), "INVALID_LIMIT", 1, MAX_PEEK)


def _message_row(message: Message, **more: object) -> dict[str, object]:
    """Returns a message as peek shows it, and `more`; `body` is a string if it is UTF-8, else `body_base64`."""
    shown = message.body[:MAX_SHOWN_BODY]
    text, encoded = None, None
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        encoded = b2a_base64(shown, newline=False).decode()
    return {
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        **more,
        "size": len(message.body),
        "body": text,
        "body_base64": encoded,
    }


class DaemonAPI(Record):
    """The endpoints of the daemon itself: its health, its drain, its addresses, its statistics and its options.
    `http_port` is -1 on a unix socket; `exiting()` is True if its exit has begun; `expiries()` are those of its
    certificate files."""

    _options: Options
    _registry: Registry
    _drain: Drain
    _debug: Debug
    _tcp_server: TCPServer
    _lookup: Lookup
    _http_port: int
    _exiting: Callable[[], bool]
    _log: Logger
    _expiries: Callable[[], dict[str, float]] = dict

    def __post_init__(self) -> None:
        self._metrics: MetricsPage | None = None
        self._started = time.monotonic_ns()

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
        topology = {"topology_zone": options.topology_zone, "topology_region": options.topology_region}
        return {
            "version": NSQD_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self._http_port,
            "tcp_port": self._tcp_server.port,
            "start_time": self._registry.start_time,
            "max_heartbeat_interval": options.max_heartbeat_interval,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout,
            "max_deflate_level": options.max_deflate_level,
            **(topology if options.has_topology else {}),
        }

    def stats(self, request: Request) -> str | dict[str, object]:
        from gnsqd.observe.stats import snapshot, text_page  # loads slowly, and not every daemon is asked

        registry, parameters = self._registry, read_parameters(request)
        names = (parameters.get("topic", ""), parameters.get("channel", ""))
        include_clients = BOOLS.get(parameters.get("include_clients", ""), True)
        own = ("include_finished", "include_ages", "include_process")  # which nsqd does not have
        finished, ages, process = (BOOLS.get(parameters.get(name, ""), False) for name in own)
        stats = snapshot(registry, self._tcp_server.producers, *names, include_clients, finished, ages)
        memory = self._debug.memory.row() if BOOLS.get(parameters.get("include_mem", ""), True) else None
        if parameters.get("format") != "json":
            uptime = time.monotonic_ns() - self._started
            lines = text_page(stats, memory, registry.health, registry.start_time, uptime)
            return "".join(f"{line}\n" for line in Turns().over(lines))
        return {
            "version": NSQD_VERSION,
            "health": registry.health,
            "start_time": registry.start_time,
            "topics": stats.topics,
            **({} if memory is None else {"memory": memory}),
            "producers": stats.producers,
            **({"process": self._process()} if process else {}),
        }

    def queues(self, request: Request) -> str:
        from gnsqd.observe.explanation import explain  # loads slowly, as above

        return "".join(f"{line}\n" for line in explain(self._registry, self._options.msg_timeout))

    def _process(self) -> dict[str, object]:
        """Returns the figures of this process, and of the disk of its data, as far as that can be queried."""
        return {
            "cpu_seconds": time.process_time(),
            "memory_bytes": self._debug.memory.resident(),
            "connection_count": len(self._tcp_server.clients),
            **self._registry.disk_figures(),
            **self._registry.store_figures(),
            **({"certificates": expiries} if (expiries := self._expiries()) else {}),
        }

    def metrics(self, request: Request) -> Content:
        if self._metrics is None:
            # At the first scrape, as it takes a third of a start's time; in a thread, so that the hub goes on.
            prometheus = get_hub().threadpool.apply(import_module, ("gnsqd.observe.prometheus",))
            if self._metrics is None:  # or another scrape was first
                self._metrics = prometheus.MetricsPage(
                    registry=self._registry,
                    options=self._options,
                    memory=self._debug.memory,
                    clients=self._tcp_server.clients.values,
                    greenlets=self._debug.greenlet_count,
                    crashes=self._debug.crashes,
                    lookupds=self._lookup.connected,
                    log=self._log,
                    expiries=self._expiries,
                )
        return Content(*self._metrics.render(request.headers.get(b"accept", b"").decode("latin-1")))

    def get_config(self, request: Request) -> str | Content:
        """Returns strings unchanged, all else as JSON: durations in ns, levels and TLS settings as numbers."""
        value = getattr(self._options, _find_option(request).name)
        return value if isinstance(value, str) else Content(dumps(value).encode())

    def put_config(self, request: Request) -> str | Content:
        check_complete(request, "INVALID_VALUE")
        if not 0 < len(request.body) <= MAX_VALUE:
            raise HTTPError(413, "INVALID_VALUE")
        option = _find_option(request)
        if not option.reload:
            raise HTTPError(400, "INVALID_OPTION")
        try:
            is_level = option.kind is Kind.LOG_LEVEL
            value = Level.parse(request.body.decode("utf-8", "replace")) if is_level else decode_strings(request.body)
        except ValueError as error:
            raise HTTPError(400, "INVALID_VALUE") from error
        setattr(self._options, option.name, value)
        self._log.set_level(self._options.log_level)
        self._lookup.connect()
        return self.get_config(request)


def _find_option(request: Request) -> Option:
    """Returns the option whose key in the config file ends the path."""
    key = request.path.removeprefix("/config/")
    if key not in _BY_KEY:
        raise HTTPError(400, "INVALID_OPTION")
    return _BY_KEY[key]
