"""`python -m mutants`: breaks the product on purpose, in one place at a time, and lists which tests notice.

    PYTHONPATH=tests:tools .venv/bin/python -m mutants --count=300 --seed=1 --json=FILE

A mutant is judged by the tests that call the function around it, those first that call few others, until --failures
of them fail, or all have passed that take --seconds when nothing is broken. What no test notices is listed at the end:
a missing test, code that is not needed, or a mutant that behaves like the original.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from mutants.sample import Mutant, sample
from mutants.tracing import DIRECTORY, instrument, read_calls

AREAS = ["gnsqd/wire", "gnsqd/broker", "gnsqd/queues", "gnsqd/storage", "gnsqd/web"]
TESTS = ["tests/unit", "tests/behaviour", "tests/interop", "tests/faults"]
NOTICED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def copy(root: Path, to: Path) -> Path:
    """The checkout, in which one mutant at a time is tested."""
    for line in subprocess.check_output(["git", "ls-files"], cwd=root, text=True).splitlines():
        (to / line).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / line, to / line)
    if not (to / "tests/peers/bin").exists():
        (to / "tests/peers/bin").symlink_to(root / "tests/peers/bin")
    return to


def pytest(tree: Path, *arguments: str, timeout: float | None = None, calls: Path | None = None) -> str:
    """What pytest prints for the tree; "" if it does not end in time."""
    path = os.pathsep.join(map(str, [tree, tree / "contrib", Path(__file__).parents[1]]))
    variables = {"PYTHONPATH": path, "COLUMNS": "10000", DIRECTORY: str(calls or "")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore", *arguments],
        cwd=tree,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        return ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Judges:
    """The tests for each function, those first that call few others."""

    def __init__(self, tree: Path, tests: list[str], workers: int) -> None:
        calls = tree.parent / "calls"
        calls.mkdir()
        instrument(tree, AREAS)
        marks = "not spark and not one_lane"
        options = ["-n", str(workers), "-p", "mutants.tracing", "-m", marks, *tests]
        print(pytest(tree, *options, calls=calls).splitlines()[-1], flush=True)
        self._functions, self.seconds = read_calls(calls)
        self._order = sorted(self._functions, key=lambda test: (len(self._functions[test]), test))

    def of(self, mutant: Mutant, seconds: float) -> list[str]:
        """As many as take that long."""
        function = f"{mutant.path}:{mutant.function}"
        chosen: list[str] = []
        for test in self._order:
            if function in self._functions[test] and seconds > 0:
                chosen.append(test)
                seconds -= self.seconds[test]
        return chosen


def judge(tree: Path, mutant: Mutant, judges: Judges, seconds: float, failures: int) -> list[str]:
    """That many tests that notice the mutant."""
    path = tree / mutant.path
    source = path.read_bytes()
    tests = judges.of(mutant, seconds)
    if not tests:
        return []
    try:
        path.write_bytes(mutant.apply(source))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # of the same second and size as this one
            compiled.unlink()
        printed = pytest(tree, "-rfE", "--timeout=20", f"--maxfail={failures}", *tests, timeout=60 + 5 * seconds)
        return NOTICED.findall(printed) if printed else ["(no end)"]
    finally:
        path.write_bytes(source)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2], help="a checkout (this one)")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants that this regular expression finds")
    parser.add_argument("--seconds", type=float, default=180.0, help="that the tests of a mutant take (%(default)s)")
    parser.add_argument("--failures", type=int, default=5, help="tests that notice a mutant to look for (%(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write there which tests notice which mutant")
    parser.add_argument("tests", nargs="*", default=TESTS)
    flags = parser.parse_args()

    chosen = [each for each in sample(flags.tree, AREAS, flags.count, flags.seed) if re.search(flags.only, str(each))]
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        judges = Judges(copy(flags.tree, Path(directory, "traced")), flags.tests, flags.workers)
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(flags.workers):
            free.put(copy(flags.tree, Path(directory, f"tree-{number}")))

        def notice(mutant: Mutant) -> list[str]:
            tree = free.get()
            try:
                return judge(tree, mutant, judges, flags.seconds, flags.failures)
            finally:
                free.put(tree)

        found: dict[Mutant, list[str]] = {}
        with ThreadPoolExecutor(flags.workers) as pool:
            for mutant, tests in zip(chosen, pool.map(notice, chosen), strict=True):
                found[mutant] = tests
                print(f"{len(tests):4} {mutant}  {tests[0] if tests else ''}", flush=True)
                if flags.json:
                    flags.json.write_text(json.dumps({str(each): tests for each, tests in found.items()}, indent=1))
    report(found)
    return 0


def report(found: dict[Mutant, list[str]]) -> None:
    sampled = Counter(mutant.area for mutant in found)
    noticed = Counter(mutant.area for mutant, tests in found.items() if tests)
    print("| area | mutants | noticed |\n| --- | --- | --- |")
    for area in sampled:
        print(f"| {area} | {sampled[area]} | {noticed[area]} |")
    print(f"| all | {sampled.total()} | {noticed.total()} |\n\nNot noticed:")
    for mutant, tests in found.items():
        if not tests:
            print(mutant)


if __name__ == "__main__":
    sys.exit(main())
