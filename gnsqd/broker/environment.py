"""The interfaces that topics and channels need from the rest of the daemon."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gnsqd.broker.rules import RuleBook
from gnsqd.hub.cooperative import Spawn
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.message import GuidFactory
from gnsqd.queues.store import Store
from gnsqd.shared.record import Record
from gnsqd.storage.directory import FreeDisk


class Environment(NamedTuple):
    """The callables and objects that every topic and channel gets. `notify`, `note_dead` and `wake_at` never yield."""

    options: Options
    log: Logger
    ids: GuidFactory
    open_store: Callable[[str], Store]  # of a topic; StorageError
    notify: Callable[[Any, bool], None]  # a topic or channel came or went; True: nsqd.dat must have it
    channels_to_precreate: Callable[[str], list[str]]  # of a topic: the names that nsqlookupd knows; may yield
    spawn: Spawn  # starts a greenlet whose death by a bug ends the daemon
    rules: RuleBook
    free_disk: FreeDisk | None = None  # with a bound for it
    note_dead: Callable[[Any], None] = lambda channel: None  # the channel has dead letters
    wake_at: Callable[[Any, int], None] = lambda channel, due: None  # sets its alarm, as `QueueScan.wake_at`
    watch_idle: Callable[[], None] = lambda: None  # a channel has an idle timeout


class ClientStats(Record):
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
    topology_zone: str | None = None  # unless there are zones and regions
    topology_region: str | None = None
    pub_counts: Sequence[tuple[str, int]] = ()
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class Consumer(Protocol):
    """A client of a channel."""

    @property
    def id(self) -> int: ...
    @property
    def ready_count(self) -> int: ...
    @property
    def locality(self) -> int: ...  # 0 in the zone of this nsqd, 1 in its region, else 2
    @property
    def rank(self) -> int: ...  # who waits with a lower one gets messages first
    @property
    def doorbell(self) -> Doorbell: ...  # rung when there may be something to take, or to stop taking
    def left_flight(self, count: int) -> None: ...  # that many of its messages went back to the queue
    def emptied(self) -> None: ...  # all of its messages in flight are gone
    def close(self) -> None: ...
    def stats(self, topic_name: str = "") -> ClientStats: ...
