"""The writers of format("nsq") without a JVM: which messages go together, which frames are refused, and what happens
when an nsqd does not take them."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kit.daemons import Instance
from kit.spark_topics import bodies
from kit.traffic import DaemonFactory, create, take, wait_for
from pyspark_nsq import publishing
from pyspark_nsq.catalog_table import schema_of
from pyspark_nsq.client import SourceClient
from pyspark_nsq.discovery import KnownNsqd
from pyspark_nsq.errors import ConnectionLost, DiscoveryError, NotAgreed, NsqSourceError, Refused, WriteError
from pyspark_nsq.message_batches import Columns, MessageBatch, message_batches
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings
from pyspark_nsq.publishing import TaskPublisher
from pyspark_nsq.writer import NsqStreamWriter, NsqWriter
from spark.unit.fake_nsqd import FakeClient, FakeDaemon, split_bodies

SETTINGS = Settings(topic="clicks", retry_timeout=10.0)


def batch(topic: str, bodies: Sequence[bytes], defer_ms: int = 0) -> MessageBatch:
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return MessageBatch(topic, defer_ms, len(bodies), data)


def frame(**columns: pa.Array | Sequence[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def batches(rows: pa.RecordBatch, settings: Settings = SETTINGS) -> list[MessageBatch]:
    names = rows.schema.names
    columns = Columns(*(names.index(name) if name in names else None for name in Columns._fields))  # type: ignore[arg-type]
    return list(message_batches(rows, columns, settings))


# Which messages go together


@pytest.mark.parametrize(
    "limit, sizes, together",
    [
        ({"batch_size": 3}, [1] * 7, [3, 3, 1]),
        ({"batch_bytes": 20}, [6, 6, 1, 100, 1], [2, 1, 1, 1]),  # as MPUB counts them: four more for each
    ],
)
def test_a_batch_has_its_limit_except_for_a_larger_message(
    limit: dict[str, int], sizes: list[int], together: list[int]
) -> None:
    values = [b"x" * size for size in sizes]
    found = batches(frame(value=values), replace(SETTINGS, **limit))  # type: ignore[arg-type]
    assert [one.messages for one in found] == together
    assert [body for one in found for body in split_bodies(one.data)] == values


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_values_are_texts_or_bytes(kind: pa.DataType) -> None:
    rows = frame(value=pa.array(["", "grün", "x"], kind).slice(1))
    assert batches(rows) == [batch("clicks", ["grün".encode(), b"x"])]


def test_rows_go_by_topic_and_delay() -> None:
    rows = frame(
        value=[b"1", b"2", b"3", b"4", b"5"],
        topic=["a", "b", "a", "a", "b"],
        defer_ms=pa.array([0, None, None, 500, 0], pa.int64()),
    )
    assert batches(rows, Settings()) == [batch("a", [b"1", b"3"]), batch("b", [b"2", b"5"]), batch("a", [b"4"], 500)]


def test_the_option_topic_prevails_over_the_column() -> None:
    assert batches(frame(value=[b"1", b"2"], topic=["a", None])) == [batch("clicks", [b"1", b"2"])]


# Rows that are not messages

VALUES = [b"fine", None, b"", b"\xff", b"text", b"early"]
TOPICS = ["t", "t", "t", "a b", None, "t"]
DELAYS = [5, 6, None, None, None, -1]
REASONS = ["value is NULL", "value is empty", "topic is 'a b'", "topic is NULL", "defer_ms is -1"]


def test_each_row_that_is_not_a_message_is_reported() -> None:
    for number, reason in enumerate(REASONS, 1):
        columns = zip(("value", "topic", "defer_ms"), (VALUES, TOPICS, DELAYS), strict=True)
        rows = frame(**{name: [values[0], values[number]] for name, values in columns})  # type: ignore[index]
        with pytest.raises(WriteError, match=f"^the column {reason} in a row"):
            batches(rows, Settings())


def test_invalid_rows_can_be_skipped_or_go_to_a_topic_for_them_with_reasons(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = frame(value=VALUES, topic=TOPICS, defer_ms=DELAYS)
    assert batches(rows, Settings(invalid_rows="skip")) == [batch("t", [b"fine"], 5)]
    assert "5 of 6 rows are not published" in caplog.text
    fine, letters = batches(rows, Settings(invalid_rows="topic:invalid"))
    assert fine == batch("t", [b"fine"], 5)
    assert (letters.topic, letters.defer_ms) == ("invalid", 0)
    found = [json.loads(body) for body in split_bodies(letters.data)]
    for letter, reason in zip(found, REASONS, strict=True):
        assert letter.pop("reason").startswith(f"the column {reason} in a row")
    assert found == [
        {"topic": "t", "defer_ms": 6, "value": None},
        {"topic": "t", "defer_ms": None, "value": ""},
        {"topic": "a b", "defer_ms": None, "value_base64": "/w=="},
        {"topic": None, "defer_ms": None, "value": "text"},
        {"topic": "t", "defer_ms": -1, "value": "early"},
    ]


# Which frames are refused


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
@pytest.mark.parametrize(
    "columns, topic, text",
    [
        ("body BINARY, at TIMESTAMP", "t", "the frame has no column value with the bodies of the messages"),
        ("value INT", "t", "the column value of the frame is INT: expected BINARY or STRING"),
        ("value STRING, topic INT", "t", "the column topic of the frame is INT: expected STRING"),
        ("value STRING, defer_ms STRING", "t", "the column defer_ms of the frame is STRING: expected an integer"),
        ("value STRING, Value BINARY", "t", "the frame has two columns value"),
        ("value STRING", None, "no topic: give the option 'topic', or the frame a column topic"),
    ],
)
def test_a_frame_without_the_right_columns_is_refused_before_the_job(
    writer: type[NsqWriter], columns: str, topic: str | None, text: str
) -> None:
    with pytest.raises(WriteError) as raised:
        writer(Settings(topic=topic), schema_of(columns))
    assert str(raised.value).startswith(text)


VALUE = schema_of("value BINARY")


# Which nsqd takes them

LOST = ConnectionLost("nsqd went away")
UNSURE = NotAgreed("nsqd offers no TLS")
EXITING = Refused("E_MPUB_FAILED", "MPUB failed exiting")
UNAUTHORIZED = Refused("E_UNAUTHORIZED", "AUTH failed for MPUB")
Answers = dict[str, list[NsqSourceError | None]]


class FakeNodes:
    """The nsqds `a`, `b` and `c`, found by an nsqlookupd, and the clock of who publishes to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nsqds = {name: FakeDaemon(host=name) for name in "abc"}
        self.lookup_error: DiscoveryError | None = None
        self.tries = ""
        self.now = 0.0
        self.slept = 0
        self.on_sleep: Callable[[], None] = lambda: None
        monkeypatch.setattr(publishing, "find_nsqds", self.find)
        monkeypatch.setattr(SourceClient, "connect", self.connect)
        monkeypatch.setattr(publishing, "time", SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now))

    def find(self, settings: Settings) -> list[KnownNsqd]:
        if self.lookup_error is not None:
            raise self.lookup_error
        return [fake.nsqd for fake in self.nsqds.values()]

    def connect(self, address: Address, settings: Settings) -> FakeClient:
        self.tries += address[0]
        return FakeClient(self.nsqds[address[0]])

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds
        self.on_sleep()

    def fail(self, errors: Mapping[str, NsqSourceError]) -> None:
        """Lets connecting fail to these nsqds, and to no others, from now on."""
        for name, fake in self.nsqds.items():
            fake.error = errors.get(name)

    def answer(self, answers: Answers) -> None:
        for name, given in answers.items():
            self.nsqds[name].answers = iter(given)

    def takers(self) -> str:
        """Returns who has the bodies 0, 1, 2, ..., each published once."""
        taken = {body: name for name, fake in self.nsqds.items() for _, bodies, _ in fake.taken for body in bodies}
        assert len(taken) == sum(len(bodies) for fake in self.nsqds.values() for _, bodies, _ in fake.taken)
        return "".join(taken[b"%d" % number] for number in range(len(taken)))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> FakeNodes:
    return FakeNodes(monkeypatch)


