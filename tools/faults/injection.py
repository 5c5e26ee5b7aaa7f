"""Faults that are injected into a daemon repeatedly, and what becomes of its messages: the rows of `python -m faults`.

The clients and their ledger are those of `ledger`. A round is: publishers and consumers at work, a fault, a clean exit
if the daemon still runs, and a start.
"""

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from faults.ledger import CHANNELS, SETTLED, TOPIC, Ledger, Load, Outcome
from faults.power_loss import Machine
from kit.account import Account, drain
from kit.daemons import Daemon, eventually, interpreter
from kit.jumping_clock import WallClock
from kit.small_disk import BALLAST, PAGE, SmallDisk

HOUR = 3600.0
DISK = 1 << 20  # bytes

# Makes a daemon from command, directory and flags, and what injects the fault.
Prepare = Callable[[list[str], Path, Sequence[str]], tuple[Daemon, Callable[[random.Random], None]]]


def repeat(prepare: Prepare, command: list[str], times: int, *flags: str) -> Outcome:
    """What is left in the end; the recovery is from the end of a fault until the daemon answers."""
    seed = random.getrandbits(32)
    chance = random.Random(seed)
    ledger = Ledger()
    recoveries = []
    with tempfile.TemporaryDirectory(prefix="gnsqd-faults-") as directory:
        daemon, inject = prepare(command, Path(directory), ("--msg-timeout=5s", *flags))
        with daemon:
            for channel in CHANNELS:
                for what in ("topic", "channel"):
                    assert daemon.http("POST", f"/{what}/create?topic={TOPIC}&channel={channel}")[0] == 200
            for number in range(times):
                load = Load(ledger, daemon, seed + number, f"{number}")
                time.sleep(chance.uniform(0.1, 0.5))
                inject(chance)
                began = time.monotonic()
                if daemon.running:
                    daemon.http("GET", "/ping")
                    recoveries.append(time.monotonic() - began)
                    time.sleep(chance.uniform(0.1, 0.5))
                ended = time.time()
                if daemon.running:
                    daemon.terminate()
                load.join()
                for name, finished in ledger.finished.items():
                    ledger.unsure[name] |= {body for body, at in finished.items() if at > ended - SETTLED}
                daemon.start()
                if len(recoveries) == number:
                    recoveries.append(time.monotonic() - began)
            Load(ledger, daemon, seed, "end", finish_all=True).join()
    return Outcome(len(ledger.acknowledged), len(ledger.lost()), ledger.duplicated(), max(recoveries, default=0.0))


def stand_still(command: list[str], times: int, *flags: str) -> Outcome:
    """SIGSTOP, and SIGCONT after up to 1.5 s."""

    def prepare(
        command: list[str], directory: Path, flags: Sequence[str]
    ) -> tuple[Daemon, Callable[[random.Random], None]]:
        daemon = Daemon(command, directory / "data", *flags)

        def inject(chance: random.Random) -> None:
            daemon.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 1.5))
            daemon.send_signal(signal.SIGCONT)

        return daemon, inject

    return repeat(prepare, command, times, *flags)


def set_clock(command: list[str], times: int, *flags: str) -> Outcome:
    """By up to an hour, forward or back."""

    def prepare(
        command: list[str], directory: Path, flags: Sequence[str]
    ) -> tuple[Daemon, Callable[[random.Random], None]]:
        clock = WallClock(directory / "clock", interpreter(command))
        # A delay that the clock makes longer ends with --max-req-timeout at the latest.
        daemon = Daemon(clock.command, directory / "data", "--max-req-timeout=2s", *flags)
        return daemon, lambda chance: clock.set(chance.uniform(-HOUR, HOUR))

    return repeat(prepare, command, times, *flags)


def lose_power(command: list[str], times: int, *flags: str) -> Outcome:
    """A kill, after which the files hold what was synced and no more."""

    def prepare(
        command: list[str], directory: Path, flags: Sequence[str]
    ) -> tuple[Daemon, Callable[[random.Random], None]]:
        machine = Machine(directory / "synced", interpreter(command))
        # Small files, because each is copied at each sync.
        daemon = Daemon(machine.command, directory / "data", "--max-bytes-per-file=100000", *flags)

        def inject(_: random.Random) -> None:
            daemon.kill()
            machine.forget(daemon.data_path)

        return daemon, inject

    return repeat(prepare, command, times, *flags)


def fill_disk(command: list[str], times: int, *flags: str) -> Outcome:
    """Publishers until the disk is full and on for a while; space again, and a clean exit. A topic for each time."""
    with tempfile.TemporaryDirectory(prefix="gnsqd-faults-") as directory:
        disk = SmallDisk(Path(directory) / "disk", DISK * times, 10_000)
        try:
            daemon = Daemon(disk.inside(command), disk.path, "--mem-queue-size=10", *flags)
            accounts = [Account(daemon, f"t{number}") for number in range(times)]
            recoveries = [_fill(daemon, disk, account) for account in accounts]
            daemon.start()
            lost = duplicated = 0
            for account in accounts:
                delivered = Counter(drain(daemon, account.topic))
                lost += len(set(account.acknowledged) - delivered.keys())
                duplicated += sum(count > 1 for count in delivered.values())
            daemon.close()
        finally:
            disk.close()
    return Outcome(sum(len(account.acknowledged) for account in accounts), lost, duplicated, max(recoveries))


def fill(disk: SmallDisk) -> None:
    """Take all space there is at a moment; a daemon may be looking for some all the time."""
    with suppress(OSError), (disk.files / BALLAST).open("ab", buffering=0) as file:
        while True:
            file.write(bytes(PAGE))


def _fill(daemon: Daemon, disk: SmallDisk, account: Account) -> float:
    """Seconds from the end of the shortage until a message is taken again."""
    daemon.start()
    for what in ("topic", "channel"):
        assert daemon.http("POST", f"/{what}/create?topic={account.topic}&channel=c")[0] == 200
    account.publish("PUB", *[500] * 50)
    fill(disk)
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
