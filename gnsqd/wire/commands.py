"""The commands of protocol V2: what each does, and the table of them (NSQD-COMPAT section 2).

A handler checks what the real daemon checks, in its order, and asks for the size and body of its command when it needs
them; if they haven't arrived, the batch so far is answered first. A handler's result is the answer; a refusal is a
ClientError, after which the connection ends unless it specifies otherwise.
"""

from collections.abc import Callable
from time import monotonic

from gevent import sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Draining, Topic
from gnsqd.gotext import dumps, quote
from gnsqd.log import Level, Logger
from gnsqd.net.stream import TLS, DeflateLayer, Layer, SnappyLayer, StreamError
from gnsqd.options import MILLISECOND, TLS_NOT_REQUIRED, Options
from gnsqd.shared.errors import AuthError, BrokerError, StorageError
from gnsqd.shared.names import check_limit, is_valid_name
from gnsqd.shared.protocol import FRAME_TYPE_RESPONSE
from gnsqd.wire.client_v2 import STATE_CLOSING, STATE_INIT, STATE_SUBSCRIBED, AuthState, ClientV2
from gnsqd.wire.codec import MESSAGE_ID_LENGTH, ClientError, CodecError, Command, CutOff, frame
from gnsqd.wire.identify import Identify, IdentifyWithTopology, apply_settings, negotiate, parse_identify

TLS_HANDSHAKE_SECONDS = 5.0
EPHEMERAL_RETRY_SECONDS = 0.1
MAX_IDENTIFY = 32768  # bytes of JSON, which are some ms of work; what clients send takes 300

_DEBUG = Level.DEBUG
_OK = frame(FRAME_TYPE_RESPONSE, b"OK")
_CLOSE_WAIT = frame(FRAME_TYPE_RESPONSE, b"CLOSE_WAIT")
_NO_NUMBER = ValueError("failed to convert to Base10")

# Of the client's IP ("" on a unix socket), whether it uses TLS, the common name of its certificate ("" without one),
# and its secret; AuthError. Yields.
Authenticate = Callable[[str, bool, str, bytes], AuthState]


