"""`python -m faults`: injects faults into both daemons, prints the table of what they lost, and writes it into
contrib/docs/reliability.md, some rows of it into the README. That takes about an hour, most of it for 500 kills a row;
daemons that promise nothing get a fifth of the faults. Exits with 1 if something was lost, or came early, although that
is promised."""

import argparse
import os
import random
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from documents.marks import DOCS, ROOT, cells, replaced, table
from faults.changes import RewoundChannel, RuledChannel
from faults.clients import FaultedChannel
from faults.injection import FaultOutcome, fill_disk, kill, lose_machine, lose_power, repeat, set_clock, stand_still
from kit.daemons import PEERS, exit_on_signals, own_command

COLUMNS = ("fault", "daemon", "options", "times", "acknowledged", "lost", "duplicated", "slowest recovery")

SYNCED = ("--mem-queue-size=0", "--sync-every=1")  # what can be had of nsqd
NSQD = ((), SYNCED)
GNSQD = ((), SYNCED, ("--durability=process",), ("--durability=disk",))
STORED = (("--durability=process",), ("--durability=disk",), ("--durability=store",))


class FaultRow(NamedTuple):
    """`run` takes command, times, flags and a seed; `real` if the real nsqd can also be run so; `options` are ours."""

    fault: str
    run: Callable[..., FaultOutcome]
    times: int
    real: bool = True
    options: tuple[tuple[str, ...], ...] = GNSQD


KILL = FaultRow("SIGKILL", repeat(kill), 500)
POWER = FaultRow("power lost: what was not synced is gone", repeat(lose_power), 50, real=False)
MACHINE = FaultRow("machine lost: a log store has its journals", lose_machine, 200, real=False, options=STORED)
ROWS = (
    KILL,
    POWER,
    FaultRow("disk full", fill_disk, 5),
    FaultRow("SIGSTOP, then SIGCONT", repeat(stand_still), 30),
    FaultRow("clock set by up to an hour", repeat(set_clock), 30, real=False),
    MACHINE,
)


HEAD = table(COLUMNS, [], "|---" * 3 + "|---:" * 5 + "|")


def line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


def cases() -> list[tuple[FaultRow, str, tuple[str, ...]]]:
    """Returns every row with every daemon and its options."""
    return [
        (row, name, flags)
        for row in ROWS
        for name, options in (("nsqd", NSQD), ("gnsqd", row.options))
        for flags in options
        if row.real or name == "gnsqd"
    ]


def excerpt(lines: str) -> str:
    """Returns the table of the README: what kills, power cuts and lost machines cost, by daemon and options."""
    measured = {(fault, daemon, options): [*map(int, counts[:3])] for fault, daemon, options, *counts in cells(lines)}
    shown = []
    for daemon, options in dict.fromkeys(key[1:] for key in measured):
        kills, cuts, machines = (measured.get((row.fault, daemon, options)) for row in (KILL, POWER, MACHINE))
        name = daemon if options == "default" else f"{daemon} {options}"
        with_machine = "all"
        if machines is not None:
            with_machine = lost(machines, f"machines{' except the lag' * ('store' not in options)}")
        shown.append((name, lost(kills, "kills"), lost(cuts, "power cuts"), with_machine))
    return table(("daemon", "lost by SIGKILL", "lost by a power cut", "lost with the machine"), shown)


def lost(counts: Sequence[int] | None, what: str) -> str:
    """Returns the share of messages that is lost: each may be missing in two channels."""
    if counts is None:
        return "not measured"
    times, acknowledged, count = counts
    return f"{count / acknowledged / 2:.0%}" if count else f"none in {times} {what}"


def write(lines: str) -> None:
    """Puts the table between the marks of the documents."""
    for document, text in ((DOCS / "reliability.md", lines), (ROOT / "README.md", excerpt(lines))):
        document.write_text(replaced(document.read_text("utf-8"), "faults", text), "utf-8")


def promised(row: FaultRow, name: str, flags: tuple[str, ...]) -> bool:
    """True if nothing may be lost by that."""
    if row in (KILL, POWER):
        return "--durability=disk" in flags or (row is KILL and "--durability=process" in flags)
    return name == "gnsqd"


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--rows", default="", help="only rows that this expression finds; nothing is written then")
    parser.add_argument("--times", type=int, help="that many faults each")
    parser.add_argument("--seed", type=int, default=random.getrandbits(32), help="of what clients and faults do")
    only = "only beside kills with --durability; nothing is written then"
    parser.add_argument("--rewinds", action="store_true", help=f"channels are rewound or created in the past, {only}")
    parser.add_argument("--changes", action="store_true", help=f"messages are cancelled, rules changed, {only}")
    parser.add_argument("flags", nargs="*", help="more options for the daemons, behind --; nothing is written then")
    arguments = parser.parse_args()
    exit_on_signals()
    rewound = RewoundChannel if arguments.rewinds else FaultedChannel
    kinds = (rewound, RuledChannel if arguments.changes else FaultedChannel)
    more = {"kinds": kinds} if arguments.rewinds or arguments.changes else {}
    commands = {"nsqd": [os.fspath(PEERS / "nsqd")], "gnsqd": own_command()}
    lines = [HEAD]
    sys.stdout.write(HEAD)
    wrong = []
    for row, name, flags in cases():
        case = (row.fault, name, f"`{' '.join(flags)}`" if flags else "default")
        if not re.search(arguments.rows, line(case)) or (more and not (row is KILL and promised(row, name, flags))):
            continue
        times = arguments.times or (row.times if promised(row, name, flags) else -(-row.times // 5))
        outcome = row.run(commands[name], times, *flags, *arguments.flags, seed=arguments.seed, **more)
        cost = (outcome.acknowledged, outcome.lost, outcome.duplicated, f"{outcome.recovery_seconds:.2f} s")
        beside = [", ".join(f"{count} {what}" for what, count in outcome.changes)] if more else []
        lines.append(line((*case, times, *cost, *beside)))
        sys.stdout.write(lines[-1])
        sys.stdout.flush()
        found = list(outcome.wrong)
        if (outcome.lost or outcome.early or (more and outcome.duplicated)) and promised(row, name, flags):
            found.append(f"{outcome.early} came early")
        wrong += [f"{lines[-1].rstrip()} and {each}, with seed {arguments.seed}" for each in found]
    if not (arguments.rows or arguments.flags or more):
        write("".join(lines))
    if wrong:
        sys.stderr.writelines(f"although it is promised: {row}\n" for row in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
