"""One consumer's connection to one nsqd.

It is opened on any thread, with one deadline from the host name lookup to the answer of SUB; from then on it belongs to
one thread, and is read when its socket is readable. A received message is finished by `finish`; only `close` ensures
that the node has received this.
"""

import socket
import time
from dataclasses import dataclass
from typing import NoReturn

from gnsq_shared.client import Client, Upgrade, reason
from gnsqd.version import VERSION
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.http_client import TLS, NodeError, timed_out
from nsqadmin_cli.message import Message
from nsqadmin_cli.units import printable

_GOODBYE = 2.0  # seconds that a node has to confirm what was finished


@dataclass(frozen=True)
class ConsumerOptions:
    """Options of a subscription. `window` is the maximum number of messages in flight; `sample_rate` is 0 or the
    percentage of messages to receive."""

    channel: str
    window: int
    sample_rate: int = 0
    auth_secret: str = ""


@dataclass(frozen=True, slots=True)
class Received(Message):
    """An unfinished message of a subscription."""

    subscription: "Subscription | None" = None

    def finish(self) -> None:
        if self.subscription is not None:
            self.subscription.finish(self.id)


class _Client(Client):
    """A connection whose errors are NodeErrors."""

    largest_frame = 64 * 1024 * 1024
    secret_option = "--auth-secret"
    is_subscribed = False

    def __init__(self, sock: socket.socket, node: Nsqd, where: str, timeout: float) -> None:
        super().__init__(sock, str(node), timeout)
        self._node = node
        self._where = where

    def _lost(self, what: str) -> NoReturn:
        raise _error(self._node, printable(what, 300), self._where) from None

    def _late(self) -> NoReturn:
        self._lost(timed_out(self._read_timeout))

    def _refused(self, code: str, reason: str) -> NoReturn:
        self._lost(f"{'ended the connection' if self.is_subscribed else 'refused'}: {code} {reason}".rstrip())


class Subscription:
    """Owns the connection; `in_flight` has the ids of messages received and not finished yet."""

    def __init__(self, node: Nsqd, topic: str, options: ConsumerOptions, *, timeout: float, tls: TLS) -> None:
        """Connects and subscribes within `timeout` seconds; NodeError."""
        self.node = node
        self.topic = topic
        self.in_flight: set[bytes] = set()
        self.has_finished = False
        self._finished: list[bytes] = []  # to be reported to the node
        self._open = True
        deadline = time.monotonic() + timeout
        host, port = node.tcp_address()
        where = f"TCP port {port}"
        try:
            sock = socket.create_connection((host, port), max(0.001, deadline - time.monotonic()))
        except TimeoutError:
            raise _error(node, timed_out(timeout), where) from None
        except OSError as error:
            raise _error(node, reason(error), where) from None
        self._client = client = _Client(sock, node, where, timeout)
        has_tls = node.address.tls or tls != TLS()
        upgrade = Upgrade(tls.context, host, is_required=node.address.tls) if has_tls else None
        identity = {"user_agent": f"gnsqadmin/{VERSION}", "sample_rate": options.sample_rate}
        try:
            client.negotiate(identity, deadline, tls=upgrade, secret=options.auth_secret)
            client.subscribe(topic, options.channel, deadline)
            client.is_subscribed = True
            client.ready(max(1, min(options.window, client.max_rdy_count)))
        except BaseException:
            client.close()
            raise

    def fileno(self) -> int:
        return self._client.fileno()

    @property
    def has_messages(self) -> bool:
        """Whether `receive` returns messages although the socket may not be readable."""
        return self._client.has_messages

    @property
    def too_late(self) -> int:
        """Messages that were finished after the node had given them to somebody else."""
        return len(self._client.unfinished)

    def receive(self) -> list[Received]:
        """Received messages, without waiting; NodeError if the connection is lost."""
        messages = self._client.receive(0.0)
        self.in_flight.update(message.id for message in messages)
        node = str(self.node.address)
        return [Received(self.topic, *message, node, self) for message in messages]

    def finish(self, id: bytes) -> None:
        """Finish the message. The next `flush` sends this to the node."""
        if id in self.in_flight:
            self.in_flight.remove(id)
            self.has_finished = True
            self._finished.append(id)

    def flush(self) -> None:
        """Report finished messages to the node; NodeError if the connection is lost."""
        finished, self._finished = self._finished, []
        self._client.finish(finished)

    def close(self) -> bool:
        """Requeue unfinished messages at once; returns whether the node has confirmed all finished ones."""
        if not self._open:
            return False
        self._open = False
        try:
            self._client.finish_confirmed(self._finished, requeue=self.in_flight, within=_GOODBYE)
        except NodeError:
            return False
        finally:
            self._client.close()
        return True

    def drop(self) -> None:
        """Close a lost connection."""
        self._open = False
        self._client.close()


def _error(node: Nsqd, reason: str, where: str) -> NodeError:
    return NodeError("nsqd", node.address, f"{reason} ({where})")
