"""What the README claims in short is what stands elsewhere at length."""

import json
import re
import tomllib

from documentation.markdown import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_its_versions_of_clients_are_those_that_the_tests_take() -> None:
    """Of Python's, the oldest."""
    pinned = dict(re.findall(r"github\.com/nsqio/([\w-]+) v([\d.]+)", (ROOT / "tests/peers/go.mod").read_text("utf-8")))
    pinned |= json.loads((ROOT / "tests/conformance/nsqjs/package.json").read_text("utf-8"))["dependencies"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned |= dict(re.findall(r"(\w+)>=([\d.]+)", " ".join(project["optional-dependencies"]["dev"])))
    reported = dict(re.findall(r"\b([a-z][\w-]+) (\d+\.\d+\.\d+)\b", section(README, "What is compatible")))
    programs = {name: reported.pop(name) for name in ("nsqd", "nsq_stat", "nsqlookupd")}
    assert set(programs.values()) == {pinned["nsq"]}
    assert sorted(reported) == ["gnsq", "go-nsq", "nsqjs", "pynsq"]
    assert reported == {name: pinned[name] for name in reported}
