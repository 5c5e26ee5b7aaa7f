"""The commands of protocol V2: what each does, and the table of them (NSQD-COMPAT section 2).

A check or a handler checks what the real daemon checks, in its order. A handler's result is the answer; a refusal is a
ClientError, after which the connection ends unless it specifies otherwise. Neither of them yields, except for a command
that `may_yield`: for any other they raise WouldYield first, before they have changed anything.
"""

from collections.abc import Callable
from functools import partial

from gevent import sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Draining, Topic
from gnsqd.gotext import dumps, quote
from gnsqd.hub.cooperative import WouldYield
from gnsqd.log import Level, Logger
from gnsqd.net.stream import TLS, DeflateLayer, Layer, SnappyLayer
from gnsqd.options import MILLISECOND, TLS_NOT_REQUIRED, Options
from gnsqd.shared.errors import AuthError, BrokerError, StorageError
from gnsqd.shared.names import check_limit, is_valid_name
from gnsqd.shared.protocol import FRAME_TYPE_RESPONSE
from gnsqd.wire.client_v2 import STATE_CLOSING, STATE_INIT, STATE_SUBSCRIBED, ClientV2, Permissions, PubCount
from gnsqd.wire.codec import MESSAGE_ID_LENGTH, UNKNOWN, ClientError, Command, CommandSpec, frame
from gnsqd.wire.identify import apply_settings, negotiate, parse_identify

DELETION_RETRY_SECONDS = 0.1
MAX_IDENTIFY = 32768  # bytes of JSON, which are some ms of work; what clients send takes 300

_OK = frame(FRAME_TYPE_RESPONSE, b"OK")
_CLOSE_WAIT = frame(FRAME_TYPE_RESPONSE, b"CLOSE_WAIT")
_NO_NUMBER = ValueError("failed to convert to Base10")

# Is called with the client's IP ("" on a unix socket), whether it uses TLS, the common name of its certificate (""
# without one), and its secret; raises AuthError. Yields.
Authenticate = Callable[[str, bool, str, bytes], Permissions]


