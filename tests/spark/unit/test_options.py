"""The options of format("nsq"): values that they accept, and the errors for others."""

import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from pyspark.sql.types import StructType

from pyspark_nsq.catalog_table import own_options, schema_with, table_options
from pyspark_nsq.errors import OptionError
from pyspark_nsq.options import Settings, check_load, parse

NSQD = {"nsq.nsqd.tcp.addresses": "localhost:4150"}
READ = {"subscribe": "clicks", "channel": "spark", **NSQD}
USES: dict[str, dict[str, str]] = {"read": READ, "readStream": READ, "write": NSQD, "writeStream": NSQD}


def refused(use: str, options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as raised:
        parse(options, use)
    return str(raised.value)


def test_options_that_are_left_out_have_their_defaults() -> None:
    settings = Settings(topics=("clicks",), channel="spark", nsqd_tcp_addresses=(("localhost", 4150),))
    assert parse(READ, "readStream") == settings
    assert parse({**READ, "mode": "deliveries"}, "readStream") == replace(settings, mode="deliveries")
    assert parse(READ, "read") == replace(settings, mode="ranges")
    assert parse({**READ, "peek": "true"}, "read") == replace(settings, mode="deliveries", peek=True)
    assert parse(NSQD, "write") == Settings(nsqd_tcp_addresses=(("localhost", 4150),))


def test_keys_know_no_case() -> None:
    options = {"SUBSCRIBE": "a", "Channel": "c", "NSQ.nsqd.TCP.addresses": "h:1", "maxinflight": "7", "PEEK": "on"}
    settings = Settings(("a",), "", "c", "deliveries", nsqd_tcp_addresses=(("h", 1),), max_in_flight=7, peek=True)
    assert parse(options, "read") == settings


@pytest.mark.parametrize(
    "use, name, text, field, value",
    [
        ("read", "subscribe", "a, b.c-d_e,f#ephemeral", "topics", ("a", "b.c-d_e", "f#ephemeral")),
        ("write", "topic", " events ", "topic", "events"),
        ("read", "nsq.nsqd.tcp.addresses", "a:1,[::1]:2", "nsqd_tcp_addresses", (("a", 1), ("::1", 2))),
        ("read", "nsq.nsqd.http.addresses", "http://a:9/", "nsqd_http_addresses", (("a", 9),)),
        ("read", "nsq.nsqd.http.tls", "TRUE", "nsqd_http_tls", True),
        ("read", "nsq.http.timeout", "500ms", "discovery_timeout", 0.5),
        ("readStream", "mode", "RANGES", "mode", "ranges"),
        ("readStream", "startingOffsets", "Latest", "starting_offsets", "latest"),
        ("read", "endingOffsets", '{"t": {"h:1": -1}}', "ending_offsets", {"t": {"h:1": -1}}),
        ("read", "endingOffsets", "latest", "mode", "ranges"),
        ("read", "peek", "false", "mode", "ranges"),
        ("readStream", "maxBytesPerTrigger", "1m", "max_bytes_per_trigger", 1 << 20),
        ("readStream", "maxBytesPerTrigger", "1m", "mode", "auto"),
        ("readStream", "startingOffsets", "latest", "mode", "ranges"),
        ("readStream", "startingTimestamp", "1795769553168", "starting_timestamp", "2026-11-27T08:52:33.168+00:00"),
        ("read", "endingTimestamp", "-1d12h", "ending_timestamp", "-1d12h"),
        ("read", "nsq.log.store", "a:1=s3://b,c:2=s3://d", "log_stores", ((("a", 1), "s3://b"), (("c", 2), "s3://d"))),
        ("readStream", "nsq.log.store", "[::1]:2=s3://b/p", "mode", "ranges"),
        ("readStream", "maxMessagesPerTrigger", "10", "max_messages_per_trigger", 10),
        ("read", "minPartitions", "4", "min_partitions", 4),
        ("read", "maxInFlight", "100", "max_in_flight", 100),
        ("read", "msgTimeoutMs", "1000", "msg_timeout_ms", 1000),
        ("readStream", "failOnDataLoss", "false", "fail_on_data_loss", False),
        ("write", "batchSize", "1", "batch_size", 1),
        ("write", "batchBytes", "64KB", "batch_bytes", 65536),
        ("write", "retryTimeoutMs", "0", "retry_timeout", 0.0),
        ("read", "nsq.auth.secret", "s3cret", "auth_secret", "s3cret"),
        ("readStream", "nsq.client.id", "me", "client_id", "me"),
        ("write", "nsq.user.agent", "mine/1", "user_agent", "mine/1"),
        ("writeStream", "nsq.connect.timeout", "3", "connect_timeout", 3.0),
        ("read", "nsq.read.timeout", "2m", "read_timeout", 120.0),
    ],
)
def test_values_are_read(use: str, name: str, text: str, field: str, value: object) -> None:
    assert getattr(parse({**USES[use], name: text}, use), field) == value


@pytest.mark.parametrize(
    "pattern, names, others",
    [
        (r"orders\..*", ("orders.", "orders.eu"), ("orders", "old.orders.eu", "orders_eu", "orders.a#ephemeral")),
        ("(?i)a|b", ("A", "b"), ("ab",)),
        ("a(#ephemeral)?", ("a", "a#ephemeral"), ("a#",)),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, names: Iterable[str], others: Iterable[str]) -> None:
    settings = parse({**NSQD, "subscribePattern": pattern, "channel": "c"}, "readStream")
    assert [*filter(settings.matches, (*names, *others))] == [*names]


def test_a_batch_of_ranges_consumes_nothing_with_peek_too() -> None:
    for more in ({"startingOffsets": "latest"}, {"mode": "ranges"}):
        settings = parse({**READ, "peek": "true", **more}, "read")
        assert (settings.mode, settings.peek) == ("ranges", False)


def test_a_batch_of_ranges_needs_no_channel() -> None:
    no_channel = {"subscribe": "clicks", **NSQD}
    assert parse(no_channel, "read").channel == ""
    for use, options in (("read", {"peek": "true"}), ("readStream", {}), ("readStream", {"mode": "deliveries"})):
        assert "option 'channel' is required" in refused(use, no_channel | options)


@pytest.mark.parametrize(
    ("use", "options", "warning"),
    [
        ("readStream", {}, ""),
        ("readStream", {"mode": "ranges"}, "'maxInFlight', 'msgTimeoutMs': no effect, as 'mode' is ranges"),
        ("readStream", {"mode": "deliveries"}, "'retryTimeoutMs': no effect, as 'mode' is deliveries"),
        ("read", {"endingOffsets": "latest"}, "'maxInFlight', 'msgTimeoutMs': no effect, as 'mode' is ranges"),
        ("read", {"peek": "true"}, ""),
        ("read", {}, ""),  # as `load()` of a stream is parsed, whose options they may be
    ],
)
def test_an_option_that_the_mode_does_not_use_is_a_warning(
    use: str, options: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    parse({**READ, "maxInFlight": "5", "msgTimeoutMs": "1000", "retryTimeoutMs": "1", **options}, use)
    assert caplog.messages == ([warning] if warning else [])


def test_an_option_of_tls_switches_it_on() -> None:
    assert parse(NSQD, "write").tls is False
    settings = parse({**NSQD, "nsq.tls.ca": "ca.pem", "nsq.tls.server.name": "nsqd"}, "write")
    assert settings == replace(parse(NSQD, "write"), tls=True, tls_ca="ca.pem", tls_server_name="nsqd")
    settings = parse({**NSQD, "nsq.tls.verify": "no"}, "write")
    assert settings == replace(parse(NSQD, "write"), tls=True, tls_verify=False)


TCP, HTTP, LOOKUPD = "nsq.nsqd.tcp.addresses", "nsq.nsqd.http.addresses", "nsq.lookupd.http.addresses"
STORE = "nsq.log.store"
WRONG_OFFSETS = ("", "1", "[]", "{", '{"t": 1}', '{"t": {"h:1": -3}}', '{"t": {"h:1": "1"}}', '{"t": {"h:1": true}}')
BOTH_STARTS: dict[str, str | None] = {"startingOffsets": "latest", "startingTimestamp": "-1h"}
OF_KAFKA = "unknown option {!r}, which is of Kafka: "
EARLIER = "unknown option {!r}, which earlier versions had: deliveries need no directory"


def meant(option: str, name: str) -> str:
    return f"unknown option {option!r}: did you mean {name!r}?"


def with_each(option: str, values: Iterable[str], expected: str) -> list[tuple[Mapping[str, str | None], str]]:
    return [({option: value}, expected) for value in values]


# By use, options besides the right ones, without the ones that are empty here, and a part of the error.
REFUSED: dict[str, list[tuple[Mapping[str, str | None], str]]] = {
    "read": [
        (
            {"mode": "deliveries"},
            "'deliveries' is for streams: what a batch consumes is lost when it runs again. Expec",
        ),
        ({"mode": "deliveries", "peek": "false"}, "Expected 'ranges', for gnsqd with --durability, or 'peek' = 'true'"),
        (
            {"mode": "deliveries", "peek": "true", "endingOffsets": "latest"},
            "option 'endingOffsets' contradicts 'mode', which is deliveries",
        ),
        ({"subscribe": "a,,b"}, "option 'subscribe' has the value 'a,,b': expected values between commas"),
        ({"subscribe": "a,b,a"}, "expected each value once, but 'a' is there more often"),
        ({"subscribe": "a b"}, "but 'a b' is not that"),
        ({"channel": "c#ephemeral"}, "option 'channel' has the value 'c#ephemeral': expected a channel that"),
        ({TCP: "localhost"}, "expected host:port or [ipv6]:port, but 'localhost' is not that"),
        ({TCP: "localhost:65536"}, "but 'localhost:65536' is not that"),
        ({"maxInFlight": "-1"}, "option 'maxInFlight' has the value '-1': expected a whole number from 1 on"),
        ({"msgTimeoutMs": "999"}, "expected a whole number from 1000 on"),
        ({"nsq.http.timeout": "0"}, "expected more than 0"),
        ({"subscribes": "1"}, meant("subscribes", "subscribe")),
        ({"chanel": "1"}, meant("chanel", "channel")),
        ({"topic": "t"}, "option 'topic' is for write and writeStream, not for read"),
        ({"maxMessagesPerTrigger": "5"}, "is for readStream, not for read"),
        ({"subscribe": None}, "option 'subscribe' or 'subscribePattern' is required"),
        ({"subscribePattern": "c.*"}, "options 'subscribe' and 'subscribePattern' contradict each other: expected one"),
        (
            {"subscribe": None, "subscribePattern": "c("},
            "option 'subscribePattern' has the value 'c(': expected a regular expression of Python: missing ), unterm",
        ),
        ({LOOKUPD: "h:4161"}, "contradict each other: expected one of them"),
        ({HTTP: "a:1,b:2"}, "have 1 and 2 addresses: expected one for each nsqd"),
        ({TCP: None, LOOKUPD: "h:4161", HTTP: "a:1"}, f"option {HTTP!r} belongs to {TCP!r}"),
        ({STORE: "s3://b/p"}, "has the value 's3://b/p': expected host:port=URL, but 's3://b/p' is not that"),
        ({STORE: "a:1=s3://b,s3://c"}, "expected host:port=URL, but 's3://c' is not that"),
        ({STORE: "a=s3://b"}, "expected host:port or [ipv6]:port, but 'a' is not that"),
        ({STORE: "a:1=ftp://b"}, "ftp://b: expected s3, gs, az, file://..., such as s3://BUCKET/PREFIX"),
        ({STORE: "a:1=s3://b", "mode": "deliveries", "peek": "true"}, f"option {STORE!r} contradicts 'mode', which is"),
    ],
    "readStream": [
        ({"subscribe": ""}, "option 'subscribe' has the value '': expected values between commas"),
        ({"failOnDataLoss": "perhaps"}, "option 'failOnDataLoss' has the value 'perhaps': expected true or"),
        ({"nsq.http.timeout": "7 weeks"}, "expected seconds or a text such as 250ms, 1h30m, 2d"),
        ({"maxBytesPerTrigger": "0"}, "expected bytes from 1 on"),
        ({"maxmessagepertrigger": "1"}, meant("maxmessagepertrigger", "maxMessagesPerTrigger")),
        ({"channel": None}, "option 'channel' is required"),
        ({"channel": None, "mode": "ranges"}, "option 'channel' is required"),
        ({"mode": "range"}, "expected auto, ranges or deliveries"),
        *with_each("startingOffsets", WRONG_OFFSETS, "expected earliest, latest or JSON such as"),
        *with_each("startingTimestamp", ("", "soon", "1h", "2026-13-01"), "expected milliseconds, a time of RFC 3339"),
        *with_each("startingTimestamp", ("2026-11-29", "2026-11-29T10:00:00"), "expected a time with a zone: 2026-"),
        *with_each("startingTimestamp", ("1795769553",), "this is 1970-01-21T18:49:29.553+00:00: seconds need"),
        (BOTH_STARTS, "options 'startingOffsets' and 'startingTimestamp' contradict each other"),
        (
            {"startingTimestamp": "-1h", "mode": "deliveries"},
            "option 'startingTimestamp' contradicts 'mode', which is d",
        ),
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is for read, not for readStream"),
        ({"peek": "true"}, "option 'peek' is for read, not for readStream"),
        ({"kafka.bootstrap.servers": "1"}, OF_KAFKA.format("kafka.bootstrap.servers") + f"{TCP!r} or"),
        *(
            ({name: "1"}, EARLIER.format(name))
            for name in ("dedupRetention", "idleTimeoutMs", "readId", "spool", "SpoolLocation", "spoolMaxBytes")
        ),
        ({"includeHeaders": "1"}, OF_KAFKA.format("includeHeaders") + "messages of NSQ have no headers"),
        ({"maxOffsetsPerTrigger": "1"}, OF_KAFKA.format("maxOffsetsPerTrigger") + "'maxMessagesPerTrigger' limits a"),
    ],
    "write": [
        ({"retryTimeoutMs": "-1"}, "expected a whole number from 0 on"),
        ({"invalidRows": "ignore"}, "expected fail, skip or topic:NAME"),
        ({"topic": "a,b"}, "option 'topic' has the value 'a,b'"),
        ({"nsq.client.id": ""}, "expected a text that is not empty"),
        ({"lookupd.http.address": "1"}, meant("lookupd.http.address", LOOKUPD)),
        ({"compression": "gzip"}, "unknown option 'compression': options of write are batchBytes, batchSize, invalid"),
        ({"channel": "c"}, "option 'channel' is for read and readStream, not for write"),
        ({"subscribePattern": "c"}, "option 'subscribePattern' is for read and readStream, not for write"),
        ({TCP: None}, f"{LOOKUPD!r} or {TCP!r} is required"),
        ({"nsq.tls.enabled": "false", "nsq.tls.ca": "f"}, "'nsq.tls.ca' contradicts 'nsq.tls.enabled'"),
        ({"nsq.tls.key": "f"}, "option 'nsq.tls.key' belongs to 'nsq.tls.certificate'"),
        ({"nsq.tls.ca": "f", "nsq.tls.verify": "false"}, "option 'nsq.tls.ca' contradicts 'nsq.tls.verify'"),
    ],
    "writeStream": [({"topics": "1"}, meant("topics", "topic"))],
}
PATH = ({"path": "clicks"}, "the topic is that of option 'subscribe' or, of a writer, 'topic'")
CASES = [(use, *row) for use, rows in REFUSED.items() for row in [*rows, PATH]]


@pytest.mark.parametrize("use, changes, expected", CASES)
def test_what_cannot_be_obeyed_is_refused(use: str, changes: Mapping[str, str | None], expected: str) -> None:
    given = {**USES[use], **changes}
    reported = refused(use, {key: value for key, value in given.items() if value is not None})
    assert expected in reported
    assert "options of write" not in reported or "subscribe" not in reported


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("max_in_flight", "maxInFlight"),
        ("nsqdTcpAddresses", TCP),
        ("lookupd-http-address", LOOKUPD),
        ("nsqd", TCP),
        ("tls", "nsq.tls.enabled"),
        ("tls_cert", "nsq.tls.certificate"),
        ("nsq.channel", "channel"),
        ("clientId", "nsq.client.id"),
        ("auth", "nsq.auth.secret"),
        ("startingOffset", "startingOffsets"),
        ("maxBytes", "maxBytesPerTrigger"),
        ("msgTimeout", "msgTimeoutMs"),
        ("nsq.connection.timeout", "nsq.connect.timeout"),
        # Of other sources, and what sounds like an option of this one but is not.
        *((name, "") for name in ("kafkaConsumer.pollTimeoutMs", "maxFilesPerTrigger", "maxPartitions", "codec")),
        *((name, "") for name in ("endingOffset", "key", "addresses", "timeout", "m", "id", "to", "ackTimeout")),
    ],
)
def test_another_name_is_offered_only_where_it_is_meant(name: str, expected: str) -> None:
    text = refused("readStream", {**READ, name: "1"})
    assert text == meant(name, expected) if expected else "options of readStream are channel, " in text


def test_what_spark_adds_for_itself_is_passed_over() -> None:
    options = {**NSQD, "checkpointLocation": "/c", "queryName": "q", "asyncProgressTrackingEnabled": "true"}
    assert parse(options, "writeStream") == parse(NSQD, "writeStream")


def test_load_refuses_what_neither_read_nor_read_stream_takes() -> None:
    check_load(READ)
    check_load({**READ, "maxMessagesPerTrigger": "5"})
    for options in (NSQD, {**READ, "topic": "t"}, {**READ, "chanel": "c"}, {**READ, "maxInFlight": "x"}):
        with pytest.raises(OptionError):
            check_load(options)


def test_a_secret_is_not_shown() -> None:
    secrets = {"nsq.auth.secret": "s3cret", "nsq.nsqd.http.token": "s3cret"}
    settings = parse({**READ, **secrets}, "readStream")
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in refused("read", {**READ, **secrets, "nsq.tls.ca": ""})
    assert "s3cret" not in refused("read", {**READ, "nsq.nsqd.http.token": "s3cret\nHost: x"})
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_token_is_not_given_to_whoever_registers_at_an_nsqlookupd() -> None:
    listed = {**READ, LOOKUPD: "h:4161", "nsq.nsqd.http.token": "s3cret"}
    del listed[TCP]
    assert "needs 'nsq.nsqd.http.tls' = 'true', and cert" in refused("readStream", listed)
    listed["nsq.nsqd.http.tls"] = "true"
    assert parse(listed, "readStream").nsqd_http_token == "s3cret"
    assert "certificates that are verified" in refused("readStream", {**listed, "nsq.tls.verify": "false"})


# Tables of Spark's catalog

# What Spark 4.3 passes for: CREATE TABLE t USING nsq OPTIONS (...) COMMENT 'x' TBLPROPERTIES ('some' = 'thing')
OF_SPARK = {"provider": "nsq", "owner": "root", "comment": "x", "some": "thing"}
OF_TABLE = {**READ, **{f"option.{name}": value for name, value in READ.items()}, **OF_SPARK}


def test_of_a_table_only_the_options_count() -> None:
    assert own_options(OF_TABLE) == READ
    assert own_options(READ) == READ
    # A managed table may have a path, in Spark's warehouse; one with LOCATION has both.
    assert own_options({**OF_TABLE, "path": "file:/warehouse/t"}) == READ
    assert own_options({"provider": "nsq_diskqueue", "path": "file:/d", "location": "file:/d"}) == {"path": "file:/d"}


def test_the_schema_of_a_table_keeps_its_options() -> None:
    schema = schema_with({"channel": "c", "peek": "false"}, "value BINARY, attempts INT")
    assert schema.simpleString() == "struct<value:binary,attempts:int>"
    schema = StructType.fromJson(schema.jsonValue())
    assert table_options(schema) == {"channel": "c", "peek": "false"}
    assert table_options(StructType([])) == {}
    for secret in ("nsq.auth.secret", "nsq.nsqd.http.token"):
        with pytest.raises(OptionError, match=f"option '{secret}' cannot be kept in a table"):
            schema_with({secret: "s"}, "value BINARY")


@pytest.mark.parametrize("use", USES)
def test_the_error_of_a_table_whose_options_are_not_passed_has_the_reason(use: str) -> None:
    assert "Of a table, Spark passes OPTIONS to no INSERT" in refused(use, {})
    assert "Of a table" not in refused(use, {"nsq.http.timeout": "1"})


def test_log_store_without_its_library_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    text = "s3://b: it needs the library obstore: pip install 'gnsqd[store]'"
    assert text in refused("read", {**READ, STORE: "a:1=s3://b"})
