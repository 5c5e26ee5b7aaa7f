"""nsqlookupds that a daemon knows by one name: it asks the system, whose names a test changes in its own /etc/hosts.

That is a file mounted in a namespace of the daemon; where that cannot be, the test is skipped.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually, free_port, own_command
from kit.exposition import labels, series
from kit.lookupds import RunningLookupd, own_lookupd_command
from kit.traffic import create

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


class Hosts:
    """A /etc/hosts; `command` starts a program that reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.write()
        self.command = [*NAMESPACE, str(path)]
        for program in ("unshare", "getent"):
            if not shutil.which(program):
                pytest.skip(f"no {program} here")
        done = subprocess.run([*self.command, "getent", "hosts", "here.test"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no /etc/hosts of one's own in a namespace here: {done.stderr.strip()}")

    def write(self, *addresses: str) -> None:
        """Writes the addresses of the name `nsqlookupds.test`."""
        names = [
            "127.0.0.1 localhost here.test",
            "::1 localhost",
            *(f"{address} nsqlookupds.test" for address in addresses),
        ]
        self._path.write_text("\n".join(names) + "\n")


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path / "hosts")


@pytest.fixture
def lookupds(hosts: Hosts, tmp_path: Path) -> Iterator[list[RunningLookupd]]:
    port, addresses = free_port(), ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    with ExitStack() as stack:
        made = [
            RunningLookupd(own_lookupd_command(), tmp_path / host, ports=(port, 0), host=host) for host in addresses
        ]
        yield [stack.enter_context(lookupd) for lookupd in made]


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., Instance]]:
    """Starts a daemon that reads `hosts`."""
    with ExitStack() as stack:
        command = [*hosts.command, *own_command()]
        yield lambda *flags: stack.enter_context(Instance(command, tmp_path / "data", *flags))


def connected(nsqd: Instance, *addresses: str) -> None:
    """Waits until these are its nsqlookupds, and have all registrations."""

    def shown() -> dict[object, float]:
        page = series(nsqd.http("GET", "/metrics")[2])
        return {key[1]: value for key, value in page.items() if key[0] == "gnsqd_nsqlookupd_connected"}

    expected = {labels(address=address): 1.0 for address in addresses}
    eventually(lambda: shown() == expected)


def test_nsqd_registers_at_all_addresses_of_a_name_as_they_change(
    start: Callable[..., Instance], hosts: Hosts, lookupds: list[RunningLookupd]
) -> None:
    one, two, three = lookupds
    hosts.write("127.0.0.1", "127.0.0.2")
    port = one.tcp_address.partition(":")[2]
    nsqd = start(f"--lookupd-tcp-address=nsqlookupds.test:{port}")
    connected(nsqd, one.tcp_address, two.tcp_address)
    create(nsqd, "t", "c")
    eventually(lambda: one.registered() == two.registered() == {"t:", "t:c"})
    hosts.write("127.0.0.2", "127.0.0.3")
    one.kill()
    create(nsqd, "u")  # nsqd finds that one is gone
    connected(nsqd, two.tcp_address, three.tcp_address)
    eventually(lambda: two.registered() == three.registered() == {"t:", "t:c", "u:"})
    assert len(two.producers()) == 1
    hosts.write("127.0.0.3")
    two.kill()
    create(nsqd, "v")
    connected(nsqd, three.tcp_address)
    eventually(lambda: three.found("v"))
