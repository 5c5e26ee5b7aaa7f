"""Consuming topics from all nodes of a cluster that have them, for the commands that show, copy or save messages.

A separate thread finds nodes and connects to them as long as the consumer exists, so new and returning nodes are
joined. Messages are received and finished by the thread that owns the consumer. At its end, all unfinished messages are
requeued at once.

`transfer` moves messages to another place without loss: each is finished only after it has arrived. If a run ends in
between, messages in flight are delivered again, so there may be duplicates.
"""

import functools
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from nsqadmin_cli.api import NodeStats, Nsqd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command import Function, Name, option
from nsqadmin_cli.completion import complete_channels
from nsqadmin_cli.errors import AdminError, ExitCode, NotFound
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.output import Advance, Confirm, is_terminal, note, progress
from nsqadmin_cli.snapshot import no_such
from nsqadmin_cli.subscription import ConsumerOptions, Received, Subscription
from nsqadmin_cli.units import plural, suggestion

_RETRY = 2.0  # seconds until a node is tried again
_DISCOVERY = 15.0  # seconds until nodes are looked for again

Key = tuple[Address, str]  # a node and a topic


class Consumer:
    """Owns the connections."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], options: ConsumerOptions) -> None:
        self._errors: dict[Address, AdminError] = {}  # nodes that messages cannot come from at present
        self.unconfirmed = 0  # connections lost with messages finished, which the node may not know of
        self.too_late = 0  # messages that timed out before they were finished, and come again
        self._cluster = cluster
        self._topics = list(dict.fromkeys(topics))
        self._options = options
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
        if self._options.channel.endswith("#ephemeral") and not yes:
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
        channel = self._options.channel
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
        share = max(1, self._options.window // max(1, len(wanted) + len(self._connected)))
        options = ConsumerOptions(self._options.channel, share, self._options.sample_rate, self._options.auth_secret)
        timeout, tls = self._cluster.timeout, self._cluster.http.tls
        for topic in self._topics:
            nodes = [Nsqd(address, self._cluster.http) for address, name in wanted if name == topic]
            answers = self._cluster.ask(
                lambda node, topic=topic: Subscription(node, topic, options, timeout=timeout, tls=tls),  # type: ignore[misc]
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
        waiting = [one for one in self._subscriptions.values() if one.has_messages]
        ready = [key.data for key, _ in self._selector.select(0 if waiting else timeout)]
        for subscription in dict.fromkeys([*waiting, *ready]):
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


@dataclass(frozen=True)
class Source:
    """What to consume from: without `follow`, it ends when the channel is empty; `create` and `yes` are for
    `Consumer.start`."""

    options: ConsumerOptions
    count: int | None
    follow: bool
    create: bool
    yes: bool


count_option = option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
auth_option = option(
    "--auth-secret",
    envvar="GNSQADMIN_AUTH_SECRET",
    default="",
    metavar="TEXT",
    help="Secret for AUTH, if nodes require it of consumers.",
)

yes_option = option(
    "--yes",
    is_flag=True,
    help="Without --channel: consume messages queued in a topic without channels, without confirmation.",
)


def _source(values: dict[str, Any]) -> Source:
    """The parameter `source` of a command, of its parsed options, which are removed."""
    channel, create, follow, count, in_flight, secret, yes = map(values.pop, _SOURCE)
    if create and not channel:
        raise click.UsageError("--create requires --channel.")
    window = min(in_flight, count or in_flight)  # what is taken and given back counts as an attempt
    name = channel or ephemeral_channel(click.get_current_context().info_name or "")
    options = ConsumerOptions(name, window, auth_secret=secret)
    return Source(options, count, follow or not channel, create, yes)


_SOURCE = {
    "channel": option(
        "--channel",
        type=Name("channel"),
        shell_complete=complete_channels,
        help="Consume this channel until it is empty. Without it, a temporary channel receives messages "
        "published from now on.",
    ),
    "create": option("--create", is_flag=True, help="Create the channel if it does not exist."),
    "follow": option("--follow", is_flag=True, help="Continue with new messages when --channel is empty."),
    "count": count_option,
    "in_flight": option(
        "--in-flight",
        type=click.IntRange(1, 1_000_000),
        default=1000,
        help="Maximum number of messages in flight to this command, over all nodes.",
    ),
    "auth_secret": auth_option,
    "yes": yes_option,
}


def source_options(function: Function) -> Function:
    """The options of a command that consumes a channel: parameter `source` (Source)."""

    @functools.wraps(function)
    def called(*args: Any, **values: Any) -> Any:
        return function(*args, source=_source(values), **values)

    for one in reversed(_SOURCE.values()):
        called = one(called)
    return called


_TICK = 0.2  # seconds
_IN_TRANSIT = 1.0  # seconds after which a message in flight is not one that is on its way here
_PATIENCE = 30.0  # seconds without a message where some wait


@dataclass
class Left:
    """The messages of a topic that nodes have for a channel: `waiting` ones, which can be delivered, and others."""

    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    paused: list[str] = field(default_factory=list)
    errors: list[NodeError] = field(default_factory=list)


def look_at_rest(cluster: Cluster, topic: str, channel: str) -> Left:
    """Query all nodes."""
    found = cluster.ask(lambda node: node.stats(topic=topic))
    left = Left(errors=errors_of(found))
    for address, node in values_of(found).items():
        for one in node.topics:
            channels = [entry for entry in one.channels if entry.channel_name == channel]
            left.waiting += one.depth + sum(entry.depth for entry in channels)
            left.in_flight += sum(entry.in_flight_count for entry in channels)
            left.deferred += sum(entry.deferred_count for entry in channels)
            if one.paused and one.depth:
                left.paused.append(f"the topic {topic} is paused at {address}")
            left.paused += [f"the channel {channel} is paused at {address}" for one in channels if one.paused]
    return left


def transfer(
    cluster: Cluster,
    topic: str,
    source: Source,
    doing: str,
    deliver: Callable[[Sequence[Received], Advance], Sequence[Received] | None],
    done: Callable[[], str],
    *,
    shown: bool = True,
) -> tuple[list[AdminError], bool]:
    """Pass at most the messages of `source` to `deliver`, and finish them when it returns, or only the messages that it
    returns. AdminError, with the text of `done`, if they do not arrive.

    Returns the errors of nodes, and whether Ctrl-C or SIGTERM ended it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    channel = source.options.channel
    total = source.count or (None if source.follow else look_at_rest(cluster, topic, channel).waiting or None)
    interrupted = False
    with Consumer(cluster, [topic], source.options) as consumer:
        consumer.start(create_channel=source.create, yes=source.yes)
        with progress(doing, total, shown=shown) as advance:
            try:
                _transfer(consumer, cluster, topic, source, lambda messages: deliver(messages, advance))
            except KeyboardInterrupt:
                interrupted = True
            except AdminError as error:
                raise AdminError(f"{error}; {done()}") from None
    consumer.warn()
    return [*cluster.lookupd_errors, *consumer.errors], interrupted


