"""`python tools/benchmarks`: makes this directory the package `benchmarks` beside the test kit, and runs it."""

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.with_name("tests"))]

from benchmarks.cli import main  # noqa: E402

sys.exit(main())