def publish(nodes: FakeNodes, batches: int = 1, start: int = 0, **changes: Any) -> None:
    """Publishes as many batches of one message, as a task does; it leaves no connection."""
    publisher = TaskPublisher(replace(SETTINGS, **changes), start)
    try:
        for number in range(batches):
            publisher.publish(batch("t", [b"%d" % number]))
    finally:
        publisher.close()
        assert [fake.connections for fake in nodes.nsqds.values()] == [0] * len(nodes.nsqds)


@pytest.mark.parametrize(
    "down, answers, takers, tries",
    [
        ({}, {}, "aa", "a"),
        ({"a": LOST, "b": UNSURE}, {}, "cc", "abc"),
        *(({}, {"a": [None, *[error] * 9]}, "abb", tries) for error, tries in ((LOST, "aab"), (EXITING, "aab"))),
        ({}, {"a": [UNAUTHORIZED]}, "bb", "ab"),
        # A connection that was idle for long is closed by an nsqd that is well: it is tried first.
        ({}, {"a": [None, LOST]}, "aa", "aa"),
        ({}, {"a": [None, LOST, None, LOST, LOST], "b": [None, LOST]}, "aabb", "aaabb"),
    ],
)
def test_a_batch_that_one_nsqd_does_not_take_goes_to_the_next(
    nodes: FakeNodes, down: dict[str, NsqSourceError], answers: Answers, takers: str, tries: str
) -> None:
    nodes.fail(down)
    nodes.answer(answers)
    publish(nodes, len(takers))
    assert (nodes.takers(), nodes.tries, nodes.slept) == (takers, tries, 0)


