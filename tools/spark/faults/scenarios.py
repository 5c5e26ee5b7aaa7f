"""What a stream is put through, a row of ROWS each, and how it is counted.

Two daemons, a publisher that never stops, a stream from both into Parquet. Then the faults of the row, each after the
stream has committed another batch; then the publisher ends, the stream takes what is left, and the files are counted.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kit.daemons import PEERS, Daemon, fixed_ports, free_port, own_command
from kit.peer_program import PeerProgram
from kit.s3_server import make_bucket, serving
from kit.small_disk import SmallDisk
from kit.spark_cluster import cluster
from kit.spark_topics import daemon_options
from spark.faults.publishing import Publisher, Tally, tally
from spark.faults.stream_process import IN_TASK, POINTS, SEAL_TO_FIN, TOPIC, StreamProcess, empty

SPOOL_SIZE = 16 << 20  # bytes of the small disk
LOOKUPD_AWAY = 10.0  # seconds


@dataclass(frozen=True)
class Row:
    """Each of `faults` is done to a Stage, one after the other, all of them `times` times."""

    name: str
    faults: tuple[Callable[["Stage"], None], ...]
    times: int
    spool: bool = True
    cluster: bool = False
    lookupd: bool = False
    small_disk: bool = False
    bucket: bool = False


class Stage:
    """The daemons, the publisher and the stream of one row, all below `directory`."""

    def __init__(self, row: Row, directory: Path, stack: ExitStack) -> None:
        self.random = random.Random(row.name)
        self._lookupd_ports = (free_port(), free_port())
        self._directory = directory
        self.lookupd: PeerProgram | None = None
        flags = ["--max-rdy-count=500"]  # so that a task opens several connections
        # What a killed task holds comes again when its time is out.
        options = {"maxMessagesPerTrigger": "5000", "msgTimeoutMs": "5000"}
        if row.lookupd:
            self.start_lookupd()
            stack.callback(self.stop_lookupd)
            flags += ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address=127.0.0.1:{self._lookupd_ports[0]}"]
            options["nsq.lookupd.http.addresses"] = f"127.0.0.1:{self._lookupd_ports[1]}"
        self.daemons = [
            stack.enter_context(Daemon(own_command(), directory / f"nsqd-{number}", *flags, *fixed_ports()))
            for number in range(2)
        ]
        if not row.lookupd:
            # What a task that died holds may be in a quota.
            options |= daemon_options(*self.daemons) | {"idleTimeoutMs": "1000"}
        spool = directory / "spool"
        location = str(spool)
        if row.bucket:
            stack.enter_context(serving())
            location = make_bucket("spools")
        options |= {"spoolLocation": location} if row.spool else {"spool": "off"}
        prefix: Callable[[Sequence[str]], list[str]] = list
        self.disk: SmallDisk | None = None
        if row.small_disk:
            options |= {"spoolRetention": "0"}
            self.disk = SmallDisk(spool, SPOOL_SIZE, 10_000)
            stack.callback(self.disk.close)
            prefix = self.disk.inside
        master = "local[2,4]"  # a task may fail three times
        if row.cluster:
            # Executors that die so often would have the master give the application up.
            patience = {"SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1"}
            environment = StreamProcess.environment(directory) | patience
            master = stack.enter_context(cluster(directory / "cluster", environment))
        self.publisher = stack.enter_context(Publisher(self.daemons, TOPIC))
        self.stream = StreamProcess(directory, options, master, prefix)
        stack.callback(self.stream.close)

    def start_lookupd(self) -> None:
        """nsqlookupd, always on the same ports."""
        tcp, http = self._lookupd_ports
        flags = [f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}"]
        log = self._directory / "nsqlookupd.log"
        self.lookupd = PeerProgram(PEERS / "nsqlookupd", log, "--broadcast-address=127.0.0.1", *flags)

    def stop_lookupd(self) -> None:
        if self.lookupd is not None:
            self.lookupd.__exit__(None, None, None)
            self.lookupd = None

    def end(self) -> Tally:
        """Publish no more, let the stream take what there is, and count."""
        published = self.publisher.stop()
        self.stream.wait(lambda: all(map(empty, self.daemons)), "all messages read")
        self.stream.finish()
        return tally(self.stream.job / "out", published)


def kill_driver(stage: Stage) -> None:
    """At any moment."""
    time.sleep(stage.random.uniform(0, 1.5))
    stage.stream.kill_driver()


def inject(point: str, action: str = "executor") -> Callable[[Stage], None]:
    return lambda stage: stage.stream.inject(point, action)


def restart_nsqd(stage: Stage) -> None:
    """One of them, by a clean exit; the publisher waits meanwhile."""
    with stage.publisher.paused:
        stage.publisher.disconnect()
        stage.random.choice(stage.daemons).restart()


def lookupd_gone(stage: Stage) -> None:
    stage.stop_lookupd()
    time.sleep(LOOKUPD_AWAY)
    stage.start_lookupd()


def fill_disk(stage: Stage) -> None:
    """And give the space back after a while."""
    assert stage.disk is not None
    stage.disk.fill()
    time.sleep(5)
    stage.disk.free()


KILLS = 10
SEALED = inject("sealed, before FIN")
OTHERS = tuple(inject(point) for point in IN_TASK if point not in SEAL_TO_FIN)

ROWS = (
    Row("driver killed, at any moment", (kill_driver,), 2 * KILLS),
    Row(f"driver killed at each of {len(POINTS)} points", tuple(inject(point) for point in POINTS), 1),
    *(Row(f"executor killed: {point}", (inject(point),), KILLS, cluster=True) for point in SEAL_TO_FIN),
    Row("executor killed at each of the other points of a task", OTHERS, 3, cluster=True),
    Row("Python worker killed: sealed, before FIN", (inject("sealed, before FIN", "worker"),), KILLS),
    Row("nsqd restarted", (restart_nsqd,), KILLS),
    Row(f"nsqlookupd gone for {LOOKUPD_AWAY:.0f} s", (lookupd_gone,), 5, lookupd=True),
    Row("spool in an object store: driver killed, at any moment", (kill_driver,), KILLS, bucket=True),
    Row("spool in an object store: executor killed: sealed, before FIN", (SEALED,), KILLS, cluster=True, bucket=True),
    Row("disk of the spool full for 5 s", (fill_disk,), 5, small_disk=True),
    Row("without spool: driver killed, at any moment", (kill_driver,), KILLS, spool=False),
    Row("without spool: executor killed after its first FINs", (inject("half of the FINs sent"),), KILLS, False, True),
)
SHORT = (
    Row(
        "driver killed twice, nsqd restarted, disk of the spool full for 5 s",
        (SEALED, restart_nsqd, fill_disk, inject("before commit")),
        1,
        small_disk=True,
    ),
    Row("executor killed at each second point from seal to FIN", tuple(map(inject, SEAL_TO_FIN[::2])), 1, cluster=True),
)


def play(row: Row, directory: Path, times: int | None = None) -> tuple[Tally, int]:
    """The tally, and how often the stream died and was started again."""
    with ExitStack() as stack:
        stage = Stage(row, directory, stack)
        stage.stream.go_on(2)
        for _ in range(row.times if times is None else times):
            for fault in row.faults:
                fault(stage)
                stage.stream.go_on()
        return stage.end(), stage.stream.deaths
