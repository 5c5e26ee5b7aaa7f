"""Consuming topics from all nodes of a cluster that have them, for the commands that show, copy or save messages.

A separate thread finds nodes and connects to them as long as the consumer exists, so new and returning nodes are
joined. Messages are received and finished by the thread that owns the consumer. At its end, all unfinished messages are
requeued at once.
"""

import os
import queue
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from nsqadmin_cli.address import Address
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.confirm import Confirm
from nsqadmin_cli.errors import AdminError, ExitCode, NotFound
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.models import NodeStats
from nsqadmin_cli.output import is_terminal, note
from nsqadmin_cli.snapshot import no_such
from nsqadmin_cli.subscription import Received, Subscription, Wish
from nsqadmin_cli.text import plural, suggestion

_RETRY = 2.0  # seconds until a node is tried again
_DISCOVERY = 15.0  # seconds until nodes are looked for again

Key = tuple[Address, str]  # a node and a topic


class Consumer:
    """Owns the connections."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], wish: Wish) -> None:
        self._errors: dict[Address, AdminError] = {}  # nodes that messages cannot come from at present
        self.unconfirmed = 0  # connections lost with messages finished, which the node may not know of
        self.too_late = 0  # messages that timed out before they were finished, and come again
        self._cluster = cluster
        self._topics = list(dict.fromkeys(topics))
        self._wish = wish
        self._subscriptions: dict[Key, Subscription] = {}
        self._selector = selectors.DefaultSelector()
        self._arrivals: queue.SimpleQueue[Subscription] = queue.SimpleQueue()
        self._connected: set[Key] = set()  # as the finder knows it
        self._lost: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._over = threading.Event()

    @property
    def errors(self) -> list[AdminError]:
        """Why messages of some nodes cannot be received at present."""
        return list(self._errors.values())

    def start(self, *, create_channel: bool = False, yes: bool = False) -> None:
        """Connect to the nodes that have the topics; AdminError if no node does, or none can be reached.

        A channel that no node has is created only with `create_channel`, or if it is ephemeral. An ephemeral channel
        would take the messages of a topic without channels with it, so this needs `yes`, or confirmation.
        """
        found = self._cluster.ask(self._node_stats)
        errors = [*self._cluster.lookupd_errors, *errors_of(found)]
        self._require(values_of(found), errors, create_channel)
        if self._wish.channel.endswith("#ephemeral") and not yes:
            self._confirm(values_of(found).values())
        self._note_errors(found)
        self._join(found)
        self._welcome()
        if not self._subscriptions:
            raise AdminError("; ".join(map(str, self.errors)))
        for error in [*self._cluster.lookupd_errors, *self.errors]:
            note(f"Warning: {error}; trying again")
        threading.Thread(target=self._find, name="find", daemon=True).start()

    def _require(self, nodes: dict[Address, NodeStats], errors: Sequence[NodeError], create_channel: bool) -> None:
        known: dict[str, set[str]] = {}
        for node in nodes.values():
            for found in node.topics:
                known.setdefault(found.topic_name, set()).update(one.channel_name for one in found.channels)
        channel = self._wish.channel
        for topic in self._topics:
            if topic not in known:
                raise no_such(self._cluster, errors, topic)
            if channel not in known[topic] and not channel.endswith("#ephemeral") and not create_channel:
                near = suggestion(channel, known[topic])
                raise NotFound(f"no node has the channel {channel} of {topic}; --create creates it{near}")

    def _confirm(self, nodes: Iterable[NodeStats]) -> None:
        waiting = Counter[str]()
        for node in nodes:
            waiting.update(
                {topic.topic_name: topic.depth for topic in node.topics if not topic.channels and topic.depth}
            )
        told = [f"{plural(waiting[topic], 'message')} in {topic}" for topic in self._topics if waiting[topic]]
        if not told:
            return
        warning = f"{' and '.join(told)} would be lost with the temporary channel of this command: there is no other."
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise AdminError(f"{warning} Nothing was done: use --yes to do it", ExitCode.NOT_CONFIRMED)
        Confirm(yes=False, dry_run=False).ask(warning, (), "Take them?")

    def _node_stats(self, node: Nsqd) -> NodeStats:
        return node.stats(topic=self._topics[0] if len(self._topics) == 1 else "")

    # Connecting

    def _find(self) -> None:
        """Find new and returning nodes, repeatedly."""
        looked = time.monotonic()
        while not self._over.wait(_RETRY):
            lost = False
            while not self._lost.empty():
                self._connected.discard(self._lost.get())
                lost = True
            if not (lost or self._errors or time.monotonic() > looked + _DISCOVERY):
                continue
            looked = time.monotonic()
            try:
                found = self._cluster.ask(self._node_stats)
            except AdminError:
                continue  # no nsqlookupd answers; the nodes that are known go on
            if not self._over.is_set():
                self._note_errors(found)
                self._join(found)

    def _note_errors(self, found: dict[Address, NodeStats | NodeError]) -> None:
        self._errors = {address: error for address, error in found.items() if isinstance(error, NodeError)}

    def _join(self, found: dict[Address, NodeStats | NodeError]) -> None:
        """Connect to nodes that have a topic and are not connected to."""
        wanted = [
            (address, topic.topic_name)
            for address, stats in found.items()
            if isinstance(stats, NodeStats)
            for topic in stats.topics
            if topic.topic_name in self._topics and (address, topic.topic_name) not in self._connected
        ]
        share = max(1, self._wish.window // max(1, len(wanted) + len(self._connected)))
        wish = Wish(self._wish.channel, share, self._wish.sample_rate, self._wish.auth_secret)
        timeout, tls = self._cluster.timeout, self._cluster.http.tls
        for topic in self._topics:
            nodes = [Nsqd(address, self._cluster.http) for address, name in wanted if name == topic]
            answers = self._cluster.ask(
                lambda node, topic=topic: Subscription(node, topic, wish, timeout=timeout, tls=tls),  # type: ignore[misc]
                nodes,
            )
            for address, answer in answers.items():
                if isinstance(answer, NodeError):
                    self._errors[address] = answer
                else:
                    self._connected.add((address, topic))
                    self._arrivals.put(answer)

    def _welcome(self) -> None:
        """Adopt the connections that were made."""
        while not self._arrivals.empty():
            arrived = self._arrivals.get()
            self._subscriptions[arrived.node.address, arrived.topic] = arrived
            self._selector.register(arrived, selectors.EVENT_READ, arrived)

    # Messages

    def receive(self, timeout: float) -> list[Received]:
        """Messages from all nodes, received within `timeout` seconds."""
        self._welcome()
        received: list[Received] = []
        for key, _ in self._selector.select(timeout):
            subscription: Subscription = key.data
            try:
                received += subscription.receive()
            except NodeError as error:
                self._lose(subscription, error)
        return received

    def finish(self, messages: Iterable[Received]) -> None:
        """Finish these messages."""
        subscriptions = {}
        for message in messages:
            message.finish()
            subscriptions[id(message.subscription)] = message.subscription
        for subscription in subscriptions.values():
            assert subscription is not None
            if self._subscriptions.get((subscription.node.address, subscription.topic)) is subscription:
                try:
                    subscription.flush()
                except NodeError as error:
                    self._lose(subscription, error)

    def _lose(self, subscription: Subscription, error: NodeError) -> None:
        key = subscription.node.address, subscription.topic
        self._selector.unregister(subscription)
        del self._subscriptions[key]
        self.too_late += subscription.too_late
        self.unconfirmed += subscription.has_finished
        subscription.drop()
        self._errors[key[0]] = error
        self._lost.put(key)
        note(f"Warning: {error}; trying again")

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *error: object) -> None:
        """Requeue unfinished messages."""
        self._over.set()
        self._welcome()
        closing = [
            threading.Thread(target=self._close, args=(subscription,)) for subscription in self._subscriptions.values()
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._selector.close()

    def warn(self) -> None:
        """At the end, print what may be delivered twice."""
        if self.too_late:
            note(f"Warning: {plural(self.too_late, 'message')} exceeded the message timeout; others may receive them")
        if self.unconfirmed:
            note("Warning: a node was lost before it confirmed finished messages; some may be delivered again")

    def _close(self, subscription: Subscription) -> None:
        self.unconfirmed += not subscription.close() and subscription.has_finished
        self.too_late += subscription.too_late


def ephemeral_channel(purpose: str) -> str:
    """A unique name of an ephemeral channel, which is deleted with its consumer."""
    host = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in socket.gethostname()
    )
    tail = f"-{os.getpid()}-{time.monotonic_ns() % 10_000:04}#ephemeral"
    return f"gnsqadmin-{purpose}-{host}"[: 64 - len(tail)] + tail
