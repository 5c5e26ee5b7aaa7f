"""The faults of a stream, a row of ROWS each, and the count of its messages.

Two daemons, a publisher that never stops, a stream from both into a table. Then the faults of the row, each after the
stream has committed another batch; then the publisher ends, the stream takes what is left, and the files are counted.
"""

import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from faults.power_loss import Machine
from kit.daemons import PEERS, Instance, eventually, fixed_ports, free_port, interpreter, own_command
from kit.peer_program import PeerProgram
from kit.spark_cluster import cluster
from kit.spark_topics import daemon_options
from kit.traffic import post
from spark.faults.publishing import StreamCounts, StreamPublisher, count
from spark.faults.stream_process import (
    CHANNEL,
    IN_RANGE_TASK,
    IN_TASK,
    POINTS,
    RANGE_POINTS,
    TOPIC,
    StreamProcess,
    empty,
    extent,
)

LOOKUPD_AWAY = 10.0  # seconds


@dataclass(frozen=True)
class StreamRow:
    """Each of `faults` is done to a StreamStage, one after the other, all of them `times` times."""

    name: str
    faults: tuple[Callable[["StreamStage"], None], ...]
    times: int
    ranges: bool = False
    may_repeat: bool = False  # messages may come twice
    cluster: bool = False
    lookupd: bool = False
    peer: bool = False  # the real nsqd
    durability: str = "process"
    power: bool = False  # can be lost
    retention: int = 0  # bytes
    table_format: str = "parquet"


class StreamStage:
    """The daemons, the publisher and the stream of one row, all below `directory`."""

    def __init__(self, row: StreamRow, directory: Path, stack: ExitStack) -> None:
        self.random = random.Random(row.name)
        self._lookupd_ports = (free_port(), free_port())
        self._directory = directory
        self._is_ranges = row.ranges
        self.gone = 0  # messages that are lost, of which there was an error
        self.lookupd: PeerProgram | None = None
        flags = ["--max-rdy-count=500"]  # so that a batch needs several connections
        if not row.peer:
            flags.append(f"--durability={row.durability}")
        if row.retention:
            flags.append(f"--retention-bytes={row.retention}")
        options = {"maxMessagesPerTrigger": "5000", "minPartitions": "6"}
        # What a killed driver held comes again when its time is out.
        options |= {"mode": "ranges"} if row.ranges else {"mode": "deliveries", "msgTimeoutMs": "5000"}
        if row.lookupd:
            self.start_lookupd()
            stack.callback(self.stop_lookupd)
            flags += ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address=127.0.0.1:{self._lookupd_ports[0]}"]
            options["nsq.lookupd.http.addresses"] = f"127.0.0.1:{self._lookupd_ports[1]}"
        self._flags = flags
        names = [f"nsqd-{number}" for number in range(2)]
        python = interpreter(own_command())
        self._machines = {name: Machine(directory / f"{name}-synced", python) for name in names if row.power}
        commands = {name: machine.command for name, machine in self._machines.items()}
        command = [str(PEERS / "nsqd")] if row.peer else own_command()
        self.daemons = [
            stack.enter_context(Instance(commands.get(name, command), directory / name, *flags, *fixed_ports()))
            for name in names
        ]
        if not row.lookupd:
            options |= daemon_options(*self.daemons)
        master = "local[2,4]"  # a task may fail three times
        if row.cluster:
            # Executors that die so often would have the master give the application up.
            patience = {"SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1"}
            environment = StreamProcess.environment(directory) | patience
            master = stack.enter_context(cluster(directory / "cluster", environment))
        self.publisher = stack.enter_context(StreamPublisher(self.daemons, TOPIC))
        self.stream = StreamProcess(directory, options, master, row.table_format)
        stack.callback(self.stream.close)

    def start_lookupd(self) -> None:
        """Starts nsqlookupd, always on the same ports."""
        tcp, http = self._lookupd_ports
        flags = [f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}"]
        log = self._directory / "nsqlookupd.log"
        self.lookupd = PeerProgram(PEERS / "nsqlookupd", log, "--broadcast-address=127.0.0.1", *flags)

    def stop_lookupd(self) -> None:
        if self.lookupd is not None:
            self.lookupd.__exit__(None, None, None)
            self.lookupd = None

    def end(self) -> StreamCounts:
        """Publishes no more, lets the stream take what there is, and counts."""
        self.publisher.stop()
        self.wait_until_read()
        self.stream.finish()
        return count(self.stream.job / "out", self.publisher.ledger)

    def wait_until_read(self) -> None:
        self.stream.wait(self._is_read, "all messages read")

    def _is_read(self) -> bool:
        if not self._is_ranges:
            return all(map(empty, self.daemons))
        read = self.stream.read_up_to()
        return all(read.get(row["epoch"]) == row["next"] for row in map(extent, self.daemons))

    def revive(self, daemon: Instance) -> None:
        """Starts one that is dead, with what was synced if its power is gone."""
        daemon.kill()
        if machine := self._machines.get(daemon.data_path.name):
            machine.forget(daemon.data_path)
        daemon.start()

    def rename(self, daemon: Instance) -> None:
        """Starts it again at other addresses."""
        daemon.restart(*self._flags, *fixed_ports())


