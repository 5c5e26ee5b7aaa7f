"""A daemon that may open no more files: whom it serves already notices nothing, and all others are served later."""

import contextlib
import http.client
import os
import resource
from collections.abc import Iterator

from kit.account import Account, next_body
from kit.daemons import DEADLINE, Instance, eventually
from kit.http_api import message
from kit.nsq_client import HEARTBEAT, RESPONSE, NSQClient
from kit.traffic import DaemonFactory


@contextlib.contextmanager
def no_more_descriptors(nsqd: Instance) -> Iterator[None]:
    """Lowers the limit on open files until no more can be opened."""
    soft, hard = resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE)

    def opened() -> dict[int, str]:
        directory = f"/proc/{nsqd.pid}/fd"
        return {int(name): os.readlink(f"{directory}/{name}") for name in os.listdir(directory)}

    def lowest_free(used: dict[int, str]) -> int:
        return next(number for number in range(soft) if number not in used)

    def limit() -> bool:
        with contextlib.suppress(FileNotFoundError):  # closed between two looks
            limited = lowest_free(opened())
            resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (limited, hard))
            used = opened()
            # A file or directory that is open only until metadata is synced would leave room for another file.
            lasting = all(path.endswith("0.dat") for path in used.values() if path.startswith(f"{nsqd.data_path}/"))
            if lowest_free(used) == limited and lasting and list(used.values()).count(str(nsqd.data_path)) == 1:
                return True
        resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (soft, hard))
        return False

    eventually(limit)
    try:
        yield
    finally:
        resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_served_clients_go_on_and_the_others_follow(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=1", "--sync-timeout=10m")
    opened, unopened = Account(nsqd, "opened"), Account(nsqd, "unopened")
    assert opened.publish("PUB", 10, 100)  # the first in memory, the second in a file
    assert unopened.publish("PUB", 10)
    assert isinstance(nsqd.http_address, tuple)
    operator = http.client.HTTPConnection(*nsqd.http_address, timeout=DEADLINE)
    consumer, publisher = (NSQClient(nsqd.tcp_address) for _ in range(2))

    def ask(method: str, target: str, body: bytes = b"") -> tuple[int, str]:
        operator.request(method, target, body)
        response = operator.getresponse()
        return response.status, response.read().decode()

    assert ask("GET", "/ping") == (200, "OK")
    consumer.subscribe("served", "c", rdy=5)
    publisher.publish("served", b"first")
    assert next_body(consumer) == b"first"
    idle = NSQClient(nsqd.tcp_address)
    idle.identify(heartbeat_interval=1000)
    with no_more_descriptors(nsqd):
        # What is open is written to.
        assert ask("POST", "/pub?topic=open%65d", b"more") == (200, "OK")
        opened.acknowledged.append(b"more")
        # What is not can't be.
        assert ask("POST", "/pub?topic=unopened", b"refused") == (503, message("EXITING"))
        unopened.refused.append([b"refused"])
        error = f"open {nsqd.data_path}/unopened.diskqueue.000000.dat: too many open files"
        assert ask("GET", "/ping") == (500, f"NOK - {error}")
        # Who is connected is served, heartbeats and all.
        publisher.publish("served", b"second")
        assert next_body(consumer) == b"second"
        assert idle.frame() == (RESPONSE, HEARTBEAT)
        # Who is not waits.
        late = NSQClient(nsqd.tcp_address)
        late.command(b"PUB served", b"late")
        assert late.nothing_arrives(0.2)
    assert "WARNING: " in nsqd.log()
    assert "temporary Accept() failure" in nsqd.log()
    assert late.response() == b"OK"
    assert next_body(consumer) == b"late"
    assert unopened.publish("MPUB", 10, 10)
    eventually(lambda: ask("GET", "/ping") == (200, "OK"))
    for connection in (consumer, publisher, idle, late, operator):
        connection.close()
    opened.settle()
    unopened.settle()
