"""`python tests/benchmarks`: makes this directory the package `benchmarks` beside tests/daemons.py, and runs it."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import cli, memory  # noqa: E402

sys.exit(memory.main(sys.argv[2:]) if sys.argv[1:2] == ["memory"] else cli.main())
