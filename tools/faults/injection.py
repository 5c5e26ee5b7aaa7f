"""Faults that are injected into a daemon repeatedly, and what becomes of its messages: the rows of `python -m faults`.

A round is: publishers and consumers at work, a fault, a clean exit if the daemon still runs, and a start.
"""

import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from faults.clients import CHANNELS, TOPIC, FaultClients, FaultedChannel, FaultLedger
from faults.power_loss import Machine
from kit import object_store
from kit.account import Account, drain
from kit.daemons import PEERS, Instance, eventually, interpreter
from kit.jumping_clock import WallClock
from kit.object_store import FailingProxy, Fault, ObjectStore
from kit.small_disk import BALLAST, PAGE, SmallDisk
from kit.traffic import create

HOUR = 3600.0
DISK = 1 << 20  # bytes
UNCHANGED = (FaultedChannel, FaultedChannel)
STORE_FAULTS = (
    *(object_store.INTERNAL_ERROR, object_store.SLOW_DOWN, object_store.RESET, object_store.ANSWER_LOST),
    *(object_store.ANSWER_TORN, Fault("500 InternalError"), Fault(seconds=0.3)),
)

Inject = Callable[[random.Random], float | None]


class FaultOutcome(NamedTuple):
    """Counts of messages, and the longest time from the end of a fault until the daemon answered."""

    acknowledged: int
    lost: int
    duplicated: int
    recovery_seconds: float
    early: int = 0  # deferred messages that came before their time
    changes: tuple[tuple[str, int], ...] = ()  # of the channels beside the faults, with their number
    wrong: tuple[str, ...] = ()  # what these were after a fault


def repeat(prepare: Callable[[list[str], Path, Sequence[str]], tuple[Instance, Inject]]) -> Callable[..., FaultOutcome]:
    """Returns the function of a row: `prepare` makes a daemon from command, directory and flags, and a function that
    injects the fault. That returns a time if what came later may be gone: FINs, and messages that no log store has to
    have for an answer."""

    def run(
        command: list[str], times: int, *flags: str, seed: int, kinds: Sequence[type[FaultedChannel]] = UNCHANGED
    ) -> FaultOutcome:
        """Injects the fault `times` times; each channel is one of these kinds."""
        chance = random.Random(seed)
        channels = [kind() for kind in kinds]
        ledger = FaultLedger(dict(zip(CHANNELS, channels, strict=True)))
        flags = ("--msg-timeout=1s", *(flag for kind in kinds for flag in kind.flags), *flags)
        recoveries = []
        with tempfile.TemporaryDirectory(prefix="gnsqd-faults-") as directory:
            daemon, inject = prepare(command, Path(directory), flags)
            with daemon:
                create(daemon, TOPIC, *CHANNELS)
                for number in range(times):
                    load = FaultClients(ledger, daemon, f"{seed + number}")
                    time.sleep(chance.uniform(0.05, 0.8))
                    struck = time.time()
                    kept = inject(chance)
                    began = time.monotonic()
                    if survived := daemon.running:
                        daemon.http("GET", "/ping")
                        recoveries.append(time.monotonic() - began)
                        time.sleep(chance.uniform(0.1, 0.5))
                        struck = time.time()
                        daemon.terminate()
                    load.join()
                    if kept is not None and "--durability=store" not in flags:
                        ledger.forget(kept)
                    for receipts in channels:
                        receipts.fault(struck if kept is None else kept)
                    daemon.start()
                    if not survived:
                        recoveries.append(time.monotonic() - began)
                    for receipts in channels:
                        receipts.check(daemon)
                for receipts in channels:
                    receipts.end(daemon)
                FaultClients(ledger, daemon, f"{seed} end", finish_all=True).join()
        early = 0 if prepare is set_clock else len(ledger.early)
        longest = max(recoveries, default=0.0)
        changes = tuple(pair for receipts in channels for pair in receipts.counts.items())
        wrong = tuple(text for receipts in channels for text in receipts.wrong)
        return FaultOutcome(ledger.count, ledger.count_lost(), ledger.count_repeated(), longest, early, changes, wrong)

    return run


def kill(command: list[str], directory: Path, flags: Sequence[str]) -> tuple[Instance, Inject]:
    """Kills the daemon, also while it starts."""
    daemon = Instance(command, directory / "data", *flags)

    def inject(chance: random.Random) -> None:
        daemon.kill()
        if chance.random() < 0.3:
            addresses = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
            arguments, null = [*command, *addresses, f"--data-path={daemon.data_path}", *flags], subprocess.DEVNULL
            process = subprocess.Popen(arguments, stdin=null, stdout=null, stderr=null)
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.2, 1.0))
            process.kill()
            process.wait()

    return daemon, inject


