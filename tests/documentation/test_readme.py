"""The README claims in short what stands elsewhere at length, and its commands print what it shows."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from documentation.markdown import ROOT, Step, parse
from documentation.session import ReaderSession

NODE = "--broadcast-address=127.0.0.1 --lookupd-tcp-address=127.0.0.1:4160"
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


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl, as the tutorial's shell does")
def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    # `.ci/first-contact` runs the commands that install gnsqd.
    _, program, replaced, look = (token.content for token in parse(README) if token.type == "code_block")
    link, _, version = replaced.partition("\n")
    command, _, comment = version.strip().partition("  # ")
    _, point, status = look.splitlines()
    with ReaderSession(tmp_path, "README.md") as session:
        session.run(
            [
                Step(0, "run", "shell", "gnsqlookupd & until curl -s 127.0.0.1:4161/ping; do sleep 0.1; done"),
                Step(0, "run: nsqd", "shell", f"gnsqd --data-path=. {NODE}"),
                Step(0, "run: pytest", "python", program),
                Step(0, "run", "shell", link),
                Step(0, "run", "shell", command),
                Step(0, "prints", "text", re.sub(r"gnsqd-.*\)", "gnsqd-...)", comment.strip())),
                Step(0, "run", "shell", f"unset GNSQADMIN_NSQD_HTTP_ADDRESS; {point}"),
                Step(0, "run", "shell", f"until {status} | grep '1 of 1 answer'; do sleep 0.1; done"),
            ]
        )
