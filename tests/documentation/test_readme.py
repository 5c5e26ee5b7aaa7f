"""The README claims in short what stands elsewhere at length, and its commands print what it shows."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from documentation.markdown import ROOT, Step, parse
from documentation.session import ReaderSession

README = (ROOT / "README.md").read_text("utf-8")


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_its_versions_of_clients_are_the_ones_that_the_tests_use() -> None:
    pinned = dict(re.findall(r"github\.com/nsqio/([\w-]+) v([\d.]+)", (ROOT / "tests/peers/go.mod").read_text("utf-8")))
    pinned |= json.loads((ROOT / "tests/conformance/nsqjs/package.json").read_text("utf-8"))["dependencies"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    # Of Python's, the oldest.
    pinned |= dict(re.findall(r"(\w+)>=([\d.]+)", " ".join(project["optional-dependencies"]["dev"])))
    reported = dict(re.findall(r"\b([a-z][\w-]+) (\d+\.\d+\.\d+)\b", section("What is compatible")))
    programs = {name: reported.pop(name) for name in ("nsqd", "nsq_stat", "nsqlookupd")}
    assert set(programs.values()) == {pinned["nsq"]}
    assert sorted(reported) == ["gnsq", "go-nsq", "nsqjs", "pynsq"]
    assert reported == {name: pinned[name] for name in reported}


def blocks(heading: str) -> list[str]:
    """Returns the code of a section."""
    return [token.content for token in parse(section(heading)) if token.type == "code_block"]


def prompted(text: str) -> list[Step]:
    """Returns what is typed after `$`, and what is printed then; times and ids differ each time."""
    steps = []
    for part in text.split("$ ")[1:]:
        command, _, printed = part.partition("\n")
        printed = re.sub(r"\d\d:\d\d:\d\d\.\d{3}|\d+s ago|\b[0-9a-f]{16}\b", "...", printed)
        steps += [Step(0, "run", "shell", command), Step(0, "prints", "text", printed)]
    return steps


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl, as who reads it does")
def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    # In an empty home. `.ci/first-contact` runs the one that installs gnsqd.
    (install,) = blocks("Install")
    (typed,) = blocks("Try it")
    program = next(token.content for token in parse(README) if token.type == "code_block" and "def " in token.content)
    (replaced,) = blocks("In place of nsqd")
    link, _, version = replaced.partition("\n")
    command, _, comment = version.strip().partition("  # ")
    with ReaderSession(tmp_path, "README.md") as session:
        home = tmp_path / "clone"
        assert "-m venv ~/.gnsqd " in install
        (home / ".gnsqd").symlink_to(home / ".venv")
        session.run(
            [
                Step(0, "run: first terminal", "shell", "make run"),
                *prompted(typed),
                Step(0, "run: pytest", "python", program),
                Step(0, "run", "shell", link),
                Step(0, "run", "shell", command),
                Step(0, "prints", "text", re.sub(r"gnsqd-.*\)", "gnsqd-...)", comment.strip())),
            ]
        )
