"""spark-pipelines.md says what there is: commands, options and metrics."""

import re
import shlex
from pathlib import Path

import click
import pytest
from prometheus_client import generate_latest

from gnsq_pipeline.cli import cli
from pyspark_nsq.progress import QueryMetrics

DOCS = Path(__file__).parents[3] / "contrib" / "docs"
TEXT = (DOCS / "spark-pipelines.md").read_text("utf-8")


def command_lines() -> list[list[str]]:
    joined = TEXT.replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in re.findall(r"^    (gnsq-pipeline .*)$", joined, re.MULTILINE)]


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_a_command_line_of_the_page_can_be_run(words: list[str]) -> None:
    context = click.Context(cli)
    if words != ["--help"]:
        command = cli.get_command(context, words.pop(0))
        assert command is not None
        command.make_context("test", words, resilient_parsing=False)


def test_each_command_has_a_chapter() -> None:
    chapters = re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)
    assert [name for name in chapters if name in cli.commands] == list(cli.commands)


def test_each_option_of_the_page_is_one_of_its_chapters_command() -> None:
    for name, command in cli.commands.items():
        chapter = re.split(r"^## ", TEXT.partition(f"\n## {name}\n")[2], flags=re.MULTILINE)[0]
        reported = set(re.findall(r"`(--[a-z-]+)", chapter))
        known = options_of(command)
        assert reported <= known, f"{name}: {reported - known}"


def test_every_metric_is_on_the_page() -> None:
    table = "".join(line for line in TEXT.splitlines() if line.startswith("| `gnsq_pipeline_"))
    reported = {f"gnsq_pipeline{name}" for name in re.findall(r"`(?:gnsq_pipeline)?(_\w+)`", table)}
    served = generate_latest(QueryMetrics().registry).decode()
    there = set(re.findall(r"^# TYPE (\w+)", served, re.MULTILINE))
    assert reported == {name for name in there if not name.endswith("_created")}