def kill_driver(stage: StreamStage) -> None:
    """Kills the driver at any moment."""
    time.sleep(stage.random.uniform(0, 1.5))
    stage.stream.kill_driver()


def inject(point: str, action: str = "executor") -> Callable[[StreamStage], None]:
    return lambda stage: stage.stream.inject(point, action)


def restart_nsqd(stage: StreamStage) -> None:
    """Restarts one of them by a clean exit; the publisher waits meanwhile."""
    with stage.publisher.paused:
        stage.publisher.disconnect()
        stage.random.choice(stage.daemons).restart()


def kill_nsqd(stage: StreamStage) -> None:
    """Kills one of them, at any moment, in the middle of publishing."""
    time.sleep(stage.random.uniform(0, 1))
    stage.revive(stage.random.choice(stage.daemons))


def inject_kill_of_nsqd(point: str) -> Callable[[StreamStage], None]:
    def kill(stage: StreamStage) -> None:
        daemon = stage.random.choice(stage.daemons)
        stage.stream.inject(point, str(daemon.pid))
        stage.stream.wait(lambda: not daemon.running, "the end of nsqd")
        stage.revive(daemon)

    return kill


def rename_nsqd(stage: StreamStage) -> None:
    with stage.publisher.paused:
        stage.publisher.disconnect()
        stage.rename(stage.random.choice(stage.daemons))


def restore_older_copy(stage: StreamStage) -> None:
    """Restores an older copy of one of them after more was read: an error, and the stream goes on with the next."""
    stage.stream.kill_driver()  # it may still ignore losses
    daemon, publisher = stage.random.choice(stage.daemons), stage.publisher
    with publisher.paused:
        publisher.disconnect()
        stage.wait_until_read()
        daemon.terminate()
        copy = shutil.copytree(daemon.data_path, daemon.data_path.with_name("older"))
        daemon.start()
    before = extent(daemon)["next"]
    eventually(lambda: extent(daemon)["next"] > before, "more messages")
    with publisher.paused:
        publisher.disconnect()
        stage.wait_until_read()
        daemon.terminate()
        shutil.rmtree(daemon.data_path)
        copy.rename(daemon.data_path)
        daemon.start()
        stage.stream.fail("an older copy was restored")
        stage.wait_until_read()


def outlive_retention(stage: StreamStage) -> None:
    """Empties the channel at one of them while no stream runs, and waits until none of that is kept: an error, and the
    stream goes on with the next."""
    stage.stream.kill_driver()
    daemon = stage.random.choice(stage.daemons)
    row = extent(daemon)
    read = stage.stream.read_up_to()[row["epoch"]]
    eventually(lambda: extent(daemon)["next"] > read, "messages that were not read")
    with stage.publisher.paused:
        kept = extent(daemon)["next"]
        post(daemon, f"/channel/empty?topic={TOPIC}&channel={CHANNEL}")
    eventually(lambda: extent(daemon)["first"] == kept, "the end of the retention")
    stage.gone += kept - read
    stage.stream.fail("MESSAGES_GONE")


def lookupd_gone(stage: StreamStage) -> None:
    stage.stop_lookupd()
    time.sleep(LOOKUPD_AWAY)
    stage.start_lookupd()