class Commands:
    """Executes commands against one registry. `new_tls`, which makes a layer for one client, is None without a
    certificate, `authenticate` without auth servers. `table` has the rows of the commands, `first_table` those of a
    client that has to use TLS and does not yet."""

    def __init__(
        self,
        registry: Registry,
        options: Options,
        log: Logger,
        new_tls: Callable[[], TLS] | None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self.table = self.first_table = command_table(options)
        if options.tls_required != TLS_NOT_REQUIRED:
            refused = CommandSpec("", Commands.refuse_before_tls)
            self.first_table = {b"IDENTIFY": self.table[b"IDENTIFY"], UNKNOWN: refused}
        self._registry = registry
        self._topics = registry.topics
        self._options = options
        self._log = log
        self._new_tls = new_tls
        self._authenticate = authenticate
        self._set_level(log.level)
        log.follow(self._set_level)

    def _set_level(self, level: Level) -> None:
        self.debugging = level <= Level.DEBUG  # sessions look at it for each command

    def check(self, client: ClientV2, command: Command) -> None:
        """Refuses what is wrong before the body is there."""
        spec = command.spec
        if spec.check is not None:
            spec.check(self, client, command)
        elif spec.publishes:  # compiled, this calls from C to C
            self.check_publish(client, command)

    def check_identify(self, client: ClientV2, command: Command) -> None:
        _require_state(client, "IDENTIFY", STATE_INIT)

    def IDENTIFY(self, client: ClientV2, command: Command) -> bytes:
        identify = parse_identify(command.bodies[0], self._options.has_topology)
        self._log.debug("PROTOCOL(V2): [%s] %s", client, identify.text)
        self._log.info("[%s] IDENTIFY: %s", client, identify.text)
        apply_settings(client, identify, self._options)
        client.identify()
        if not identify.feature_negotiation:
            return _OK
        tls = self._new_tls() if self._new_tls is not None and identify.tls_v1 else None
        negotiated, snappy, level = negotiate(client, identify, tls is not None, self._options)
        answer = frame(FRAME_TYPE_RESPONSE, negotiated)
        if tls is None and not (level or snappy):
            return answer
        if client.deflate or client.snappy or (tls is not None and client.tls is not None):
            # The real daemon's stream breaks here; one layer on the other would cost memory without end.
            raise ClientError("E_INVALID", "cannot IDENTIFY in current state")
        layer: Layer | None = None
        label = ""
        if snappy:
            layer, label = SnappyLayer(), "snappy"
        elif level:
            layer, label = DeflateLayer(level), f"deflate (level {level})"
        client.snappy, client.deflate = snappy, level > 0
        command.upgrade = tls, layer, label
        return answer

    def check_auth(self, client: ClientV2, command: Command) -> None:
        _require_state(client, "AUTH", STATE_INIT)
        if len(command.params) != 1:
            raise ClientError("E_INVALID", "AUTH invalid number of parameters")

    def AUTH(self, client: ClientV2, command: Command) -> bytes:
        if client.auth_state is not None:
            raise ClientError("E_INVALID", "AUTH already set")
        if self._authenticate is None:
            raise ClientError("E_AUTH_DISABLED", "AUTH disabled")
        client.auth_secret = command.bodies[0]
        try:
            state = self._query_permissions(client, command)
        except AuthError as error:
            raise ClientError("E_AUTH_FAILED", "AUTH failed", error) from error
        if not state.permission_count:
            raise ClientError("E_UNAUTHORIZED", "AUTH no authorizations found")
        answer = {name: getattr(state, name) for name in ("identity", "identity_url", "permission_count")}
        return frame(FRAME_TYPE_RESPONSE, dumps(answer).encode())

    def _authorize(self, client: ClientV2, command: Command, topic_name: str, channel_name: str = "") -> None:
        """Checks that `command` is permitted, by permissions that are queried again once they have expired. A client
        never learns the reason for a refusal: only the log has it. Raises ClientError, WouldYield."""
        if self._authenticate is None:
            return
        name = command.params[0].decode()
        state = client.auth_state
        if state is None:
            raise ClientError("E_AUTH_FIRST", f"AUTH required before {name}")
        if state.expired:
            try:
                state = self._query_permissions(client, command)
            except AuthError as error:
                raise ClientError("E_AUTH_FAILED", "AUTH failed") from error
        if not command.may_yield and not state.knows(topic_name, channel_name):
            raise WouldYield
        if not state.allows(topic_name, channel_name):
            raise ClientError("E_UNAUTHORIZED", f'AUTH failed for {name} on "{topic_name}" "{channel_name}"')

    def _query_permissions(self, client: ClientV2, command: Command) -> Permissions:
        assert self._authenticate is not None
        if not command.may_yield:
            raise WouldYield
        tls = client.tls
        common_name = "" if tls is None else tls.peer_common_name
        try:
            state = self._authenticate(client.remote_ip, tls is not None, common_name, client.auth_secret)
        except AuthError as error:
            if client.exiting:  # this refusal is not an auth server's
                client.connection.shutdown()
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client, error)
            raise
        client.auth_state = state
        client.set_deadlines()  # the time was not the client's
        return state

    def SUB(self, client: ClientV2, command: Command) -> bytes:
        _require_state(client, "SUB", STATE_INIT)
        if not client.heartbeat_interval:
            raise ClientError("E_INVALID", "cannot SUB with heartbeats disabled")
        params = command.params
        if len(params) < 3:
            raise ClientError("E_INVALID", "SUB insufficient number of parameters")
        topic_name, channel_name = params[1].decode("latin-1"), params[2].decode("latin-1")
        exists = self._has_channel(topic_name, channel_name)  # then the names are valid
        if not exists:
            _topic_name(params[1], "SUB")
            if not is_valid_name(channel_name):
                raise ClientError("E_BAD_CHANNEL", f"SUB channel name {quote(params[2])} is not valid")
        self._authorize(client, command, topic_name, channel_name)
        if not (exists or command.may_yield):
            raise WouldYield
        client.channel = self._subscribe(client, topic_name, channel_name)
        client.state = STATE_SUBSCRIBED
        return _OK

    def _has_channel(self, topic_name: str, channel_name: str) -> bool:
        """Returns True if `_subscribe` creates nothing, so it does not yield."""
        topic = self._topics.get(topic_name)
        channel = None if topic is None or topic.exiting else topic.channels.get(channel_name)
        return channel is not None and not channel.exiting

    def _subscribe(self, client: ClientV2, topic_name: str, channel_name: str) -> Channel:
        # The topic or the channel may be ending right now: then it is created again, once.
        for last_try in (False, True):
            try:
                check_limit(topic_name, self._topics, self._options.max_topics, "topics")
                topic = self._registry.get_topic(topic_name)
                if last_try or not topic.exiting:
                    check_limit(channel_name, topic.channels, self._options.max_channels, "channels")
                    channel = topic.get_channel(channel_name)
                    if last_try or not channel.exiting:
                        channel.add_client(client)
                        break
            except (BrokerError, StorageError) as error:
                raise ClientError("E_SUB_FAILED", f"SUB failed {error}", error) from error
            sleep(DELETION_RETRY_SECONDS)
        return channel

    def RDY(self, client: ClientV2, command: Command) -> None:
        if client.state == STATE_CLOSING:
            self._log.info("PROTOCOL(V2): [%s] ignoring RDY after CLS in state ClientStateV2Closing", client)
            return
        _require_state(client, "RDY", STATE_SUBSCRIBED)
        count = _number(command.params[1], "RDY could not parse count ") if len(command.params) > 1 else 1
        if count > self._options.max_rdy_count:
            raise ClientError("E_INVALID", f"RDY count {count} out of range 0-{self._options.max_rdy_count}")
        client.set_ready_count(count)

    def FIN(self, client: ClientV2, command: Command) -> None:
        channel, id = _addressed(client, command, 2)
        try:
            channel.finish(client.id, id)
        except BrokerError as error:
            raise _refused("E_FIN_FAILED", command, error) from error
        client.finish_count += 1
        client.left_flight(1)

    def REQ(self, client: ClientV2, command: Command) -> None:
        channel, id = _addressed(client, command, 3)
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
            raise _refused("E_REQ_FAILED", command, error) from error
        client.requeue_count += 1
        client.left_flight(1)

    def TOUCH(self, client: ClientV2, command: Command) -> None:
        channel, id = _addressed(client, command, 2)
        try:
            channel.touch(client.id, id, client.msg_timeout)
        except BrokerError as error:
            raise _refused("E_TOUCH_FAILED", command, error) from error

    def CLS(self, client: ClientV2, command: Command) -> bytes:
        _require_state(client, "CLS", STATE_SUBSCRIBED)
        client.set_ready_count(0)
        client.state = STATE_CLOSING
        return _CLOSE_WAIT

    def refuse_unknown(self, client: ClientV2, command: Command) -> None:
        raise ClientError("E_INVALID", b"invalid command " + command.params[0])

    def refuse_before_tls(self, client: ClientV2, command: Command) -> None:
        raise ClientError("E_INVALID", b"cannot %b in current state (TLS required)" % command.params[0])

    def NOP(self, client: ClientV2, command: Command) -> None:
        """Does nothing: that a command came shows that the client is alive."""

    def check_publish(self, client: ClientV2, command: Command) -> None:
        if not command.topic_name:
            params = command.params
            if len(params) < 2:
                raise ClientError("E_INVALID", b"%b insufficient number of parameters" % params[0])
            command.deferred = 0
            topic_name = params[1].decode("latin-1")
            if topic_name not in self._topics:
                _topic_name(params[1], params[0].decode())
            command.topic_name = topic_name

    def check_dpub(self, client: ClientV2, command: Command) -> None:
        params = command.params
        if len(params) < 3:
            raise ClientError("E_INVALID", "DPUB insufficient number of parameters")
        self.check_publish(client, command)
        delay = _number(params[2], "DPUB could not parse timeout ")
        longest = self._options.longest_defer // MILLISECOND
        if delay > longest:
            raise ClientError("E_INVALID", f"DPUB timeout {delay} out of range 0-{longest}")
        command.deferred = delay * MILLISECOND

    def check_mpub(self, client: ClientV2, command: Command) -> None:
        self.check_publish(client, command)
        self._authorize(client, command, command.topic_name)
        if command.topic_name not in self._topics:
            self._new_topic(command)

    def publish(self, client: ClientV2, command: Command) -> bytes:
        """Executes PUB, DPUB, and MPUB, whose permission was checked before the bodies."""
        if self._authenticate is not None and not command.spec.has_messages:
            self._authorize(client, command, command.topic_name)
        topic = self._topics.get(command.topic_name)
        if topic is None:
            topic = self._new_topic(command)
        bodies = command.bodies
        try:
            topic.publish(bodies, command.deferred, command.may_yield)
        except (BrokerError, StorageError) as error:
            raise _publish_failed(command, error) from error
        counter = command.counter
        if counter is None:
            counter = command.counter = client.counters.setdefault(topic.name, PubCount())
        counter.count += len(bodies)
        command.topic = topic
        return _OK

    def _new_topic(self, command: Command) -> Topic:
        if not command.may_yield:
            raise WouldYield
        try:
            check_limit(command.topic_name, self._topics, self._options.max_topics, "topics")
            return self._registry.get_topic(command.topic_name)
        except (BrokerError, StorageError) as error:
            raise _publish_failed(command, error) from error


