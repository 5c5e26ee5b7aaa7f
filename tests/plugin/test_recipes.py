"""The projects in contrib/testing, as far as they can be checked without a container engine, packages and GitHub."""

import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnsqd.testing import Daemon
from kit.daemons import DEADLINE, free_port, own_command

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "contrib" / "testing"
SOURCES = {
    "python": RECIPES / "python" / "test_orders.py",
    "go": RECIPES / "go" / "orders_test.go",
    "java": RECIPES / "java" / "src" / "test" / "java" / "OrdersTest.java",
    "node": RECIPES / "node" / "orders.test.js",
}
ACTION = RECIPES / "github-action" / "action.yml"


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_recipe_starts_dev_mode_and_waits_for_ping(source: Path) -> None:
    text = source.read_text("utf-8")
    (compose,) = yaml.safe_load((ROOT / "contrib/container/compose.dev.yaml").read_text("utf-8"))["services"].values()
    assert f'"{compose["image"]}"' in text
    words = re.search(r"\bwith_?Command\(\[?([^])]*)|WithCmd\(([^)]*)", text, re.IGNORECASE)
    assert words is not None
    assert re.findall(r"[\w-]+", words[1] or words[2]) == compose["command"][:2]  # without the page
    assert set(re.findall(r"\b4\d{3}\b", text)) == {"4150", "4151"}
    assert '"/ping"' in text
    assert "NSQD_TCP_ADDRESS" in text


def test_python_recipe_passes_with_a_daemon_that_runs(tmp_path: Path) -> None:
    pytest.importorskip("nsq")
    shutil.copy(SOURCES["python"], tmp_path)
    daemon = Daemon(tmp_path / "data")
    daemon.start()
    try:
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NSQD_TCP_ADDRESS": daemon.tcp_address}
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    finally:
        daemon.kill()
    assert "1 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("language, command", [("go", ["gofmt", "-l"]), ("node", ["node", "--check"])])
def test_source_of_a_recipe_is_well_formed(language: str, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    run = subprocess.run([*command, SOURCES[language]], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr


def test_java_recipe_names_the_packages_that_it_imports() -> None:
    project = xml.etree.ElementTree.parse(RECIPES / "java" / "pom.xml")
    groups = {element.text or "" for element in project.iterfind(".//{*}dependency/{*}groupId")}
    imports = re.findall(r"^import (?:static )?((?!java\.)[\w.]+);", SOURCES["java"].read_text("utf-8"), re.MULTILINE)
    assert {name for name in imports if not any(name.startswith(f"{group}.") for group in groups)} == set()
    assert len(groups) == 3


# The GitHub Action


INSTALL, START = yaml.safe_load(ACTION.read_text("utf-8"))["runs"]["steps"]


def run_step(step: dict[str, Any], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs it as GitHub's runner does: `directory` is its temporary directory."""
    assert step["shell"] == "bash"
    environment = {**os.environ, "RUNNER_TEMP": str(directory), "GITHUB_OUTPUT": str(directory / "output"), **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    # Less than the time after which the step gives up by itself.
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Gives the runner's directory after the first step, with a gnsqd that writes its pid."""
    program = tmp_path / "gnsqd" / "bin" / "gnsqd"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho $$ >{tmp_path}/pid\nexec {" ".join(own_command())} "$@"\n')
    program.chmod(0o755)
    return tmp_path


def test_action_installs_the_repository_it_is_in() -> None:
    (source,) = re.findall(r'"\$GITHUB_ACTION_PATH/([./]+)"', INSTALL["run"])
    assert (ACTION.parent / source).resolve() == ROOT
    (step,) = (
        step
        for step in yaml.safe_load((ACTION.parent / "workflow.yml").read_text("utf-8"))["jobs"]["tests"]["steps"]
        if "with" in step
    )
    assert f"/gnsqd/{ACTION.parent.relative_to(ROOT)}@" in step["uses"]
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text("utf-8"))["inputs"])


@pytest.fixture
def flags() -> str:
    """Gives addresses that nobody else has, and no line in the log."""
    names = ("tcp", "embedded-lookupd-tcp", "embedded-lookupd-http", "admin-http")
    addresses = [f"--{name}-address=127.0.0.1:0" for name in names]
    return " ".join([*addresses, f"--http-address=127.0.0.1:{free_port()}", "--log-level=warn"])


def test_action_goes_on_when_the_daemon_serves(installed: Path, flags: str) -> None:
    assert START["env"] == {"FLAGS": "${{ inputs.flags }}"}
    run = run_step(START, installed, FLAGS=flags)
    pid = int((installed / "pid").read_text())
    try:
        assert run.returncode == 0, run.stdout + run.stderr
        (address,) = re.findall(r" --http-address=(\S+)", flags)
        answer = subprocess.run(["curl", "-s", f"http://{address}/ping"], capture_output=True, timeout=DEADLINE)
        assert answer.stdout == b"OK"
        log = dict(line.split("=", 1) for line in (installed / "output").read_text().splitlines())["log"]
        assert Path(log).read_text() == ""
        again = run_step(START, installed, FLAGS=flags)
        assert again.returncode == 1
        assert "another program listens on port" in again.stdout
    finally:
        os.kill(pid, signal.SIGTERM)


def test_action_fails_with_the_log_of_a_daemon_that_cannot_start(installed: Path, flags: str) -> None:
    run = run_step(START, installed, FLAGS=f"{flags} --node-id=5000")
    assert run.returncode == 1
    assert "--node-id must be [0,1024)" in run.stdout
