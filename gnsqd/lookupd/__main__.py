"""The `gnsqlookupd` command; the daemon itself is `gnsqd.lookupd.nsqlookupd`."""

import sys
from collections.abc import Mapping
from typing import Any

from gnsqd import process
from gnsqd.configuration import combine
from gnsqd.log import Logger
from gnsqd.options import LOOKUPD_OPTIONS, LookupdOptions


def main(argv: list[str] | None = None) -> int:
    """Runs the daemon until a signal stops it; returns the exit code."""
    return process.run("nsqlookupd", LOOKUPD_OPTIONS, sys.argv[1:] if argv is None else argv, _resolve, _start)


def _resolve(flags: Mapping[str, Any], config: Mapping[str, Any]) -> LookupdOptions:
    return LookupdOptions(**combine(flags, config, LOOKUPD_OPTIONS))


def _start(options: LookupdOptions, log: Logger) -> int:
    from gnsqd.lookupd.nsqlookupd import NSQLookupd  # here, as in gnsqd's command

    return process.serve(lambda: NSQLookupd(options, log))


if __name__ == "__main__":
    process.end(main())
