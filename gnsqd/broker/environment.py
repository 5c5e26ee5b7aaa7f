"""What topics and channels need from the rest of the daemon: plain callables, so that nothing here points upwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gevent import Greenlet

from gnsqd.broker.guid import GuidFactory
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.free_disk import FreeDisk
from gnsqd.storage.journal.journal import Journal

Spawn = Callable[[str, Callable[[], None]], "Greenlet[..., None]"]


@dataclass(frozen=True)
class Environment:
    """Handed to every topic and channel.

    make_backend(name)      opens the disk queue of that backend name
    has_backend(name)       whether that queue may have files; False is certain
    open_journal(topic)     what keeps the messages of a topic instead, with durability; None without
    notify(thing, persist)  a topic or channel came or went; `persist`: nsqd.dat must say so. Never yields
    set_health(error)       a disk write failed, or succeeded (None)
    channels_to_precreate(topic)  names that nsqlookupd knows; may yield
    spawn(name, body)       starts a greenlet whose death by a bug ends the daemon
    free_disk               what watches the disk, where that is asked for
    note_dead(channel)      it has set messages aside for its dead-letter topic. Never yields
    check_exit()            StartError if the daemon was asked to exit while it loads
    """

    options: Options
    log: Logger
    ids: GuidFactory
    make_backend: Callable[[str], DiskQueue]
    notify: Callable[[object, bool], None]
    set_health: Callable[[Exception | None], None]
    channels_to_precreate: Callable[[str], list[str]]
    spawn: Spawn
    open_journal: Callable[[str], Journal | None] = lambda topic: None
    has_backend: Callable[[str], bool] = lambda name: True
    free_disk: FreeDisk | None = None
    note_dead: Callable[[Any], None] = lambda channel: None
    check_exit: Callable[[], None] = lambda: None
