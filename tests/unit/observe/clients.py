"""Clients that only show themselves."""

from gnsqd.broker.environment import ClientStats
from unit.broker.fakes import FakeConsumer

STATS = ClientStats(
    client_id="me",
    hostname="host",
    version="V2",
    remote_address="1.2.3.4:5",
    state=3,
    ready_count=7,
    in_flight_count=2,
    message_count=30,
    finish_count=20,
    requeue_count=8,
    connect_ts=1700000000,
    sample_rate=50,
    deflate=False,
    snappy=True,
    user_agent="ua",
)


class ShownClient(FakeConsumer):
    """A consumer, or a producer of `pub_counts`, whose figures are `shown`."""

    def __init__(self, id: int, shown: ClientStats = STATS, pub_counts: dict[str, int] | None = None) -> None:
        super().__init__(id)
        self.pub_counts = pub_counts or {}
        self._shown = shown

    @property
    def ready_count(self) -> int:
        return self._shown.ready_count

    def stats(self, topic_name: str = "") -> ClientStats:
        return self._shown
