"""A disk queue against a list, with tiny files, restarts and kills at random points."""

import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import gevent
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.shared.disk_format import Meta, frame_records, parse_queue_file
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.syncer import Syncer

T = TypeVar("T")

ALL = 1_000_000
MAX_BYTES_PER_FILE = 64
IN_MEMORY = Path("/dev/shm")  # on a busy disk, thousands of renames take minutes


class StepwiseSyncer(Syncer):
    """Threads would make runs differ: here a sync takes turns with the test, a step at a time."""

    def run(self, function: Callable[..., T], *args: object) -> T:
        gevent.sleep(0)
        result = function(*args)
        gevent.sleep(0)
        return result


class DiskQueueModel(RuleBasedStateMachine):
    """`history` is everything ever put since the queue was last emptied, of which `consumed` have been read."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
        self.lives = 0
        self.log = io.StringIO()
        self.syncer = StepwiseSyncer()
        self.history: list[bytes] = []
        self.consumed = 0
        self.put_ever = 0
        self.depth_is_known = True
        self.fsync = patch("os.fsync")
        self.fsync.start()

    @initialize(sync_every=st.sampled_from([0, 1, 7, 2500]))
    def open_first(self, sync_every: int) -> None:
        self.sync_every = sync_every
        self.path = self.root / "0"
        self.path.mkdir()
        self.queue = self.open(self.path)

    def open(self, path: Path) -> DiskQueue:
        options = Options(
            max_bytes_per_file=MAX_BYTES_PER_FILE,
            max_msg_size=100,
            sync_every=self.sync_every,
            sync_timeout=3600 * 10**9,
        )
        log = Logger("", Level.WARN, self.log)
        return DiskQueue("q", options, DataFiles(os.fspath(path), os.listdir(path)), log, self.syncer, min_size=0)

    @property
    def left(self) -> list[bytes]:
        return self.history[self.consumed :]

    @rule(sizes=st.lists(st.integers(0, 80), max_size=12))
    def put(self, sizes: list[int]) -> None:
        payloads = [b"%04d" % (self.put_ever + i) + b"x" * size for i, size in enumerate(sizes)]
        self.put_ever += len(payloads)
        self.queue.put_many(payloads)
        self.history += payloads

    @rule(limit=st.integers(1, 6), max_bytes=st.integers(1, 200), part=st.floats(0, 1))
    def read(self, limit: int, max_bytes: int, part: float) -> None:
        payloads = self.queue.peek_many(limit, max_bytes)
        assert payloads == self.left[: len(payloads)]
        assert bool(payloads) == bool(self.left)
        assert len(payloads) <= limit
        assert sum(map(len, payloads)) <= max_bytes or len(payloads) == 1
        count = round(part * len(payloads))
        self.queue.advance(count)
        self.consumed += count

    @rule(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4))
    def put_between_peek_and_advance(self, sizes: list[int]) -> None:
        payloads = self.queue.peek_many(ALL, ALL)
        assert payloads == self.left[: len(payloads)]
        self.put(sizes)
        self.queue.advance(len(payloads))
        self.consumed += len(payloads)

    @rule()
    def let_syncs_make_a_step(self) -> None:
        gevent.sleep(0)

    @rule()
    def sync(self) -> None:
        assert self.queue.start_sync().get() is None

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        self.history.clear()
        self.consumed = 0
        self.depth_is_known = True

    @rule()
    def restart(self) -> None:
        self.queue.close()
        names = os.listdir(self.path)
        assert not [name for name in names if name.endswith((".tmp", ".bad"))]
        self.queue = self.open(self.path)

    @precondition(lambda self: self.lives < 5)
    @rule()
    def kill(self) -> None:
        """Copies the files as they are at this moment to another directory; returns what a daemon reads there."""
        self.lives += 1
        self.path = self.root / str(self.lives)
        shutil.copytree(self.root / str(self.lives - 1), self.path, ignore=shutil.ignore_patterns("*.tmp"))
        self.queue.close()
        trial = self.root / "trial"
        shutil.copytree(self.path, trial)
        queue = self.open(trial)
        survived = []
        while payloads := queue.peek_many(ALL, ALL):
            survived += payloads
            queue.advance(len(payloads))
        queue.close()
        shutil.rmtree(trial)
        assert len(survived) >= len(self.left)
        self.consumed = len(self.history) - len(survived)
        assert survived == self.left
        self.depth_is_known = False
        self.queue = self.open(self.path)

    @invariant()
    def depth_is_that_of_the_list(self) -> None:
        if hasattr(self, "queue"):
            assert bool(self.queue.depth) == bool(self.left)
            self.depth_is_known |= not self.left
            if self.depth_is_known:
                assert self.queue.depth == len(self.left)

    @invariant()
    def size_is_that_of_the_records(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.size == sum(4 + len(payload) for payload in self.left)

    @invariant()
    def files_end_with_what_is_left_and_keep_to_the_limit(self) -> None:
        """Checks that no file lies behind the one in meta, or else the real nsqd, taking over after a kill, would
        overwrite it."""
        if not hasattr(self, "queue"):
            return
        contents = {
            file.number: path.read_bytes()
            for path in sorted(self.path.iterdir())
            if (file := parse_queue_file(path.name)) and file.number is not None and not file.is_bad
        }
        left = frame_records(self.left)
        assert b"".join(contents.values()).endswith(left)
        assert sum(len(content) for content in list(contents.values())[1:]) < max(len(left), 1), "a file was read"
        for content in contents.values():
            assert len(content) <= max(MAX_BYTES_PER_FILE, 4 + 84)
        if contents:
            meta = Meta.parse((self.path / "q.diskqueue.meta.dat").read_bytes())
            assert max(contents) <= meta.write_file
            assert meta.read_position <= meta.write_position

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
        self.syncer.stop()
        self.fsync.stop()
        shutil.rmtree(self.root)


DiskQueueModel.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestDiskQueueAgainstAList = DiskQueueModel.TestCase
