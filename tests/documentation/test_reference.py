"""The reference pages are what the program says, and the commands in all pages exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.findings import assert_typable
from documentation.markdown import DOCS, PAGES, ROOT, code
from documentation.writers import load_writer
from gnsqd.lookupd.api import LOOKUPD_ROUTES
from gnsqd.options import LOOKUPD_OPTIONS, OPTIONS

FLAGS = {option.flag for option in OPTIONS if option.flag} | {"help"}
LOOKUPD_FLAGS = {option.flag for option in LOOKUPD_OPTIONS} | {"help"}
WRITER, TABLE = load_writer("write_reference"), load_writer("table")


@pytest.mark.parametrize("document", TABLE.DOCUMENTS, ids=lambda path: path.name)
def test_document_is_what_the_tables_give(document: Path) -> None:
    assert document.read_text("utf-8") == TABLE.written(document), "run `make options`"


def test_api_of_nsqlookupd_is_documented() -> None:
    requests = {f"{route.method} {route.path}" for route in LOOKUPD_ROUTES if "/pprof/" not in route.path}
    codes = re.findall("[A-Z_]+", ",".join(route.errors for route in LOOKUPD_ROUTES))
    text = (DOCS / "lookupd.md").read_text("utf-8")
    assert [name for name in {*requests, *codes} if f"`{name}`" not in text] == []


def test_errors_of_the_sources_are_found() -> None:
    assert {"E_INVALID", "E_BAD_PROTOCOL", "E_MPUB_FAILED", "E_UNAUTHORIZED"} <= WRITER.wire_errors()
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "gnsqd/web").glob("*.py"))
    raised = set(re.findall(r'HTTPError\((\d+), "([A-Z_]+)"', sources))
    assert len(raised) > 20
    assert raised <= {(status, code) for code, statuses in WRITER.http_errors().items() for status in statuses}


# What is typed


def typed(command: str) -> list[tuple[str, list[str]]]:
    """Returns where the pages type a command, each with its arguments."""
    commands = []
    for page in PAGES:
        for line, text in code(page):
            match = re.match(rf"(?:\$ )?(?:\S*=\S+ )*(?:\.venv/bin/)?{command}( .*)?$", text)
            if match and "…" not in text:
                arguments = shlex.split(match[1] or "", comments=True)
                for position, word in enumerate(arguments):
                    if re.match(r"[|&;]|[12]?>|<", word):
                        arguments = arguments[:position]
                        break
                commands.append((f"{page.name}:{line}", [word.rstrip(";") for word in arguments]))
    return commands


@pytest.mark.parametrize("command, known, count", [("gnsqd", FLAGS, 10), ("gnsqlookupd", LOOKUPD_FLAGS, 0)])
def test_flags_that_pages_type_exist(command: str, known: set[str], count: int) -> None:
    lines = typed(command)
    assert len(lines) > count
    for place, arguments in lines:
        flags = {word.lstrip("-").partition("=")[0] for word in arguments if word.startswith("-")}
        assert flags <= known, f"{place}: no flag {flags - known}"


def test_commands_of_gnsqadmin_that_pages_type_can_be_run() -> None:
    lines = typed("gnsqadmin")
    assert len(lines) > 40
    for place, arguments in lines:
        try:
            assert_typable(shlex.join(["gnsqadmin", *arguments]))
        except click.UsageError as error:
            raise AssertionError(f"{place}: {error}") from None


def test_options_that_texts_name_exist() -> None:
    """Looks at the pages about the daemon: what is written `--like-this` is a flag of gnsqd or of gnsqadmin."""
    commands = load_writer("write_gnsqadmin").all_commands().values()
    known = {word for command in commands for param in command.params for word in param.opts}
    known |= {f"--{flag}" for flag in FLAGS | LOOKUPD_FLAGS} | set(WORDS_OF_OTHERS)
    for page in ABOUT_DAEMON:
        reported = set(re.findall(r"`(--[a-z0-9-]+)", (DOCS / page).read_text("utf-8")))
        assert reported <= known, f"{page}: {reported - known}"


ABOUT_DAEMON = (
    "cluster.md", "data-directory.md", "dead-letters.md", "http.md", "internals.md", "logs.md", "lookupd.md",
    "metrics.md", "move.md", "operations.md", "security.md", "structures.md", "survive.md", "swap.md", "tcp.md",
    "testing.md", "tutorial.md",
)  # fmt: skip
WORDS_OF_OTHERS = (
    *("--http-client-tls-cert", "--http-client-tls-key"),  # nsqadmin
    *("--cap-drop", "--read-only", "--sdnotify"),  # container engines
)
