"""A client of protocol V2 as the broker and the statistics see it: settings, RDY window, output buffer."""

import socket
from collections.abc import Callable, Iterable
from time import monotonic, time
from typing import Any, Protocol

from gevent import get_hub

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import ClientStats
from gnsqd.hub.doorbell import Doorbell
from gnsqd.net.connection import Connection
from gnsqd.net.stream import TLS
from gnsqd.options import SECOND, Options
from gnsqd.queues.message import Message

STATE_INIT = 0
STATE_SUBSCRIBED = 3
STATE_CLOSING = 4  # after CLS: nothing more is sent, what is in flight may still be finished

DEFAULT_OUTPUT_BUFFER_SIZE = 16384

_AT_ONCE = 65536  # bytes of the output buffer: to wrap more takes too long
_NS = 1e9
# What ClientStats calls as a client does.
_IN_STATS = (
    "client_id", "deflate", "finish_count", "hostname", "in_flight_count", "message_count", "ready_count",
    "remote_address", "requeue_count", "sample_rate", "snappy", "state", "topology_region", "topology_zone",
    "user_agent",
)  # fmt: skip


class Permissions(Protocol):
    """An auth server's answer: a client's identity, and its permissions until they expire."""

    identity: str
    identity_url: str
    permission_count: int

    @property
    def expired(self) -> bool: ...

    def knows(self, topic_name: str, channel_name: str) -> bool: ...  # True if `allows` does not yield

    def allows(self, topic_name: str, channel_name: str) -> bool:
        """True if it may consume from the channel; without a channel, if it may publish to the topic."""


class PubCount:
    """The number of messages that a client has published to one topic."""

    def __init__(self) -> None:
        self.count = 0