def test_tasks_begin_with_different_nsqds(nodes: FakeNodes) -> None:
    for start in range(5):
        publish(nodes, 2, start=start)
    assert nodes.tries == "abcab"


ALL_LOST = {"a": LOST, "b": LOST, "c": ConnectionLost("cannot connect to nsqd c")}
TOO_BIG = "MPUB message too big 3 > 2"


@pytest.mark.parametrize(
    "down, answers, error, waits",
    [
        (ALL_LOST, {}, "no nsqd takes 1 messages for topic t: cannot connect to nsqd c; nsqd went away", True),
        # What does not get better is not waited for.
        (dict.fromkeys("ab", UNSURE), {"c": [UNAUTHORIZED]}, "nsqd offers no TLS", False),
        *(
            ({}, {"a": [Refused(code, TOO_BIG, "a:4150")]}, f"nsqd a:4150 refused: {code} {TOO_BIG}", False)
            for code in ("E_BAD_MESSAGE", "E_BAD_BODY", "E_BAD_TOPIC", "E_INVALID")
        ),
    ],
)
def test_a_batch_that_nobody_takes_is_an_error_when_it_helps_no_more_to_wait(
    nodes: FakeNodes, down: dict[str, NsqSourceError], answers: Answers, error: str, waits: bool
) -> None:
    nodes.fail(down)
    nodes.answer(answers)
    with pytest.raises(NsqSourceError, match=error) as raised:
        publish(nodes)
    assert isinstance(raised.value, WriteError if down else Refused)
    assert (5.0 < nodes.now <= 10.0) if waits else (nodes.slept == 0)
    assert down or nodes.tries == "a"


def test_with_no_time_each_nsqd_is_asked_once(nodes: FakeNodes) -> None:
    nodes.fail(ALL_LOST)
    with pytest.raises(WriteError):
        publish(nodes, start=1, retry_timeout=0.0)
    assert (nodes.tries, nodes.slept) == ("bca", 0)


def test_a_batch_is_offered_again_until_an_nsqd_is_back(nodes: FakeNodes) -> None:
    """Finds a new one, and one that may get better."""
    nodes.fail(dict.fromkeys("abc", LOST))

    def appear() -> None:
        if nodes.slept == 3:
            nodes.nsqds["d"] = FakeDaemon(host="d")

    nodes.on_sleep = appear
    publish(nodes)
    assert (nodes.takers(), nodes.slept) == ("d", 3)

    del nodes.nsqds["d"]
    nodes.fail({"a": LOST, "b": UNSURE, "c": UNSURE})
    nodes.tries, nodes.on_sleep = "", lambda: nodes.fail({})
    publish(nodes)
    assert nodes.tries == "abca"