class Commands:
    """Executes commands against one registry. `new_tls`, which makes a layer for one client, is None without a
    certificate, `authenticate` without auth servers."""

    def __init__(
        self,
        registry: Registry,
        options: Options,
        log: Logger,
        new_tls: Callable[[], TLS] | None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._registry = registry
        self._topics = registry.topics
        self._options = options
        self._log = log
        self._new_tls = new_tls
        self._authenticate = authenticate
        self._handlers = HANDLERS
        self._tls_required = options.tls_required != TLS_NOT_REQUIRED

    def execute(self, client: ClientV2, command: Command) -> None:
        """Execute one command and answer it; ClientError, which the client gets as an answer, if it ends the
        connection."""
        params = command.params
        if self._log.level <= _DEBUG:
            self._log.debug("PROTOCOL(V2): [%s] [%s]", client, b" ".join(params).decode("utf-8", "replace"))
        try:
            handler = self._handlers.get(params[0])
            if self._tls_required and client.tls is None and params[0] != b"IDENTIFY":
                raise ClientError("E_INVALID", b"cannot %b in current state (TLS required)" % params[0])
            if handler is None:
                raise ClientError("E_INVALID", b"invalid command " + params[0])
            answer = handler(self, client, command)
            if answer is not None:
                client.reply(answer)
        except StorageError as error:
            raise refuse_published(client, error) from error
        except ClientError as error:
            if not error.quiet:
                cause = f" - {error.cause}" if error.cause is not None else ""
                self._log.error("[%s] - %s%s", client, error, cause)
            client.reply(error.frame)
            if error.fatal:
                raise

    # Sizes and bodies

    def _more(self, client: ClientV2) -> None:
        """Receive more of the command at hand; CutOff if there is no more."""
        client.send_replies()
        try:
            data = client.connection.receive()
        except (OSError, StreamError) as error:
            raise CutOff(str(error)) from error
        if not data:
            raise CutOff("unexpected EOF" if client.decoder.buffered else "EOF")
        client.decoder.feed(data)

    def _size(self, client: ClientV2, command: Command, code: str, name: str, limit: int) -> int:
        """The size of the body, or of MPUB's bodies, from 1 to `limit`."""
        try:
            while command.size is None:
                command.size = client.decoder.size()
                if command.size is None:
                    self._more(client)
        except CutOff as error:
            raise ClientError(code, f"{name} failed to read {_noun(code)} size", error) from error
        size = command.size
        if size <= 0:
            raise ClientError(code, f"{name} invalid {_noun(code)} size {size}")
        if size > limit:
            raise ClientError(code, f"{name} {_noun(code).removesuffix(' body')} too big {size} > {limit}")
        return size

    def _body(self, client: ClientV2, command: Command, code: str, name: str, limit: int) -> bytes:
        size = self._size(client, command, code, name, limit)
        body = command.body
        try:
            while body is None:
                body = client.decoder.body(size)
                if body is None:
                    self._more(client)
        except CutOff as error:
            raise ClientError(code, f"{name} failed to read {_noun(code)}", error) from error
        return body

    # IDENTIFY and AUTH

    def IDENTIFY(self, client: ClientV2, command: Command) -> bytes | None:
        _require_state(client, "IDENTIFY", STATE_INIT)
        self._size(client, command, "E_BAD_BODY", "IDENTIFY", self._options.max_body_size)
        body = self._body(client, command, "E_BAD_BODY", "IDENTIFY", MAX_IDENTIFY)
        identify = parse_identify(body, IdentifyWithTopology if self._options.has_topology else Identify)
        self._log.debug("PROTOCOL(V2): [%s] %s", client, identify)
        self._log.info("[%s] IDENTIFY: %s", client, identify)
        apply_settings(client, identify, self._options)
        client.identify()
        if not identify.feature_negotiation:
            return _OK
        tls = self._new_tls() if self._new_tls is not None and identify.tls_v1 else None
        answer = frame(FRAME_TYPE_RESPONSE, negotiate(client, identify, tls is not None, self._options))
        if tls is None and not (identify.deflate or identify.snappy):
            return answer
        if client.deflate or client.snappy or (tls is not None and client.tls is not None):
            # The real daemon's stream breaks here; one layer on the other would cost memory without end.
            raise ClientError("E_INVALID", "cannot IDENTIFY in current state")
        client.reply(answer)
        client.send_replies()
        if tls is not None:
            self._upgrade_tls(client, tls)
        if identify.snappy:
            self._log.info("PROTOCOL(V2): [%s] upgrading connection to snappy", client)
            self._upgrade(client, SnappyLayer())
            client.snappy = True
        elif identify.deflate:
            level = identify.deflate_level
            self._log.info("PROTOCOL(V2): [%s] upgrading connection to deflate (level %d)", client, level)
            self._upgrade(client, DeflateLayer(level))
            client.deflate = True
        return None

    def _upgrade_tls(self, client: ClientV2, layer: TLS) -> None:
        self._log.info("PROTOCOL(V2): [%s] upgrading connection to TLS", client)
        client.connection.read_deadline = monotonic() + TLS_HANDSHAKE_SECONDS
        client.connection.write_timeout = TLS_HANDSHAKE_SECONDS
        try:
            client.connection.handshake(layer, client.decoder.take_rest())
        except (OSError, StreamError) as error:
            # Unlike the real daemon, no error frame: it would be plain bytes in a stream the client takes for TLS.
            text = f"E_IDENTIFY_FAILED IDENTIFY failed {error}"
            self._log.error("[%s] - %s - %s", client, text, error)
            raise CutOff(text) from error
        client.set_deadlines()
        client.tls = layer
        client.send_now(_OK)

    def _upgrade(self, client: ClientV2, layer: Layer) -> None:
        client.connection.push(layer, client.decoder.take_rest())
        client.send_now(_OK)

    def AUTH(self, client: ClientV2, command: Command) -> bytes | None:
        _require_state(client, "AUTH", STATE_INIT)
        if len(command.params) != 1:
            raise ClientError("E_INVALID", "AUTH invalid number of parameters")
        secret = self._body(client, command, "E_BAD_BODY", "AUTH", self._options.max_body_size)
        if client.auth_state is not None:
            raise ClientError("E_INVALID", "AUTH already set")
        if self._authenticate is None:
            raise ClientError("E_AUTH_DISABLED", "AUTH disabled")
        client.auth_secret = secret
        try:
            state = self._query_permissions(client)
        except AuthError as error:
            raise ClientError("E_AUTH_FAILED", "AUTH failed", error) from error
        if not state.permission_count:
            raise ClientError("E_UNAUTHORIZED", "AUTH no authorizations found")
        answer = {
            "identity": state.identity,
            "identity_url": state.identity_url,
            "permission_count": state.permission_count,
        }
        return frame(FRAME_TYPE_RESPONSE, dumps(answer).encode())

    def _authorize(self, client: ClientV2, name: str, topic_name: str, channel_name: str = "") -> None:
        """Check that the command `name` is permitted, by permissions that are queried again once they have expired. A
        client never learns the reason for a refusal: only the log has it. ClientError. May yield."""
        if self._authenticate is None:
            return
        state = client.auth_state
        if state is None:
            raise ClientError("E_AUTH_FIRST", f"AUTH required before {name}")
        if state.expired:
            try:
                state = self._query_permissions(client)
            except AuthError as error:
                raise ClientError("E_AUTH_FAILED", "AUTH failed") from error
        if not state.allows(topic_name, channel_name):
            raise ClientError("E_UNAUTHORIZED", f'AUTH failed for {name} on "{topic_name}" "{channel_name}"')

    def _query_permissions(self, client: ClientV2) -> AuthState:
        assert self._authenticate is not None
        client.send_replies()  # of the batch so far; the auth server may take its time
        tls = client.tls
        common_name = "" if tls is None else tls.peer_common_name
        try:
            state = self._authenticate(client.remote_ip, tls is not None, common_name, client.auth_secret)
        except AuthError as error:
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client, error)
            raise
        client.auth_state = state
        client.set_deadlines()  # the time was not the client's
        return state

    # Consuming

    def SUB(self, client: ClientV2, command: Command) -> bytes | None:
        _require_state(client, "SUB", STATE_INIT)
        if not client.heartbeat_interval:
            raise ClientError("E_INVALID", "cannot SUB with heartbeats disabled")
        params = command.params
        if len(params) < 3:
            raise ClientError("E_INVALID", "SUB insufficient number of parameters")
        topic_name = _topic_name(params[1], "SUB")
        channel_name = params[2].decode("latin-1")
        if not is_valid_name(channel_name):
            raise ClientError("E_BAD_CHANNEL", f"SUB channel name {quote(params[2])} is not valid")
        self._authorize(client, "SUB", topic_name, channel_name)
        client.channel = self._subscribe(client, topic_name, channel_name)
        client.state = STATE_SUBSCRIBED
        return _OK

    def _subscribe(self, client: ClientV2, topic_name: str, channel_name: str) -> Channel:
        # The last client of an ephemeral channel may be leaving right now: then the channel is created again, once.
        for last_try in (False, True):
            try:
                check_limit(topic_name, self._topics, self._options.max_topics, "topics")
                topic = self._registry.get_topic(topic_name)
                if not (topic.exiting and topic.ephemeral):
                    check_limit(channel_name, topic.channels, self._options.max_channels, "channels")
                    channel = topic.get_channel(channel_name)
                    if not (channel.exiting and channel.ephemeral):
                        channel.add_client(client)
                        return channel
            except (BrokerError, StorageError) as error:
                raise ClientError("E_SUB_FAILED", f"SUB failed {error}", error) from error
            if not last_try:
                sleep(EPHEMERAL_RETRY_SECONDS)
        raise ClientError("E_SUB_FAILED", "SUB failed to deleted topic/channel")

    def RDY(self, client: ClientV2, command: Command) -> bytes | None:
        if client.state == STATE_CLOSING:
            self._log.info("PROTOCOL(V2): [%s] ignoring RDY after CLS in state ClientStateV2Closing", client)
            return None
        _require_state(client, "RDY", STATE_SUBSCRIBED)
        params = command.params
        count = 1
        if len(params) > 1:
            count = _number(params[1], "RDY could not parse count ")
        if count > self._options.max_rdy_count:
            raise ClientError("E_INVALID", f"RDY count {count} out of range 0-{self._options.max_rdy_count}")
        client.set_ready_count(count)
        return None

    def FIN(self, client: ClientV2, command: Command) -> bytes | None:
        channel = _subscribed_channel(client, "FIN")
        id = _message_id(command, "FIN", 2)
        try:
            channel.finish(client.id, id)
        except BrokerError as error:
            raise _refused("E_FIN_FAILED", "FIN", id, error) from error
        client.finished_messages(1)
        return None

    def REQ(self, client: ClientV2, command: Command) -> bytes | None:
        channel = _subscribed_channel(client, "REQ")
        id = _message_id(command, "REQ", 3)
        delay = _number(command.params[2], "REQ could not parse timeout ") * MILLISECOND
        longest = self._options.max_req_timeout
        if delay > longest:
            self._log.info(
                "PROTOCOL(V2): [%s] REQ timeout %d out of range 0-%d. Setting to %d", client, delay, longest, longest
            )
            delay = longest
        try:
            channel.requeue(client.id, id, delay)
        except BrokerError as error:
            raise _refused("E_REQ_FAILED", "REQ", id, error) from error
        client.requeued_message()
        return None

    def TOUCH(self, client: ClientV2, command: Command) -> bytes | None:
        channel = _subscribed_channel(client, "TOUCH")
        id = _message_id(command, "TOUCH", 2)
        try:
            channel.touch(client.id, id, client.msg_timeout)
        except BrokerError as error:
            raise _refused("E_TOUCH_FAILED", "TOUCH", id, error) from error
        return None

    def CLS(self, client: ClientV2, command: Command) -> bytes | None:
        _require_state(client, "CLS", STATE_SUBSCRIBED)
        client.start_close()
        return _CLOSE_WAIT

    def NOP(self, client: ClientV2, command: Command) -> bytes | None:
        return None

    # Publishing

    def PUB(self, client: ClientV2, command: Command) -> bytes | None:
        topic_name = _publish_topic(client, command, "PUB", 2)
        body = self._body(client, command, "E_BAD_MESSAGE", "PUB", self._options.max_msg_size)
        self._authorize(client, "PUB", topic_name)
        return self._publish(client, topic_name, [body], 0, "PUB")

    def DPUB(self, client: ClientV2, command: Command) -> bytes | None:
        topic_name = _publish_topic(client, command, "DPUB", 3)
        delay = _number(command.params[2], "DPUB could not parse timeout ")
        longest = self._options.longest_defer // MILLISECOND
        if delay > longest:
            raise ClientError("E_INVALID", f"DPUB timeout {delay} out of range 0-{longest}")
        body = self._body(client, command, "E_BAD_MESSAGE", "DPUB", self._options.max_msg_size)
        self._authorize(client, "DPUB", topic_name)
        return self._publish(client, topic_name, [body], delay * MILLISECOND, "DPUB")

    def MPUB(self, client: ClientV2, command: Command) -> bytes | None:
        topic_name = _publish_topic(client, command, "MPUB", 2)
        self._authorize(client, "MPUB", topic_name)
        self._get_topic(client, topic_name, "MPUB")
        self._size(client, command, "E_BAD_BODY", "MPUB", self._options.max_body_size)
        bodies = self._bodies(client)
        return self._publish(client, topic_name, bodies, 0, "MPUB")

    def _bodies(self, client: ClientV2) -> list[bytes]:
        options = self._options
        decoder = client.decoder
        try:
            while True:
                bodies = decoder.messages(options.max_body_size, options.max_msg_size)
                if bodies is not None:
                    return bodies
                self._more(client)
        except CodecError as error:
            raise ClientError(error.code, f"MPUB {error.reason}") from error
        except CutOff as error:
            cut_off = decoder.messages_cut_off()
            raise ClientError(cut_off.code, f"MPUB {cut_off.reason}", error) from error

    def _publish(self, client: ClientV2, topic_name: str, bodies: list[bytes], deferred: int, name: str) -> bytes:
        topic = self._get_topic(client, topic_name, name)
        try:
            topic.publish(bodies, deferred)
        except Draining as error:
            # Not fatal as other failures are: a publisher may also consume on the same connection.
            raise ClientError(f"E_{name}_FAILED", f"{name} failed {error}", error, fatal=False, quiet=True) from error
        except (BrokerError, StorageError) as error:
            raise ClientError(f"E_{name}_FAILED", f"{name} failed {error}", error) from error
        client.published(topic, len(bodies))
        return _OK

    def _get_topic(self, client: ClientV2, topic_name: str, name: str) -> Topic:
        topic = self._topics.get(topic_name)
        if topic is not None:
            return topic
        try:
            check_limit(topic_name, self._topics, self._options.max_topics, "topics")
            return self._registry.get_topic(topic_name)
        except (BrokerError, StorageError) as error:
            raise ClientError(f"E_{name}_FAILED", f"{name} failed {error}", error) from error


