"""What a user gets by installing: the package whole, its commands, and the hot modules compiled or plain.

`make test` and `make test-plain` say in $GNSQD_EXPECT_LANE which of the two they installed; without it (pytest on the
source tree) the tests of the installation are skipped.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gnsqd
from gnsqd.version import VERSION, lane

ROOT = Path(__file__).resolve().parents[2]
EXPECTED_LANE = os.environ.get("GNSQD_EXPECT_LANE")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTENSIONS: list[dict[str, Any]] = PYPROJECT["tool"]["setuptools"]["ext-modules"]
HOT_MODULES = [row["name"] for row in EXTENSIONS]

# Package -> where it stands in the source tree.
PACKAGES = {
    "gnsqd": ROOT,
    "nsqadmin_cli": ROOT,
    "gnsq_pipeline": ROOT / "contrib",
    "pyspark_nsq": ROOT / "contrib",
    "pyspark_nsq_diskqueue": ROOT / "contrib",
}

installed = pytest.mark.skipif(EXPECTED_LANE is None, reason="not an installation (make test)")


def source(module: str, suffix: str) -> Path:
    return ROOT / Path(*module.split(".")).with_suffix(suffix)


def test_every_typed_module_is_an_optional_extension() -> None:
    typed = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "gnsqd").rglob("*.pxd")}
    assert typed <= set(HOT_MODULES)
    for row in EXTENSIONS:
        assert row["sources"] == [str(source(row["name"], ".py").relative_to(ROOT))]
        assert source(row["name"], ".py").exists()
        assert row["optional"] is True


def test_no_hot_module_needs_cython_at_run_time() -> None:
    for module in HOT_MODULES:
        assert not re.search(r"^\s*(import|from) cython\b", source(module, ".py").read_text("utf-8"), re.MULTILINE)


def test_no_stale_extension_module_in_the_tree_hides_its_source() -> None:
    for built in (ROOT / "gnsqd").rglob("*.so"):
        for suffix in (".py", ".pxd"):
            origin = built.with_name(built.name.split(".")[0] + suffix)
            assert not origin.exists() or origin.stat().st_mtime <= built.stat().st_mtime, f"remove the stale {built}"


@installed
def test_the_tests_judge_the_installed_package() -> None:
    assert ROOT / "gnsqd" not in Path(gnsqd.__file__).parents
    assert importlib.metadata.version("gnsqd") == VERSION


@installed
def test_the_installed_files_are_those_of_the_source_tree() -> None:
    def content(base: Path) -> dict[Path, bytes]:
        files = [path for suffix in ("*.py", "*.pxd", "py.typed") for path in base.rglob(suffix)]
        return {path.relative_to(base): path.read_bytes() for path in files}

    for package, root in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        theirs, ours = content(Path(spec.origin).parent), content(root / package)
        assert sorted(theirs) == sorted(ours)
        assert [path for path in ours if theirs[path] != ours[path]] == []


@installed
def test_the_lane_is_the_expected_one() -> None:
    assert lane() == EXPECTED_LANE


@installed
@pytest.mark.parametrize("module", HOT_MODULES)
def test_hot_classes_are_extension_types_in_the_compiled_lane_alone(module: str) -> None:
    loaded = importlib.import_module(module)
    compiled = EXPECTED_LANE == "compiled"
    assert isinstance(loaded.__loader__, importlib.machinery.ExtensionFileLoader) == compiled
    declarations = source(module, ".pxd")
    text = declarations.read_text("utf-8") if declarations.exists() else ""
    for name in re.findall(r"^cdef class (\w+)", text, re.MULTILINE):
        # Extension types are not made on the heap, classes of Python code are (Py_TPFLAGS_HEAPTYPE).
        assert bool(getattr(loaded, name).__flags__ & 1 << 9) != compiled, name


@installed
def test_all_commands_are_installed() -> None:
    entry_points = importlib.metadata.distribution("gnsqd").entry_points
    commands = {entry.name: entry for entry in entry_points.select(group="console_scripts")}
    assert sorted(commands) == ["gnsq-pipeline", "gnsqadmin", "gnsqd"]
    for entry in commands.values():
        assert callable(entry.load())


@installed
def test_nothing_but_our_packages_is_installed() -> None:
    files = importlib.metadata.files("gnsqd") or []
    tops = {path.parts[0] for path in files if path.parts[0] != ".." and not path.parts[0].endswith(".dist-info")}
    assert tops == set(PACKAGES)


def test_spark_comes_only_with_its_extra() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", requirement)[0].lower() for requirement in requirements}

    project = PYPROJECT["project"]
    assert names(project["optional-dependencies"]["spark"]) == {"pyarrow", "pyspark"}
    for extra, requirements in {**project["optional-dependencies"], "": project["dependencies"]}.items():
        assert extra == "spark" or not names(requirements) & {"pyarrow", "pyspark", "py4j"}
