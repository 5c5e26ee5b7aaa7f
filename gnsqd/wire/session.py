"""One client's session of protocol V2, from the first command to the end of the connection.

IOLoop receives commands, has them executed, and sends their answers at once; messagePump takes messages from the
client's channel, and sends heartbeats. What a command does is in `commands`.
"""

from time import monotonic

from gnsqd.broker.topic import RETRY_SECONDS, Topic
from gnsqd.hub.cooperative import CLIENT_TURN_SECONDS, Spawn, WouldYield, yield_turn
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.connection import Receiver
from gnsqd.net.stream import TLS, Layer, StreamError
from gnsqd.shared.errors import StorageError
from gnsqd.shared.protocol import FIN_LENGTH, FRAME_TYPE_RESPONSE
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.codec import ClientError, Command, Decoder, LineTooLong, frame
from gnsqd.wire.commands import Commands

TLS_HANDSHAKE_SECONDS = 5.0
_TURN_COMMANDS = 64  # between two looks at the clock

_OK = frame(FRAME_TYPE_RESPONSE, b"OK")
_HEARTBEAT = frame(FRAME_TYPE_RESPONSE, b"_heartbeat_")


class Session(Receiver):
    """Serves `client` by its IOLoop and its messagePump. `spawn(name, body)` starts a greenlet for a client."""

    def __init__(self, client: ClientV2, commands: Commands, log: Logger, spawn: Spawn) -> None:
        self.client = client
        self.decoder = Decoder(commands.first_table)
        self._commands = commands
        self._log = log
        self._spawn = spawn
        self._pump_ended = Doorbell()
        self._command: Command | None = None  # the one at hand
        self._has_executed = False  # commands since the last bytes
        self._turn_end = 0.0  # 0 before the first look at the clock
        self._replies: list[bytes] = []
        self._uncommitted: dict[Topic, str] = {}  # with the name of the first command
        self._failed: list[tuple[str, Exception]] = []  # commands of a batch that could not be committed

    def execute(self) -> bool:
        """Executes the commands that are complete, and keeps their answers for `commit_and_reply`. Never yields, unless
        IOLoop has let the command at hand `may_yield`: so it may also be called where nothing can wait.

        True if the next command needs more bytes; False if IOLoop has to go on, because it may yield, changes the
        stream or comes after a publish that is not committed yet, or because others are to have their turn. Raises
        ClientError after the answer to a command that ends the connection; raises LineTooLong."""
        decoder = self.decoder
        debugging = self._commands.debugging
        channel = None if debugging else self.client.channel
        left = _TURN_COMMANDS
        topic: Topic | None = None
        published: Command | None = None  # the PUB before, to `topic`: the decoder returns it again for the same line
        while True:
            command = self._command
            if command is None:
                if channel is not None and not self._uncommitted:
                    # The FINs that come next are executed in one go, up to one that is refused.
                    fins = decoder.next_fins()
                    if fins:
                        count = channel.finish_run(self.client.id, fins)
                        self.client.finish_count += count
                        self.client.left_flight(count)
                        decoder.put_back(len(fins) - count * FIN_LENGTH)
                        self._has_executed = self._has_executed or count > 0
                command = self._command = decoder.next_command()
                if command is None:
                    return True
                if debugging:
                    line = b" ".join(command.params).decode("utf-8", "replace")
                    self._log.debug("PROTOCOL(V2): [%s] [%s]", self.client, line)
            if self._uncommitted and command.spec.after_commit:
                return False
            try:
                if not command.checked:
                    self._commands.check(self.client, command)
                    command.checked = True
                if not decoder.complete(command):
                    return True
                handler = command.spec.handler
                answer: bytes | None
                if handler is not None:
                    answer = handler(self._commands, self.client, command)
                elif topic is not None and command is published and topic.puts_surely(left):
                    # Nothing has run since the PUB before, so this one and more with its line are not refused.
                    decoder.add_repeated(command, left)
                    bodies = command.bodies
                    topic.publish(bodies, command.deferred, False)
                    command.topic = topic
                    counter = command.counter
                    counter.count += len(bodies)
                    answer = _OK * len(bodies)
                    left -= len(bodies) - 1
                else:  # compiled, this calls from C to C
                    answer = self._commands.publish(self.client, command)
            except WouldYield:
                return False
            except ClientError as error:
                self._answer_refusal(error)
                if error.fatal:
                    raise
                answer = None
            self._has_executed = True
            if answer is not None:
                self._replies.append(answer)
            topic = command.topic
            published = None
            if topic is not None:
                if not topic.commits_at_once():
                    self._uncommitted.setdefault(topic, command.spec.name)
                if not (debugging or command.spec.has_messages):
                    published = command
            elif command.upgrade is not None:
                return False
            self._command = None
            left -= 1
            if not left:
                if self._is_turn_over():
                    return False
                left = _TURN_COMMANDS

    def _answer_refusal(self, refusal: ClientError) -> None:
        """Logs and answers a refused command."""
        if not refusal.quiet:
            cause = f" - {refusal.cause}" if refusal.cause is not None else ""
            self._log.error("[%s] - %s%s", self.client, refusal, cause)
        self._replies.append(refusal.frame)

    def _is_turn_over(self) -> bool:
        now = monotonic()
        if not self._turn_end:
            self._turn_end = now + CLIENT_TURN_SECONDS
        return now > self._turn_end

    def receive_data(self, data: bytes) -> bool:
        """Executes and answers the commands that `data` completes. Never yields: returns False if IOLoop has to go on,
        also because the commit or the client's socket may have to wait. Errors as `execute`."""
        self._turn_end = 0.0
        self.decoder.feed(data)
        if self.client.connection.paused or not self.execute():
            return False
        if self._uncommitted:
            return self._commit_soon()
        return self._reply_at_once()

    def _commit_soon(self) -> bool:
        """Has the topic commit the batch together with the batches of other clients; returns False if IOLoop has to do
        it, because several topics or no log are concerned. More input before the end of the commit wakes IOLoop, which
        commits then, so that a client cannot fill memory with commands that wait."""
        connection = self.client.connection
        if len(self._uncommitted) == 1 and connection.pause():
            for topic in self._uncommitted:
                if topic.commit_soon(self._end_commit):
                    return True
        connection.paused = False
        return False

    def _end_commit(self, error: Exception | None) -> None:
        """Answers the batch, unless IOLoop has taken over; wakes it if the commit failed or the socket is full."""
        connection = self.client.connection
        if connection.paused:
            connection.paused = False
            if error is None:
                self._uncommitted.clear()
            else:
                self._failed += [(name, error) for name in self._uncommitted.values()]
            if self._failed or not self._reply_at_once():
                connection.end_feed()

    def _reply_at_once(self) -> bool:
        """Sends the answers of a batch that is committed; False if IOLoop has to send the rest. Never yields."""
        replies = self._replies
        if replies:
            if not self.client.flush_at_once(replies):
                self._replies = [b""]  # for what the socket did not accept
                return False
            replies.clear()
        self._note_answered()
        return True

    def commit_and_reply(self) -> None:
        """Sends the answers of the batch, once what it has published is kept as surely as the options promise. May
        yield; raises ClientError, which is the only answer then, if that can't be kept; errors as `ClientV2.flush`."""
        client = self.client
        replies = self._replies
        if self._uncommitted:
            client.connection.paused = False
            uncommitted, self._uncommitted = self._uncommitted, {}
            failed = self._failed
            for topic, name in uncommitted.items():  # all of them, before anything else runs
                try:
                    topic.write()
                except StorageError as error:
                    failed.append((name, error))
            for topic, name in uncommitted.items():
                try:
                    if not failed:
                        topic.wait_synced()
                except StorageError as error:
                    failed.append((name, error))
            if failed:
                name, cause = failed[0]
                code, text = f"E_{name}_FAILED", f"{name} failed {cause}"
                replies.clear()
                client.flush([ClientError(code, text).frame])  # a variable would keep the frame
                raise ClientError(code, text, cause) from cause
        if replies:
            self._replies = []
            client.flush(replies)
        self._note_answered()

    def _note_answered(self) -> None:
        """Lets what has been executed take effect: the client is alive, and it has its subscription."""
        client = self.client
        if self._has_executed:
            client.set_deadlines()
            self._has_executed = False
        if client.channel is not client.delivering:
            client.delivering = client.channel
            client.doorbell.ring()

    def IOLoop(self) -> None:
        """Serves the client until its connection ends. Raises only on defects."""
        client = self.client
        pump = self._spawn(f"messagePump:{client}", self.messagePump)
        failure = ""
        try:
            self._serve()
        except (OSError, StreamError, LineTooLong) as error:  # TimeoutError is an OSError
            what = "send response" if str(error).startswith("write ") else "read command"
            failure = f"failed to {what} - {error}"
        except ClientError as error:
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
            if pump:  # a greenlet that could not start never rings
                self._pump_ended.wait()  # faster than `join`

    def _serve(self) -> None:
        while True:
            try:
                if self.execute() and not self._receive():
                    return
            finally:
                self.commit_and_reply()
            self._go_on()

    def _go_on(self) -> None:
        """Does what `execute` stopped for. Errors as `_upgrade`. Yields."""
        command = self._command
        if command is not None and command.upgrade is not None:
            self._upgrade(*command.upgrade)
            self._command = None
            return
        if self._is_turn_over():
            self.client.connection.check_open()
            yield_turn()
            self._turn_end = monotonic() + CLIENT_TURN_SECONDS
        if command is not None:
            command.may_yield = True

    def _receive(self) -> bool:
        """Answers what is executed, and has `receive_data` called with what comes until IOLoop has to go on; gives the
        decoder the end of the stream. Returns False if it ends between two commands; raises OSError, StreamError if it
        breaks there, and errors as `receive_data`. Yields."""
        self.commit_and_reply()
        self._turn_end = 0.0
        if self._command is not None:
            self._command.may_yield = False  # `receive_data` has to stop for it again
        try:
            if self.client.connection.feed(self):
                return True
        except (OSError, StreamError) as error:
            if self._command is None:
                raise
            self.decoder.end(str(error))
        else:
            self.decoder.end()
        return self._command is not None

    def _upgrade(self, tls: TLS | None, compression: Layer | None, label: str) -> None:
        """Puts the layers on that IDENTIFY has agreed on. Raises ClientError if a handshake fails; raises OSError.
        Yields."""
        client = self.client
        if tls is not None:
            self._log.info("PROTOCOL(V2): [%s] upgrading connection to TLS", client)
            client.connection.read_deadline = monotonic() + TLS_HANDSHAKE_SECONDS
            client.connection.write_timeout = TLS_HANDSHAKE_SECONDS
            try:
                client.connection.handshake(tls, self.decoder.take_rest())
            except (OSError, StreamError) as error:
                # Unlike the real daemon, no error frame: it would be plain bytes in a stream the client takes for TLS.
                text = f"IDENTIFY failed {error}"
                self._log.error("[%s] - E_IDENTIFY_FAILED %s - %s", client, text, error)
                raise ClientError("E_IDENTIFY_FAILED", text, error) from error
            client.set_deadlines()
            client.tls = tls
            self.decoder.table = self._commands.table
            client.flush([_OK])
        if compression is not None:
            self._log.info("PROTOCOL(V2): [%s] upgrading connection to %s", client, label)
            client.connection.push(compression, self.decoder.take_rest())
            client.flush([_OK])

    def messagePump(self) -> None:
        """Sends messages and heartbeats to the client until it exits, and closes a client that can't be sent to."""
        client = self.client
        try:
            while not client.exiting:
                channel = client.delivering
                if client.heartbeat_due:
                    client.heartbeat_due = False
                    if channel is not None:
                        channel.stop_waiting(client)  # as in `ClientV2.wait_or_flush`
                    client.flush([_HEARTBEAT])
                    continue
                window = client.window()
                debugging = self._commands.debugging
                if debugging and channel is not None:
                    self._log.debug(
                        "[%s] state rdy: %4d inflt: %4d", client, client.ready_count, client.in_flight_count
                    )
                if channel is None or window <= 0:
                    if channel is not None:
                        channel.stop_waiting(client)
                    client.flush()
                    client.doorbell.wait()
                    continue
                messages = channel.take(client, window, client.delivery_msg_timeout, client.delivery_sample_rate)
                if messages:
                    if debugging:
                        for message in messages:
                            body = message.body.decode("utf-8", "backslashreplace")
                            id = message.id.decode()
                            self._log.debug("PROTOCOL(V2): writing msg(%s) to client(%s) - %s", id, client, body)
                    if client.buffer_messages(messages):
                        client.flush()
                    is_full = len(messages) == window
                    messages = []  # a client that waits keeps none of them
                    if channel.queue.ordered:
                        client.flush()  # the next one comes only after this one
                    if not is_full:
                        if channel.waits(client):
                            client.wait_or_flush(self._deliver)
                        else:
                            yield_turn()
                elif channel.waits(client):
                    client.wait_or_flush(self._deliver)
                else:
                    # The disk can't be read just now; or `take` passed over messages, then the bell has rung again.
                    yield_turn()
                    client.wait_or_flush(self._deliver, RETRY_SECONDS)
        except (OSError, StreamError) as error:
            if not client.exiting:
                self._log.error("PROTOCOL(V2): [%s] messagePump error - %s", client, error)
        finally:
            if not client.exiting:
                client.close()
            self._log.info("PROTOCOL(V2): [%s] exiting messagePump", client)
            self._pump_ended.ring()

    def _deliver(self) -> bool:
        """Puts messages into the buffer while messagePump waits for the next flush. Returns False if messagePump has to
        go on, because it may have to yield. Never yields."""
        client = self.client
        channel = client.delivering
        window = client.window()
        if channel is None or window <= 0 or channel.queue.ordered or client.flush_timer is None:
            return False
        if client.exiting or client.heartbeat_due or self._commands.debugging:
            return False
        # Messages that are not promised are for messagePump: it yields, so that other consumers have their turns.
        if len(channel.clients) > 1 and not channel.waits(client):
            return False
        messages = channel.take(client, window, client.delivery_msg_timeout, client.delivery_sample_rate)
        if client.buffer_messages(messages):
            return False
        return len(messages) < window and channel.waits(client)
