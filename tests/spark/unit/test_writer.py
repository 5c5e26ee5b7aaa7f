"""The writers of format("nsq") without a JVM: which messages go together, which frames are refused, and what happens
when an nsqd does not take them."""

import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from kit import nsq_client
from kit.daemons import Daemon, eventually, fixed_ports
from pyspark_nsq import publishing
from pyspark_nsq.client import Client
from pyspark_nsq.discovery import Nsqd
from pyspark_nsq.errors import ConnectionLost, DiscoveryError, NotAgreed, NsqSourceError, Refused, WriteError
from pyspark_nsq.message_batches import Columns, MessageBatch, message_batches
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings
from pyspark_nsq.publishing import Publisher
from pyspark_nsq.writer import NsqStreamWriter, NsqWriter

DaemonFactory = Callable[..., Daemon]

SETTINGS = Settings(topic="clicks", retry_timeout=10.0)


def batch(topic: str, bodies: Sequence[bytes], defer_ms: int = 0) -> MessageBatch:
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return MessageBatch(topic, defer_ms, len(bodies), data)


def bodies_of(batch: MessageBatch) -> list[bytes]:
    found, data = [], bytes(batch.data)
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    assert len(found) == batch.messages
    return found


def frame(**columns: pa.Array | Sequence[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def batches(rows: pa.RecordBatch, settings: Settings = SETTINGS) -> list[MessageBatch]:
    names = rows.schema.names
    columns = Columns(*(names.index(name) if name in names else None for name in Columns._fields))  # type: ignore[arg-type]
    return list(message_batches(rows, columns, settings))


# Which messages go together


def test_a_batch_has_at_most_batch_size_messages() -> None:
    rows = frame(value=[b"%d" % number for number in range(7)])
    assert batches(rows, replace(SETTINGS, batch_size=3)) == [
        batch("clicks", [b"0", b"1", b"2"]),
        batch("clicks", [b"3", b"4", b"5"]),
        batch("clicks", [b"6"]),
    ]


def test_invalid_rows_go_to_the_topic_for_them_with_their_reason() -> None:
    rows = frame(
        value=[b"fine", None, b"", b"\xff", b"text"],
        topic=["t", "t", "t", "a b", None],
        defer_ms=[5, 6, None, None, None],
    )
    settings = replace(SETTINGS, topic=None, invalid_rows="topic:invalid")
    fine, letters = batches(rows, settings)
    assert fine == batch("t", [b"fine"], 5)
    assert (letters.topic, letters.defer_ms) == ("invalid", 0)
    found = [json.loads(body) for body in bodies_of(letters)]
    reasons = [one.pop("reason") for one in found]
    assert found == [
        {"topic": "t", "defer_ms": 6, "value": None},
        {"topic": "t", "defer_ms": None, "value": ""},
        {"topic": "a b", "defer_ms": None, "value_base64": "/w=="},
        {"topic": None, "defer_ms": None, "value": "text"},
    ]
    starts = (
        "the column value is NULL",
        "the column value is empty",
        "the column topic is 'a b'",
        "the column topic is NULL",
    )
    assert all(reason.startswith(start) for reason, start in zip(reasons, starts, strict=True))


def test_a_batch_has_at_most_batch_bytes_but_for_a_larger_message() -> None:
    """As MPUB counts them: four bytes for the size of each."""
    rows = frame(value=[b"a" * 6, b"b" * 6, b"c", b"d" * 100, b"e"])
    found = batches(rows, replace(SETTINGS, batch_bytes=20))
    assert [bodies_of(one) for one in found] == [[b"a" * 6, b"b" * 6], [b"c"], [b"d" * 100], [b"e"]]


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
    assert batches(rows, Settings()) == [
        batch("a", [b"1", b"3"]),
        batch("b", [b"2", b"5"]),
        batch("a", [b"4"], 500),
    ]


def test_the_option_topic_prevails_over_the_column() -> None:
    assert batches(frame(value=[b"1", b"2"], topic=["a", None])) == [batch("clicks", [b"1", b"2"])]


@pytest.mark.parametrize(
    "columns, text",
    [
        ({"value": [b"x", None]}, "the column value is NULL in a row"),
        ({"value": [b"x", b""]}, "the column value is empty in a row"),
        ({"value": [b"x"], "topic": pa.array([None], pa.string())}, "the column topic is NULL in a row"),
        ({"value": [b"x"], "topic": ["a b"]}, "the column topic is 'a b' in a row: expected at most 64"),
        ({"value": [b"x"], "topic": ["a"], "defer_ms": [-1]}, "the column defer_ms is -1 in a row"),
    ],
)
def test_a_row_that_is_not_a_message_is_reported(columns: dict[str, Sequence[object]], text: str) -> None:
    settings = Settings() if "topic" in columns else SETTINGS
    with pytest.raises(WriteError) as raised:
        batches(frame(**columns), settings)
    assert str(raised.value).startswith(text)


# Which frames are refused


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
@pytest.mark.parametrize(
    "columns, topic, text",
    [
        ("body BINARY, at TIMESTAMP", "t", "the frame has no column value with the bodies of the messages"),
        ("value INT", "t", "the column value of the frame is INT: expected BINARY or STRING"),
        ("value STRUCT<a: INT>", "t", "the column value of the frame is STRUCT<A:INT>: expected BINARY or STRING"),
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
        writer(Settings(topic=topic), schema(columns))
    assert str(raised.value).startswith(text)


def schema(columns: str) -> StructType:
    """Of a DDL text, which pyspark itself can only read with a JVM."""
    struct = {"type": "struct", "fields": [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}]}
    types = {"INT": "integer", "STRING": "string", "BINARY": "binary", "TIMESTAMP": "timestamp"}
    fields = [
        {"name": name, "type": types.get(kind, struct), "nullable": True, "metadata": {}}
        for name, kind in (column.split(" ", 1) for column in columns.split(", "))
    ]
    return StructType.fromJson({"fields": fields})


VALUE = schema("value BINARY")


def test_other_columns_are_passed_over(nsqd: Daemon) -> None:
    """So that what was read from NSQ can be written as it is."""
    columns = schema("nsqd STRING, topic STRING, VALUE BINARY, n INT")
    writer = pickle.loads(pickle.dumps(NsqWriter(to(nsqd, topic=None), columns)))
    rows = pa.RecordBatch.from_pydict({"nsqd": ["h:1"] * 2, "topic": ["a", "b"], "VALUE": [b"x", b"y"], "n": [1, 2]})
    writer.write(iter([rows]))
    assert consumed(nsqd, "a") == [b"x"]
    assert consumed(nsqd, "b") == [b"y"]


# Which nsqd takes them


Outcome = NsqSourceError | None


class FakeNsqds:
    """Stands for the nsqds and the connections to them: what `down` or `refuse` holds by name happens at each try."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.down: dict[str, NsqSourceError] = {}  # connecting fails
        self.outcomes: dict[str, Iterator[Outcome]] = {}  # of publishing
        self.taken: list[tuple[str, str, list[bytes], int]] = []
        self.tries: list[str] = []
        self.open = 0
        self.lookup_error: DiscoveryError | None = None
        self.time = 0.0
        self.slept: list[float] = []

    def find(self, settings: Settings) -> list[Nsqd]:
        if self.lookup_error is not None:
            raise self.lookup_error
        return [Nsqd(name, (name, 4150), (name, 4151)) for name in self.names]

    def connect(self, address: Address, settings: Settings) -> "FakeClient":
        self.tries.append(address[0])
        if address[0] in self.down:
            raise self.down[address[0]]
        self.open += 1
        return FakeClient(self, address[0])

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def monotonic(self) -> float:
        return self.time


class FakeClient:
    def __init__(self, nsqds: FakeNsqds, name: str) -> None:
        self._nsqds = nsqds
        self._name = name

    def publish_joined(self, topic: str, data: bytes, count: int, defer_ms: int) -> None:
        error = next(self._nsqds.outcomes.get(self._name, iter([])), None)
        if error is not None:
            raise error
        bodies = bodies_of(MessageBatch(topic, defer_ms, count, data))
        self._nsqds.taken.append((self._name, topic, bodies, defer_ms))

    def close(self) -> None:
        self._nsqds.open -= 1


@pytest.fixture
def nsqds(monkeypatch: pytest.MonkeyPatch) -> FakeNsqds:
    fake = FakeNsqds("a", "b", "c")
    monkeypatch.setattr(publishing, "find_nsqds", fake.find)
    monkeypatch.setattr(Client, "connect", fake.connect)
    monkeypatch.setattr(publishing, "time", fake)
    return fake


@pytest.fixture
def publisher(nsqds: FakeNsqds) -> Iterator[Publisher]:
    made = Publisher(SETTINGS)
    yield made
    made.close()
    assert nsqds.open == 0


LOST = ConnectionLost("nsqd went away")


def test_tasks_begin_with_different_nsqds_and_stay_there(nsqds: FakeNsqds) -> None:
    for start in range(5):
        publisher = Publisher(SETTINGS, start)
        publisher.publish(batch("t", [b"1"]))
        publisher.publish(batch("t", [b"2"], 100))
        publisher.close()
    assert nsqds.tries == ["a", "b", "c", "a", "b"]
    assert nsqds.taken[:2] == [("a", "t", [b"1"], 0), ("a", "t", [b"2"], 100)]


@pytest.mark.parametrize(
    "error", [LOST, Refused("E_MPUB_FAILED", "MPUB failed exiting"), Refused("E_UNAUTHORIZED", "AUTH failed for MPUB")]
)
def test_a_batch_that_one_nsqd_does_not_take_goes_to_the_next(
    nsqds: FakeNsqds, publisher: Publisher, error: NsqSourceError
) -> None:
    nsqds.outcomes["a"] = itertools.chain([None], itertools.repeat(error))
    for body in (b"1", b"2", b"3"):
        publisher.publish(batch("t", [body]))
    assert [(name, bodies) for name, _, bodies, _ in nsqds.taken] == [("a", [b"1"]), ("b", [b"2"]), ("b", [b"3"])]
    assert nsqds.slept == []


def test_nsqds_that_are_down_are_passed_over(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.down = {"a": LOST, "b": NotAgreed("nsqd b offers no TLS")}
    publisher.publish(batch("t", [b"1"]))
    assert nsqds.taken == [("c", "t", [b"1"], 0)]
    assert nsqds.slept == []
    publisher.publish(batch("t", [b"2"]))
    assert nsqds.tries == ["a", "b", "c"]


def test_after_a_lost_connection_its_nsqd_is_tried_first(nsqds: FakeNsqds, publisher: Publisher) -> None:
    """A connection that was idle for long is closed by an nsqd that is well."""
    publisher.publish(batch("t", [b"1"]))
    nsqds.outcomes["a"] = iter([LOST])
    publisher.publish(batch("t", [b"2"]))
    assert nsqds.tries == ["a", "a"]
    nsqds.down["a"] = LOST
    nsqds.outcomes["a"] = iter([LOST])
    publisher.publish(batch("t", [b"3"]))
    nsqds.outcomes["b"] = iter([LOST])
    publisher.publish(batch("t", [b"4"]))
    assert nsqds.tries == ["a", "a", "a", "b", "b"]
    assert nsqds.slept == []


def test_a_batch_is_offered_again_until_an_nsqd_is_back(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.down = {"a": LOST, "b": LOST, "c": LOST}

    def sleep(seconds: float) -> None:
        FakeNsqds.sleep(nsqds, seconds)
        if len(nsqds.slept) == 3:
            nsqds.names.append("d")  # as nsqlookupd now lists it

    nsqds.sleep = sleep  # type: ignore[method-assign]
    publisher.publish(batch("t", [b"1"]))
    assert [name for name, *_ in nsqds.taken] == ["d"]
    assert nsqds.slept == sorted(nsqds.slept)


def test_a_batch_that_nobody_takes_is_an_error_when_the_time_is_over(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.down = {"a": LOST, "b": LOST, "c": ConnectionLost("cannot connect to nsqd c")}
    with pytest.raises(WriteError) as raised:
        publisher.publish(batch("t", [b"1", b"2"]))
    assert str(raised.value) == "no nsqd takes 2 messages for topic t: cannot connect to nsqd c; nsqd went away"
    assert 5.0 < nsqds.time <= 10.0


def test_with_no_time_each_nsqd_is_asked_once(nsqds: FakeNsqds) -> None:
    nsqds.down = {"a": LOST, "b": LOST, "c": LOST}
    with pytest.raises(WriteError):
        Publisher(replace(SETTINGS, retry_timeout=0.0), 1).publish(batch("t", [b"1"]))
    assert nsqds.tries == ["b", "c", "a"]
    assert nsqds.slept == []


def test_what_does_not_get_better_is_not_waited_for(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.down = dict.fromkeys("ab", NotAgreed("requires an authorization"))
    nsqds.outcomes["c"] = iter([Refused("E_UNAUTHORIZED", "AUTH failed")])
    with pytest.raises(WriteError, match="requires an authorization"):
        publisher.publish(batch("t", [b"1"]))
    assert nsqds.slept == []


def test_as_long_as_one_nsqd_may_get_better_it_is_waited_for(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.down = {"a": LOST, "b": NotAgreed("requires an authorization"), "c": NotAgreed("offers no TLS")}
    nsqds.sleep = lambda seconds: nsqds.down.clear()  # type: ignore[method-assign]
    publisher.publish(batch("t", [b"1"]))
    assert nsqds.tries == ["a", "b", "c", "a"]


@pytest.mark.parametrize("code", ["E_BAD_MESSAGE", "E_BAD_BODY", "E_BAD_TOPIC", "E_INVALID"])
def test_a_message_that_every_nsqd_would_refuse_is_an_error_at_once(
    nsqds: FakeNsqds, publisher: Publisher, code: str
) -> None:
    nsqds.outcomes["a"] = iter([Refused(code, "MPUB message too big 3 > 2", "a:4150")])
    with pytest.raises(Refused, match="message too big 3 > 2"):
        publisher.publish(batch("t", [b"123"]))
    assert (nsqds.tries, nsqds.taken) == (["a"], [])


def test_a_dead_nsqlookupd_is_waited_for(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.lookup_error = DiscoveryError("no nsqlookupd answers")
    with pytest.raises(WriteError, match="no nsqlookupd answers"):
        publisher.publish(batch("t", [b"1"]))
    assert nsqds.slept

    def sleep(seconds: float) -> None:
        nsqds.lookup_error = None

    nsqds.sleep = sleep  # type: ignore[method-assign]
    publisher.publish(batch("t", [b"1"]))
    assert len(nsqds.taken) == 1


def test_a_cluster_without_any_nsqd_is_reported(nsqds: FakeNsqds, publisher: Publisher) -> None:
    nsqds.names = []
    with pytest.raises(WriteError, match="there is no nsqd to write to"):
        publisher.publish(batch("t", [b"1"]))


def test_a_task_that_fails_leaves_no_connection(nsqds: FakeNsqds) -> None:
    writer = NsqWriter(SETTINGS, VALUE)

    def rows() -> Iterator[pa.RecordBatch]:
        yield frame(value=[b"1"])
        assert nsqds.open == 1
        yield frame(value=[b""])

    rejected = writer.write(rows())
    assert nsqds.open == 0
    assert len(nsqds.taken) == 1
    with pytest.raises(WriteError, match="the column value is empty in a row"):
        writer.commit([None, pickle.loads(pickle.dumps(rejected))])


@pytest.mark.parametrize("columns", [{"value": [b"1", None, b"", b"2"]}, {"value": [b"1", b"x", b"2"]}])
def test_invalid_rows_can_be_skipped(columns: dict[str, Sequence[object]], caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(invalid_rows="skip")
    topics = ["a", None if len(columns["value"]) == 3 else "a", "a", "a"][: len(columns["value"])]
    assert batches(frame(**columns, topic=topics), settings) == [batch("a", [b"1", b"2"])]
    assert f"{len(topics) - 2} of {len(topics)} rows are not published" in caplog.text


def test_a_task_without_rows_connects_to_nobody(nsqds: FakeNsqds) -> None:
    NsqStreamWriter(SETTINGS, VALUE).write(iter([frame(value=pa.array([], pa.binary()))]))
    assert nsqds.tries == []


# Daemons


def consumed(nsqd: Daemon, topic: str) -> list[bytes]:
    """All that is in a topic."""
    bodies = []
    with nsq_client.Client(nsqd.tcp_address) as client:
        depth = nsqd.stats(topic)["topics"][0]["depth"]
        client.subscribe(topic, "test", rdy=min(depth, 2500))
        for _ in range(depth):
            message = client.message()
            client.command(b"FIN " + message.id)
            bodies.append(message.body)
    return bodies


def rows_of(count: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    """Arrow batches of that many rows, with the numbers from 0 on."""
    for start in range(0, count, size):
        yield frame(value=[b"%d" % number for number in range(start, min(start + size, count))])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def to(*nsqds: Daemon, **changes: Any) -> Settings:
    addresses = tuple(nsqd.tcp_address for nsqd in nsqds if isinstance(nsqd.tcp_address, tuple))
    return replace(SETTINGS, nsqd_tcp_addresses=addresses, **changes)


def test_an_nsqd_gets_every_row(nsqd: Daemon) -> None:
    NsqWriter(to(nsqd, batch_size=77), VALUE).write(rows_of(2345))
    assert sorted(consumed(nsqd, "clicks"), key=int) == numbers(2345)


def test_an_nsqd_holds_back_what_has_a_delay(nsqd: Daemon) -> None:
    for path in ("/topic/create?topic=clicks", "/channel/create?topic=clicks&channel=test"):
        assert nsqd.http("POST", path)[0] == 200
    rows = frame(value=[b"now", b"later", b"later"], defer_ms=pa.array([None, 3_600_000, 3_600_000], pa.int32()))
    NsqWriter(to(nsqd), schema("value BINARY, defer_ms INT")).write(iter([rows]))
    eventually(lambda: nsqd.channel_stats("clicks", "test")["deferred_count"] == 2)
    assert nsqd.channel_stats("clicks", "test")["depth"] == 1


def test_rows_go_to_another_nsqd_when_theirs_dies(nsqd_factory: DaemonFactory) -> None:
    """No message is lost that had not been sent to the dead one."""
    daemons = [nsqd_factory(*fixed_ports()) for _ in range(2)]
    first, second = sorted(daemons, key=lambda nsqd: "{}:{}".format(*nsqd.tcp_address))  # the first is asked first
    taken: list[bytes] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows_of(3000)):
            if number == 1:
                taken.extend(consumed(first, "clicks"))
                first.kill()
            yield batch

    NsqWriter(to(first, second, batch_size=100), VALUE).write(rows())
    assert len(taken) == 1000
    assert sorted(taken + consumed(second, "clicks"), key=int) == numbers(3000)


def test_rows_wait_for_an_nsqd_that_restarts(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(*fixed_ports())

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows_of(3000)):
            if number == 1:
                nsqd.restart()
            yield batch

    NsqWriter(to(nsqd, batch_size=100), VALUE).write(rows())
    assert sorted(consumed(nsqd, "clicks"), key=int) == numbers(3000)


def test_a_message_that_is_too_large_is_reported_with_the_limit(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=100")
    writer = NsqStreamWriter(to(nsqd), VALUE)
    rejected = writer.write(iter([frame(value=[b"x" * 101])]))
    with pytest.raises(WriteError, match=r"E_BAD_MESSAGE .* 101 > 100"):
        writer.commit([rejected], 0)