def command_table(options: Options) -> dict[bytes, CommandSpec]:
    """Returns the row of every command of the protocol."""
    # getattr gives the Python method; `Commands.FIN` would be the C function of a cpdef, with another signature.
    of = partial(getattr, Commands)
    message, body = (options.max_msg_size,), (options.max_body_size,)
    rows = (
        CommandSpec("IDENTIFY", of("IDENTIFY"), "E_BAD_BODY", (*body, MAX_IDENTIFY), check=of("check_identify")),
        CommandSpec("AUTH", of("AUTH"), "E_BAD_BODY", body, check=of("check_auth")),
        CommandSpec("SUB", of("SUB"), after_commit=True),
        CommandSpec("PUB", None, "E_BAD_MESSAGE", message),
        CommandSpec("MPUB", None, "E_BAD_BODY", body, options.max_msg_size, check=of("check_mpub")),
        CommandSpec("DPUB", None, "E_BAD_MESSAGE", message, check=of("check_dpub")),
        CommandSpec("RDY", of("RDY")),
        CommandSpec("FIN", of("FIN"), after_commit=True),
        *(CommandSpec(name, of(name)) for name in ("REQ", "TOUCH", "NOP", "CLS")),
    )
    return {row.name.encode(): row for row in rows} | {UNKNOWN: CommandSpec("", of("refuse_unknown"))}