def lose_power(command: list[str], directory: Path, flags: Sequence[str]) -> tuple[Instance, Inject]:
    """Kills the daemon; the files then hold what was synced and no more."""
    machine = Machine(directory / "synced", interpreter(command))
    # Small files, because each is copied at each sync.
    daemon = Instance(machine.command, directory / "data", "--max-bytes-per-file=100000", *flags)

    def inject(_: random.Random) -> None:
        daemon.kill()
        machine.forget(daemon.data_path)

    return daemon, inject


def lose_machine(command: list[str], times: int, *flags: str, seed: int) -> FaultOutcome:
    """Kills the daemon and deletes its data path; the next one has nothing but the log store, which now and then has
    failed before."""
    with (
        tempfile.TemporaryDirectory(prefix="gnsqd-faults-") as directory,
        ObjectStore(PEERS / "versitygw", Path(directory)) as store,
        FailingProxy(store) as proxy,
    ):
        return repeat(partial(_lose_machine, proxy))(command, times, *flags, seed=seed)


def _lose_machine(
    proxy: FailingProxy, command: list[str], directory: Path, flags: Sequence[str]
) -> tuple[Instance, Inject]:
    variables = [f"{name}={value}" for name, value in proxy.environment.items()]
    daemon = Instance(["env", *variables, *command], directory / "0", f"--log-store={proxy.url}", *flags)

    def inject(chance: random.Random) -> float:
        if chance.random() < 0.4:
            proxy.misbehave(chance.choice(STORE_FAULTS), chance.choice(("PUT", "")), times=chance.randrange(1, 9))
            time.sleep(chance.uniform(0, 1))
        looked = time.time()
        lag = re.findall(rb"^gnsqd_log_store_lag_seconds (.*)$", daemon.http("GET", "/metrics")[2], re.MULTILINE)
        daemon.kill()
        proxy.behave()
        shutil.rmtree(daemon.data_path)
        daemon.data_path = daemon.data_path.with_name(str(int(daemon.data_path.name) + 1))
        return looked - float(lag[0])

    return daemon, inject


def stand_still(command: list[str], directory: Path, flags: Sequence[str]) -> tuple[Instance, Inject]:
    """Stops the daemon by SIGSTOP for up to 1.5 s."""
    daemon = Instance(command, directory / "data", *flags, "--msg-timeout=5s")

    def inject(chance: random.Random) -> None:
        daemon.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.1, 1.5))
        daemon.send_signal(signal.SIGCONT)

    return daemon, inject


def set_clock(command: list[str], directory: Path, flags: Sequence[str]) -> tuple[Instance, Inject]:
    """Sets the clock by up to an hour, forward or back."""
    clock = WallClock(directory / "clock", interpreter(command))
    # A delay that the clock makes longer ends with --max-req-timeout at the latest.
    daemon = Instance(clock.command, directory / "data", "--max-req-timeout=2s", *flags)
    return daemon, lambda chance: clock.set(chance.uniform(-HOUR, HOUR))


def fill_disk(command: list[str], times: int, *flags: str, seed: int) -> FaultOutcome:
    """Publishes until the disk is full and on for a while; then there is space again, and a clean exit. Each time has a
    topic."""
    with tempfile.TemporaryDirectory(prefix="gnsqd-faults-") as directory:
        disk = SmallDisk(Path(directory) / "disk", DISK * times, 10_000)
        try:
            daemon = Instance(disk.inside(command), disk.path, "--mem-queue-size=10", *flags)
            accounts = [Account(daemon, f"t{number}") for number in range(times)]
            recoveries = [_fill(daemon, disk, account) for account in accounts]
            with daemon.start():
                delivered = [Counter(drain(daemon, account.topic)) for account in accounts]
        finally:
            disk.close()
    return FaultOutcome(
        sum(len(account.acknowledged) for account in accounts),
        sum(len(set(account.acknowledged) - came.keys()) for account, came in zip(accounts, delivered, strict=True)),
        sum(count > 1 for came in delivered for count in came.values()),
        max(recoveries),
    )


def _fill(daemon: Instance, disk: SmallDisk, account: Account) -> float:
    """Returns the seconds from the end of the shortage until a message is taken again."""
    daemon.start()
    create(daemon, account.topic, "c")
    account.publish("PUB", *[500] * 50)
    # All space there is at a moment; a daemon may be looking for some all the time.
    with suppress(OSError), (disk.files / BALLAST).open("ab", buffering=0) as file:
        while True:
            file.write(bytes(PAGE))
    while len(account.refused) < 20:
        account.publish("PUB", 500)
    disk.free()
    began = time.monotonic()
    eventually(lambda: account.publish("PUB", 500))
    seconds = time.monotonic() - began
    account.publish("PUB", *[500] * 50)
    account.disconnect()
    daemon.terminate()
    return seconds
