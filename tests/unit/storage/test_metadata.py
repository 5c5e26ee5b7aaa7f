"""nsqd.dat: how it is read, with the error texts of Go 1.19, and when a running daemon writes it."""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gevent
import pytest
from gevent.lock import Semaphore

from gnsqd.log import Level, Logger
from gnsqd.shared.errors import StorageError
from gnsqd.storage import metadata
from gnsqd.storage.metadata import ChannelMetadata, MetadataFile, TopicMetadata, find_older, load
from unit.storage.greenlets import eventually


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.mkdir()
    text = f"failed to read metadata from {path} - read {path}: is a directory"
    with pytest.raises(StorageError, match=f"^{re.escape(text)}$"):
        load(str(path))


@pytest.mark.parametrize(
    "text, topics",
    [
        ('{"topics":[null]}', [TopicMetadata("", False, [])]),
        ('{"topics":[{"name":"a","name":"b","paused":null}]}', [TopicMetadata("b", False, [])]),
        ('{"topics":[{"name":"a","paused":true,"name":null,"paused":null}]}', [TopicMetadata("a", True, [])]),
        ('{"topics":[{"name":"a","channels":null}]}', [TopicMetadata("a", False, [])]),
        ('{"topics":[5]}', "number into Go struct field Metadata.topics of type nsqd.TopicMetadata"),
        ('{"version":5}', "number into Go struct field Metadata.version of type string"),
        ('{"topics":[{"name":5}]}', "number into Go struct field TopicMetadata.topics.name of type string"),
        ('{"topics":[{"paused":"x"}]}', "string into Go struct field TopicMetadata.topics.paused of type bool"),
        (
            '{"topics":[{"channels":{}}]}',
            "object into Go struct field TopicMetadata.topics.channels of type []nsqd.ChannelMetadata",
        ),
        (
            '{"topics":[{"channels":[{"paused":1}]}]}',
            "number into Go struct field ChannelMetadata.topics.channels.paused of type bool",
        ),
    ],
)
def test_file_is_read_as_go_reads_it(tmp_path: Path, text: str, topics: list[TopicMetadata] | str) -> None:
    # More is in the tests of `gotext`.
    path = tmp_path / "nsqd.dat"
    path.write_text(text, "utf-8")
    if isinstance(topics, list):
        assert load(str(path)) == topics
    else:
        with pytest.raises(StorageError) as raised:
            load(str(path))
        assert str(raised.value) == f"failed to parse metadata in {path} - json: cannot unmarshal {topics}"


def test_files_of_older_daemons_are_found_by_their_names(tmp_path: Path) -> None:
    for name in ("nsqd.7.dat", "nsqd.1023.dat", "nsqd.x.dat", "nsqd..dat", "nsqd.dat.7", "xnsqd.1.dat", "nsqd.5xdat"):
        (tmp_path / name).touch()
    (tmp_path / "nsqd.6.dat").mkdir()
    (tmp_path / "nsqd.8.dat").symlink_to("nsqd.dat")  # nsqd 1.0 kept such links; this one leads nowhere
    assert find_older(str(tmp_path)) == ["nsqd.1023.dat", "nsqd.7.dat"]


