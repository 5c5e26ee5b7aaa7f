"""The options of `format("nsq")`: one table, the fields of `Settings`; parsing, errors and documentation come from it.

An option that does not exist, belongs to another use, has a wrong value or contradicts another one is an OptionError,
raised where a reader or writer is made, so before any job starts.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnsqd.shared.names import is_ephemeral
from pyspark_nsq import option_values as kind
from pyspark_nsq.errors import OptionError
from pyspark_nsq.option_table import missing, option, read_values, table_of
from pyspark_nsq.option_values import Address

READ, READ_STREAM, WRITE, WRITE_STREAM = "read", "readStream", "write", "writeStream"
READERS, WRITERS = (READ, READ_STREAM), (WRITE, WRITE_STREAM)
ALL = (*READERS, *WRITERS)
EARLIEST, LATEST = "earliest", "latest"
Offsets = Mapping[str, Mapping[str, int]] | str | None
Moments = Mapping[str, str] | str | None  # for each topic, or for all


@dataclass(frozen=True)
class Settings:
    """The values of the options, which are pickled to executors; an option that is not given has its default. Times in
    seconds unless named `_ms`. Files are read where a connection is made, so on every executor."""

    # fmt: off
    topics: tuple[str, ...] = option("subscribe", kind.TOPICS, READERS,
        "topics to read, separated by commas; either these or a pattern are required")
    topic_pattern: str = option("subscribePattern", kind.PATTERN, READERS,
        "regular expression of Python: topics are read whose whole name matches it, also if they are created later; "
        "ephemeral topics only if `#ephemeral` is part of it")
    channel: str = option("channel", kind.CHANNEL, READERS,
        "channel to read them from, not ephemeral; required for a stream, and with `peek`")
    mode: str = option("mode", kind.MODE, READERS,
        "ranges: read topics as logs, which gnsqd with --durability has, exactly once, and consume nothing; "
        "deliveries: consume from any nsqd, at least once; auto: for a new stream ranges where every nsqd has them, "
        "else deliveries; for a batch ranges, unless `peek` is true", "auto")
    starting_offsets: Offsets = option("startingOffsets", kind.OFFSETS, READERS,
        "ranges: earliest, latest, or JSON with a number for each topic and nsqd, where -2 is earliest and -1 latest; "
        "default: where the channel is, of a batch earliest")
    starting_timestamp: Moments = option("startingTimestamp", kind.MOMENT, READERS,
        "ranges: begin with the first message published then; milliseconds, RFC 3339, a time ago such as -15m, or JSON "
        "with one of these for each topic, where other topics begin without this option")
    timestamp_strategy: str = option("startingOffsetsByTimestampStrategy", kind.STRATEGY, READERS,
        "ranges: how to begin where no message has been published since `startingTimestamp`: with the next one, or not "
        "at all", "latest")
    ending_offsets: Offsets = option("endingOffsets", kind.OFFSETS, (READ,),
        "ranges: end before these messages, as `startingOffsets`; default: latest")
    ending_timestamp: Moments = option("endingTimestamp", kind.MOMENT, (READ,),
        "ranges: end before the first message published then, as `startingTimestamp`")
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", kind.SIZE, (READ_STREAM,),
        "maximum size of a batch, about; of ranges, by the mean size of the messages that there are; of deliveries, "
        "at most 1g, by default 64m")
    topic: str | None = option("topic", kind.TOPIC, WRITERS,
        "topic to write to; without it, the column `topic` is used")
    lookupd_http_addresses: tuple[Address, ...] = option("nsq.lookupd.http.addresses", kind.HTTP_ADDRESSES, ALL,
        "HTTP addresses of nsqlookupds that list the nsqds; either these or nsqd addresses are required")
    nsqd_tcp_addresses: tuple[Address, ...] = option("nsq.nsqd.tcp.addresses", kind.TCP_ADDRESSES, ALL,
        "TCP addresses of nsqds")
    nsqd_http_addresses: tuple[Address, ...] = option("nsq.nsqd.http.addresses", kind.HTTP_ADDRESSES, READERS,
        "HTTP addresses of the same nsqds, in the same order; default: their TCP port + 1")
    nsqd_http_tls: bool = option("nsq.nsqd.http.tls", kind.BOOLEAN, READERS,
        "query nsqds for statistics by HTTPS: at the given HTTP addresses, or else at their HTTP port + 1", "false")
    nsqd_http_token: str | None = option("nsq.nsqd.http.token", kind.TOKEN, READERS,
        "token for nsqds with --http-auth-token-file, for ranges of the role full; with nsqlookupds also needs HTTPS")
    log_stores: tuple[tuple[Address, str], ...] = option("nsq.log.store", kind.STORES, READERS,
        "ranges: `host:port=URL` of nsqds with --log-store, by TCP address, separated by commas: messages that an nsqd "
        "does not have any more are read from there, and all while it does not answer")
    discovery_timeout: float = option("nsq.http.timeout", kind.TIMEOUT, ALL, "timeout of HTTP requests", "5s")
    max_messages_per_trigger: int | None = option("maxMessagesPerTrigger", kind.NUMBER, (READ_STREAM,),
        "maximum number of messages of a batch, for all topics and nsqds together; default: all unread messages")
    min_messages_per_trigger: int | None = option("minMessagesPerTrigger", kind.NUMBER, (READ_STREAM,),
        "number of unread messages for which a trigger waits up to `maxTriggerDelay`, though a batch may have fewer; "
        "without effect with availableNow")
    max_trigger_delay: float = option("maxTriggerDelay", kind.TIMEOUT, (READ_STREAM,),
        "maximum time from one batch to the next, if messages are there, whatever `minMessagesPerTrigger` is", "15m")
    max_records_per_partition: int | None = option("maxRecordsPerPartition", kind.NUMBER, READERS,
        "maximum number of messages of a task; more tasks than `minPartitions` are made for it")
    min_partitions: int | None = option("minPartitions", kind.NUMBER, READERS,
        "minimum number of tasks, if there are messages for them; default: of ranges, one for each topic of each nsqd; "
        "of deliveries, one for each 8 MiB")
    max_in_flight: int = option("maxInFlight", kind.NUMBER, READERS,
        "deliveries: maximum number of messages in flight, for all topics and nsqds together; one connection for each "
        "--max-rdy-count of an nsqd", "100000")
    msg_timeout_ms: int | None = option("msgTimeoutMs", kind.MSG_TIMEOUT, READERS,
        "deliveries: time after which another consumer gets a message if this process is gone; default: the nsqd's")
    peek: bool = option("peek", kind.BOOLEAN, (READ,),
        "true: read queued messages and requeue them, at most `maxInFlight`; ranges consume nothing anyway. The "
        "default of a table in Spark's catalog is true", "false")
    fail_on_data_loss: bool = option("failOnDataLoss", kind.BOOLEAN, READERS,
        "true: fail if messages are lost, past the retention or in a topic that was deleted, or not read, by "
        "availableNow or in a planned batch, as their nsqd does not answer; false: warn and continue", "true")
    batch_size: int = option("batchSize", kind.NUMBER, WRITERS, "maximum number of messages of an MPUB", "1000")
    batch_bytes: int = option("batchBytes", kind.SIZE, WRITERS, "maximum bytes of an MPUB", "1048576")
    retry_timeout: float = option("retryTimeoutMs", kind.WAIT, ALL,
        "time to try again before the task fails: to write a batch that no nsqd accepts, or to read a range from an "
        "nsqd that does not answer; 0: try once", "30000")
    invalid_rows: str = option("invalidRows", kind.INVALID_ROWS, WRITERS,
        "how to handle a row without a body, or with an invalid topic or delay. fail: the job fails, and the task does "
        "not run again; skip: the row is omitted, and a warning reports the number of omitted rows; topic:NAME: it is "
        "published to this topic as JSON, with the reason", "fail")
    tls: bool = option("nsq.tls.enabled", kind.BOOLEAN, ALL,
        "use TLS for nsqds; true if another TLS option is given", "false")
    tls_ca: str | None = option("nsq.tls.ca", kind.FILE, ALL, "CA certificates in PEM format; default: the system's")
    tls_certificate: str | None = option("nsq.tls.certificate", kind.FILE, ALL, "client certificate in PEM format")
    tls_key: str | None = option("nsq.tls.key", kind.FILE, ALL,
        "private key of the client certificate, unless it is in the same file")
    tls_server_name: str | None = option("nsq.tls.server.name", kind.TEXT, ALL,
        "name in the nsqds' certificates, if it is not their host name")
    tls_verify: bool = option("nsq.tls.verify", kind.BOOLEAN, ALL, "false: accept any certificate; insecure", "true")
    auth_secret: str | None = option("nsq.auth.secret", kind.TEXT, ALL, "secret for nsqds that have an auth server")
    client_id: str | None = option("nsq.client.id", kind.TEXT, ALL,
        "client id in nsqds' statistics; default: the host name")
    user_agent: str = option("nsq.user.agent", kind.TEXT, ALL, "user agent in nsqds' statistics", "pyspark_nsq")
    connect_timeout: float = option("nsq.connect.timeout", kind.TIMEOUT, ALL,
        "timeout for connecting and IDENTIFY", "10s")
    read_timeout: float = option("nsq.read.timeout", kind.TIMEOUT, ALL, "timeout for an answer of an nsqd", "1m")
    # fmt: on

    def matches(self, topic: str) -> bool:
        """True if the options name this topic."""
        if self.topics:
            return topic in self.topics
        is_meant = "#ephemeral" in self.topic_pattern or not is_ephemeral(topic)
        return is_meant and re.fullmatch(self.topic_pattern, topic) is not None


OPTIONS = table_of(Settings)

_NAMES = {row.field: row.name for row in OPTIONS}
_OF_RANGES = (
    *("starting_offsets", "starting_timestamp", "timestamp_strategy"),
    *("ending_offsets", "ending_timestamp", "log_stores"),
)
_BELONGS = {  # to an option that is given too
    "nsqd_http_addresses": "nsqd_tcp_addresses",
    "timestamp_strategy": "starting_timestamp",
    "max_trigger_delay": "min_messages_per_trigger",
    "tls_key": "tls_certificate",
}
_EITHER = (  # of which at most one is given
    ("lookupd_http_addresses", "nsqd_tcp_addresses"),
    ("topics", "topic_pattern"),
    ("starting_offsets", "starting_timestamp"),
    ("ending_offsets", "ending_timestamp"),
)
_UNUSED = {"ranges": ("max_in_flight", "msg_timeout_ms"), "deliveries": ("retry_timeout",)}

_log = logging.getLogger(__name__)


def parse(options: Mapping[str, str], use: str) -> Settings:
    """Returns the settings for "read", "readStream", "write" or "writeStream". Raises OptionError for what cannot be
    obeyed."""
    values = _read(options, (use,))
    if use in READERS:
        _check_mode(values, options, use)
    return Settings(**values)


def check_load(options: Mapping[str, str]) -> None:
    """Raises OptionError for what neither read nor readStream can obey: `load()` does not know which it will be."""
    _read(options, READERS)


def _read(options: Mapping[str, str], uses: tuple[str, ...]) -> dict[str, Any]:
    values = read_values(options, uses, OPTIONS)
    for field, other in _BELONGS.items():
        if field in values and other not in values:
            raise OptionError(f"option {_NAMES[field]!r} belongs to {_NAMES[other]!r}, which is not given")
    for field, other in _EITHER:
        if field in values and other in values:
            names = f"{_NAMES[field]!r} and {_NAMES[other]!r}"
            raise OptionError(f"options {names} contradict each other: expected one of them")
    _check_addresses(values, options)
    _check_tls(values)
    if set(uses) <= set(READERS) and not values.keys() & {"topics", "topic_pattern"}:
        raise missing("'subscribe' or 'subscribePattern'", options)
    return values


def _check_mode(values: dict[str, Any], options: Mapping[str, str], use: str) -> None:
    """Settles the mode, except of a stream that may read ranges. Raises OptionError if it contradicts other options."""
    ranges = [_NAMES[field] for field in _OF_RANGES if field in values]
    mode, is_peek = values.setdefault("mode", "auto"), values.get("peek", False)
    if use == READ and mode == "deliveries" and not is_peek:
        raise OptionError(
            "option 'mode' = 'deliveries' is for streams: what a batch consumes is lost when it runs again. Expected "
            "'ranges', for gnsqd with --durability, or 'peek' = 'true', which only looks; format('nsq_diskqueue') "
            "reads data directories"
        )
    if mode == "auto" and ranges:
        mode = "ranges"
    if unused := [repr(_NAMES[field]) for field in _UNUSED.get(mode, ()) if field in values]:
        _log.warning("%s: no effect, as 'mode' is %s", ", ".join(unused), mode)
    if mode == "auto" and use == READ:  # perhaps of a stream, at its `load()`: not a reason for a warning
        mode = "deliveries" if is_peek else "ranges"
    values["mode"] = mode
    if mode == "ranges":
        values["peek"] = False
    if ranges and mode == "deliveries":
        raise OptionError(f"option {ranges[0]!r} contradicts 'mode', which is {mode}")
    least, most = values.get("min_messages_per_trigger", 1), values.get("max_messages_per_trigger")
    if most is not None and least > most:
        raise OptionError(f"option 'minMessagesPerTrigger' is {least}, more than 'maxMessagesPerTrigger', {most}")
    if "channel" not in values and (mode != "ranges" or use == READ_STREAM):
        raise missing("'channel'", options)


def _check_addresses(values: Mapping[str, Any], options: Mapping[str, str]) -> None:
    tcp, http = values.get("nsqd_tcp_addresses"), values.get("nsqd_http_addresses")
    if not tcp and "lookupd_http_addresses" not in values:
        raise missing("'nsq.lookupd.http.addresses' or 'nsq.nsqd.tcp.addresses'", options)
    if tcp and http and len(tcp) != len(http):
        raise OptionError(
            f"options 'nsq.nsqd.tcp.addresses' and 'nsq.nsqd.http.addresses' have {len(tcp)} and {len(http)} "
            "addresses: expected one for each nsqd, in the same order"
        )


def _check_tls(values: dict[str, Any]) -> None:
    """Switches TLS on where an option implies it. Raises OptionError if its options contradict each other."""
    is_certain = values.get("nsqd_http_tls") and values.get("tls_verify", True)
    if "nsqd_http_token" in values and "lookupd_http_addresses" in values and not is_certain:
        raise OptionError(
            "option 'nsq.nsqd.http.token' with 'nsq.lookupd.http.addresses' needs 'nsq.nsqd.http.tls' = 'true', and "
            "certificates that are verified: any program could register at an nsqlookupd to get the token"
        )
    implied = [row.name for row in OPTIONS if row.field in values and row.field.startswith("tls_")]
    if implied and not values.setdefault("tls", True):
        raise OptionError(f"option {implied[0]!r} contradicts 'nsq.tls.enabled', which is false")
    if "tls_ca" in values and not values.get("tls_verify", True):
        raise OptionError("option 'nsq.tls.ca' contradicts 'nsq.tls.verify', which is false: nothing would look at it")
