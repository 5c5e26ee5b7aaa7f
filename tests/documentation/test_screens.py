"""The pictures of gnsqadmin are of what it shows: `make screens` takes them, here their headings are compared."""

import html
import re
from collections.abc import Callable

import pytest

from cli.nodes import publish
from documentation.markdown import DOCS, ROOT
from documentation.writers import load_writer
from kit.daemons import Instance, eventually
from kit.nsq_client import NSQClient
from kit.traffic import create

WRITER = load_writer("write_screens")
PICTURES = sorted(path.stem for path in (DOCS / "screens").glob("*.svg"))


def lines(picture: str) -> list[list[str]]:
    """Returns the texts of a picture, line by line, below its title."""
    by_height: dict[float, list[str]] = {}
    for height, text in re.findall(r'<text class="[^"]*-r\d+"[^>]*? y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        if words := html.unescape(text).replace("\xa0", " ").strip():
            by_height.setdefault(float(height), []).append(words)
    return [by_height[height] for height in sorted(by_height)]


def headings(picture: str) -> set[str]:
    """Returns the headings of its table, each in its long form: they stand above the first line of dashes."""
    rows = lines(picture)
    rule = next(number for number, row in enumerate(rows) if row[0].startswith("──"))
    whole = {}
    for source in (ROOT / "nsqadmin_cli").rglob("*.py"):
        for long, short in re.findall(r'Column\("\w+", "([^"]*)", "([^"]*)"', source.read_text("utf-8")):
            whole[short] = long
    return {whole.get(heading, heading) for heading in rows[rule - 1]}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_of_the_command_in_its_title(name: str) -> None:
    (title,) = re.findall(r'<text class="[^"]*title"[^>]*>(.*?)</text>', (DOCS / "screens" / f"{name}.svg").read_text())
    assert title.replace("&#160;", " ") == f"gnsqadmin {WRITER.PICTURES[name].command}"


@pytest.mark.parametrize("name", ["top", "tree"])
def test_picture_has_the_headings_that_gnsqadmin_shows(name: str, gnsqd_factory: Callable[..., Instance]) -> None:
    kept = (DOCS / "screens" / f"{name}.svg").read_text("utf-8")
    nodes = [gnsqd_factory(), gnsqd_factory()]
    for node in nodes:
        create(node, "orders", "billing")
        publish(node, "orders", 10)
    with NSQClient(nodes[0].tcp_address) as client:
        client.subscribe("orders", "billing", rdy=1)
        picture = WRITER.PICTURES[name]
        quick = picture._replace(seconds=min(picture.seconds, 2.5))

        def table() -> str | None:  # a full screen has none before all nodes have answered
            text: str = WRITER.shown(quick, nodes)
            return text if "──" in text else None

        text = eventually(table, "a table")
    shown = headings(WRITER.svg(picture, text))
    assert len(headings(kept)) > 5
    assert headings(kept) <= shown, "run `make screens`"
