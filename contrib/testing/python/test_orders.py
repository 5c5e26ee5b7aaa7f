"""A message through gnsqd in a container; or through a daemon that runs, if NSQD_TCP_ADDRESS has its host:port."""

import os
from collections.abc import Iterator

import nsq
import pytest
from tornado.ioloop import IOLoop


@pytest.fixture(scope="session")
def nsqd() -> Iterator[str]:
    if address := os.environ.get("NSQD_TCP_ADDRESS"):
        yield address
        return
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    container = DockerContainer("gnsqd").with_command("gnsqd --dev").with_exposed_ports(4150, 4151)
    with container.waiting_for(HttpWaitStrategy(4151, "/ping")):
        yield f"{container.get_container_host_ip()}:{container.get_exposed_port(4150)}"


def test_order_arrives(nsqd: str) -> None:
    loop = IOLoop.current()
    received = []

    def handle(message: nsq.Message) -> bool:
        received.append(message.body)
        loop.stop()
        return True

    def publish(_: object = None, answer: object = None) -> None:
        if answer != b"OK":  # not connected yet
            loop.call_later(0.05, lambda: writer.pub("orders", b"an order", publish))

    writer = nsq.Writer([nsqd])
    nsq.Reader("orders", "archive", handle, nsqd_tcp_addresses=[nsqd])
    publish()
    loop.call_later(30, loop.stop)
    loop.start()
    assert received == [b"an order"]