KILLS = 10
DRIVER = tuple(map(inject, POINTS))
TASK = tuple(map(inject, IN_TASK))
WORKER = tuple(inject(point, "worker") for point in IN_TASK)
NSQD = tuple(map(inject_kill_of_nsqd, POINTS))
RANGE_DRIVER = tuple(map(inject, RANGE_POINTS))
RANGE_TASK = tuple(map(inject, IN_RANGE_TASK))
RANGE_WORKER = tuple(inject(point, "worker") for point in IN_RANGE_TASK)
RANGE_NSQD = tuple(map(inject_kill_of_nsqd, RANGE_POINTS))

ROWS = (
    StreamRow("driver killed, at any moment", (kill_driver,), KILLS, may_repeat=True),
    StreamRow(f"driver killed at each of {len(DRIVER)} points", DRIVER, 1, may_repeat=True),
    StreamRow("driver killed, at any moment, with the real nsqd", (kill_driver,), KILLS, may_repeat=True, peer=True),
    StreamRow(
        f"driver killed at each of {len(DRIVER)} points, with the real nsqd", DRIVER, 1, may_repeat=True, peer=True
    ),
    StreamRow("nsqd killed, at any moment", (kill_nsqd,), KILLS, may_repeat=True),
    StreamRow(f"nsqd killed at each of {len(NSQD)} points", NSQD, 1, may_repeat=True),
    StreamRow("the real nsqd restarted", (restart_nsqd,), KILLS, may_repeat=True, peer=True),
    StreamRow("executor killed at each point of a task", TASK, KILLS // 2, cluster=True),
    StreamRow("Python worker killed at each point of a task", WORKER, KILLS // 2),
    StreamRow(f"nsqlookupd gone for {LOOKUPD_AWAY:.0f} s", (lookupd_gone,), 5, lookupd=True),
    StreamRow("ranges: driver killed, at any moment", (kill_driver,), 2 * KILLS, ranges=True),
    StreamRow(f"ranges: driver killed at each of {len(RANGE_POINTS)} points", RANGE_DRIVER, 2, ranges=True),
    StreamRow("ranges: executor killed at each point of a task", RANGE_TASK, 5, ranges=True, cluster=True),
    StreamRow("ranges: Python worker killed at each point of a task", RANGE_WORKER, 5, ranges=True),
    *(
        StreamRow(
            f"ranges: nsqd {what} with --durability={durability}",
            faults,
            times,
            True,
            durability=durability,
            power=power,
        )
        for durability, power, what in (
            ("process", False, "killed"),
            ("disk", False, "killed"),
            ("disk", True, "without power"),
        )
        for faults, times, what in (
            ((kill_nsqd,), 2 * KILLS, f"{what}, at any moment"),
            (RANGE_NSQD, 2, f"{what} at each of {len(RANGE_NSQD)} points"),
        )
    ),
    *(
        StreamRow(f"ranges: {name}, into Delta Lake", faults, times, ranges=True, table_format="delta")
        for name, faults, times in (
            ("driver killed, at any moment", (kill_driver,), 5),
            (f"driver killed at each of {len(RANGE_POINTS)} points", RANGE_DRIVER, 1),
            ("nsqd killed, at any moment", (kill_nsqd,), 5),
        )
    ),
    StreamRow("ranges: nsqd at another address", (rename_nsqd,), KILLS, ranges=True, lookupd=True),
    StreamRow("ranges: nsqd with an older copy", (restore_older_copy,), 3, ranges=True),
    StreamRow("ranges: messages older than the retention", (outlive_retention,), 3, ranges=True, retention=100_000),
)
SHORT = (
    StreamRow("driver and nsqd killed, three times each", (*DRIVER[3::2], *NSQD[::3]), 1, may_repeat=True),
    StreamRow("executor killed at each point of a task", TASK, 1, cluster=True),
    StreamRow(
        "ranges: Python worker killed, power of nsqd lost twice",
        (*RANGE_WORKER[1:], *RANGE_NSQD[2::3]),
        1,
        ranges=True,
        durability="disk",
        power=True,
    ),
)


def play(row: StreamRow, directory: Path, times: int | None = None) -> tuple[StreamCounts, int, int]:
    """Returns the counts, how many messages were lost with an error, and how often the stream died and began again."""
    with ExitStack() as stack:
        stage = StreamStage(row, directory, stack)
        stage.stream.go_on(2)
        for _ in range(row.times if times is None else times):
            for fault in row.faults:
                fault(stage)
                stage.stream.go_on()
        return stage.end(), stage.gone, stage.stream.deaths
