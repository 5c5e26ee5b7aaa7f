"""Modules that a start loads, which the contracts of import-linter in pyproject.toml do not see."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

CONTRIB = Path(__file__).parents[2] / "contrib"

# The modules that define what Spark calls. All others are imported without pyspark.
PYSPARK_MODULES = {"catalog_table", "data_source", "listener", "stream_reader", "writer"}

# What only some daemons need, by what is imported.
RARE = {
    "gnsqd.nsqd": ("ssl", "_hashlib", "http.client", "tomllib", "cramjam", "re2", "ctypes", "OpenSSL", "rich", "click",
        "prometheus_client", "google_crc32c", "zlib_ng", "gnsqd.storage.journal.journal", "gnsqd.observe.stats",
        "gnsqd.observe.statsd", "gnsqd.demo", "dataclasses", "inspect", "decimal", "datetime", "shlex", "urllib",
        "gevent.util", "gevent.pool", "urllib3", "gevent.lock", "gevent.queue", "gevent.socket", "http", "logging",
        "random"),
    "gnsqd.nsqd, nsqadmin_cli.web.process": ("jinja2", "click", "urllib3", "subprocess", "msgspec"),
    "gnsqd.lookupd.nsqlookupd": ("gnsqd.broker", "gnsqd.queues", "gnsqd.storage"),
}  # fmt: skip


def run_without(blocked: Iterable[str], code: str) -> str:
    """Returns what a new interpreter prints in which these modules cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({list(blocked)})); "
    result = subprocess.run([sys.executable, "-P", "-c", block + code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_only_what_spark_calls_imports_pyspark() -> None:
    pytest.importorskip("pyarrow")
    names = [
        ".".join(path.relative_to(CONTRIB).with_suffix("").parts)
        for path in CONTRIB.glob("pyspark_nsq*/**/*.py")
        if path.stem not in PYSPARK_MODULES
    ]
    run_without(["pyspark"], f"import importlib; [importlib.import_module(name) for name in {names}]")


def test_daemon_starts_without_what_only_some_daemons_need() -> None:
    for modules, rare in RARE.items():
        made = f"[gevent.get_hub(), print(*[name for name in {rare} if name in sys.modules]), sys.exit()]"
        assert run_without((), f"import gevent, gnsqd.process, {modules}; gnsqd.process.serve(lambda: {made})") == "\n"


def test_a_start_compiles_no_annotations() -> None:
    # namedtuple compiles lambdas, and modules are compiled from files.
    is_text = "args[1] == '<string>' and not args[0].startswith(b'lambda')"
    hook = f"sys.addaudithook(lambda event, args: event == 'compile' and {is_text} and print(args[0]))"
    assert run_without((), f"{hook}; import gnsqd.__main__, gnsqd.nsqd") == ""


def test_the_page_never_loads_rich() -> None:
    run_without(["rich"], "import nsqadmin_cli.web.__main__, nsqadmin_cli.web.command")