def _publish_failed(command: Command, error: Exception) -> ClientError:
    name = command.params[0].decode()
    draining = isinstance(error, Draining)  # not fatal: a publisher may also consume on the same connection
    return ClientError(f"E_{name}_FAILED", f"{name} failed {error}", error, fatal=not draining, quiet=draining)


def _require_state(client: ClientV2, name: str, state: int) -> None:
    if client.state != state:
        raise ClientError("E_INVALID", f"cannot {name} in current state")


def _topic_name(raw: bytes, name: str) -> str:
    topic_name = raw.decode("latin-1")
    if not is_valid_name(topic_name):
        # The real daemon puts the code into MPUB's text a second time.
        twice = "E_BAD_TOPIC " if name == "MPUB" else ""
        raise ClientError("E_BAD_TOPIC", f"{twice}{name} topic name {quote(raw)} is not valid")
    return topic_name


def _addressed(client: ClientV2, command: Command, words: int) -> tuple[Channel, bytes]:
    """Returns the channel and the id of the message that a command of at least that many words is about."""
    if client.channel is None:
        raise ClientError("E_INVALID", f"cannot {command.spec.name} in current state")
    if len(command.params) < words:
        raise ClientError("E_INVALID", f"{command.spec.name} insufficient number of params")
    id = command.params[1]
    if len(id) != MESSAGE_ID_LENGTH:
        raise ClientError("E_INVALID", "invalid message ID")
    return client.channel, id


def _number(raw: bytes, error_text: str) -> int:
    """Returns the value of decimal digits, 0 if there are none; raises ClientError, whose text ends with `raw`."""
    digits = raw.lstrip(b"0") or b"0"
    if not digits.isdigit():
        raise ClientError("E_INVALID", error_text.encode() + raw, _NO_NUMBER)
    if len(digits) > 20:
        raise ClientError("E_INVALID", error_text.encode() + raw)
    return int(digits)


def _refused(code: str, command: Command, error: BrokerError) -> ClientError:
    text = b"%b %b failed %b" % (*command.params[:2], str(error).encode())
    return ClientError(code, text, error, fatal=False)
