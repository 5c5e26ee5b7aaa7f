"""Pauses, empties or deletes idle channels: those without consumers for their idle timeout, by option or rule.

Only subscribed clients are consumers, and whoever reads the channel by ranges. An ephemeral channel is never idle. Time
in which the process did not run, and so no consumer could come, does not count.
"""

from contextlib import suppress
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
from gnsqd.options import MILLISECOND, SECOND, Options
from gnsqd.shared.errors import StorageError
from gnsqd.storage.metadata import MetadataFile

LOOP_SECONDS = 1.0
STALL_SECONDS = 1.5  # a loop that notes the time in between later than that did not run
_DONE = {"pause": "paused", "empty": "emptied", "delete": "deleted"}


class IdleAction(NamedTuple):
    """An action that is due in `left` ns, unless a consumer comes; the channel had none for `time` ns."""

    policy: str
    time: int
    left: int


def idle_action(channel: Channel) -> IdleAction | None:
    """Returns what will be done to a channel; None if nothing, also because nothing is left to do. A channel is emptied
    once in each idle timeout."""
    if not channel.idle_timeout or channel.is_used:
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
        self, registry: Registry, options: Options, metadata_file: MetadataFile, log: Logger, spawn: Spawn
    ) -> None:
        self._registry = registry
        self._drops_idle = options.overflow_policy == "drop-idle"
        self._metadata_file = metadata_file
        self._log = log
        self._spawn = spawn
        self._exit = Event()
        self._loop: Greenlet[..., None] | None = None
        self._noted = 0  # monotonic ns, when the loop last ran
        self._done: list[tuple[object, ...]] = []  # what is to be logged

    def watch(self) -> None:
        """Starts the loop, as a channel has an idle timeout, unless it runs. Never yields."""
        if self._loop is None:
            self._registry.idle_actions = dict.fromkeys(_DONE, 0)
            self._loop = self._spawn("idleLoop", self.idle_loop)

    def stop(self) -> None:
        self._exit.set()

    def idle_loop(self) -> None:
        """Checks all channels every second, until `stop`."""
        self._noted = monotonic_ns()
        while not self._exit.wait(LOOP_SECONDS):
            self._leave_out_stall()
            self._check_all()
            if self._done:
                self._log_done()

    def _leave_out_stall(self) -> None:
        """Takes the time since the last call off the idle times if the process did not run in it. Never yields."""
        last, self._noted = self._noted, monotonic_ns()
        if self._noted - last < STALL_SECONDS * SECOND:
            return
        for topic in self._registry.topics.values():
            for channel in topic.channels.values():
                channel.idle_since = min(channel.idle_since + self._noted - last, self._noted)
                channel.emptied = min(channel.emptied + self._noted - last, self._noted)

    def _check_all(self) -> None:
        turns = Turns()
        for topic in turns.over([] if self._registry.loading else list(self._registry.topics.values())):
            for channel in turns.over(list(topic.channels.values())):
                if self._exit.is_set():
                    return
                self._leave_out_stall()
                if not channel.exiting and not topic.exiting:
                    self._check(topic, channel)

    def _check(self, topic: Topic, channel: Channel) -> None:
        """Does what is due now. Nothing yields in between, so that no consumer comes meanwhile."""
        if self._drops_idle and not channel.ephemeral and not channel.is_used:
            timeout = channel.idle_timeout
            channel.may_refuse = not timeout or monotonic_ns() - channel.idle_since < timeout
        action = idle_action(channel)
        if action is None or action.left:
            return
        self._registry.idle_actions[action.policy] += 1
        name = f"{topic.name}:{channel.name}"
        time = format_duration(action.time // MILLISECOND * MILLISECOND)
        done = name, _DONE[action.policy], time, channel.depth, channel.deferred_count
        try:
            if action.policy == "pause":
                channel.pause()
                self._metadata_file.note_change(topic.name)
            elif action.policy == "empty":
                channel.empty()
            else:
                topic.delete_existing_channel(channel.name)
            self._done.append(done)
        except StorageError as error:
            self._log.error("CHANNEL(%s): failed to %s it - %s", name, action.policy, error)

    def _log_done(self) -> None:
        """Logs what was done, once nsqd.dat has it. Yields."""
        with suppress(StorageError):  # the daemon exits
            self._metadata_file.wait()
        actions, self._done = self._done, []
        for done in actions:
            self._log.warn("CHANNEL(%s): %s, as it had no consumer for %s - depth %d, %d deferred", *done)
