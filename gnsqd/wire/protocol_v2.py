"""Protocol V2: what each command does, and the two greenlets of a client (NSQD-COMPAT section 2).

IOLoop receives, executes every command that is complete, then sends all their answers at once; messagePump takes
messages from the client's channel, and sends heartbeats. A handler checks what the real daemon checks, in its order,
and asks for the size and body of its command when it needs them; if they haven't arrived, the batch so far is answered
first. A handler's result is the answer; a refusal is a ClientError, after which the connection ends unless it says
otherwise.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic

from gevent import sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import Spawn
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import RETRY_SECONDS, Draining, Topic
from gnsqd.errors import BrokerError, StorageError
from gnsqd.gotext import quote
from gnsqd.hub.cooperative import give_way
from gnsqd.log import Level, Logger
from gnsqd.names import is_valid_name
from gnsqd.net.stream import TLS, DeflateLayer, Layer, SnappyLayer, StreamError
from gnsqd.options import MILLISECOND, TLS_NOT_REQUIRED, Options
from gnsqd.queues.message import Message
from gnsqd.wire.auth import Authenticate, Gate
from gnsqd.wire.client_v2 import STATE_CLOSING, STATE_INIT, STATE_SUBSCRIBED, ClientV2
from gnsqd.wire.codec import FRAME_TYPE_ERROR, FRAME_TYPE_RESPONSE, CodecError, Command, LineTooLong, frame
from gnsqd.wire.errors import ClientError, Disconnected
from gnsqd.wire.identify import apply_settings, negotiate, negotiated, parse_identify
from gnsqd.wire.limits import Room

MESSAGE_ID_LENGTH = 16
TLS_HANDSHAKE_SECONDS = 5.0
EPHEMERAL_RETRY_SECONDS = 0.1
MAX_IDENTIFY = 32768  # bytes of JSON, which are some ms of work; what clients send takes 300
TURN_SECONDS = 0.004  # for the commands of one client that are there at once

_DEBUG = Level.DEBUG
_OK = frame(FRAME_TYPE_RESPONSE, b"OK")
_CLOSE_WAIT = frame(FRAME_TYPE_RESPONSE, b"CLOSE_WAIT")
_NO_NUMBER = ValueError("failed to convert to Base10")
_HEARTBEAT = frame(FRAME_TYPE_RESPONSE, b"_heartbeat_")


class ProtocolV2:
    """Serves clients against one registry. `spawn(name, body)` starts a greenlet for a client. `new_tls`, which makes a
    layer for one client, is None without a certificate, `authenticate` without auth servers."""

    def __init__(
        self,
        registry: Registry,
        options: Options,
        log: Logger,
        spawn: Spawn,
        new_tls: Callable[[], TLS] | None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._registry = registry
        self._topics = registry.topics
        self._options = options
        self._log = log
        self._spawn = spawn
        self._room = Room(registry, options)
        self._new_tls = new_tls
        self._gate = None if authenticate is None else Gate(authenticate, log)
        self._tls_required = options.tls_required != TLS_NOT_REQUIRED

    # IOLoop

    def IOLoop(self, client: ClientV2) -> None:
        """Serve `client` until its connection ends. Raises only what is a defect."""
        pump = self._spawn(f"messagePump:{client}", partial(self.messagePump, client))
        failure = ""
        try:
            self._serve(client)
        except (OSError, StreamError, LineTooLong) as error:  # TimeoutError is an OSError
            failure = f"failed to read command - {error}"
        except (ClientError, Disconnected) as error:
            failure = str(error)
        finally:
            self._log.info("PROTOCOL(V2): [%s] exiting ioloop", client)
            if failure:
                self._log.error("client(%s) - %s", client, failure)
            client.exiting = True
            client.doorbell.ring()
            if client.channel is not None:
                client.channel.remove_client(client)
            client.connection.shutdown()
            pump.join()

    def _serve(self, client: ClientV2) -> None:
        decoder = client.decoder
        while not client.exiting:
            channel = client.channel if self._log.level > _DEBUG else None
            done = executed = 0
            turn_end = 0.0
            try:
                while True:
                    if channel is not None:
                        done += self._finish_run(client, channel)
                    command = decoder.next_command()
                    if command is None:
                        break
                    done += 1
                    self._execute(client, command)
                    executed += 1
                    if not executed & 63:  # now and then
                        turn_end = self._share_turn(client, turn_end)
            finally:
                self._send_replies(client)
            if done:
                client.set_deadlines()
            data = client.connection.receive()
            if not data:
                return
            decoder.feed(data)

    def _share_turn(self, client: ClientV2, end: float) -> float:
        """Let everybody else have a turn if this client's has ended; when it will end, which is 0 before the first
        look."""
        now = monotonic()
        if 0 < end < now:
            self._send_replies(client)
            give_way()
            now = monotonic()
        elif end:
            return end
        return now + TURN_SECONDS

    def _send_replies(self, client: ClientV2) -> None:
        """ClientError, of which the client has been told, if what it published can't be kept."""
        try:
            client.send_replies()
        except StorageError as error:
            refusal = ClientError("E_PUB_FAILED", f"PUB failed {error}", error)
            client.reply(frame(FRAME_TYPE_ERROR, refusal.data))
            client.send_replies()
            raise refusal from error

    def _finish_run(self, client: ClientV2, channel: Channel) -> int:
        """Execute the FINs that come next, up to one that is refused; how many that were."""
        ids = client.decoder.finished_ids()
        if not ids:
            return 0
        count = channel.finish_run(client.id, ids)
        client.finished_messages(count)
        client.decoder.take_back(len(ids) - count)
        return count

    def _execute(self, client: ClientV2, command: Command) -> None:
        """Execute one command; ClientError if it ends the connection, and the client has been told."""
        params = command.params
        if self._log.level <= _DEBUG:
            self._log.debug("PROTOCOL(V2): [%s] [%s]", client, b" ".join(params).decode("utf-8", "replace"))
        try:
            handler = HANDLERS.get(params[0])
            if self._tls_required and client.tls is None and params[0] != b"IDENTIFY":
                raise ClientError("E_INVALID", b"cannot %b in current state (TLS required)" % params[0])
            if handler is None:
                raise ClientError("E_INVALID", b"invalid command " + params[0])
            answer = handler(self, client, command)
            if answer is not None:
                client.reply(answer)
        except StorageError as error:  # of what earlier commands published
            refusal = ClientError("E_PUB_FAILED", f"PUB failed {error}", error)
            client.reply(frame(FRAME_TYPE_ERROR, refusal.data))
            raise refusal from error
        except ClientError as error:
            if not error.quiet:
                cause = f" - {error.cause}" if error.cause is not None else ""
                self._log.error("[%s] - %s%s", client, error, cause)
            client.reply(frame(FRAME_TYPE_ERROR, error.data))
            if error.fatal:
                raise

    # messagePump

    def messagePump(self, client: ClientV2) -> None:
        """Send messages and heartbeats to `client` until it exits; a client that can't be sent to is closed."""
        try:
            while not client.exiting:
                self._pump(client)
        except (OSError, StreamError) as error:
            if not client.exiting:
                self._log.error("PROTOCOL(V2): [%s] messagePump error - %s", client, error)
            client.close()
        except BaseException:
            client.close()
            raise
        finally:
            self._log.info("PROTOCOL(V2): [%s] exiting messagePump", client)

    def _pump(self, client: ClientV2) -> None:
        channel = client.delivers_from
        if client.heartbeat_due:
            client.heartbeat_due = False
            if channel is not None:
                channel.stop_waiting(client)  # as in `ClientV2.wait_or_flush`
            client.send_now(_HEARTBEAT)
            if client.exiting:
                return
            channel = client.delivers_from
        window = client.window()
        debugging = self._log.level <= _DEBUG
        if debugging and channel is not None:
            self._log.debug("[%s] state rdy: %4d inflt: %4d", client, client.ready_count, client.in_flight_count)
        if channel is None or window <= 0:
            if channel is not None:
                channel.stop_waiting(client)
            client.flush()
            client.doorbell.wait()
            return
        messages = channel.take(client, window, client.delivery_msg_timeout, client.delivery_sample_rate)
        if messages:
            if debugging:
                self._log_messages(client, messages)
            client.send_messages(messages)
            if client.window() > 0:
                give_way()
        elif channel.depth:
            # The disk can't be read just now; or it gave messages that are not due yet, then the bell has rung again.
            give_way()
            client.wait_or_flush(RETRY_SECONDS)
        else:
            client.wait_or_flush()

    def _log_messages(self, client: ClientV2, messages: list[Message]) -> None:
        for message in messages:
            body = message.body.decode("utf-8", "backslashreplace")
            self._log.debug("PROTOCOL(V2): writing msg(%s) to client(%s) - %s", message.id.decode(), client, body)

    # Sizes and bodies

    def _more(self, client: ClientV2) -> None:
        """Receive more of the command at hand; Disconnected if there is no more."""
        client.send_replies()
        try:
            data = client.connection.receive()
        except (OSError, StreamError) as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("unexpected EOF" if client.decoder.buffered else "EOF")
        client.decoder.feed(data)

    def _size(self, client: ClientV2, command: Command, code: str, what: str) -> int:
        try:
            while command.size is None:
                command.size = client.decoder.size()
                if command.size is None:
                    self._more(client)
        except Disconnected as error:
            raise ClientError(code, f"{what} failed to read {_noun(code)} size", error) from error
        return command.size

    def _body(self, client: ClientV2, command: Command, size: int, code: str, what: str) -> bytes:
        body = command.body
        try:
            while body is None:
                body = client.decoder.body(size)
                if body is None:
                    self._more(client)
        except Disconnected as error:
            raise ClientError(code, f"{what} failed to read {_noun(code)}", error) from error
        return body

    def _command_body(self, client: ClientV2, command: Command, name: str) -> bytes:
        """The body of IDENTIFY and AUTH."""
        size = self._size(client, command, "E_BAD_BODY", name)
        limit = self._options.max_body_size
        if name == "IDENTIFY" and size <= limit:
            limit = min(limit, MAX_IDENTIFY)
        if size > limit:
            raise ClientError("E_BAD_BODY", f"{name} body too big {size} > {limit}")
        if size <= 0:
            raise ClientError("E_BAD_BODY", f"{name} invalid body size {size}")
        return self._body(client, command, size, "E_BAD_BODY", name)

    def _message_body(self, client: ClientV2, command: Command, name: str) -> bytes:
        """The body of PUB and DPUB."""
        size = self._size(client, command, "E_BAD_MESSAGE", name)
        if size <= 0:
            raise ClientError("E_BAD_MESSAGE", f"{name} invalid message body size {size}")
        limit = self._options.max_msg_size
        if size > limit:
            raise ClientError("E_BAD_MESSAGE", f"{name} message too big {size} > {limit}")
        return self._body(client, command, size, "E_BAD_MESSAGE", name)

    # IDENTIFY and AUTH

    def IDENTIFY(self, client: ClientV2, command: Command) -> bytes | None:
        _require_state(client, "IDENTIFY", STATE_INIT)
        body = self._command_body(client, command, "IDENTIFY")
        identify = parse_identify(body)
        self._log.debug("PROTOCOL(V2): [%s] %s", client, identify)
        self._log.info("[%s] IDENTIFY: %s", client, identify)
        apply_settings(client, identify, self._options)
        client.identify()
        if not identify.feature_negotiation:
            return _OK
        tls = self._new_tls() if self._new_tls is not None and identify.tls_v1 else None
        upgrades = negotiate(identify, self._options)
        answer = frame(FRAME_TYPE_RESPONSE, negotiated(client, upgrades, tls is not None, self._options))
        compressed = upgrades.deflate or upgrades.snappy
        if tls is None and not compressed:
            return answer
        if client.deflate or client.snappy or (tls is not None and client.tls is not None):
            # The real daemon's stream breaks here; one layer on the other would cost memory without end.
            raise ClientError("E_INVALID", "cannot IDENTIFY in current state")
        client.reply(answer)
        client.send_replies()
        if tls is not None:
            self._upgrade_tls(client, tls)
        if upgrades.snappy:
            self._log.info("PROTOCOL(V2): [%s] upgrading connection to snappy", client)
            self._upgrade(client, SnappyLayer())
            client.snappy = True
        elif upgrades.deflate:
            level = upgrades.deflate_level
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
            raise Disconnected(text) from error
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
        secret = self._command_body(client, command, "AUTH")
        if client.auth_state is not None:
            raise ClientError("E_INVALID", "AUTH already set")
        if self._gate is None:
            raise ClientError("E_AUTH_DISABLED", "AUTH disabled")
        return frame(FRAME_TYPE_RESPONSE, self._gate.admit(client, secret))

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
        if self._gate is not None:
            self._gate.check(client, "SUB", topic_name, channel_name)
        client.channel = self._subscribe(client, topic_name, channel_name)
        client.state = STATE_SUBSCRIBED
        return _OK

    def _subscribe(self, client: ClientV2, topic_name: str, channel_name: str) -> Channel:
        # The last client of an ephemeral channel may be leaving right now: then the channel is made anew once.
        for last_try in (False, True):
            try:
                self._room.check_topic(topic_name)
                topic = self._registry.get_topic(topic_name)
                if not (topic.exiting and topic.ephemeral):
                    self._room.check_channel(topic, channel_name)
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
        body = self._message_body(client, command, "PUB")
        if self._gate is not None:
            self._gate.check(client, "PUB", topic_name)
        return self._publish(client, topic_name, [body], 0, "PUB")

    def DPUB(self, client: ClientV2, command: Command) -> bytes | None:
        topic_name = _publish_topic(client, command, "DPUB", 3)
        delay = _number(command.params[2], "DPUB could not parse timeout ")
        longest = self._options.max_req_timeout // MILLISECOND
        if delay > longest:
            raise ClientError("E_INVALID", f"DPUB timeout {delay} out of range 0-{longest}")
        body = self._message_body(client, command, "DPUB")
        if self._gate is not None:
            self._gate.check(client, "DPUB", topic_name)
        return self._publish(client, topic_name, [body], delay * MILLISECOND, "DPUB")

    def MPUB(self, client: ClientV2, command: Command) -> bytes | None:
        topic_name = _publish_topic(client, command, "MPUB", 2)
        if self._gate is not None:
            self._gate.check(client, "MPUB", topic_name)
        self._get_topic(client, topic_name, "MPUB")
        size = self._size(client, command, "E_BAD_BODY", "MPUB")
        limit = self._options.max_body_size
        if size <= 0:
            raise ClientError("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > limit:
            raise ClientError("E_BAD_BODY", f"MPUB body too big {size} > {limit}")
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
        except Disconnected as error:
            cut_off = decoder.messages_cut_off()
            raise ClientError(cut_off.code, f"MPUB {cut_off.reason}", error) from error

    def _publish(self, client: ClientV2, topic_name: str, bodies: list[bytes], deferred: int, name: str) -> bytes:
        topic = self._get_topic(client, topic_name, name)
        try:
            topic.publish(bodies, deferred)
        except Draining as error:
            # Not fatal as other failures are: who publishes may consume, too, on the same connection.
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
            self._room.check_topic(topic_name)
            return self._registry.get_topic(topic_name)
        except (BrokerError, StorageError) as error:
            raise ClientError(f"E_{name}_FAILED", f"{name} failed {error}", error) from error


HANDLERS: dict[bytes, Callable[[ProtocolV2, ClientV2, Command], bytes | None]] = {
    # getattr gives the Python method; `ProtocolV2.FIN` would be the C function of a cpdef, with another signature.
    name.encode(): getattr(ProtocolV2, name)
    for name in ("FIN", "RDY", "REQ", "PUB", "MPUB", "DPUB", "NOP", "TOUCH", "SUB", "CLS", "IDENTIFY", "AUTH")
}


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
