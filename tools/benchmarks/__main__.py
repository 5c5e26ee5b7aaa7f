"""`python tools/benchmarks`: makes this directory the package `benchmarks` beside tests/kit/daemons.py, and runs it."""

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.with_name("tests"))]

from benchmarks import cli, creation, instructions, lookupd, memory, scale, schedule, scrape  # noqa: E402

OTHERS = {
    each.__name__.rpartition(".")[2]: each.main
    for each in (creation, instructions, lookupd, memory, scale, schedule, scrape)
}

sys.exit(OTHERS[sys.argv[1]](sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in OTHERS else cli.main())
