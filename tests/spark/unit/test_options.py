"""What the options of format("nsq") accept, and what they say about what they don't."""

import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_nsq.catalog_table import all_options, own_options, schema_with
from pyspark_nsq.errors import OptionError
from pyspark_nsq.options import OPTIONS, Settings, check_load, parse

NSQD = {"nsq.nsqd.tcp.addresses": "localhost:4150"}
READ = {"subscribe": "clicks", "channel": "spark", **NSQD}
STREAM = {**READ, "spoolLocation": "/spool"}
USES: dict[str, dict[str, str]] = {"read": STREAM, "readStream": STREAM, "write": NSQD, "writeStream": NSQD}


def refused(use: str, options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as raised:
        parse(options, use)
    return str(raised.value)


def test_options_that_are_left_out_have_their_defaults() -> None:
    assert parse(STREAM, "readStream") == Settings(
        topics=("clicks",), channel="spark", nsqd_tcp_addresses=(("localhost", 4150),), spool_location="/spool"
    )
    assert parse(NSQD, "write") == Settings(nsqd_tcp_addresses=(("localhost", 4150),))


def test_keys_know_no_case() -> None:
    assert parse(
        {"SUBSCRIBE": "a", "Channel": "c", "NSQ.nsqd.TCP.addresses": "h:1", "maxinflight": "7", "SPOOL": "off"}, "read"
    ) == parse(
        {"subscribe": "a", "channel": "c", "nsq.nsqd.tcp.addresses": "h:1", "maxInFlight": "7", "spool": "off"}, "read"
    )


@pytest.mark.parametrize(
    "use, name, text, field, value",
    [
        ("read", "subscribe", "a, b.c-d_e,f#ephemeral", "topics", ("a", "b.c-d_e", "f#ephemeral")),
        ("write", "topic", " events ", "topic", "events"),
        ("read", "nsq.nsqd.tcp.addresses", "a:1,[::1]:2", "nsqd_tcp_addresses", (("a", 1), ("::1", 2))),
        ("read", "nsq.nsqd.http.addresses", "http://a:9/", "nsqd_http_addresses", (("a", 9),)),
        ("read", "nsq.nsqd.http.tls", "TRUE", "nsqd_http_tls", True),
        ("read", "nsq.http.timeout", "500ms", "discovery_timeout", 0.5),
        ("readStream", "maxMessagesPerTrigger", "10", "max_messages_per_trigger", 10),
        ("read", "minPartitions", "4", "min_partitions", 4),
        ("read", "maxInFlight", "100", "max_in_flight", 100),
        ("read", "msgTimeoutMs", "1000", "msg_timeout_ms", 1000),
        ("read", "idleTimeoutMs", "250", "idle_timeout", 0.25),
        ("read", "spoolLocation", "/s", "spool_location", "/s"),
        ("readStream", "spoolRetention", "0", "spool_retention", 0.0),
        ("readStream", "spoolMaxBytes", "10g", "spool_max_bytes", 10 << 30),
        ("readStream", "dedupRetention", "1.5h", "dedup_retention", 5400.0),
        ("readStream", "failOnDataLoss", "false", "fail_on_data_loss", False),
        ("write", "batchSize", "1", "batch_size", 1),
        ("write", "batchBytes", "64KB", "batch_bytes", 65536),
        ("write", "retryTimeoutMs", "0", "retry_timeout", 0.0),
    ],
)
def test_values_are_read(use: str, name: str, text: str, field: str, value: object) -> None:
    assert getattr(parse({**USES[use], name: text}, use), field) == value


@pytest.mark.parametrize(
    "name, text, field, value",
    [
        ("nsq.auth.secret", "s3cret", "auth_secret", "s3cret"),
        ("nsq.client.id", "me", "client_id", "me"),
        ("nsq.user.agent", "mine/1", "user_agent", "mine/1"),
        ("nsq.connect.timeout", "3", "connect_timeout", 3.0),
        ("nsq.read.timeout", "2m", "read_timeout", 120.0),
    ],
)
@pytest.mark.parametrize("use", USES)
def test_every_use_says_how_to_connect(use: str, name: str, text: str, field: str, value: object) -> None:
    assert getattr(parse({**USES[use], name: text}, use), field) == value


def test_an_option_of_tls_switches_it_on() -> None:
    assert parse(NSQD, "write").tls is False
    settings = parse({**NSQD, "nsq.tls.ca": "ca.pem", "nsq.tls.server.name": "nsqd"}, "write")
    assert settings == replace(parse(NSQD, "write"), tls=True, tls_ca="ca.pem", tls_server_name="nsqd")
    settings = parse({**NSQD, "nsq.tls.verify": "no"}, "write")
    assert settings == replace(parse(NSQD, "write"), tls=True, tls_verify=False)


def test_a_read_does_without_a_spool_only_on_request() -> None:
    assert parse({**READ, "spool": "off"}, "read").spool is False
    assert parse({**READ, "peek": "true"}, "read").spool is False
    assert parse({**READ, "peek": "true", "spoolLocation": "/s"}, "read").spool is False
    assert parse({**READ, "spoolLocation": "/s"}, "read").spool is True
    assert parse({**READ, "spool": "off"}, "readStream").spool is False


@pytest.mark.parametrize(
    "use, changes, expected",
    [
        ("readStream", {"subscribe": ""}, "option 'subscribe' has the value '': expected values between commas"),
        ("read", {"subscribe": "a,,b"}, "option 'subscribe' has the value 'a,,b': expected values between commas"),
        ("read", {"subscribe": "a,b,a"}, "expected each value once, but 'a' is there more often"),
        ("read", {"subscribe": "a b"}, "but 'a b' is not that"),
        ("read", {"subscribe": "x" * 65}, "expected at most 64 of the characters"),
        ("read", {"channel": "c#ephemeral"}, "option 'channel' has the value 'c#ephemeral': expected a channel that"),
        (
            "read",
            {"nsq.nsqd.tcp.addresses": "localhost"},
            "expected host:port or [ipv6]:port, but 'localhost' is not that",
        ),
        ("read", {"nsq.nsqd.tcp.addresses": "localhost:0"}, "but 'localhost:0' is not that"),
        ("read", {"nsq.nsqd.tcp.addresses": "localhost:65536"}, "but 'localhost:65536' is not that"),
        (
            "readStream",
            {"maxMessagesPerTrigger": "0"},
            "option 'maxMessagesPerTrigger' has the value '0': expected a whole",
        ),
        ("read", {"maxInFlight": "-1"}, "expected a whole number from 1 on"),
        ("read", {"maxInFlight": "many"}, "expected a whole number from 1 on"),
        ("read", {"msgTimeoutMs": "999"}, "expected a whole number from 1000 on"),
        ("read", {"idleTimeoutMs": "1s"}, "expected a whole number from 1 on"),
        ("write", {"retryTimeoutMs": "-1"}, "expected a whole number from 0 on"),
        (
            "readStream",
            {"failOnDataLoss": "perhaps"},
            "option 'failOnDataLoss' has the value 'perhaps': expected true or",
        ),
        ("readStream", {"dedupRetention": "7 weeks"}, "expected seconds, or a number with ms, s, m, h or d behind it"),
        ("read", {"nsq.http.timeout": "0"}, "expected more than 0"),
        ("write", {"invalidRows": "ignore"}, "expected fail, skip or topic:NAME"),
        ("readStream", {"spoolMaxBytes": "0"}, "expected bytes from 1 on"),
        ("write", {"topic": "a,b"}, "option 'topic' has the value 'a,b'"),
        ("write", {"nsq.client.id": ""}, "expected a text that is not empty"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(use: str, changes: dict[str, str], expected: str) -> None:
    assert expected in refused(use, {**USES[use], **changes})


@pytest.mark.parametrize(
    "use, key, meant",
    [
        ("read", "subscribes", "subscribe"),
        ("read", "chanel", "channel"),
        ("readStream", "maxmessagepertrigger", "maxMessagesPerTrigger"),
        ("readStream", "spool.location", "spoolLocation"),
        ("write", "lookupd.http.address", "nsq.lookupd.http.addresses"),
        ("write", "nsq.tls.cert", "nsq.tls.certificate"),
        ("writeStream", "topics", "topic"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_one(use: str, key: str, meant: str) -> None:
    assert refused(use, {**USES[use], key: "1"}) == f"unknown option {key!r}: did you mean {meant!r}?"


@pytest.mark.parametrize(
    "key, hint",
    [
        ("startingOffsets", "NSQ has no offsets"),
        ("kafka.bootstrap.servers", "'nsq.nsqd.tcp.addresses' or"),
        ("includeHeaders", "messages of NSQ have no headers"),
        ("maxOffsetsPerTrigger", "'maxMessagesPerTrigger' limits a batch"),
    ],
)
def test_an_option_of_kafka_is_answered_with_what_stands_for_it(key: str, hint: str) -> None:
    reported = refused("readStream", {**STREAM, key: "1"})
    assert reported.startswith(f"unknown option {key!r}, which is of Kafka: ")
    assert hint in reported


def test_an_unknown_option_like_no_other_is_answered_with_all() -> None:
    reported = refused("write", {**NSQD, "compression": "gzip"})
    assert reported.startswith(
        "unknown option 'compression': options of write are batchBytes, batchSize, invalidRows, nsq.auth.secret, "
    )
    assert "subscribe" not in reported


def test_an_option_of_another_use_is_refused() -> None:
    assert refused("write", {**NSQD, "channel": "c"}) == "option 'channel' is for read and readStream, not for write"
    assert refused("read", {**READ, "topic": "t"}) == "option 'topic' is for write and writeStream, not for read"
    assert "is for readStream, not for read" in refused("read", {**READ, "maxMessagesPerTrigger": "5"})


@pytest.mark.parametrize("use", USES)
def test_a_path_is_refused(use: str) -> None:
    expected = "the topic is that of option 'subscribe' or, of a writer, 'topic'"
    assert refused(use, {**USES[use], "path": "clicks"}).endswith(expected)


def test_what_spark_adds_for_itself_is_passed_over() -> None:
    options = {**NSQD, "checkpointLocation": "/c", "queryName": "q", "asyncProgressTrackingEnabled": "true"}
    assert parse(options, "writeStream") == parse(NSQD, "writeStream")


@pytest.mark.parametrize(
    "use, changes, expected",
    [
        ("read", {"subscribe": None}, "option 'subscribe' is required"),
        ("readStream", {"channel": None}, "option 'channel' is required"),
        (
            "write",
            {"nsq.nsqd.tcp.addresses": None},
            "'nsq.lookupd.http.addresses' or 'nsq.nsqd.tcp.addresses' is required",
        ),
        ("readStream", {"spoolLocation": None}, "option 'spoolLocation' is required"),
        ("read", {"spoolLocation": None}, "option 'spoolLocation' is required"),
        ("read", {"spoolLocation": None, "spool": "on"}, "option 'spoolLocation' is required"),
        ("read", {"spoolLocation": None, "peek": "false"}, "option 'spoolLocation' is required"),
        ("readStream", {"peek": "true"}, "option 'peek' is for read, not for readStream"),
        ("read", {"spoolLocation": None, "dedupRetention": "1d"}, "option 'spoolLocation' is required"),
        ("read", {"spool": "off"}, "option 'spoolLocation' contradicts 'spool', which is off"),
        ("readStream", {"spool": "off"}, "option 'spoolLocation' contradicts 'spool', which is off"),
        ("read", {"nsq.lookupd.http.addresses": "h:4161"}, "contradict each other: expected one of them"),
        ("read", {"nsq.nsqd.http.addresses": "a:1,b:2"}, "have 1 and 2 addresses: expected one for each nsqd"),
        (
            "read",
            {"nsq.nsqd.tcp.addresses": None, "nsq.lookupd.http.addresses": "h:4161", "nsq.nsqd.http.addresses": "a:1"},
            "option 'nsq.nsqd.http.addresses' belongs to 'nsq.nsqd.tcp.addresses'",
        ),
        ("write", {"nsq.tls.enabled": "false", "nsq.tls.ca": "f"}, "'nsq.tls.ca' contradicts 'nsq.tls.enabled'"),
        ("write", {"nsq.tls.key": "f"}, "option 'nsq.tls.key' belongs to 'nsq.tls.certificate'"),
        ("write", {"nsq.tls.ca": "f", "nsq.tls.verify": "false"}, "option 'nsq.tls.ca' contradicts 'nsq.tls.verify'"),
    ],
)
def test_missing_and_contradictory_options_are_refused(use: str, changes: dict[str, str | None], expected: str) -> None:
    options: dict[str, Any] = {**USES[use], **changes}
    assert expected in refused(use, {key: value for key, value in options.items() if value is not None})


def test_load_refuses_what_neither_read_nor_read_stream_takes() -> None:
    check_load(READ)
    check_load({**READ, "maxMessagesPerTrigger": "5"})
    for options in (NSQD, {**READ, "topic": "t"}, {**READ, "chanel": "c"}, {**READ, "maxInFlight": "x"}):
        with pytest.raises(OptionError):
            check_load(options)


def test_a_secret_is_not_shown() -> None:
    settings = parse({**NSQD, "nsq.auth.secret": "s3cret"}, "write")
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in refused("write", {**NSQD, "nsq.auth.secret": "s3cret", "nsq.tls.ca": ""})


def test_settings_are_pickled_as_they_are() -> None:
    settings = parse({**STREAM, "nsq.tls.ca": "f", "nsq.auth.secret": "s"}, "readStream")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_table_has_defaults_as_one_would_write_them() -> None:
    for option in OPTIONS:
        assert re.fullmatch(r"[a-z][A-Za-z.]+", option.name)
        assert option.help
        default = getattr(Settings(), option.field)
        if option.default:
            assert option.kind.read(option.default) == default, option.name
        else:
            assert default in (None, "", ()), option.name


# Tables of Spark's catalog

# What Spark 4.3 passes for: CREATE TABLE t USING nsq OPTIONS (...) COMMENT 'x' TBLPROPERTIES ('some' = 'thing')
OF_TABLE = {
    **READ,
    **{f"option.{name}": value for name, value in READ.items()},
    "provider": "nsq",
    "owner": "root",
    "comment": "x",
    "some": "thing",
}


def test_of_a_table_only_the_options_count() -> None:
    assert own_options(OF_TABLE) == READ
    assert own_options(READ) == READ
    # A managed table may have a path, in Spark's warehouse; one with LOCATION has both.
    assert own_options({**OF_TABLE, "path": "file:/warehouse/t"}) == READ
    assert own_options({"provider": "nsq_diskqueue", "path": "file:/d", "location": "file:/d"}) == {"path": "file:/d"}


def test_the_schema_of_a_table_keeps_its_options() -> None:
    schema = schema_with({"channel": "c", "peek": "false"}, "value BINARY, attempts INT")
    assert schema.simpleString() == "struct<value:binary,attempts:int>"
    assert all_options({"peek": "true"}, StructType.fromJson(schema.jsonValue())) == {"channel": "c", "peek": "true"}
    assert all_options({"peek": "true"}, StructType([])) == {"peek": "true"}


@pytest.mark.parametrize("use", USES)
def test_the_error_of_a_table_whose_options_are_not_passed_has_the_reason(use: str) -> None:
    assert "Of a table, Spark passes OPTIONS to no INSERT" in refused(use, {})
    assert "Of a table" not in refused(use, {"nsq.http.timeout": "1"})
