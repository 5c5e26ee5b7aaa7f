"""Consuming topics from all nodes of a cluster that have them, for the commands that show, copy or save messages.

A separate thread finds nodes and connects to them as long as the consumer exists, so new and returning nodes are
joined, each with one deadline from the host name lookup to the answer of SUB. Messages are received and finished by the
thread that owns the consumer. At its end, all unfinished messages are requeued at once.

`transfer` moves messages to another place without loss: each is finished only after it has arrived. If a run ends in
between, messages in flight are delivered again, so there may be duplicates.
"""

import os
import re
import selectors
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import click

from gnsqd.shared.client import Client, Upgrade, reason
from gnsqd.shared.names import EPHEMERAL_SUFFIX, MAX_NAME_LENGTH, is_ephemeral
from gnsqd.shared.version import VERSION
from nsqadmin_cli.api import ChannelStats, NodeStats, Nsqd, TopicStats
from nsqadmin_cli.cluster import Answers, Cluster, errors_of, values_of
from nsqadmin_cli.command_base import Combined, Name, flag, option
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.http_client import Address, NodeError, TLSSettings, timed_out
from nsqadmin_cli.message import MessageRow
from nsqadmin_cli.output import Advance, Confirm, note, progress
from nsqadmin_cli.ranges import LogConsumer, begin_option
from nsqadmin_cli.snapshot import names_of, no_such
from nsqadmin_cli.stored_ranges import StoreConsumer
from nsqadmin_cli.units import grouped, plural, printable, suggestion

_GOODBYE = 2.0  # seconds that a node has to confirm what was finished
_RETRY = 2.0  # seconds until a node is tried again
_DISCOVERY = 15.0  # seconds until nodes are looked for again


@dataclass(frozen=True)
class ConsumerOptions:
    """`window` is the largest number of messages in flight, `sample_rate` 0 or the percentage of them to receive."""

    channel: str
    window: int
    sample_rate: int = 0
    auth_secret: str = ""


class Subscription(Client):
    """A connection to one node, whose errors are NodeErrors. `in_flight` has the ids of messages received and not
    finished yet, `unfinished` those of messages finished after the node had given them to somebody else."""

    largest_frame = 64 * 1024 * 1024
    secret_option = "--auth-secret"

    def __init__(self, node: Nsqd, topic: str, options: ConsumerOptions, *, timeout: float, tls: TLSSettings) -> None:
        """Connects and subscribes within `timeout` seconds, on any thread; raises NodeError."""
        self.node = node
        self.topic = topic
        self.in_flight: set[bytes] = set()
        self.has_finished = self._is_subscribed = False
        deadline = time.monotonic() + timeout
        host, self._port = node.tcp_address()
        try:
            sock = socket.create_connection((host, self._port), max(0.001, deadline - time.monotonic()))
        except OSError as error:
            self._lost(timed_out(timeout) if isinstance(error, TimeoutError) else reason(error))
        super().__init__(sock, str(node), timeout)
        has_tls = node.address.tls or tls != TLSSettings()
        upgrade = Upgrade(tls.context, host, is_required=node.address.tls) if has_tls else None
        identity = {"user_agent": f"gnsqadmin/{VERSION}", "sample_rate": options.sample_rate}
        try:
            self.negotiate(identity, deadline, tls=upgrade, secret=options.auth_secret)
            self.subscribe(topic, options.channel, deadline)
            self._is_subscribed = True
            self.ready(options.window)
        except BaseException:
            self.close()
            raise

    def _lost(self, what: str) -> NoReturn:
        raise NodeError("nsqd", self.node.address, f"{printable(what, 300)} (TCP port {self._port})") from None

    def _late(self) -> NoReturn:
        self._lost(timed_out(self._read_timeout))

    def _refused(self, code: str, reason: str) -> NoReturn:
        self._lost(f"{'ended the connection' if self._is_subscribed else 'refused'}: {code} {reason}".rstrip())

    def take(self) -> list[MessageRow]:
        """Returns received messages, without waiting; raises NodeError if the connection is lost."""
        messages = self.receive(0.0)
        self.in_flight.update(message.id for message in messages)
        return [MessageRow(self.topic, *message, str(self.node)) for message in messages]

    def finish(self, ids: Iterable[bytes]) -> None:
        """Sends FIN for these, if they are in flight; raises NodeError if the connection is lost. Only `leave` ensures
        that the node has received this."""
        finished = [id for id in dict.fromkeys(ids) if id in self.in_flight]
        self.has_finished = self.has_finished or bool(finished)
        super().finish(finished)
        self.in_flight.difference_update(finished)

    def leave(self) -> bool:
        """Requeues unfinished messages at once; returns whether the node has confirmed all finished ones."""
        try:
            self.finish_confirmed(requeue=self.in_flight, within=_GOODBYE)
        except NodeError:
            return False
        finally:
            self.close()
        return True


