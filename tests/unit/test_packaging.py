"""The package that a user installs: whole, its commands, and the hot modules compiled or plain.

`make test` and `make test-plain` set $GNSQD_EXPECT_LANE to what they installed; without it (pytest on the source tree)
the tests of the installation are skipped. What they installed it from is beside it, in `dist`.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

import gnsqd
from gnsqd.shared.version import VERSION, lane

ROOT = Path(__file__).resolve().parents[2]
EXPECTED_LANE = os.environ.get("GNSQD_EXPECT_LANE")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
HOT_MODULES: list[str] = PYPROJECT["tool"]["gnsqd"]["compiled"]

# Package -> where it stands in the source tree.
PACKAGES = {
    "gnsqd": ROOT,
    "nsqadmin_cli": ROOT,
    "gnsq_pipeline": ROOT / "contrib",
    "pyspark_nsq": ROOT / "contrib",
    "pyspark_nsq_diskqueue": ROOT / "contrib",
}

SUFFIXES = (
    "*.py",
    "*.pxd",
    "*.pyx",
    "py.typed",
    "*.html",
    "*.css",
    "*.js",
    "*.svg",
)  # of the files that belong to a package

installed = pytest.mark.skipif(EXPECTED_LANE is None, reason="not an installation (make test)")


def source(module: str, suffix: str) -> Path:
    return ROOT / Path(*module.split(".")).with_suffix(suffix)


def test_every_typed_module_is_compiled_and_needs_no_cython_at_run_time() -> None:
    typed = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "gnsqd").rglob("*.pxd")}
    assert typed <= set(HOT_MODULES)
    for module in HOT_MODULES:
        code = source(module, ".py" if source(module, ".py").exists() else ".pyx")
        assert not re.search(r"^\s*(import|from) cython\b", code.read_text("utf-8"), re.MULTILINE)


def test_no_stale_extension_module_in_the_tree_hides_its_source() -> None:
    for built in (ROOT / "gnsqd").rglob("*.so"):
        for suffix in (".py", ".pxd"):
            origin = built.with_name(built.name.split(".")[0] + suffix)
            assert not origin.exists() or origin.stat().st_mtime <= built.stat().st_mtime, f"remove the stale {built}"


@installed
def test_the_tests_judge_the_installed_package() -> None:
    assert ROOT / "gnsqd" not in Path(gnsqd.__file__).parents
    assert importlib.metadata.version("gnsqd") == VERSION
    assert lane() == EXPECTED_LANE


@installed
def test_the_installed_files_are_those_of_the_source_tree() -> None:
    def content(base: Path) -> dict[Path, bytes]:
        files = [path for suffix in SUFFIXES for path in base.rglob(suffix)]
        return {path.relative_to(base): path.read_bytes() for path in files}

    for package, root in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        theirs, ours = content(Path(spec.origin).parent), content(root / package)
        assert sorted(theirs) == sorted(ours)
        assert [path for path in ours if theirs[path] != ours[path]] == []


@installed
@pytest.mark.parametrize("module", HOT_MODULES)
def test_hot_classes_are_extension_types_in_the_compiled_lane_alone(module: str) -> None:
    compiled = EXPECTED_LANE == "compiled"
    if not compiled and not source(module, ".py").exists():
        assert importlib.util.find_spec(module) is None
        return
    loaded = importlib.import_module(module)
    assert isinstance(loaded.__loader__, importlib.machinery.ExtensionFileLoader) == compiled
    declarations = source(module, ".pxd")
    text = declarations.read_text("utf-8") if declarations.exists() else ""
    for name in re.findall(r"^cdef class (\w+)", text, re.MULTILINE):
        # Extension types are not made on the heap, classes of Python code are (Py_TPFLAGS_HEAPTYPE).
        assert bool(getattr(loaded, name).__flags__ & 1 << 9) != compiled, name


@installed
def test_all_commands_and_nothing_but_our_packages_are_installed() -> None:
    distribution = importlib.metadata.distribution("gnsqd")
    commands = {entry.name: entry.load() for entry in distribution.entry_points.select(group="console_scripts")}
    assert sorted(commands) == ["gnsq-pipeline", "gnsqadmin", "gnsqd", "gnsqlookupd"]
    assert all(map(callable, commands.values()))
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


def test_every_package_is_typed() -> None:
    assert all((root / package / "py.typed").exists() for package, root in PACKAGES.items())


# What it was installed from


def made(pattern: str) -> Path:
    (path,) = Path(sys.prefix, "dist").glob(pattern)
    return path


@installed
def test_the_wheel_holds_the_packages_their_types_and_the_licence_alone() -> None:
    with zipfile.ZipFile(made("*.whl")) as wheel:
        names = set(wheel.namelist())
        tag = re.search(r"^Tag: (.*)$", wheel.read(f"gnsqd-{VERSION}.dist-info/WHEEL").decode(), re.MULTILINE)
        licence = wheel.read(f"gnsqd-{VERSION}.dist-info/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert tag is not None
    assert (tag[1] == "py3-none-any") == (EXPECTED_LANE == "plain"), "a plain wheel is for every machine"
    code = {name for name in names if not name.startswith(f"gnsqd-{VERSION}.dist-info/")}
    built = {name for name in code if name.endswith(".so")}
    assert {name.split(".")[0].replace("/", ".") for name in built} == (
        set(HOT_MODULES) if EXPECTED_LANE == "compiled" else set()
    )
    assert code - built == set(_package_files(lambda package, path: f"{package}/{path}"))


@installed
def test_the_sdist_holds_what_a_build_takes_and_no_more() -> None:
    with tarfile.open(made("*.tar.gz")) as sdist:
        names = {name.removeprefix(f"gnsqd-{VERSION}/") for name in sdist.getnames() if sdist.getmember(name).isfile()}
    tops = {package: "" if root == ROOT else f"{root.name}/" for package, root in PACKAGES.items()}
    expected = set(_package_files(lambda package, path: f"{tops[package]}{package}/{path}"))
    metadata = {name for name in names if "egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - metadata == expected | {"LICENSE", "README.md", "pyproject.toml", "setup.py"}


def _package_files(place: Callable[[str, str], str]) -> Iterator[str]:
    for package, root in PACKAGES.items():
        for suffix in SUFFIXES:
            for path in (root / package).rglob(suffix):
                yield place(package, path.relative_to(root / package).as_posix())


# What is said of it


def test_the_version_stands_in_one_place() -> None:
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "gnsqd.shared.version.VERSION"}
    literal = re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])")
    files = [path for package, root in PACKAGES.items() for path in (root / package).rglob("*.py")]
    files += [ROOT / "pyproject.toml", ROOT / "setup.cfg", *(ROOT / "contrib" / "container").glob("*.*")]
    assert [path.name for path in files if literal.search(path.read_text("utf-8"))] == ["version.py"]
    for page in (ROOT / "README.md", *(ROOT / "contrib" / "docs").glob("*.md")):
        assert set(re.findall(r"built w/gnsqd-([\d.]+)-py", page.read_text("utf-8"))) <= {VERSION}, page


def test_the_changelog_begins_with_this_version_and_goes_back_in_time() -> None:
    # "Unreleased (0.2.0)" while it is worked on, "0.2.0 (2027-01-31)" from its release on.
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    found = [re.fullmatch(r"Unreleased \(([\d.]+)\)|([\d.]+) \((\d{4}-\d\d-\d\d)\)", one) for one in headings]
    released = []
    for heading, match in zip(headings, found, strict=True):
        assert match is not None, heading
        assert match[3] or heading == headings[0], "only the newest is unreleased"
        version = tuple(map(int, (match[1] or match[2]).split(".")))
        released.append((date.fromisoformat(match[3]) if match[3] else date.max, version))
    assert ".".join(map(str, released[0][1])) == VERSION
    assert released == sorted(released, reverse=True)
    assert len({version for _, version in released}) == len(released)


def test_the_classifiers_name_every_python_from_the_oldest_on() -> None:
    project = PYPROJECT["project"]
    minors = [
        int(match[1])
        for one in project["classifiers"]
        if (match := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", one))
    ]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert project["requires-python"] == f">=3.{minors[0]}"
    assert {11, 12, 13} <= set(minors)
    running = f"Programming Language :: Python :: 3.{sys.version_info.minor}"
    assert running in project["classifiers"], "this suite runs on a Python that nobody is promised"


def test_what_a_pipeline_without_spark_advises_installs_what_the_extra_does() -> None:
    # The packages themselves: gnsqd, whose extra it is, may be on no index.
    extra = PYPROJECT["project"]["optional-dependencies"]["spark"]
    advice = " ".join(["pip install", *(f"'{requirement}'" for requirement in extra)])
    assert f'INSTALL = "{advice}"\n' in (ROOT / "contrib/gnsq_pipeline/options.py").read_text("utf-8")


def test_package_page_of_a_release_has_links_that_work(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, os.fspath(ROOT / ".ci/write_links.py"), "https://host/owner/gnsqd", "v9.9.9"]
    subprocess.run(command, cwd=tmp_path, check=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    assert project.pop("urls")["Source"] == "https://host/owner/gnsqd"
    assert project == PYPROJECT["project"]
    before, after = (
        re.findall(r"\]\(([^)]+)\)", (directory / "README.md").read_text("utf-8")) for directory in (ROOT, tmp_path)
    )
    for old, new in zip(before, after, strict=True):
        if old.startswith(("http", "#")):
            assert new == old
        else:
            kind = "raw" if old.endswith((".png", ".svg")) else "blob"
            assert new == f"https://host/owner/gnsqd/{kind}/v9.9.9/{old}"
            assert (ROOT / old.partition("#")[0]).exists()
