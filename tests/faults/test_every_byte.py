"""A data directory with any one byte wrong, or any file cut at any length: both daemons start, and ours delivers all
that the damage leaves readable, and all that the real one delivers.

Every damage has a queue of its own, so that one start of each daemon is enough.
"""

import json
import os
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from gnsqd.shared.errors import StorageError
from gnsqd.storage.metadata import load
from kit.daemons import DEADLINE, Instance, eventually, is_readable
from kit.nsq_client import NSQClient

BODIES = [b"body %d." % number for number in range(6)]
ID = [b"%d" % number * 16 for number in range(6)]  # no wrong byte makes one of another
SIZE = 4 + 26 + len(BODIES[0])  # of each record
META = f"6\n0,0\n2,{2 * SIZE}\n".encode()
AT_A_TIME = 200  # consumers


def record(number: int) -> bytes:
    return struct.pack(">iqH16s", SIZE - 4, 1_700_000_000_000_000_000 + number, 0, ID[number]) + BODIES[number]


def due_times() -> bytes:
    """Returns ours alone: the first message of each file is due immediately. A wrong byte makes that earlier, or later
    by minutes: whether a message is due while the queue is drained must not depend on the time."""
    due = time.time_ns() - (1 << 34) | 0x1FF << 24
    entries = [struct.pack(">H16sqi", 0, ID[number], due, 0) for number in (0, 2, 4)]
    return b"gnsqd due times 1\n" + b"".join(entries)


def queue_files() -> dict[str, bytes]:
    """Returns the content of the files, which have six messages in three."""
    files = {f"{number:06}.dat": record(2 * number) + record(2 * number + 1) for number in range(3)}
    return {**files, "meta.dat": META, "due_times.dat": due_times()}


class Damage(NamedTuple):
    """A byte of a file that is changed by a mask, or (0) its end that is cut off from there."""

    file: str
    at: int
    mask: int

    def apply(self, data: bytes) -> bytes:
        if not self.mask:
            return data[: self.at]
        return data[: self.at] + bytes([data[self.at] ^ self.mask]) + data[self.at + 1 :]

    def spared(self) -> set[bytes]:
        """Returns the bodies that must come."""
        if not self.file[0].isdigit():
            return set(BODIES) if self.file == "due_times.dat" or not self.mask else set()
        first = 2 * int(self.file[:6])
        hit, offset = divmod(self.at, SIZE)
        if self.mask and offset >= 4:
            return set(BODIES) - {BODIES[first + hit]}
        return set(BODIES) - set(BODIES[first + hit : first + 2])


DAMAGES = [
    Damage(file, at, mask)
    for file, data in queue_files().items()
    for at in range(len(data))
    for mask in ((0, 0x01, 0x04, 0xFF) if file == "meta.dat" else (0, 0x01 if at % 2 else 0xFF))
]


# To read in a file that comes after the last: the real nsqd then does nothing but log that, as fast as it can.
ENDLESS = Damage("meta.dat", META.index(b"0,0"), 0x04)


def lay_out(directory: Path, *, spare: Damage | None = None) -> None:
    """Writes all queues, of topics `d0`, `d1` and so on, in the order of DAMAGES; `spare` is left out."""
    topics = []
    for number, damage in enumerate(DAMAGES):
        for name, data in queue_files().items():
            path = directory / f"d{number}:c.diskqueue.{name}"
            path.write_bytes(damage.apply(data) if name == damage.file and damage != spare else data)
        topics.append({"name": f"d{number}", "paused": False, "channels": [{"name": "c", "paused": False}]})
    (directory / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))


def drain(daemon: Instance) -> list[set[bytes]]:
    """Returns the bodies that channel `c` of each topic delivers."""
    drained: list[set[bytes]] = []
    for first in range(0, len(DAMAGES), AT_A_TIME):
        names = [f"d{number}" for number in range(first, min(first + AT_A_TIME, len(DAMAGES)))]
        bodies: dict[str, set[bytes]] = {name: set() for name in names}
        with ExitStack() as stack:
            clients = {name: stack.enter_context(NSQClient(daemon.tcp_address)) for name in names}
            for name, client in clients.items():
                assert client.identify(output_buffer_size=-1, heartbeat_interval=60_000).data == b"OK"
                client.subscribe(name, "c", 10)
            # Twice: something may have been on its way.
            eventually(lambda: is_empty(daemon, clients, bodies))  # noqa: B023
            eventually(lambda: is_empty(daemon, clients, bodies))  # noqa: B023
        drained += bodies.values()
    return drained


def is_empty(daemon: Instance, clients: dict[str, NSQClient], bodies: dict[str, set[bytes]]) -> bool:
    for name, client in clients.items():
        while client.buffer or is_readable(client.sock, 0):
            message = client.message()
            bodies[name].add(message.body)
            client.command(b"FIN " + message.id)
    return not any(
        channel["depth"] > 0 or channel["in_flight_count"]
        for topic in daemon.stats()["topics"]
        if topic["topic_name"] in clients
        for channel in topic["channels"]
    )


@pytest.mark.peer
def test_queue_with_a_wrong_byte_or_a_missing_end_gives_all_the_rest(
    directory: Path, gnsqd_factory: Callable[..., Instance], peer_binary: Callable[[str], Path]
) -> None:
    for name in ("ours", "real"):
        (directory / name).mkdir()
        lay_out(directory / name, spare=ENDLESS if name == "real" else None)
    nsqd = Instance([os.fspath(peer_binary("nsqd"))], directory / "real", "--mem-queue-size=0").start()
    try:
        real = drain(nsqd)
    finally:
        nsqd.kill()
    gnsqd = gnsqd_factory("--mem-queue-size=0", data_path=directory / "ours")
    ours = drain(gnsqd)
    deferred = {topic["topic_name"]: topic["channels"][0]["deferred_count"] for topic in gnsqd.stats()["topics"]}
    for number, (damage, by_ours, by_real) in enumerate(zip(DAMAGES, ours, real, strict=True)):
        if deferred[f"d{number}"]:  # a wrong time
            assert damage.file == "due_times.dat", damage
            assert len(by_ours) + deferred[f"d{number}"] == len(BODIES), damage
        else:
            assert by_ours >= damage.spared(), damage
            assert by_ours >= by_real & set(BODIES), damage
    assert gnsqd.terminate() == 0


METADATA = b'{"topics":[{"name":"a","paused":true,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}'
METADATA_DAMAGES = [Damage("nsqd.dat", at, mask) for at in range(len(METADATA)) for mask in (0, 0x01, 0x20, 0x80)]


@pytest.mark.peer
def test_nsqd_dat_is_refused_only_where_the_real_nsqd_refuses_it(
    peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "nsqd.dat"
    refused = set()
    for damage in METADATA_DAMAGES:
        path.write_bytes(damage.apply(METADATA))
        try:
            load(str(path))
        except StorageError:
            refused.add(damage.apply(METADATA))
    assert 100 < len(refused) < len(METADATA_DAMAGES)
    listen = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    for data in sorted(refused):
        path.write_bytes(data)
        command = [os.fspath(peer_binary("nsqd")), f"--data-path={tmp_path}", *listen]
        nsqd = subprocess.run(command, stderr=subprocess.PIPE, timeout=DEADLINE)
        assert nsqd.returncode == 1, data
        assert b"failed to parse metadata" in nsqd.stderr
