"""gnsqd needs nothing that only Linux has: it serves where all of that is missing. macOS itself is not tested on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from behaviour.as_on_macos import MacOS
from kit.daemons import Instance, interpreter, own_command
from kit.http_api import ask
from kit.nsq_client import NSQClient


@pytest.fixture
def macos(tmp_path: Path) -> MacOS:
    return MacOS(tmp_path / "syncs", interpreter(own_command()))


@pytest.fixture
def gnsqd(macos: MacOS, tmp_path: Path) -> Iterator[Instance]:
    with Instance(macos.command, tmp_path / "data", "--durability=disk") as daemon:
        yield daemon
    assert "Traceback" not in daemon.log()


def test_it_serves(gnsqd: Instance) -> None:
    with NSQClient(gnsqd.tcp_address) as client:
        client.publish("t", *[b"%d" % number for number in range(1000)])
        client.subscribe("t", "c", rdy=100)
        for _ in range(1000):
            client.command(b"FIN %b" % client.message().id)


def test_memory_in_use_is_the_peak(gnsqd: Instance) -> None:
    memory = gnsqd.stats()["memory"]
    assert 10 << 20 < memory["heap_in_use_bytes"] < 1 << 30
    assert memory["heap_released_bytes"] == memory["heap_idle_bytes"] == 0
    for page in ("/metrics", "/debug/pprof/heap", "/stats"):
        assert ask(gnsqd, f"GET {page}")[0] == 200
    assert ask(gnsqd, "POST /debug/freememory")[0] == 200


def test_each_sync_reaches_the_disk_and_not_only_its_memory(gnsqd: Instance, macos: MacOS) -> None:
    before = len(macos.syncs())
    assert ask(gnsqd, "POST /pub?topic=t", b"kept") == (200, "OK")
    assert ("F_FULLFSYNC", "t.journal.000000.dat") in macos.syncs()[before:]
    gnsqd.kill()
    with gnsqd.start(), NSQClient(gnsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        assert client.message().body == b"kept"
    assert {call for call, _ in macos.syncs()} == {"F_FULLFSYNC"}


def test_descriptors_are_as_many_as_a_process_may_have(macos: MacOS, tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh", *macos.command]
    with Instance(limited, tmp_path / "data") as daemon:
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
    found = re.search(r"^Max open files\s+(\d+)\s+(\d+)\s", limits, re.MULTILINE)
    assert found is not None, limits
    assert int(found[1]) == min(int(found[2]), 10240)