def wait_readable(selector: selectors.BaseSelector, timeout: float) -> Iterator[Subscription]:
    """Yields the subscriptions that have something to take; waits at most `timeout` seconds for the first."""
    subscriptions = [key.data for key in selector.get_map().values()]
    waiting = [subscription for subscription in subscriptions if subscription.has_messages]
    ready = [key.data for key, _ in selector.select(0 if waiting else timeout)]
    yield from dict.fromkeys([*waiting, *ready])


class ClusterConsumer(AbstractContextManager["ClusterConsumer"]):
    def __init__(self, cluster: Cluster, topics: Sequence[str], options: ConsumerOptions) -> None:
        self.errors: dict[Address, AdminError] = {}  # nodes that messages cannot come from at present
        self.unconfirmed = 0  # connections lost with messages finished, which the node may not know of
        self.too_late = 0  # messages that timed out before they were finished, and come again
        self._cluster = cluster
        self._topics = list(dict.fromkeys(topics))
        self._node_stats = partial(Nsqd.stats, topic=self._topics[0] if len(self._topics) == 1 else "")
        self._options = options
        # By address and topic: the finder adds them, and only the thread that receives removes them.
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()

    def start(self, *, create_channel: bool = False, yes: bool = False) -> None:
        """Connects to the nodes that have the topics; raises AdminError if no node does, or none can be reached.

        A channel that no node has is created only with `create_channel`, or if it is ephemeral. An ephemeral channel
        would take the messages of a topic without channels with it, so this needs `yes`, or confirmation.
        """
        stats = self._cluster.ask(self._node_stats)
        known, channel = names_of(values_of(stats).values()), self._options.channel
        for topic in self._topics:
            if topic not in known:
                raise no_such(self._cluster, [*self._cluster.lookupd_errors, *errors_of(stats)], topic)
            if channel not in known[topic] and not is_ephemeral(channel) and not create_channel:
                near = suggestion(channel, known[topic])
                raise NotOnNode(f"no node has the channel {channel} of {topic}; --create creates it{near}")
        if is_ephemeral(channel) and not yes:
            waiting = Counter[str]()
            for node in values_of(stats).values():
                waiting.update({topic.topic_name: topic.depth for topic in node.topics if not topic.channels})
            losses = [f"{plural(waiting[topic], 'message')} in {topic}" for topic in self._topics if waiting[topic]]
            if losses:
                lost = f"{' and '.join(losses)} would be lost with the temporary channel of this command"
                Confirm(yes=False, dry_run=False).ask(f"{lost}: there is no other.", (), "Take them?", "")
        self._join(stats)
        if not self._subscriptions:
            raise AdminError("; ".join(map(str, self.errors.values())))
        for error in [*self._cluster.lookupd_errors, *self.errors.values()]:
            note(f"Warning: {error}; trying again")
        threading.Thread(target=self._find, name="find", daemon=True).start()

    def _find(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(_RETRY):
            if not self.errors and time.monotonic() < looked + _DISCOVERY:
                continue
            looked = time.monotonic()
            try:
                stats = self._cluster.ask(self._node_stats)
            except AdminError:
                continue  # no nsqlookupd answers; the nodes that are known go on
            if not self._over.is_set():
                self._join(stats)

    def _join(self, stats: Answers[NodeStats]) -> None:
        """Connects to nodes that have a topic and are not connected to; keeps the errors of the others. A connection
        that is lost meanwhile is either missing here, or leaves an error for the next look."""
        self.errors = {address: error for address, error in stats.items() if isinstance(error, NodeError)}
        keys = [(address, topic.topic_name) for address, node in values_of(stats).items() for topic in node.topics]
        missing = [key for key in keys if key[1] in self._topics and (str(key[0]), key[1]) not in self._subscriptions]
        share = max(1, self._options.window // max(1, len(missing) + len(self._subscriptions)))
        options = replace(self._options, window=share)
        subscribe = partial(Subscription, options=options, timeout=self._cluster.timeout, tls=self._cluster.http.tls)
        for topic in self._topics:
            nodes = [Nsqd(address, self._cluster.http) for address, name in missing if name == topic]
            answers = self._cluster.ask(partial(subscribe, topic=topic), nodes)
            for address, answer in answers.items():
                if isinstance(answer, NodeError):
                    self.errors[address] = answer
                else:
                    self._subscriptions[str(address), topic] = answer

    def receive(self, timeout: float) -> list[MessageRow]:
        """Returns messages from all nodes, received within `timeout` seconds."""
        received: list[MessageRow] = []
        for subscription in list(self._subscriptions.values()):
            if subscription not in self._selector.get_map():
                self._selector.register(subscription, selectors.EVENT_READ, subscription)
        for subscription in wait_readable(self._selector, timeout):
            try:
                received += subscription.take()
            except NodeError as error:
                self._lose(subscription, error)
        return received

    def finish(self, messages: Iterable[MessageRow]) -> None:
        """Finishes messages that `receive` returned; those of a lost connection come again."""
        for key, ids in grouped(((message.node, message.topic), message.id) for message in messages).items():
            if key in self._subscriptions:
                try:
                    self._subscriptions[key].finish(ids)
                except NodeError as error:
                    self._lose(self._subscriptions[key], error)

    def _lose(self, subscription: Subscription, error: NodeError) -> None:
        self._selector.unregister(subscription)
        del self._subscriptions[str(subscription.node), subscription.topic]
        self.too_late += len(subscription.unfinished)
        self.unconfirmed += subscription.has_finished
        subscription.close()
        self.errors[subscription.node.address] = error
        note(f"Warning: {error}; trying again")

    def _shares(self, stats: Answers[NodeStats]) -> Iterator[tuple[Address, TopicStats | ChannelStats]]:
        """Yields the topic, which is the only one, and the channel on each node that has them."""
        for address, node in values_of(stats).items():
            for topic in node.topics:
                yield address, topic
                for channel in topic.channels:
                    if channel.channel_name == self._options.channel:
                        yield address, channel

    def waiting(self) -> int:
        return sum(share.depth for _, share in self._shares(self._cluster.ask(self._node_stats)))

    def is_over(self, idle: float, kept: int) -> bool:
        """Returns True if no more messages will arrive, after none has for `idle` seconds, with `kept` in flight here.
        Raises AdminError if the waiting ones do not arrive."""
        stats = self._cluster.ask(self._node_stats)
        if errors := errors_of(stats):
            raise AdminError("; ".join(map(str, errors)))
        waiting, in_flight, deferred, paused, where = 0, -kept, 0, [], f"{self._topics[0]} {self._options.channel}"
        for address, share in self._shares(stats):
            waiting += share.depth
            if isinstance(share, ChannelStats):
                in_flight += share.in_flight_count
                deferred += share.deferred_count
                paused += [f"the channel {share.channel_name} is paused at {address}"] * share.paused
            elif share.paused and share.depth:
                paused.append(f"the topic {share.topic_name} is paused at {address}")
        if waiting and paused:
            raise AdminError(f"{plural(waiting, 'message')} cannot be delivered: {'; '.join(paused)}")
        if waiting and idle > _PATIENCE:
            raise AdminError(f"{plural(waiting, 'message')} not delivered: none arrived for {idle:.0f} s")
        if waiting or (in_flight > 0 and idle < _IN_TRANSIT):
            return False
        if in_flight > 0 or deferred:
            note(f"Left in {where}: {max(0, in_flight):,} in flight to others, {deferred:,} deferred")
        return True

    def __exit__(self, *error: object) -> None:
        self._over.set()
        closing = list(self._subscriptions.values())
        with ThreadPoolExecutor(max(1, len(closing))) as pool:
            for subscription, is_confirmed in zip(closing, pool.map(Subscription.leave, closing), strict=True):
                self.unconfirmed += not is_confirmed and subscription.has_finished
                self.too_late += len(subscription.unfinished)
        self._selector.close()

    def warn(self) -> None:
        """Prints, at the end, what may be delivered twice."""
        if self.too_late:
            note(f"Warning: {plural(self.too_late, 'message')} exceeded the message timeout; others may receive them")
        if self.unconfirmed:
            note("Warning: a node was lost before it confirmed finished messages; some may be delivered again")


def ephemeral_channel(purpose: str) -> str:
    """Returns a unique name of an ephemeral channel, which is deleted with its consumer."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())
    tail = f"-{os.getpid()}-{time.monotonic_ns() % 10_000:04}{EPHEMERAL_SUFFIX}"
    return f"gnsqadmin-{purpose}-{host}"[: MAX_NAME_LENGTH - len(tail)] + tail


@dataclass(frozen=True)
class Source:
    """To consume: without `follow`, it ends when the channel is empty; `create` and `yes` are as in `start`. With
    `begin`, the logs are read instead, without `follow` up to `end`; with `store`, that at this URL."""

    options: ConsumerOptions
    count: int | None
    follow: bool
    create: bool
    yes: bool
    begin: str | None = None
    end: str = "next"
    store: str | None = None


count_option = option("Stop after N messages.", click.IntRange(1), "-n", "--count")
auth_option = option(
    "Secret for AUTH, if nodes require it of consumers.",
    envvar="GNSQADMIN_AUTH_SECRET",
    default="",
    metavar="TEXT",
    on_page=False,
)


def _source(**values: Any) -> Source:
    channel, begin, end, store, create, follow, count, in_flight, secret, yes = map(values.pop, _SOURCE)
    if begin is not None and (channel or create):
        raise click.UsageError("--from reads without a channel: leave out --channel and --create.")
    if end is not None and (begin is None or follow):
        raise click.UsageError("--to requires --from, without --follow.")
    if store is not None and (begin is None or follow):
        raise click.UsageError("--from-store requires --from, without --follow.")
    if create and not channel:
        raise click.UsageError("--create requires --channel.")
    window = min(in_flight, count or in_flight)  # what is taken and given back counts as an attempt
    name = channel or ("" if begin is not None else ephemeral_channel(click.get_current_context().info_name or ""))
    options = ConsumerOptions(name, window, auth_secret=secret)
    until = "next" if end is None else end
    return Source(options, count, follow or not (channel or begin), create, yes, begin, until, store)


_SOURCE = {
    "channel": option(
        "Consume this channel until it is empty. Without it, a temporary channel receives messages published from now "
        "on.",
        Name("channel"),
    ),
    "begin": begin_option,
    "end": option("With --from: stop before this POINT, by default what is new now.", None, "--to", metavar="POINT"),
    "store": option(
        "With --from: read the log in the object store at this URL, the --log-store of a gnsqd, instead of nodes.",
        None,
        "--from-store",
        metavar="URL",
    ),
    "create": flag("Create the channel if it does not exist."),
    "follow": flag("Continue with new messages when --channel is empty, or --from is at the end."),
    "count": count_option,
    "in_flight": option(
        "Maximum number of messages in flight to this command, over all nodes.",
        click.IntRange(1, 1_000_000),
        default=1000,
    ),
    "auth_secret": auth_option,
    "yes": flag("Without --channel: consume messages queued in a topic without channels, without confirmation."),
}
source_options: Any = Combined(_source, _SOURCE)

_TICK = 0.2  # seconds
_IN_TRANSIT = 1.0  # seconds after which a message in flight is not one that is on its way here
_PATIENCE = 30.0  # seconds without a message where some wait


def transfer(
    cluster: Cluster,
    topic: str,
    source: Source,
    doing: str,
    deliver: Callable[[Sequence[MessageRow], Advance], Sequence[MessageRow] | None],
    done: Callable[[], str],
    *,
    shown: bool = True,
) -> tuple[list[AdminError], bool]:
    """Passes at most the messages of `source` to `deliver`, and finishes them when it returns, or only what it
    returns. Raises AdminError, with the text of `done`, if they do not arrive.

    Returns the errors of nodes, and whether Ctrl-C or SIGTERM ended it.
    """
    if threading.current_thread() is threading.main_thread():  # not for the page
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    count, moved, interrupted = source.count, 0, False
    consumer: Any = ClusterConsumer(cluster, [topic], source.options)
    if source.begin is not None and source.store is not None:
        consumer = StoreConsumer(source.store, topic, source.begin, source.end)
    elif source.begin is not None:
        consumer = LogConsumer(cluster, [topic], source.begin, None if source.follow else source.end)
    total = count or (None if source.follow else consumer.waiting() or None)
    kept: set[bytes] = set()  # ids of what is not finished, and goes back at the end
    with consumer:
        consumer.start(create_channel=source.create, yes=source.yes)
        last = time.monotonic()
        with progress(doing, total, shown=shown) as advance:
            try:
                while count is None or moved < count:
                    batch = consumer.receive(_TICK)[: None if count is None else count - moved]
                    if batch:
                        delivered = deliver(batch, advance)
                        finished = batch if delivered is None else delivered
                        consumer.finish(finished)
                        moved += len(batch)
                        kept.update({message.id for message in batch} - {message.id for message in finished})
                        last = time.monotonic()
                    elif not source.follow and consumer.is_over(time.monotonic() - last, len(kept)):
                        break
            except KeyboardInterrupt:
                interrupted = True
            except AdminError as error:
                raise AdminError(f"{error}; {done()}") from None
    consumer.warn()
    return [*cluster.lookupd_errors, *consumer.errors.values()], interrupted
