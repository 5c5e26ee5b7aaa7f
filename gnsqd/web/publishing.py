"""The handlers of `/pub` and `/mpub`.

The checks come in the real daemon's order (NSQD-COMPAT 5.2): the topic is created before the messages are looked at.
For a request that may not yield, they raise WouldYield before they have changed anything.
"""

from collections.abc import Mapping
from io import BytesIO

from gnsqd.broker.bounds import OutOfBounds
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Draining, Topic
from gnsqd.gotext import parse_int
from gnsqd.hub.cooperative import Turns, WouldYield, stand_in_line
from gnsqd.log import Logger
from gnsqd.options import MILLISECOND, Options
from gnsqd.shared.errors import BrokerError, StorageError
from gnsqd.shared.names import check_limit, is_valid_name
from gnsqd.web.http11 import Request
from gnsqd.web.routes import BOOLS, HTTPError, check_complete, parse_query, parsed, required
from gnsqd.wire.codec import ClientError, Decoder

_PIECE = 65536


class Publishing:
    """Publishes to the topics of one registry."""

    def __init__(self, options: Options, registry: Registry, log: Logger) -> None:
        self._options = options
        self._registry = registry
        self._log = log

    def pub(self, request: Request) -> str:
        if request.too_big or request.broken:
            check_complete(request, "MSG_TOO_BIG")
        if not request.body:
            raise HTTPError(400, "MSG_EMPTY")
        parameters = parse_query(request.query)
        topic = self.get_topic(request, parameters)
        self._put(request, topic, [request.body], self._parse_defer(parameters))
        return "OK"

    def _parse_defer(self, parameters: Mapping[str, str]) -> int:
        if "defer" not in parameters:
            return 0
        longest = self._options.longest_defer // MILLISECOND
        return parsed(parse_int, parameters["defer"], "INVALID_DEFER", 0, longest) * MILLISECOND

    def mpub(self, request: Request) -> str:
        if request.too_big and request.announced:
            raise HTTPError(413, "BODY_TOO_BIG")
        parameters = parse_query(request.query)
        binary = parameters.get("binary", "false")
        if not request.may_yield and (len(request.body) > _PIECE or binary not in BOOLS):
            raise WouldYield
        topic = self.get_topic(request, parameters)
        if not request.may_yield and not topic.publishes_at_once([request.body]):
            raise WouldYield  # before the body is split, as it would be again
        deferred = self._parse_defer(parameters)
        if binary not in BOOLS:
            self._log.warn("deprecated value '%s' used for /mpub binary param", binary)
        bodies = self._split_binary(request) if BOOLS.get(binary, True) else self._split_lines(request)
        self._put(request, topic, bodies, deferred)
        return "OK"

    def _split_binary(self, request: Request) -> list[bytes]:
        decoder, turns = Decoder({}), Turns(wait=stand_in_line)
        try:
            for start in range(0, len(request.body), _PIECE):
                if start:
                    turns.give()
                decoder.feed(request.body[start : start + _PIECE])
                bodies = decoder.messages(self._options.max_body_size, self._options.max_msg_size)
                if bodies is not None:
                    return bodies
            raise decoder.messages_cut_off()
        except ClientError as error:
            raise HTTPError(413, error.code.removeprefix("E_")) from error

    def _split_lines(self, request: Request) -> list[bytes]:
        bodies: list[bytes] = []
        longest = self._options.max_msg_size
        size = 0
        turns = Turns(wait=stand_in_line)
        for line in BytesIO(request.body):
            if size > _PIECE:
                turns.give()
                size = 0
            size += len(line)
            body = line.removesuffix(b"\n")
            if len(body) == len(line):  # the last one, which may be only a part of itself
                check_complete(request, "BODY_TOO_BIG")
            if len(body) > longest:
                raise HTTPError(413, "MSG_TOO_BIG")
            if body:
                bodies.append(body)
        check_complete(request, "BODY_TOO_BIG")
        return bodies

    def _put(self, request: Request, topic: Topic, bodies: list[bytes], deferred: int) -> None:
        if not request.may_yield and not topic.publishes_at_once(bodies):
            raise WouldYield
        try:
            topic.publish(bodies, deferred)
            topic.commit()
        except Draining as error:
            raise HTTPError(503, "DRAINING") from error
        except OutOfBounds as error:
            raise HTTPError(503, f"FULL: {error}") from error
        except (BrokerError, StorageError) as error:
            raise HTTPError(503, "EXITING") from error

    def get_topic(self, request: Request, parameters: Mapping[str, str]) -> Topic:
        """Returns the topic that the parameters name, new if there is none. Raises HTTPError, TooMany or
        BrokerError, and WouldYield for a new topic if the request may not yield."""
        topic = self._registry.topics.get(parameters.get("topic", ""))
        if topic is not None:
            return topic
        if not request.may_yield:
            raise WouldYield
        name = required(parameters, "topic")
        if not is_valid_name(name):
            raise HTTPError(400, "INVALID_TOPIC")
        check_limit(name, self._registry.topics, self._options.max_topics, "topics")
        return self._registry.get_topic(name)
