"""The options of `format("nsq")`: ONE table, from which parsing, errors and the documentation come.

Spark's option keys know no case. An option that does not exist, belongs to another use, has a wrong value or
contradicts another one is an OptionError, raised where a reader or writer is made, so before any job starts.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pyspark_nsq.errors import OptionError
from pyspark_nsq.option_table import SourceOption, read_values
from pyspark_nsq.option_values import (
    BOOLEAN,
    CHANNEL,
    DIRECTORY,
    DURATION,
    FILE,
    HTTP_ADDRESSES,
    INVALID_ROWS,
    MILLISECONDS,
    MSG_TIMEOUT,
    NUMBER,
    SIZE,
    TCP_ADDRESSES,
    TEXT,
    TIMEOUT,
    TOPIC,
    TOPICS,
    WAIT,
)
from pyspark_nsq.settings import Address, ConnectionSettings, Settings

__all__ = ["OPTIONS", "Address", "ConnectionSettings", "Settings", "SourceOption", "check_load", "parse"]

READ, READ_STREAM, WRITE, WRITE_STREAM = "read", "readStream", "write", "writeStream"
_STREAM = (READ_STREAM,)
_READERS = (READ, READ_STREAM)
_WRITERS = (WRITE, WRITE_STREAM)
_ALL = (*_READERS, *_WRITERS)

OPTIONS: tuple[SourceOption, ...] = (
    SourceOption("subscribe", TOPICS, "topics", _READERS, "topics to read, separated by commas; required"),
    SourceOption("channel", CHANNEL, "channel", _READERS, "channel to read them from; required, not ephemeral"),
    SourceOption("topic", TOPIC, "topic", _WRITERS, "topic to write to; without it, the column `topic` is used"),
    SourceOption(
        "nsq.lookupd.http.addresses",
        HTTP_ADDRESSES,
        "lookupd_http_addresses",
        _ALL,
        "HTTP addresses of nsqlookupds that list the nsqds; either these or nsqd addresses are required",
    ),
    SourceOption("nsq.nsqd.tcp.addresses", TCP_ADDRESSES, "nsqd_tcp_addresses", _ALL, "TCP addresses of nsqds"),
    SourceOption(
        "nsq.nsqd.http.addresses",
        HTTP_ADDRESSES,
        "nsqd_http_addresses",
        _READERS,
        "HTTP addresses of the same nsqds, in the same order; default: their TCP port + 1",
    ),
    SourceOption(
        "nsq.nsqd.http.tls",
        BOOLEAN,
        "nsqd_http_tls",
        _READERS,
        "query nsqds for statistics by HTTPS: at the given HTTP addresses, or else at their HTTP port + 1",
    ),
    SourceOption("nsq.http.timeout", TIMEOUT, "discovery_timeout", _ALL, "timeout of HTTP requests"),
    SourceOption(
        "maxMessagesPerTrigger",
        NUMBER,
        "max_messages_per_trigger",
        _STREAM,
        "maximum number of messages of a batch, for all topics and nsqds together; default: all queued messages",
    ),
    SourceOption(
        "minPartitions",
        NUMBER,
        "min_partitions",
        _READERS,
        "minimum number of tasks, if there are messages for them; default: one for each topic of each nsqd",
    ),
    SourceOption(
        "maxInFlight", NUMBER, "max_in_flight", _READERS, "maximum number of messages in flight to a task (RDY)"
    ),
    SourceOption(
        "msgTimeoutMs",
        MSG_TIMEOUT,
        "msg_timeout_ms",
        _READERS,
        "time to finish a message before another consumer gets it; default: the nsqd's",
    ),
    SourceOption(
        "idleTimeoutMs",
        MILLISECONDS,
        "idle_timeout",
        _READERS,
        "a task ends after this time without messages",
    ),
    SourceOption(
        "peek",
        BOOLEAN,
        "peek",
        (READ,),
        "true: read messages and requeue them, at most `maxInFlight` of each topic of each nsqd; needs no spool",
    ),
    SourceOption(
        "spoolLocation",
        DIRECTORY,
        "spool_location",
        _READERS,
        "directory, shared by driver and executors, that keeps messages until Spark has committed them; required "
        "unless `spool` is off or `peek` is true",
    ),
    SourceOption(
        "spool",
        BOOLEAN,
        "spool",
        _READERS,
        "off: no spool; messages are lost if the task or driver fails after their FIN, and each scan of a batch frame "
        "consumes different messages",
    ),
    SourceOption("spoolRetention", DURATION, "spool_retention", _READERS, "time for which committed segments are kept"),
    SourceOption(
        "spoolMaxBytes",
        SIZE,
        "spool_max_bytes",
        _READERS,
        "maximum size of committed segments; above it, they are deleted before `spoolRetention`",
    ),
    SourceOption(
        "dedupRetention",
        DURATION,
        "dedup_retention",
        _READERS,
        "time for which ids with an unconfirmed FIN are kept, to drop duplicates",
    ),
    SourceOption(
        "failOnDataLoss",
        BOOLEAN,
        "fail_on_data_loss",
        _READERS,
        "true: fail if messages that were read are lost (if the spool was deleted); false: warn and continue",
    ),
    SourceOption("batchSize", NUMBER, "batch_size", _WRITERS, "maximum number of messages of an MPUB"),
    SourceOption("batchBytes", SIZE, "batch_bytes", _WRITERS, "maximum bytes of an MPUB"),
    SourceOption(
        "retryTimeoutMs",
        WAIT,
        "retry_timeout",
        _WRITERS,
        "time to retry a batch that no nsqd accepts, before the task fails; 0: try every nsqd once",
    ),
    SourceOption(
        "invalidRows",
        INVALID_ROWS,
        "invalid_rows",
        _WRITERS,
        "how to handle a row without a body, or with an invalid topic or delay. fail: the job fails, and the task does "
        "not run again; skip: the row is omitted, and a warning reports the number of omitted rows; topic:NAME: it is "
        "published to this topic as JSON, with the reason",
    ),
    SourceOption(
        "nsq.tls.enabled",
        BOOLEAN,
        "connection.tls",
        _ALL,
        "use TLS for nsqds; true if another TLS option is given",
    ),
    SourceOption("nsq.tls.ca", FILE, "connection.tls_ca", _ALL, "CA certificates in PEM format; default: the system's"),
    SourceOption("nsq.tls.certificate", FILE, "connection.tls_certificate", _ALL, "client certificate in PEM format"),
    SourceOption(
        "nsq.tls.key",
        FILE,
        "connection.tls_key",
        _ALL,
        "private key of the client certificate, unless it is in the same file",
    ),
    SourceOption(
        "nsq.tls.server.name",
        TEXT,
        "connection.tls_server_name",
        _ALL,
        "name in the nsqds' certificates, if it is not their host name",
    ),
    SourceOption("nsq.tls.verify", BOOLEAN, "connection.tls_verify", _ALL, "false: accept any certificate; insecure"),
    SourceOption(
        "nsq.auth.secret",
        TEXT,
        "connection.auth_secret",
        _ALL,
        "secret for nsqds that have an auth server",
    ),
    SourceOption(
        "nsq.client.id",
        TEXT,
        "connection.client_id",
        _ALL,
        "client id in nsqds' statistics; default: the host name",
    ),
    SourceOption("nsq.user.agent", TEXT, "connection.user_agent", _ALL, "user agent in nsqds' statistics"),
    SourceOption(
        "nsq.connect.timeout", TIMEOUT, "connection.connect_timeout", _ALL, "timeout for connecting and IDENTIFY"
    ),
    SourceOption("nsq.read.timeout", TIMEOUT, "connection.read_timeout", _ALL, "timeout for an answer of an nsqd"),
)


def parse(options: Mapping[str, str], use: str) -> Settings:
    """The settings for "read", "readStream", "write" or "writeStream"; OptionError for what cannot be obeyed."""
    values = _read(options, (use,))
    _require_addresses(values)
    _check_tls(values)
    if use in _READERS:
        _require_subscription(values)
        _check_spool(values, use)
    connection = {
        field.removeprefix("connection."): values.pop(field)
        for field in list(values)
        if field.startswith("connection.")
    }
    return Settings(**values, connection=ConnectionSettings(**connection))


def check_load(options: Mapping[str, str]) -> None:
    """OptionError for what can be obeyed by neither read nor readStream: `load()` does not know which it will be."""
    values = _read(options, _READERS)
    _require_addresses(values)
    _check_tls(values)
    _require_subscription(values)


def _read(options: Mapping[str, str], uses: Collection[str]) -> dict[str, Any]:
    for key in options:
        if key.lower() == "path":
            name = "subscribe" if READ in uses or READ_STREAM in uses else "topic"
            raise OptionError(
                f"unknown option 'path', or argument of load, save or start: option {name!r} specifies the topic"
            )
    return read_values(options, uses, OPTIONS)


def _require_addresses(values: Mapping[str, Any]) -> None:
    lookupds, tcp = values.get("lookupd_http_addresses"), values.get("nsqd_tcp_addresses")
    http = values.get("nsqd_http_addresses")
    if http and not tcp:
        raise OptionError("option 'nsq.nsqd.http.addresses' belongs to 'nsq.nsqd.tcp.addresses', which is not given")
    if lookupds and tcp:
        raise OptionError(
            "options 'nsq.lookupd.http.addresses' and 'nsq.nsqd.tcp.addresses' contradict each other: "
            "expected one of them"
        )
    if not lookupds and not tcp:
        raise OptionError("option 'nsq.lookupd.http.addresses' or 'nsq.nsqd.tcp.addresses' is required")
    if tcp and http and len(tcp) != len(http):
        raise OptionError(
            f"options 'nsq.nsqd.tcp.addresses' and 'nsq.nsqd.http.addresses' have {len(tcp)} and {len(http)} "
            "addresses: expected one for each nsqd, in the same order"
        )


def _check_tls(values: dict[str, Any]) -> None:
    """Also switches TLS on where an option implies it."""
    names = {option.field: option.name for option in OPTIONS}
    implied = [names[field] for field in values if field.startswith("connection.tls_")]
    if implied and not values.setdefault("connection.tls", True):
        raise OptionError(f"option {implied[0]!r} contradicts 'nsq.tls.enabled', which is false")
    if "connection.tls_key" in values and "connection.tls_certificate" not in values:
        raise OptionError("option 'nsq.tls.key' belongs to 'nsq.tls.certificate', which is not given")
    if "connection.tls_ca" in values and not values.get("connection.tls_verify", True):
        raise OptionError("option 'nsq.tls.ca' contradicts 'nsq.tls.verify', which is false: nothing would look at it")


def _require_subscription(values: Mapping[str, Any]) -> None:
    for field, name in (("topics", "subscribe"), ("channel", "channel")):
        if field not in values:
            raise OptionError(f"option {name!r} is required")


def _check_spool(values: dict[str, Any], use: str) -> None:
    """Also switches the spool off for a read that only looks."""
    spooling = {
        "spool_location": "spoolLocation",
        "spool_retention": "spoolRetention",
        "spool_max_bytes": "spoolMaxBytes",
        "dedup_retention": "dedupRetention",
    }
    given = [name for field, name in spooling.items() if field in values]
    if values.get("peek"):
        values["spool"] = False
    elif not values.get("spool", True):
        if given:
            raise OptionError(f"option {given[0]!r} contradicts 'spool', which is off")
    elif "spool_location" not in values:
        if use == READ_STREAM:
            raise OptionError(
                "option 'spoolLocation' is required: a directory that driver and executors share, where messages wait "
                "until Spark has committed them. ('spool' = 'off' does without, and loses messages when a task or the "
                "driver dies.)"
            )
        raise OptionError(
            "option 'spoolLocation' is required: a directory that driver and executors share, from which every action "
            "on the frame gets the same messages. ('peek' = 'true' only looks at messages. 'spool' = 'off' does "
            "without, and loses messages whenever Spark scans the frame twice or not to its end, as show, sort, join "
            "and union do.)"
        )
