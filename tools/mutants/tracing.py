"""Which tests call which functions of the product, in whatever process: of a copy of the tree where each function
reports its calls, and a plugin of pytest that reports which test runs."""

import ast
import json
import mmap
import os
from collections import defaultdict
from pathlib import Path

import pytest

DIRECTORY = "GNSQD_MUTANTS_CALLS"

# The module `calls` of the copy. What a process calls is written at once, as it may be killed. The number of the test
# that runs is in a file that all processes of a worker of pytest share.
CALLS = f"""
import mmap, os
DIRECTORY = os.environ.get("{DIRECTORY}", "")
seen = set()
if DIRECTORY:
    with open(os.path.join(DIRECTORY, "running-" + os.environ.get("PYTEST_XDIST_WORKER", "")), "r+b") as file:
        running = mmap.mmap(file.fileno(), 8)

def called(function):
    if DIRECTORY:
        call = running[:8], function
        if call not in seen:
            seen.add(call)
            name = os.path.join(DIRECTORY, "calls-" + os.environ.get("PYTEST_XDIST_WORKER", ""))
            file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, (call[0].decode() + " " + function + "\\n").encode())
            os.close(file)
"""


def instrument(root: Path, areas: list[str]) -> None:
    """Change the copy: each function begins with a report of its call."""
    (root / "calls.py").write_text(CALLS)
    for area in areas:
        for path in (root / area).rglob("*.py"):
            tree = ast.parse(path.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    report = f"__import__('calls').called('{path.relative_to(root)}:{node.lineno}')"
                    node.body.insert(1 if ast.get_docstring(node) is not None else 0, ast.parse(report).body[0])
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)))


class Calls:
    """The plugin."""

    def __init__(self, directory: str) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        path = Path(directory, f"running-{worker}")
        path.write_bytes(b"-" * 8)
        with path.open("r+b") as file:
            self._running = mmap.mmap(file.fileno(), 8)
        self._names: list[str] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._to = Path(directory, f"tests-{worker}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[:8] = b"%08d" % len(self._names)
        self._names.append(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._to.write_text(json.dumps([(name, self._seconds[name]) for name in self._names]))


def pytest_configure(config: pytest.Config) -> None:
    if directory := os.environ.get(DIRECTORY):
        config.pluginmanager.register(Calls(directory))


def read_calls(directory: Path) -> tuple[dict[str, set[str]], dict[str, float]]:
    """Functions by test, and seconds by test."""
    functions: dict[str, set[str]] = defaultdict(set)
    seconds: dict[str, float] = {}
    for path in directory.glob("calls-*"):  # of the workers
        tests = json.loads((directory / path.name.replace("calls-", "tests-")).read_text())
        seconds.update(tests)
        for line in path.read_text().splitlines():
            number, function = line.split(" ")
            if number.isdigit():  # else it was called while tests were collected
                functions[tests[int(number)][0]].add(function)
    return functions, seconds
