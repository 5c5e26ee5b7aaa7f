"""`python -m faults.attacks`: attacks gnsqd and, where it can be attacked alike, the real nsqd; prints a table of
figures, and exits with 1 if gnsqd breaks a limit.

Names of rows are matched by a regular expression. `--scale=0.01` makes everything a hundred times smaller. The daemon
is what `$GNSQD_BIN` has, else the installed gnsqd.
"""

import argparse
import os
import re
import sys
from math import isfinite
from statistics import median

from faults.attacks import crowds, floods, freezes, hostile
from faults.attacks.figures import Setting
from kit.daemons import PEERS, exit_on_signals, own_command, raise_file_limit

ATTACKS = (*freezes.ATTACKS, *floods.ATTACKS, *hostile.ATTACKS, *crowds.ATTACKS)


def print_row(*cells: object) -> None:
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="attacks", description=__doc__)
    parser.add_argument("--rows", default="", help="only attacks whose name this regular expression finds")
    parser.add_argument("--lane", choices=("gnsqd", "nsqd", "both"), default="both")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all sizes (%(default)s)")
    parser.add_argument("--beside", type=int, default=0, help="PUBs a second beside freezes (%(default)s)")
    parser.add_argument("--limit", type=float, default=50.0, help="ms that a ping may take (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the names of all attacks")
    arguments = parser.parse_args()
    chosen = [attack for attack in ATTACKS if re.search(arguments.rows, attack.name)]
    if arguments.list:
        sys.stdout.writelines(f"{attack.name}\n" for attack in chosen)
        return 0
    exit_on_signals()
    raise_file_limit()
    setting = Setting(arguments.scale, arguments.beside, arguments.limit)
    commands = {"gnsqd": own_command(), "nsqd": [os.fspath(PEERS / "nsqd")]}
    print_row("attack", "daemon", "figure", "value", "limit", "holds")
    print_row(*["---"] * 6)
    broken = False
    for attack in chosen:
        for name, command in commands.items():
            if arguments.lane not in (name, "both") or (name == "nsqd" and not attack.real):
                continue
            for figure in attack.run(command, setting):
                values = ", ".join(f"{value:,.1f} {figure.unit}".strip() for value in figure.values)
                bounds = (("at least", figure.at_least), ("at most", figure.at_most))
                limit = "".join(f"{what} {bound:g}" for what, bound in bounds if isfinite(bound))
                holds = figure.at_least <= median(figure.values) <= figure.at_most
                print_row(attack.name, name, figure.what, values, limit, ("yes" if holds else "NO") if limit else "")
                broken |= name == "gnsqd" and not holds
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
