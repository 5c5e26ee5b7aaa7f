"""The traffic of a small shop, for --demo: topics whose names begin with "demo.", and clients of this daemon that
publish to them and consume them over TCP, as any client would.

It may run for days: a publisher pauses while its topic holds _MOST_MESSAGES, whatever somebody has paused or stopped.
Nothing is random, so that every minute is like the one before.
"""

import json
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from typing import NoReturn

from gevent import Greenlet, killall, sleep
from gevent.select import poll

from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import Spawn
from gnsqd.log import Logger
from gnsqd.net.addresses import reason
from gnsqd.net.dialing import dial_address
from gnsqd.shared.client import Client
from gnsqd.shared.errors import NSQError
from gnsqd.shared.version import VERSION

ORDERS, MAILS, REMINDERS, AUDIT = "demo.orders", "demo.mails", "demo.reminders", "demo.audit"
# Each with its channel, and the seconds that it needs for a message.
CONSUMERS = {
    "billing-1": (ORDERS, "billing", 0.02),
    "shipping-1": (ORDERS, "shipping", 0.15),
    "shipping-2": (ORDERS, "shipping", 0.15),
    "mailer-1": (MAILS, "mailer", 0.3),  # slower than mails come in a rush, faster than after it
    "caller-1": (REMINDERS, "caller", 0.5),
}
UNCONSUMED = (AUDIT, "report")

_MOST_MESSAGES = 1000  # in a topic with its channels
_MOST_DEAD = 20
_TICK_SECONDS = 0.2  # between two orders
_RUSH_TICKS = 150  # of as many orders each brings a mail, and then of as many each third
_REQUEUE_MS = 1000
_SECONDS = 2.0  # to connect, and until a client that lost its connection connects again
_SILENCE = 3600.0  # of the daemon until a client takes it for hung; heartbeats come more often
_POISON = b'"cents": null'  # in an order that can never be billed
_PRICES = (("tea", 450), ("coffee", 790), ("mug", 1290), ("kettle", 3490), ("teapot", 2450))  # in cents


class Demo:
    """Owns the greenlets of the shop. `address` is that of the daemon for TCP."""

    def __init__(self, address: str, registry: Registry, log: Logger, spawn: Spawn) -> None:
        self._address, self._registry, self._log, self._spawn = address, registry, log, spawn
        self._greenlets: list[Greenlet[..., None]] = []

    def start(self) -> None:
        """Creates the topics and channels, and starts the clients. Yields."""
        for topic, channel in (*(row[:2] for row in CONSUMERS.values()), UNCONSUMED):
            self._registry.get_topic(topic).get_channel(channel)
        works = {"shop": self._sell} | {name: partial(_consume, *row) for name, row in CONSUMERS.items()}
        self._greenlets += [self._spawn(f"demo:{name}", partial(self._keep, name, works[name])) for name in works]
        text = "DEMO: clients publish to topics that begin with demo. and consume them: %s comes in rushes that "
        self._log.info(text + "mailer-1 cannot follow, %s has dead letters, nobody consumes %s", MAILS, ORDERS, AUDIT)

    def stop(self) -> None:
        """Ends the clients where they are; their messages in flight go back to their channels. Yields."""
        killall(self._greenlets)

    def _keep(self, name: str, work: "Callable[[_Client], None]") -> None:
        """Lets a client work, again after it lost its connection, as when its topic was deleted."""
        last = ""
        while True:
            try:
                with closing(_Client(self._address, name)) as client:
                    work(client)
            except (OSError, NSQError) as error:
                if last != (last := str(error) if isinstance(error, NSQError) else reason(error)):
                    self._log.warn("DEMO(%s): %s; it connects every %d s", name, last, _SECONDS)
            sleep(_SECONDS)

    def _sell(self, client: "_Client") -> None:
        for tick in count(1):
            sleep(_TICK_SECONDS)
            client.poll()  # heartbeats come also while every topic is full
            item, cents = _PRICES[tick % len(_PRICES)]
            is_poison = tick % 100 == 5 and self._has_room(f"{ORDERS}.billing.dead", _MOST_DEAD)
            self._publish(client, ORDERS, {"order": tick, "item": item, "cents": None if is_poison else cents})
            if tick // _RUSH_TICKS % 2 == 0 or tick % 3 == 0:
                self._publish(client, MAILS, {"to": f"customer-{tick % 40}@shop.example", "about_order": tick})
            if tick % 25 == 1:
                self._publish(client, AUDIT, {"checked_until_order": tick})
                self._publish(client, REMINDERS, {"call_about_order": tick}, 20_000 if tick % 50 == 1 else 600_000)

    def _publish(self, client: "_Client", topic: str, body: dict[str, object], defer_ms: int = 0) -> None:
        if self._has_room(topic, _MOST_MESSAGES):
            client.publish(topic, [json.dumps(body).encode()], defer_ms)

    def _has_room(self, name: str, most: int) -> bool:
        topic = self._registry.topics.get(name)
        channels = [] if topic is None else topic.channels.values()
        held = sum(each.depth + each.deferred_count + len(each.in_flight) for each in channels)
        return topic is None or topic.depth + held < most


def _consume(topic: str, channel: str, seconds: float, client: "_Client") -> None:
    client.subscribe(topic, channel)
    client.ready(1)
    while True:
        for message in client.receive(_SECONDS):
            sleep(seconds)
            if channel == "billing" and _POISON in message.body:  # anybody may publish anything else
                client.requeue([message.id], _REQUEUE_MS)
            else:
                client.finish([message.id])


class _Client(Client):
    """A client that waits as a greenlet does; all of it may raise OSError or NSQError."""

    poller = poll

    def __init__(self, address: str, name: str) -> None:
        super().__init__(dial_address(address, _SECONDS), name, _SILENCE)
        identity = {"client_id": name, "hostname": f"{name}.demo", "user_agent": f"gnsqd-demo/{VERSION}"}
        self.negotiate(identity, time.monotonic() + _SILENCE)

    def _lost(self, what: str) -> NoReturn:
        raise NSQError(what)

    def _refused(self, code: str, reason: str) -> NoReturn:
        raise NSQError(f"{code} {reason}".rstrip())