def _transfer(
    consumer: Consumer,
    cluster: Cluster,
    topic: str,
    source: Source,
    deliver: Callable[[Sequence[Received]], Sequence[Received] | None],
) -> None:
    count = source.count
    moved = 0
    kept: set[bytes] = set()  # ids of what is not finished, and goes back at the end
    last = time.monotonic()
    while count is None or moved < count:
        batch = consumer.receive(_TICK)[: None if count is None else count - moved]
        if batch:
            delivered = deliver(batch)
            done = batch if delivered is None else delivered
            consumer.finish(done)
            moved += len(batch)
            kept.update({message.id for message in batch} - {message.id for message in done})
            last = time.monotonic()
        elif not source.follow and _is_over(cluster, topic, source.options.channel, time.monotonic() - last, len(kept)):
            break


def _is_over(cluster: Cluster, topic: str, channel: str, idle: float, kept: int) -> bool:
    """Whether no more messages will arrive, after none has for `idle` seconds, with `kept` in flight here."""
    left = look_at_rest(cluster, topic, channel)
    in_flight = max(0, left.in_flight - kept)
    if left.errors:
        raise AdminError("; ".join(map(str, left.errors)))
    if left.waiting:
        if left.paused:
            raise AdminError(f"{plural(left.waiting, 'message')} cannot be delivered: {'; '.join(left.paused)}")
        if idle > _PATIENCE:
            raise AdminError(f"{plural(left.waiting, 'message')} not delivered: none arrived for {idle:.0f} s")
        return False
    if in_flight and idle < _IN_TRANSIT:
        return False
    if in_flight or left.deferred:
        note(f"Left in {topic} {channel}: {in_flight:,} in flight to others, {left.deferred:,} deferred")
    return True
