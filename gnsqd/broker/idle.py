"""Pauses, empties or deletes idle channels: those without consumers for their idle timeout, by option or rule.

Only subscribed clients are consumers, and whoever reads the channel by ranges. An ephemeral channel is never idle.
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import NamedTuple

from gevent import Greenlet
from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.gotext import format_duration
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.log import Logger
from gnsqd.options import MILLISECOND, Options
from gnsqd.shared.errors import StorageError

LOOP_SECONDS = 1.0
_DONE = {"pause": "paused", "empty": "emptied", "delete": "deleted"}


class IdleAction(NamedTuple):
    """An action that is due in `left` ns, unless a consumer comes; the channel had none for `time` ns."""

    policy: str
    time: int
    left: int


def idle_action(channel: Channel) -> IdleAction | None:
    """Returns what will be done to a channel; None if nothing, also because nothing is left to do. A channel is emptied
    once in each idle timeout."""
    if not channel.idle_timeout or channel.clients:
        return None
    policy, since = channel.idle_policy, channel.idle_since
    if policy == "none" or (policy == "pause" and channel.paused):
        return None
    if policy == "empty":
        if not (channel.depth or channel.in_flight or channel.deferred_count):
            return None
        since = max(since, channel.emptied)
    now = monotonic_ns()
    return IdleAction(policy, now - channel.idle_since, max(since + channel.idle_timeout - now, 0))


class IdleChannels:
    """Owns `idle_loop`, which `watch` starts."""

    def __init__(
        self, registry: Registry, options: Options, note_change: Callable[[str], None], log: Logger, spawn: Spawn
    ) -> None:
        self._registry = registry
        self._drops_idle = options.overflow_policy == "drop-idle"
        self._note_change = note_change  # of a topic, in nsqd.dat
        self._log = log
        self._spawn = spawn
        self._exit = Event()
        self._loop: Greenlet[..., None] | None = None

    def watch(self) -> None:
        """Starts the loop, as a channel has an idle timeout, unless it runs. Never yields."""
        if self._loop is None:
            self._registry.idle_actions = dict.fromkeys(_DONE, 0)
            self._loop = self._spawn("idleLoop", self.idle_loop)

    def stop(self) -> None:
        self._exit.set()

    def idle_loop(self) -> None:
        """Checks all channels every second, until `stop`."""
        while not self._exit.wait(LOOP_SECONDS):
            turns = Turns()
            for topic in turns.over([] if self._registry.loading else list(self._registry.topics.values())):
                for channel in turns.over(list(topic.channels.values())):
                    if self._exit.is_set():
                        return
                    if not channel.exiting and not topic.exiting:
                        self._check(topic, channel)

    def _check(self, topic: Topic, channel: Channel) -> None:
        """Does what is due now. Nothing yields in between, so that no consumer comes meanwhile."""
        if self._drops_idle and not channel.ephemeral and not channel.clients:
            timeout = channel.idle_timeout
            channel.may_refuse = not timeout or monotonic_ns() - channel.idle_since < timeout
        action = idle_action(channel)
        if action is None or action.left:
            return
        self._registry.idle_actions[action.policy] += 1
        name = f"{topic.name}:{channel.name}"
        time = format_duration(action.time // MILLISECOND * MILLISECOND)
        text = "CHANNEL(%s): %s, as it had no consumer for %s - depth %d, %d deferred"
        self._log.warn(text, name, _DONE[action.policy], time, channel.depth, channel.deferred_count)
        try:
            if action.policy == "pause":
                channel.pause()
                self._note_change(topic.name)
            elif action.policy == "empty":
                channel.empty()
            else:
                topic.delete_existing_channel(channel.name)
        except StorageError as error:
            self._log.error("CHANNEL(%s): failed to %s it - %s", name, action.policy, error)