class ClientV2:
    """Owns one connection's state. Durations are ns; 0 switches a heartbeat or a buffer timeout off."""

    __slots__ = (
        "_flush_interval", "_heartbeat_timer", "_next_flush", "_output", "_output_size", "auth_secret", "auth_state",
        "channel", "client_id", "connect_time", "connection", "counters", "deflate", "delivering",
        "delivery_msg_timeout", "delivery_sample_rate", "doorbell", "exiting", "finish_count", "flush_timer",
        "heartbeat_due", "heartbeat_interval", "hostname", "id", "identified", "in_flight_count", "locality",
        "message_count", "msg_timeout", "output_buffer_size", "output_buffer_timeout", "rank", "ready_count",
        "remote_address", "remote_ip", "requeue_count", "sample_rate", "snappy", "state", "tls", "topology_region",
        "topology_zone", "user_agent",
    )  # fmt: skip

    def __init__(self, id: int, sock: socket.socket, remote_address: str, options: Options) -> None:
        self.id = id
        self.connection = Connection(sock, remote_address)
        self.remote_address = remote_address
        self.state = STATE_INIT
        self.exiting = False
        self.connect_time = int(time())

        host = "" if remote_address.startswith("@") else remote_address.rpartition(":")[0].strip("[]")
        self.remote_ip = self.client_id = self.hostname = host
        self.user_agent = ""
        self.heartbeat_interval = 30 * SECOND
        self.output_buffer_size = DEFAULT_OUTPUT_BUFFER_SIZE
        self.output_buffer_timeout = options.output_buffer_timeout
        self.sample_rate = 0
        self.msg_timeout = options.msg_timeout
        self.topology_region = self.topology_zone = "" if options.has_topology else None
        self.locality = self.rank = 2
        self.tls: TLS | None = None
        self.deflate = self.snappy = False
        self.auth_secret = b""
        self.auth_state: Permissions | None = None

        self.channel: Channel | None = None
        self.ready_count = self.in_flight_count = 0
        self.message_count = self.finish_count = self.requeue_count = 0
        self.counters: dict[str, PubCount] = {}  # by topic

        # What messagePump works with: the first IDENTIFY sets it, later ones don't reach it (NSQD-COMPAT 2.4).
        self.identified = False
        self.delivering: Channel | None = None  # `channel`, once SUB is answered
        self.delivery_msg_timeout = self.msg_timeout
        self.delivery_sample_rate = 0
        self.heartbeat_due = False
        self._heartbeat_timer: Any = None
        self._flush_interval = self._next_flush = 0.0
        self.flush_timer: Any = None  # runs while something is buffered

        self.doorbell = Doorbell()
        self._output: list[bytes] = []
        self._output_size = 0

    def __str__(self) -> str:
        return self.remote_address

    @property
    def pub_counts(self) -> dict[str, int]:
        """The number of messages that it has published, by topic."""
        return {name: counter.count for name, counter in self.counters.items()}

    def start_tickers(self) -> None:
        """Starts the timers of heartbeats and buffer flushes, at the configured intervals."""
        self.stop_tickers()
        self.heartbeat_due = False
        if self.heartbeat_interval:
            seconds = self.heartbeat_interval / _NS
            self._heartbeat_timer = get_hub().loop.timer(seconds, seconds)
            self._heartbeat_timer.start(self._on_heartbeat)
        self._flush_interval = self.output_buffer_timeout / _NS
        self._next_flush = monotonic() + self._flush_interval
        self.set_deadlines()

    def set_deadlines(self) -> None:
        """Lets the client send a command within two heartbeats from now, and take what it is sent within one."""
        seconds = self.heartbeat_interval / _NS
        self.connection.read_deadline = monotonic() + 2 * seconds if seconds else 0.0
        self.connection.write_timeout = seconds

    def _on_heartbeat(self) -> None:
        self.heartbeat_due = True
        self.doorbell.ring()

    def identify(self) -> None:
        """Lets the settings take effect on delivery, the first time."""
        self.set_deadlines()
        if not self.identified:
            self.identified = True
            self.delivery_msg_timeout = self.msg_timeout
            self.delivery_sample_rate = self.sample_rate
            self.start_tickers()
            self.doorbell.ring()

    def window(self) -> int:
        """Returns the number of further messages that it may be sent now."""
        channel = self.delivering
        if channel is None or channel.paused:
            return 0
        return self.ready_count - self.in_flight_count

    def set_ready_count(self, count: int) -> None:
        if count != self.ready_count:
            self.ready_count = count
            self.doorbell.ring()

    def left_flight(self, count: int) -> None:
        """Notes that `count` of its messages are no longer in flight."""
        if self.in_flight_count >= self.ready_count:
            self.doorbell.ring()
        self.in_flight_count -= count

    def emptied(self) -> None:
        self.in_flight_count = 0
        self.doorbell.ring()

    def buffer_messages(self, messages: list[Message]) -> bool:
        """Puts message frames into the output buffer; returns True if it is full and `flush` must follow."""
        self.in_flight_count += len(messages)
        self.message_count += len(messages)
        output, size = self._output, self._output_size
        for message in messages:
            delivery = message.next_delivery()
            output.append(delivery)
            size += len(delivery)
        self._output_size = size
        return size >= self.output_buffer_size

    def flush(self, frames: Iterable[bytes] = ()) -> None:
        """Sends what is buffered, and `frames` after it. May yield; errors as `Connection.send`."""
        output = self._output
        output += frames
        if output:
            self._output = []
            self._output_size = 0
            self.connection.send(output)

    def flush_at_once(self, frames: list[bytes]) -> bool:
        """Sends as `flush`, but only what the socket accepts now, and nothing of very much; False if that is not all.
        Then `flush` is to follow, if only with an empty frame. Never yields."""
        if self._output:
            frames = self._output + frames
        if self.connection.is_sending() or self._output_size > _AT_ONCE:
            self._output = frames
            return False
        if self._output:
            self._output = []
            self._output_size = 0
        return self.connection.send_at_once(frames)

    def wait_or_flush(self, deliver: Callable[[], bool], timeout: float = -1.0) -> None:
        """Waits for the bell, at most `timeout` seconds if that isn't negative. What is buffered is sent at the next
        tick of a ticker that runs all the time, so at once if one has passed since the last that was used. Until then
        the hub calls `deliver` when the bell is rung; if that fills the buffer, it is sent."""
        if not self._output:
            self.doorbell.wait(timeout)
            return
        late = monotonic() - self._next_flush
        if self._flush_interval > 0:
            if late < 0:
                if self.flush_timer is None:
                    self.flush_timer = get_hub().loop.timer(-late)
                    self.flush_timer.start(self._on_flush_timer)
                self.doorbell.wait(-1.0, deliver)
                if self._output_size >= self.output_buffer_size:
                    self.flush()
                return
            self._next_flush += (late // self._flush_interval + 1) * self._flush_interval
        if self.delivering is not None:
            # A client that does not read may hold this up, and must not be woken for what others could take.
            self.delivering.stop_waiting(self)
        self.flush()

    def _on_flush_timer(self) -> None:
        self._stop_flush_timer()
        self.doorbell.ring()

    def _stop_flush_timer(self) -> None:
        if self.flush_timer is not None:
            self.flush_timer.close()
            self.flush_timer = None

    def close(self, seconds: float = 0.0) -> None:
        """Ends the connection as `Connection.shutdown`; its greenlets notice and clean up."""
        self.exiting = True
        self.connection.shutdown(seconds)
        self.doorbell.ring()

    def stop_tickers(self) -> None:
        self._stop_flush_timer()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.close()
            self._heartbeat_timer = None

    def stats(self, topic_name: str = "") -> ClientStats:
        """Returns what /stats shows; of its publishing only one topic, `topic_name` if given."""
        names = [topic_name] if topic_name else list(self.counters)[:1]
        stats = ClientStats(
            version="V2",
            connect_ts=self.connect_time,
            pub_counts=[(name, self.counters[name].count) for name in names if name in self.counters],
            **{name: getattr(self, name) for name in _IN_STATS},
        )
        if self.auth_state is not None:
            stats.authed = self.auth_state.permission_count > 0
            stats.auth_identity = self.auth_state.identity
            stats.auth_identity_url = self.auth_state.identity_url
        if self.tls is not None:
            stats.tls = True
            stats.tls_cipher_suite = self.tls.cipher_suite
            stats.tls_version = self.tls.version
            stats.tls_negotiated_protocol_is_mutual = True
        return stats
