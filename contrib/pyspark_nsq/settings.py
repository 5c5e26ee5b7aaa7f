"""What the options of `format("nsq")` come to, as plain values that are pickled to executors."""

from dataclasses import dataclass, field

Address = tuple[str, int]  # (host, port)


@dataclass(frozen=True)
class ConnectionSettings:
    """How to connect to an nsqd. Files are read where a connection is made, so on every executor. Times in seconds."""

    tls: bool = False
    tls_ca: str | None = None  # None: the authorities that the system trusts
    tls_certificate: str | None = None
    tls_key: str | None = None  # None: it is in the file of the certificate
    tls_server_name: str | None = None  # None: the host of the address
    tls_verify: bool = True
    auth_secret: str | None = field(default=None, repr=False)
    client_id: str = ""  # empty: the name of the host
    user_agent: str = "pyspark_nsq"
    connect_timeout: float = 10.0  # until connected, identified and authorized
    read_timeout: float = 60.0  # of silence where an answer or a heartbeat is due


@dataclass(frozen=True)
class Settings:
    """The values of the options; an option that is not given has its default. Times in seconds unless named `_ms`."""

    topics: tuple[str, ...] = ()  # of readers
    channel: str = ""
    topic: str | None = None  # of writers; None: the column `topic` has it
    lookupd_http_addresses: tuple[Address, ...] = ()
    nsqd_tcp_addresses: tuple[Address, ...] = ()
    nsqd_http_addresses: tuple[Address, ...] = ()  # in the order of the TCP addresses, or none
    nsqd_http_tls: bool = False
    discovery_timeout: float = 5.0  # of one HTTP request
    max_messages_per_trigger: int | None = None
    min_partitions: int | None = None
    max_in_flight: int = 2500
    msg_timeout_ms: int | None = None
    idle_timeout: float = 1.0
    peek: bool = False
    spool: bool = True
    spool_location: str | None = None
    spool_retention: float = 600.0
    spool_max_bytes: int | None = None
    dedup_retention: float = 7 * 86400.0
    fail_on_data_loss: bool = True
    batch_size: int = 1000  # messages of an MPUB
    batch_bytes: int = 1 << 20  # of an MPUB
    retry_timeout: float = 30.0
    invalid_rows: str = "fail"  # or "skip", or "topic:NAME"
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
