"""The options of `format("nsq")`: ONE table, the fields of two classes, from which parsing, errors and the
documentation come. The values are plain, since they are pickled to executors."""

from dataclasses import dataclass, field

from pyspark_nsq.option_table import option
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
    Address,
)

__all__ = ["ALL", "READERS", "READ_STREAM", "WRITERS", "Address", "ConnectionSettings", "Settings"]

READ, READ_STREAM, WRITE, WRITE_STREAM = "read", "readStream", "write", "writeStream"
READERS, WRITERS = (READ, READ_STREAM), (WRITE, WRITE_STREAM)
ALL = (*READERS, *WRITERS)


@dataclass(frozen=True)
class ConnectionSettings:
    """How to connect to an nsqd. Files are read where a connection is made, so on every executor. Times in seconds."""

    tls: bool = option("nsq.tls.enabled", BOOLEAN, ALL, "use TLS for nsqds; true if another TLS option is given", False)
    tls_ca: str | None = option("nsq.tls.ca", FILE, ALL, "CA certificates in PEM format; default: the system's")
    tls_certificate: str | None = option("nsq.tls.certificate", FILE, ALL, "client certificate in PEM format")
    tls_key: str | None = option(
        "nsq.tls.key", FILE, ALL, "private key of the client certificate, unless it is in the same file"
    )
    tls_server_name: str | None = option(
        "nsq.tls.server.name", TEXT, ALL, "name in the nsqds' certificates, if it is not their host name"
    )
    tls_verify: bool = option("nsq.tls.verify", BOOLEAN, ALL, "false: accept any certificate; insecure", True)
    auth_secret: str | None = option(
        "nsq.auth.secret", TEXT, ALL, "secret for nsqds that have an auth server", repr=False
    )
    client_id: str = option("nsq.client.id", TEXT, ALL, "client id in nsqds' statistics; default: the host name", "")
    user_agent: str = option("nsq.user.agent", TEXT, ALL, "user agent in nsqds' statistics", "pyspark_nsq")
    connect_timeout: float = option("nsq.connect.timeout", TIMEOUT, ALL, "timeout for connecting and IDENTIFY", 10.0)
    read_timeout: float = option("nsq.read.timeout", TIMEOUT, ALL, "timeout for an answer of an nsqd", 60.0)


@dataclass(frozen=True)
class Settings:
    """The values of the options; an option that is not given has its default. Times in seconds unless named `_ms`."""

    topics: tuple[str, ...] = option("subscribe", TOPICS, READERS, "topics to read, separated by commas; required", ())
    channel: str = option("channel", CHANNEL, READERS, "channel to read them from; required, not ephemeral", "")
    topic: str | None = option("topic", TOPIC, WRITERS, "topic to write to; without it, the column `topic` is used")
    lookupd_http_addresses: tuple[Address, ...] = option(
        "nsq.lookupd.http.addresses",
        HTTP_ADDRESSES,
        ALL,
        "HTTP addresses of nsqlookupds that list the nsqds; either these or nsqd addresses are required",
        (),
    )
    nsqd_tcp_addresses: tuple[Address, ...] = option(
        "nsq.nsqd.tcp.addresses", TCP_ADDRESSES, ALL, "TCP addresses of nsqds", ()
    )
    nsqd_http_addresses: tuple[Address, ...] = option(
        "nsq.nsqd.http.addresses",
        HTTP_ADDRESSES,
        READERS,
        "HTTP addresses of the same nsqds, in the same order; default: their TCP port + 1",
        (),
    )
    nsqd_http_tls: bool = option(
        "nsq.nsqd.http.tls",
        BOOLEAN,
        READERS,
        "query nsqds for statistics by HTTPS: at the given HTTP addresses, or else at their HTTP port + 1",
        False,
    )
    discovery_timeout: float = option("nsq.http.timeout", TIMEOUT, ALL, "timeout of HTTP requests", 5.0)
    max_messages_per_trigger: int | None = option(
        "maxMessagesPerTrigger",
        NUMBER,
        (READ_STREAM,),
        "maximum number of messages of a batch, for all topics and nsqds together; default: all queued messages",
    )
    min_partitions: int | None = option(
        "minPartitions",
        NUMBER,
        READERS,
        "minimum number of tasks, if there are messages for them; default: one for each topic of each nsqd",
    )
    max_in_flight: int = option(
        "maxInFlight", NUMBER, READERS, "maximum number of messages in flight to a task (RDY)", 2500
    )
    msg_timeout_ms: int | None = option(
        "msgTimeoutMs",
        MSG_TIMEOUT,
        READERS,
        "time to finish a message before another consumer gets it; default: the nsqd's",
    )
    idle_timeout: float = option(
        "idleTimeoutMs", MILLISECONDS, READERS, "a task ends after this time without messages", 1.0
    )
    peek: bool = option(
        "peek",
        BOOLEAN,
        (READ,),
        "true: read messages and requeue them, at most `maxInFlight` of each topic of each nsqd; needs no spool",
        False,
    )
    spool_location: str | None = option(
        "spoolLocation",
        DIRECTORY,
        READERS,
        "directory, shared by driver and executors, that keeps messages until Spark has committed them; required "
        "unless `spool` is off or `peek` is true",
    )
    spool: bool = option(
        "spool",
        BOOLEAN,
        READERS,
        "off: no spool; messages are lost if the task or driver fails after their FIN, and each scan of a batch frame "
        "consumes different messages",
        True,
    )
    spool_retention: float = option(
        "spoolRetention", DURATION, READERS, "time for which committed segments are kept", 600.0
    )
    spool_max_bytes: int | None = option(
        "spoolMaxBytes",
        SIZE,
        READERS,
        "maximum size of committed segments; above it, they are deleted before `spoolRetention`",
    )
    dedup_retention: float = option(
        "dedupRetention",
        DURATION,
        READERS,
        "time for which ids with an unconfirmed FIN are kept, to drop duplicates",
        7 * 86400.0,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        READERS,
        "true: fail if messages that were read are lost (if the spool was deleted); false: warn and continue",
        True,
    )
    batch_size: int = option("batchSize", NUMBER, WRITERS, "maximum number of messages of an MPUB", 1000)
    batch_bytes: int = option("batchBytes", SIZE, WRITERS, "maximum bytes of an MPUB", 1 << 20)
    retry_timeout: float = option(
        "retryTimeoutMs",
        WAIT,
        WRITERS,
        "time to retry a batch that no nsqd accepts, before the task fails; 0: try every nsqd once",
        30.0,
    )
    invalid_rows: str = option(
        "invalidRows",
        INVALID_ROWS,
        WRITERS,
        "how to handle a row without a body, or with an invalid topic or delay. fail: the job fails, and the task does "
        "not run again; skip: the row is omitted, and a warning reports the number of omitted rows; topic:NAME: it is "
        "published to this topic as JSON, with the reason",
        "fail",
    )
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
