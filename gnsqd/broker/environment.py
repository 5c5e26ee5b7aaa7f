"""What topics and channels need from the rest of the daemon: plain callables, so that nothing here points upwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gevent import Greenlet

from gnsqd.broker.guid import GuidFactory
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.store import Store
from gnsqd.storage.free_disk import FreeDisk

Spawn = Callable[[str, Callable[[], None]], "Greenlet[..., None]"]


@dataclass(frozen=True)
class Environment:
    """Handed to every topic and channel.

    open_store(topic)       opens what keeps the messages of a topic; StorageError
    notify(thing, persist)  a topic or channel came or went; `persist`: nsqd.dat must have it. Never yields
    channels_to_precreate(topic)  names that nsqlookupd knows; may yield
    spawn(name, body)       starts a greenlet whose death by a bug ends the daemon
    free_disk               what watches the disk, where that is asked for
    note_dead(channel)      it has set messages aside for its dead-letter topic. Never yields
    """

    options: Options
    log: Logger
    ids: GuidFactory
    open_store: Callable[[str], Store]
    notify: Callable[[object, bool], None]
    channels_to_precreate: Callable[[str], list[str]]
    spawn: Spawn
    free_disk: FreeDisk | None = None
    note_dead: Callable[[Any], None] = lambda channel: None
