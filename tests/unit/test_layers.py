"""The layers of the source tree, read from its import statements (and from the cimports of .pxd and .pyx files).

Every import counts, inside a function or under TYPE_CHECKING too: what a module only mentions it still depends on.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the top. A module may import its own unit and the units of the layers below its own.
LAYERS = (
    ("gnsqd.pytest_plugin",),
    ("gnsqd.testing",),
    ("gnsqd.quick_start",),
    ("gnsqd.preloaded",),
    ("gnsqd.__main__", "gnsqd.lookupd.__main__"),
    ("gnsqd.process",),
    ("gnsqd.check_config",),
    ("gnsqd.configuration",),
    ("gnsqd.nsqd",),
    ("gnsqd.lookupd",),
    ("gnsqd.supervisor", "gnsqd.systemd", "gnsqd.health", "gnsqd.demo"),
    ("gnsqd.web",),
    ("gnsqd.wire", "gnsqd.cluster", "gnsqd.observe.statsd", "gnsqd.observe.prometheus"),
    ("gnsqd.observe.stats",),
    ("gnsqd.broker",),
    ("gnsqd.queues",),
    ("gnsqd.storage",),
    ("gnsqd.net",),
    ("gnsqd.hub",),
    ("gnsqd.options",),
    ("gnsqd.log", "gnsqd.quantile", "gnsqd.gc_tuning", "gnsqd.gotext", "gnsqd.observe.memory"),
    ("gnsqd.shared",),
)
LEVELS = {unit: level for level, units in enumerate(LAYERS) for unit in units}

# Packages that only hold others: they are imported with whatever is in them, so they import nothing.
HOLDERS = ("gnsqd", "gnsqd.observe")

# Directories that are not packages but hold some, which are imported by their own names.
ROOTS = ("contrib",)

# What the executors of Spark import besides the standard library: only what a wheel of gnsqd without its dependencies
# has.
ON_EXECUTORS = ("gnsqd.shared", "pyspark_nsq", "pyspark_nsq_diskqueue")
EXECUTOR_LIBRARIES = {"pyarrow", "pyspark"}

# The modules that define what Spark calls. All others are imported without pyspark.
PYSPARK_MODULES = {
    *("catalog_table", "data_source", "listener", "stream_reader", "writer"),
}

# All of gnsqd that gnsqadmin may import besides gnsqd.shared: it needs no gevent.
SHARED = (
    "gnsqd.log",
    "gnsqd.options",
    "gnsqd.wire.codec",
    "gnsqd.broker.dead_letter_format",
    "gnsqd.storage.disk.reader",
)

# What a command imports only when it is called, and which needs gevent.
LATE = {("nsqadmin_cli.commands.data", "gnsqd.queues.data_path")}

# What the page imports of the daemon besides: its HTTP server, and who may use an HTTP API.
FOR_PAGE = (
    "gnsqd.hub.cooperative",
    "gnsqd.net.addresses",
    "gnsqd.net.connection",
    "gnsqd.net.listener",
    "gnsqd.supervisor",
    "gnsqd.web.http11",
    "gnsqd.web.http_auth",
    "gnsqd.web.routes",
    "gnsqd.web.server",
)

# Who imports the page, when it is called.
PAGE_IN = {("gnsqd.nsqd", "nsqadmin_cli.web.process")}
PAGE = "nsqadmin_cli.web"

CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+)?c?import\s+([\w., ]+)", re.MULTILINE)

Graph = dict[str, set[str]]


def modules(top: str) -> dict[str, Path]:
    """Dotted name -> file of every module, .pxd and .pyx under the directory `top`."""
    found = {}
    for path in sorted([*(ROOT / top).rglob("*.py"), *(ROOT / top).rglob("*.p[xy][dx]")]):
        parts = path.relative_to(ROOT / top if top in ROOTS else ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name + ("" if path.suffix == ".py" else f":{path.suffix}")] = path
    return found


@cache
def imports(path: Path, name: str) -> frozenset[str]:
    """Dotted names that `path` may import, those of imported attributes too."""
    return frozenset(_imports(path, name))


def _imports(path: Path, name: str) -> Iterator[str]:
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        for source, names in CIMPORT.findall(text):
            yield from [source] if source else names.replace(" ", "").split(",")
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(*tops: str) -> Graph:
    """Module -> the modules of these trees that it imports. A .pxd or .pyx counts with its module."""
    files = {name: path for top in tops for name, path in modules(top).items()}
    edges: Graph = {}
    for key, path in files.items():
        name = key.partition(":")[0]
        found = {imported for imported in imports(path, name) if imported in files}
        # `from package import module` names both, and it is the module that is meant.
        found -= {one for one in found if any(other.startswith(f"{one}.") for other in found)}
        edges.setdefault(name, set()).update(found - {name})
    return edges


def unit_of(module: str) -> str | None:
    return next((unit for unit in LEVELS if module == unit or module.startswith(f"{unit}.")), None)


def violations(edges: Graph) -> list[str]:
    """What in `edges` breaks the rule of LAYERS, a line each."""
    found = []
    for module, imported in edges.items():
        unit = unit_of(module)
        if unit is None:
            if module not in HOLDERS:
                found.append(f"{module} is in no layer")
            elif imported:
                found.append(f"{module} imports {', '.join(sorted(imported))}")
            continue
        for other in imported:
            target = unit_of(other)
            if target is None or target == unit:
                continue
            if LEVELS[target] <= LEVELS[unit]:
                found.append(f"{module} imports {other}")
    return found


def test_nothing_in_gnsqd_imports_upwards_or_sideways() -> None:
    assert violations(graph("gnsqd")) == []


VIOLATIONS: dict[str, Graph] = {
    "upwards": {"gnsqd.storage.files": {"gnsqd.queues.message"}},
    "sideways": {"gnsqd.wire.tcp": {"gnsqd.cluster.auth"}},
    "upwards in one package": {"gnsqd.observe.stats": {"gnsqd.observe.prometheus"}},
    "from the bottom": {"gnsqd.options": {"gnsqd.nsqd"}},
    "holder": {"gnsqd.observe": {"gnsqd.observe.stats"}},
    "no layer": {"gnsqd.common": set()},
}


def test_the_rule_sees() -> None:
    assert {name: len(violations(edges)) for name, edges in VIOLATIONS.items()} == dict.fromkeys(VIOLATIONS, 1)


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter(graph("gnsqd", "nsqadmin_cli", "contrib")).prepare()
    except CycleError as error:
        pytest.fail(f"circular import: {' > '.join(reversed(error.args[1]))}")


def test_few_modules_know_where_messages_are_kept() -> None:
    edges = graph("gnsqd")
    keeping = {name for name in edges if name.startswith("gnsqd.queues.") and "storage.journal" in str(edges[name])}
    names = ("data_path", "history", "journal_store", "journaled", "log_range", "notes")
    assert keeping == {f"gnsqd.queues.{name}" for name in names}
    imported = edges["gnsqd.broker.topic"] | edges["gnsqd.broker.channel"]
    assert not [name for name in imported if name in {*keeping, "gnsqd.queues.disk"} or "gnsqd.storage" in name]


@pytest.mark.parametrize("top, known", [("nsqadmin_cli", SHARED), ("contrib", ())])
def test_beside_the_daemon_only_its_shared_modules_are_imported(top: str, known: tuple[str, ...]) -> None:
    foreign = {
        f"{name} imports {imported}"
        for name, found in graph("gnsqd", top).items()
        for imported in found
        if not name.startswith(("gnsqd", PAGE)) and imported.startswith("gnsqd")
        if not imported.startswith("gnsqd.shared") and imported not in known and (name, imported) not in LATE
    }
    assert foreign == set()


def test_the_page_is_above_gnsqadmin_and_beside_the_daemon() -> None:
    edges = graph("gnsqd", "nsqadmin_cli")
    pairs = {(name, imported) for name, found in edges.items() for imported in found}
    assert {pair for pair in pairs if PAGE in pair[1] and PAGE not in pair[0]} == PAGE_IN
    daemons = {pair[1] for pair in pairs if pair[0].startswith(PAGE) and pair[1].startswith("gnsqd")}
    assert {name for name in daemons - {*SHARED, *FOR_PAGE} if not name.startswith("gnsqd.shared")} == set()


def importers(selects: Callable[[str], bool], *tops: str) -> set[tuple[str, str]]:
    """Module and package that it imports, of those `selects`."""
    found = {
        (name, imported)
        for top in tops
        for name, path in modules(top).items()
        for imported in imports(path, name)
        if selects(imported)
    }
    return {(name, imported.split(".")[0]) for name, imported in found}


def test_executors_of_spark_import_little() -> None:
    allowed = {*sys.stdlib_module_names, *EXECUTOR_LIBRARIES, *ON_EXECUTORS, "gnsqd"}
    foreign = {
        (name, package)
        for name, package in importers(lambda imported: True, "contrib", "gnsqd")
        if name.startswith(ON_EXECUTORS) and ":" not in name and package not in allowed
    }
    # For metrics, which the driver serves, and for speed where it is installed.
    assert foreign <= {("pyspark_nsq.progress", "prometheus_client"), ("gnsqd.shared.journal.records", "zlib_ng")}


def test_who_imports_what_few_may_import() -> None:
    assert importers(lambda imported: imported.split(".")[0] in ("gevent", "greenlet"), "contrib") == set()
    patching = importers(lambda imported: imported.startswith("gevent.monkey"), "gnsqd", "nsqadmin_cli", "contrib")
    assert patching <= {("gnsqd.__main__", "gevent")}
    rich = importers(lambda imported: imported.split(".")[0] == "rich", "nsqadmin_cli")
    assert {name for name, _ in rich if not f"{name}.".startswith("nsqadmin_cli.render.")} == set()


def test_tests_and_tools_share_the_kit_alone() -> None:
    def is_in(side: str, name: str) -> bool:
        path = (ROOT / side).joinpath(*name.split("."))
        return path.is_dir() or path.with_suffix(".py").exists()

    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for side, other in (("tests", "tools"), ("tools", "tests"))
        for path in (ROOT / side).rglob("*.py")
        for name in imports(path, str(path))
        if is_in(other, name) and not is_in(side, name) and name.split(".")[0] != "kit"
    }
    assert found == set()


def run_without(blocked: Iterable[str], code: str) -> str:
    """What a new interpreter prints where these modules cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({list(blocked)})); "
    result = subprocess.run([sys.executable, "-P", "-c", block + code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def import_all(names: Iterable[str]) -> str:
    return f"import importlib; [importlib.import_module(name) for name in {list(names)}]"


@pytest.mark.parametrize("absent", ["gevent", "pyspark"])
def test_readers_and_writers_are_imported_without_gevent_and_most_without_spark(absent: str) -> None:
    for library in EXECUTOR_LIBRARIES - {absent}:
        pytest.importorskip(library)
    names = [
        name
        for name in modules("contrib") | modules("gnsqd")
        if name.startswith(ON_EXECUTORS)
        and ":" not in name
        and (absent == "gevent" or name.split(".")[-1] not in PYSPARK_MODULES)
    ]
    libraries = (absent, "click", "cramjam", "OpenSSL", "prometheus_client", "re2", "rich", "zlib_ng")
    run_without(libraries, import_all(names))


# What only some daemons need, by what is imported.
RARE = {
    "gnsqd.nsqd": ("ssl", "_hashlib", "http.client", "tomllib", "cramjam", "re2", "ctypes", "OpenSSL", "rich", "click",
        "prometheus_client", "zlib_ng", "gnsqd.storage.journal.journal", "gnsqd.observe.stats", "gnsqd.observe.statsd",
        "gnsqd.demo", "dataclasses", "inspect", "decimal", "datetime", "shlex", "urllib", "gevent.util", "gevent.pool",
        "urllib3"),
    "gnsqd.nsqd, nsqadmin_cli.web.process": ("jinja2", "click", "urllib3", "subprocess", "msgspec"),
    "gnsqd.lookupd.nsqlookupd": ("gnsqd.broker", "gnsqd.queues", "gnsqd.storage"),
}  # fmt: skip


def test_daemon_starts_without_what_only_some_daemons_need() -> None:
    for modules, rare in RARE.items():
        made = f"[gevent.get_hub(), print(*[name for name in {rare} if name in sys.modules]), sys.exit()]"
        assert run_without((), f"import gevent, gnsqd.process, {modules}; gnsqd.process.serve(lambda: {made})") == "\n"


@pytest.mark.parametrize("module", SHARED)
def test_shared_modules_import_without_gevent(module: str) -> None:
    run_without(("gevent", "greenlet"), import_all([module]))


def test_the_page_never_loads_rich() -> None:
    run_without(("rich",), "import nsqadmin_cli.web.__main__, nsqadmin_cli.web.command")