class Writing:
    """A metadata file with its loop, over a list of topics. Also stands in for the Syncer: a write waits for `let`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics: list[str] = []
        self.asked: list[str] = []
        self.rules: dict[str, object] | None = None  # of the channel `c` that every topic has
        self.begun = 0
        self.ended = 0
        self.error: StorageError | None = None
        self.stream = io.StringIO()
        self._permits = Semaphore(0)
        log = Logger("", Level.DEBUG, self.stream)
        self.file = MetadataFile(str(path), self._topic, cast(Any, self), log, durable=False)
        self.loop = gevent.spawn(self.file.persist_loop)

    def _topic(self, name: str) -> TopicMetadata | None:
        self.asked.append(name)
        return TopicMetadata(name, False, [ChannelMetadata("c", rules=self.rules)]) if name in self.topics else None

    def run(self, function: Callable[..., None], *args: object) -> None:
        self.begun += 1
        try:
            self._permits.acquire()
            if self.error is not None:
                raise self.error
            function(*args)
        finally:
            self.ended += 1

    def let(self, writes: int) -> None:
        for _ in range(writes):
            self._permits.release()

    def create(self, name: str) -> "gevent.Greenlet[[], None]":
        """Starts somebody who has created a topic and waits for it to be on disk."""
        creator = gevent.spawn(self._create, name)
        gevent.sleep(0)
        return creator

    def _create(self, name: str) -> None:
        self.topics.append(name)
        self.file.note_change(name)
        self.file.wait()

    def listed(self) -> list[str]:
        return [topic.name for topic in load(str(self.path))]

    def errors(self) -> list[str]:
        return re.findall(r"ERROR: (.*)", self.stream.getvalue())


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writing]:
    """Retries come only when they are asked for."""
    monkeypatch.setattr(metadata, "RETRY_SECONDS", 3600.0)
    writing = Writing(tmp_path / "nsqd.dat")
    with gevent.Timeout(30):
        yield writing
        writing.error = None
        writing.let(1000)
        writing.file.close()
        writing.loop.get()


def test_changes_during_a_write_share_the_next_which_alone_counts_for_them(writing: Writing) -> None:
    early = writing.create("early")
    eventually(lambda: writing.begun == 1)
    late = [writing.create(str(number)) for number in range(50)]
    writing.let(1)
    early.get()
    eventually(lambda: writing.begun == 2)
    assert writing.listed() == ["early"]
    assert not any(creator.ready() for creator in late)
    writing.let(1)
    gevent.joinall(late, raise_error=True)
    assert writing.begun == 2
    assert writing.listed() == writing.topics


def test_a_write_looks_only_at_the_topics_that_changed(writing: Writing) -> None:
    writing.let(1000)
    for number in range(10):
        writing.create(str(number)).get()
    assert writing.asked == writing.topics == writing.listed()
    writing.topics.remove("4")
    writing.file.persist("4")
    assert writing.asked[10:] == ["4"]
    assert writing.listed() == writing.topics


def test_rules_are_written_with_the_change_of_their_topic_and_not_again(writing: Writing) -> None:
    path = writing.path.with_name("gnsqd.rules.dat")
    writing.rules = {"rate": 5}
    writing.error = StorageError("disk full")
    writing.let(1)
    writing.create("a").get()
    writing.error = None
    writing.let(1000)
    writing.create("b").get()
    assert (
        path.read_text() == '{"channels":[{"topic":"a","channel":"c","rate":5},{"topic":"b","channel":"c","rate":5}]}'
    )
    path.unlink()
    writing.file.persist("a")
    assert not path.exists()
    writing.rules = None
    writing.file.persist("a")
    assert json.loads(path.read_text()) == {"channels": [{"topic": "b", "channel": "c", "rate": 5}]}
    writing.topics.remove("b")
    writing.file.persist("b")
    assert not path.exists()


def test_who_stops_waiting_leaves_the_writes_in_order(writing: Writing) -> None:
    early = writing.create("early")
    eventually(lambda: writing.begun == 1)
    early.kill()
    late = writing.create("late")
    gevent.sleep(0)
    assert writing.begun == 1
    writing.let(2)
    late.get()
    assert writing.listed() == ["early", "late"]


def test_nothing_is_written_without_a_change_except_by_request(writing: Writing) -> None:
    writing.file.wait()
    done = writing.create("a")
    writing.let(3)
    done.get()
    writing.file.wait()
    gevent.sleep(0)
    assert writing.begun == 1
    writing.file.persist("a")
    writing.file.persist("a")
    assert writing.begun == 3


def test_failed_write_is_logged_once_and_tried_again(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "RETRY_SECONDS", 0.001)
    writing.error = StorageError("write x: no space left on device")
    writing.let(10)
    writing.create("a").get()
    assert not writing.path.exists()
    eventually(lambda: writing.ended == 10)
    assert writing.errors() == ["failed to persist metadata - write x: no space left on device"]
    writing.error = None
    writing.let(1)
    eventually(writing.path.exists)
    assert writing.listed() == ["a"]
    eventually(lambda: writing.stream.getvalue().endswith(f"could be persisted to {writing.path} at last\n"))
    gevent.sleep(0.01)
    assert writing.begun == 11


def test_every_change_that_could_not_be_written_is_logged_and_nobody_waits_for_a_retry(writing: Writing) -> None:
    writing.error = StorageError("disk full")
    writing.let(4)
    writing.create("a").get()
    writing.create("b").get()
    assert writing.errors() == ["failed to persist metadata - disk full"] * 2
    writing.file.wait()
    assert (writing.begun, len(writing.errors())) == (3, 2)
    writing.error = None
    writing.file.wait()
    assert writing.listed() == ["a", "b"]


def test_failure_of_an_earlier_write_does_not_count_for_a_later_change(writing: Writing) -> None:
    writing.error = StorageError("disk full")
    writing.create("early")
    eventually(lambda: writing.begun == 1)
    late = writing.create("late")
    writing.let(1)
    eventually(lambda: writing.begun == 2)
    assert not late.ready()
    writing.error = None
    writing.let(1)
    late.get()
    assert writing.listed() == ["early", "late"]


def test_close_waits_for_the_write_under_way_and_has_the_last_word(writing: Writing) -> None:
    first = writing.create("first")
    eventually(lambda: writing.begun == 1)
    closing = gevent.spawn(writing.file.close)
    gevent.sleep(0)
    assert writing.begun == 1
    second = writing.create("second")
    writing.let(1)
    first.get()
    eventually(lambda: writing.begun == 2)
    third = writing.create("third")  # comes after the last write took its state
    writing.let(2)
    gevent.joinall([closing, second, third, writing.loop], raise_error=True)
    assert writing.listed() == ["first", "second", "third"]
    writing.file.note_change("first")
    with pytest.raises(StorageError, match="^exiting$"):
        writing.file.wait()
    assert writing.begun == 3


def test_close_neither_waits_for_a_retry_nor_fails(writing: Writing) -> None:
    writing.error = StorageError("disk full")
    writing.let(2)
    writing.create("a").get()
    writing.file.close()
    writing.loop.get()
    assert writing.errors() == ["failed to persist metadata - disk full"] * 2
    with pytest.raises(StorageError, match="^exiting$"):
        writing.file.wait()
