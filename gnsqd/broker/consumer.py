"""What a channel asks of its consumers: a socket's client to the wire, these few methods to the broker."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class ClientStats:
    """One client as /stats shows it; the fields are the JSON keys of NSQD-COMPAT section 5.3, in order."""

    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    pub_counts: list[tuple[str, int]] = field(default_factory=list)
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class Consumer(Protocol):
    """What a channel asks of its clients."""

    @property
    def id(self) -> int: ...
    def wake(self) -> None: ...  # there may be something to take, or to stop taking
    def timed_out_message(self) -> None: ...  # one of its messages in flight went back to the queue
    def emptied(self) -> None: ...  # all of its messages in flight are gone
    def close(self) -> None: ...
    def stats(self, topic_name: str = "") -> ClientStats: ...
