"""One client's session of protocol V2: its two greenlets, from the first command to the end of the connection.

IOLoop receives, executes every command that is complete, then sends all their answers at once; messagePump takes
messages from the client's channel, and sends heartbeats. What a command does is in `commands`.
"""

from functools import partial
from time import monotonic

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import Spawn
from gnsqd.broker.topic import RETRY_SECONDS
from gnsqd.hub.cooperative import yield_turn
from gnsqd.log import Level, Logger
from gnsqd.net.stream import StreamError
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StorageError
from gnsqd.shared.protocol import FRAME_TYPE_RESPONSE
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.codec import ClientError, CutOff, LineTooLong, frame
from gnsqd.wire.commands import Commands, refuse_published

TURN_SECONDS = 0.004  # for the commands of one client that are there at once

_DEBUG = Level.DEBUG
_HEARTBEAT = frame(FRAME_TYPE_RESPONSE, b"_heartbeat_")


class ProtocolV2:
    """Serves clients, each by its IOLoop and messagePump. `spawn(name, body)` starts a greenlet for a client."""

    def __init__(self, commands: Commands, log: Logger, spawn: Spawn) -> None:
        self._commands = commands
        self._log = log
        self._spawn = spawn

    # IOLoop

    def IOLoop(self, client: ClientV2) -> None:
        """Serve `client` until its connection ends. Raises only on defects."""
        pump = self._spawn(f"messagePump:{client}", partial(self.messagePump, client))
        failure = ""
        try:
            self._serve(client)
        except (OSError, StreamError, LineTooLong) as error:  # TimeoutError is an OSError
            failure = f"failed to read command - {error}"
        except (ClientError, CutOff) as error:
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
        while True:
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
                    self._commands.execute(client, command)
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
            yield_turn()
            now = monotonic()
        elif end:
            return end
        return now + TURN_SECONDS

    def _send_replies(self, client: ClientV2) -> None:
        """ClientError, which the client has received, if what it published can't be kept."""
        try:
            client.send_replies()
        except StorageError as error:
            refusal = refuse_published(client, error)
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
            if channel.queue.ordered:
                client.flush()  # the next one comes only after this one
            if client.window() > 0:
                if channel.has_more():
                    yield_turn()
                else:
                    channel.wait(client)
                    client.wait_or_flush()
        elif channel.has_more():
            # The disk can't be read just now; or it gave messages that are not due yet, then the bell has rung again.
            yield_turn()
            client.wait_or_flush(RETRY_SECONDS)
        else:
            client.wait_or_flush()

    def _log_messages(self, client: ClientV2, messages: list[Message]) -> None:
        for message in messages:
            body = message.body.decode("utf-8", "backslashreplace")
            self._log.debug("PROTOCOL(V2): writing msg(%s) to client(%s) - %s", message.id.decode(), client, body)
