"""The Containerfile and its list of ignored files, read: what a linter would say, and what our own image promises."""

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from container.containerfile import DIRECTORY, ROOT, exec_form, read
from gnsqd.configuration import parse_flags
from gnsqd.options import DEV, LookupdOptions, Options

INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME"}
INSTRUCTIONS |= {"ENTRYPOINT", "SHELL", "WORKDIR"}  # without ADD, which fetches and unpacks; MAINTAINER is obsolete

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SUFFIXES = ("*.py", "*.pxd", "py.typed")

ARGUMENTS, STAGES = read()
IMAGE = STAGES[-1]


def test_every_instruction_is_known_and_every_base_has_a_version() -> None:
    assert {instruction for stage in STAGES for instruction, _ in stage.instructions} <= INSTRUCTIONS
    for stage in STAGES:
        base = re.sub(r"\$\{(\w+)\}", lambda match: ARGUMENTS[match[1]], stage.base)
        assert re.fullmatch(r"docker\.io/library/python:3\.\d+(-slim)?", base), base
    assert IMAGE.base.endswith("-slim")
    assert len({stage.base.removesuffix("-slim") for stage in STAGES}) == 1, "compiled for another Python"


def test_it_runs_as_nobody_in_particular() -> None:
    # A number, so that Kubernetes' runAsNonRoot can check it; no instruction after it needs another.
    (user,) = IMAGE.all("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    after = IMAGE.instructions[IMAGE.instructions.index(("USER", user)) :]
    assert not {"RUN", "COPY"} & {instruction for instruction, _ in after}


def test_signals_reach_the_daemon_and_its_data_outlives_it() -> None:
    command = exec_form(IMAGE.last("CMD"))
    assert command[0] == "gnsqd"
    assert IMAGE.last("STOPSIGNAL") == "SIGTERM"
    assert not IMAGE.all("ENTRYPOINT"), "a command that names /nsqd would be its argument"
    data_path = parse_flags(command[1:])[0]["data_path"]
    assert [data_path, data_path] == [IMAGE.last("VOLUME"), IMAGE.last("WORKDIR")]


def test_the_ports_are_those_of_the_options() -> None:
    nsqd, nsqlookupd = Options(), LookupdOptions()
    addresses = [nsqd.tcp_address, nsqd.http_address, nsqd.https_address]
    addresses += [nsqlookupd.tcp_address, nsqlookupd.http_address]
    addresses.append(DEV["admin_http_address"])
    _, http, _, _, lookupd_http, page = ports = [address.rpartition(":")[2] for address in addresses]
    assert IMAGE.last("EXPOSE").split() == ports
    check = (DIRECTORY / "healthcheck").read_text("utf-8")
    assert f'("{http}/healthz", "{lookupd_http}/ping")' in check
    assert f'"{page}/ping"' in check


def test_nothing_is_kept_that_only_the_build_needs() -> None:
    for stage in STAGES:
        for command in stage.all("RUN"):
            assert command.count("pip wheel") + command.count(" install --no") == command.count("--no-cache-dir")
    assert [line for line in IMAGE.all("COPY") if not line.startswith("--from=build /opt/gnsqd ")] == []


# The context


def ignored(path: Path) -> bool:
    """As the last matching line of the list has it; a line also matches what is below it (.dockerignore's rules)."""
    result = False
    for line in (DIRECTORY / "Containerfile.dockerignore").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        if pattern.startswith("**/"):
            matches = any(fnmatchcase(part, pattern[3:]) for part in path.parts)
        else:
            matches = any(fnmatchcase(one, pattern) for one in map(str, (path, *path.parents)) if one != ".")
        if matches:
            result = not line.startswith("!")
    return result


def test_every_package_is_copied_as_a_whole() -> None:
    find = PYPROJECT["tool"]["setuptools"]["packages"]["find"]
    tops = {
        path.parent.relative_to(ROOT)
        for where in find["where"]
        for pattern in find["include"]
        for path in (ROOT / where).glob(f"{pattern}/__init__.py")
        if "." not in pattern
    }
    copied = [Path(source) for line in STAGES[0].all("COPY") for source in line.split()[:-1]]
    check = DIRECTORY.relative_to(ROOT) / "healthcheck"
    assert check in copied
    copied.remove(check)
    assert not ignored(check)
    assert {source for source in copied if (ROOT / source).is_dir()} == tops
    others = {str(source) for source in copied} - set(map(str, tops))
    assert others == {"pyproject.toml", "setup.py", "README.md", "LICENSE"}
    files = [path for top in tops for suffix in SUFFIXES for path in (ROOT / top).rglob(suffix)]
    assert len(files) > 200
    assert [path for path in [*copied, *(path.relative_to(ROOT) for path in files)] if ignored(path)] == []


@pytest.mark.parametrize(
    "path",
    [".git/HEAD", ".venv/bin/python", "data/nsqd.dat", "build/lib/gnsqd/nsqd.py", "tests/conftest.py",
     "gnsqd/broker/__pycache__/topic.cpython-311.pyc", "gnsqd/broker/topic.cpython-311-x86_64-linux-gnu.so",
     "contrib/docs/metrics.md"],
)  # fmt: skip
def test_what_was_made_in_the_tree_stays_out_of_the_context(path: str) -> None:
    assert ignored(Path(path))
