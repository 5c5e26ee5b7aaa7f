"""`python tests/benchmarks`: makes this directory the package `benchmarks` beside tests/daemons.py, and runs it."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.cli import main  # noqa: E402

sys.exit(main())