HANDLERS: dict[bytes, Callable[[Commands, ClientV2, Command], bytes | None]] = {
    # getattr gives the Python method; `Commands.FIN` would be the C function of a cpdef, with another signature.
    name.encode(): getattr(Commands, name)
    for name in ("FIN", "RDY", "REQ", "PUB", "MPUB", "DPUB", "NOP", "TOUCH", "SUB", "CLS", "IDENTIFY", "AUTH")
}


def refuse_published(client: ClientV2, error: StorageError) -> ClientError:
    """Answer that what earlier commands published can't be kept."""
    refusal = ClientError("E_PUB_FAILED", f"PUB failed {error}", error)
    client.reply(refusal.frame)
    return refusal


def _noun(code: str) -> str:
    return "message body" if code == "E_BAD_MESSAGE" else "body"


def _require_state(client: ClientV2, name: str, state: int) -> None:
    if client.state != state:
        raise ClientError("E_INVALID", f"cannot {name} in current state")


def _subscribed_channel(client: ClientV2, name: str) -> Channel:
    if client.channel is None:
        raise ClientError("E_INVALID", f"cannot {name} in current state")
    return client.channel


def _topic_name(raw: bytes, name: str) -> str:
    topic_name = raw.decode("latin-1")
    if not is_valid_name(topic_name):
        # The real daemon puts the code into MPUB's text a second time.
        twice = "E_BAD_TOPIC " if name == "MPUB" else ""
        raise ClientError("E_BAD_TOPIC", f"{twice}{name} topic name {quote(raw)} is not valid")
    return topic_name


def _publish_topic(client: ClientV2, command: Command, name: str, words: int) -> str:
    if len(command.params) < words:
        raise ClientError("E_INVALID", f"{name} insufficient number of parameters")
    raw = command.params[1]
    if raw == client.last_topic_word:  # which is valid
        return client.last_topic_name
    return _topic_name(raw, name)


def _message_id(command: Command, name: str, words: int) -> bytes:
    if len(command.params) < words:
        raise ClientError("E_INVALID", f"{name} insufficient number of params")
    id = command.params[1]
    if len(id) != MESSAGE_ID_LENGTH:
        raise ClientError("E_INVALID", "invalid message ID")
    return id


def _number(raw: bytes, error_text: str) -> int:
    """Decimal digits; none at all are 0."""
    digits = raw.lstrip(b"0")
    if not digits:
        return 0
    if not digits.isdigit():
        raise ClientError("E_INVALID", error_text.encode() + raw, _NO_NUMBER)
    if len(digits) > 20:
        raise ClientError("E_INVALID", error_text.encode() + raw)
    return int(digits)


def _refused(code: str, name: str, id: bytes, error: BrokerError) -> ClientError:
    return ClientError(code, b"%b %b failed %b" % (name.encode(), id, error.reason.encode()), error, fatal=False)
