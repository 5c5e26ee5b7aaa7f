"""Tracks whether the disk can be written to: /ping reports the last failure, and a probe detects when it is over.

Publishers avoid a daemon that is not healthy, so without the probe nothing might be written again.
"""

from contextlib import suppress

from gevent.event import Event

from gnsqd.broker.registry import Registry
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import temporary_path, try_write
from gnsqd.storage.syncer import Syncer

PROBE_SECONDS = 1.0
PROBE_SIZE = 1 << 20  # bytes at most


class Health:
    """Owns the probe, a file beside `path` that takes a message of the largest size, or 1 MiB of it."""

    def __init__(self, registry: Registry, max_msg_size: int, path: str, syncer: Syncer, log: Logger) -> None:
        self._registry = registry
        self._data = bytes(min(max(max_msg_size, 0), PROBE_SIZE))
        self._path = temporary_path(path)
        self._syncer = syncer
        self._log = log
        self._bell = Doorbell()
        self._stopped = Event()

    def note(self, error: Exception | None) -> None:
        """Reports the result of a disk write: its error, or None."""
        self._registry.error = error
        if error is not None:
            self._bell.ring()

    def loop(self) -> None:
        """Probes the disk after each failed write, until a probe succeeds; returns after `stop`."""
        while not self._stopped.wait(PROBE_SECONDS):
            error = self._registry.error
            if error is None:
                self._bell.wait()
                continue
            with suppress(StorageError):
                self._syncer.run(try_write, self._path, self._data)
                if self._registry.error is error:
                    self._log.info("NSQ: the disk can be written to again")
                    self._registry.error = None

    def stop(self) -> None:
        self._stopped.set()
        self._bell.ring()