def test_the_time_that_an_open_connection_takes_to_fail_is_none_of_the_retries(nodes: FakeNodes) -> None:
    def hang() -> Iterator[NsqSourceError | None]:
        yield None
        nodes.now += 60
        nodes.fail(ALL_LOST)
        nodes.on_sleep = lambda: nodes.fail({})
        yield LOST

    nodes.nsqds["a"].answers = hang()
    publish(nodes, batches=2)
    assert nodes.slept == 1


@pytest.mark.parametrize("error, reported", [(None, "there is no nsqd to write to"), ("no nsqlookupd answers",) * 2])
def test_where_nsqds_are_not_found_they_are_waited_for(nodes: FakeNodes, error: str | None, reported: str) -> None:
    there, nodes.nsqds = nodes.nsqds, {}
    nodes.lookup_error = DiscoveryError(error) if error else None
    with pytest.raises(WriteError, match=reported):
        publish(nodes)
    assert 5.0 < nodes.now <= 10.0

    def answer() -> None:
        nodes.nsqds, nodes.lookup_error = there, None

    nodes.on_sleep = answer
    publish(nodes)
    assert nodes.takers() == "a"


def test_a_task_that_fails_leaves_no_connection(nodes: FakeNodes) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield frame(value=[b"1"])
        assert nodes.nsqds["a"].connections == 1
        yield frame(value=[b""])

    writer = NsqWriter(SETTINGS, VALUE)
    rejected = writer.write(rows())
    assert nodes.nsqds["a"].connections == 0
    assert nodes.nsqds["a"].taken == [("clicks", [b"1"], 0)]
    with pytest.raises(WriteError, match="the column value is empty in a row"):
        writer.commit([None, pickle.loads(pickle.dumps(rejected))])


def test_a_task_without_rows_connects_to_nobody(nodes: FakeNodes) -> None:
    NsqStreamWriter(SETTINGS, VALUE).write(iter([frame(value=pa.array([], pa.binary()))]))
    assert nodes.tries == ""


# Daemons


def to(*nsqds: Instance, **changes: Any) -> Settings:
    addresses = tuple(nsqd.tcp_address for nsqd in nsqds if isinstance(nsqd.tcp_address, tuple))
    return replace(SETTINGS, nsqd_tcp_addresses=addresses, **changes)


def test_an_nsqd_gets_every_row_and_holds_back_what_has_a_delay(nsqd: Instance) -> None:
    """Passes over columns of no use, so that what was read from NSQ can be written as it is."""
    create(nsqd, "a", "check")
    values = bodies(1500)
    columns = schema_of("nsqd STRING, topic STRING, VALUE BINARY, defer_ms INT")
    writer = pickle.loads(pickle.dumps(NsqWriter(to(nsqd, topic=None, batch_size=77), columns)))
    delays = pa.array([None, 0, 3_600_000] * 500, pa.int32())
    rows = frame(nsqd=["h:1"] * 1500, topic=["a", "a", "a", "b", "b", "b"] * 250, VALUE=values, defer_ms=delays)
    writer.write(iter([rows]))
    wait_for(nsqd, "a", "check", deferred_count=250, depth=500)
    for topic, first in (("a", 0), ("b", 3)):
        expected = {value for value in values if int(value) % 6 in (first, first + 1)}
        assert {message.body for message in take(nsqd, topic, "check", 500)} == expected


def test_a_message_that_is_too_large_is_reported_with_the_limit(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=100")
    writer = NsqStreamWriter(to(nsqd), VALUE)
    rejected = writer.write(iter([frame(value=[b"x" * 101])]))
    with pytest.raises(WriteError, match=r"E_BAD_MESSAGE .* 101 > 100"):
        writer.commit([rejected], 0)
