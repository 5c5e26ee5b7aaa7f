"""A backlog does not cost memory: beyond mem-queue-size it is on disk (contrib/docs/memory.md)."""

from collections.abc import Callable

import pytest

from kit.daemons import Instance
from kit.nsq_client import NSQClient, mpub_body
from kit.observers import resident_bytes
from kit.traffic import create, post, wait_for

MB = 1_000_000
MPUB_BYTES = 4 << 20
WINDOW = 100  # messages in flight


def publish(daemon: Instance, count: int, size: int) -> None:
    batch = MPUB_BYTES // size
    body = mpub_body(*[bytes(size)] * batch)
    with NSQClient(daemon.tcp_address) as client:
        for _ in range(count // batch):
            client.command(b"MPUB t", body)
            assert client.response() == b"OK"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "size, count, mem_queue_size, limit",
    [
        pytest.param(1000, 4194 * 120, 10_000, 200 * MB, id="500 MB of 1 kB messages"),
        pytest.param(100_000, 41 * 150, 500, 240 * MB, id="600 MB of 100 kB messages"),
    ],
)
def test_memory_stays_bounded_while_a_backlog_is_filled_and_drained(
    gnsqd_factory: Callable[..., Instance], size: int, count: int, mem_queue_size: int, limit: int
) -> None:
    assert size * count > 1.9 * limit, "whoever kept it in memory would not be found out"
    gnsqd = gnsqd_factory(f"--mem-queue-size={mem_queue_size}")
    create(gnsqd, "t", "c")
    publish(gnsqd, count // 2, size)
    wait_for(gnsqd, "t", "c", depth=count // 2)
    post(gnsqd, "/topic/pause?topic=t")  # so that its memory queue fills too, not only the channel's
    publish(gnsqd, count // 2, size)
    post(gnsqd, "/topic/unpause?topic=t")
    wait_for(gnsqd, "t", "c", depth=count)
    assert resident_bytes(gnsqd, "VmHWM") < limit
    with NSQClient(gnsqd.tcp_address) as client:
        client.identify(heartbeat_interval=60_000)
        client.subscribe("t", "c", WINDOW)
        for first in range(0, count, WINDOW):
            client.send(b"".join(b"FIN %b\n" % client.message().id for _ in range(min(WINDOW, count - first))))
        wait_for(gnsqd, "t", "c", depth=0, in_flight_count=0)
    assert resident_bytes(gnsqd, "VmHWM") < limit
