"""Writes the six ratios of the README and their figure, contrib/docs/speed.svg, from the table of performance.md, which
is pasted from `make bench FLAGS="--markdown"`. `make options` runs it; a test compares."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from documents.marks import DOCS, ROOT, cells, part, replaced, table

# The rows of the README by their titles in the table, and what they are called there.
SHOWN = {
    "PUB one by one": "PUB, one by one",
    "MPUB 200": "MPUB of 200",
    "consume, RDY 2500": "consume",
    "publish (MPUB 20) to 4 channels and consume at once, deliveries": "publish and consume, 4 channels",
    "HTTP /pub, 8 connections": "HTTP `/pub`",
    "MPUB 20, TLS": "MPUB of 20 over TLS",
}
LANES = {"gnsqd compiled": "compiled", "gnsqd plain": "plain Python"}

# The picture: sizes in pixels, colours that can be read on white and on black.
WIDTH = 600
LEFT = 250  # of the bars
LONGEST = 300  # bar
TOP = 34
BAR = 13
GROUP = 38
TEXT = "#767676"
COLOURS = {"gnsqd compiled": "#2f81f7", "gnsqd plain": "#c77700"}

Ratios = dict[tuple[str, str], float]


def measured(page: str) -> Ratios:
    """The median of each row and lane, of speeds relative to nsqd."""
    found = {}
    row = ""
    for title, _, lane, _, ratio, *_ in cells(part(page, "speed")):
        row = title or row
        if lane in LANES and row in SHOWN:
            found[row, lane] = float(ratio.split()[0])
    return found


def readme(ratios: Ratios) -> str:
    rows = [[title, *(f"{ratios[row, lane]:.2f}" for lane in LANES)] for row, title in SHOWN.items()]
    return table(["", *LANES.values()], rows, "|---" + "|---:" * len(LANES) + "|")


def figure(ratios: Ratios) -> str:
    """Of each row a bar per lane, beside a line at 1, which is nsqd."""
    height = TOP + GROUP * len(SHOWN)
    unit = round(LONGEST / max(ratios.values()))  # from 0 to 1
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="system-ui, sans-serif" font-size="14" fill="{TEXT}" role="img">',
            "<title>Throughput of gnsqd relative to nsqd</title>",
            *_legend(unit),
            *(line for number, row in enumerate(SHOWN) for line in _bars(ratios, row, TOP + GROUP * number, unit)),
            f'<path d="M{LEFT + unit} {TOP - 8}V{height}" stroke="{TEXT}" stroke-dasharray="4 3"/>',
            "</svg>\n",
        ]
    )


def _legend(unit: int) -> Iterator[str]:
    yield f'<text x="{LEFT + unit}" y="18" text-anchor="middle">nsqd = 1</text>'
    left = LEFT + unit + 100
    for number, (lane, name) in enumerate(LANES.items()):  # in the corner, where no bar is long
        top = TOP + GROUP * (len(SHOWN) - 1) + 20 * (number - 1)
        yield f'<rect x="{left}" y="{top}" width="{BAR}" height="{BAR}" fill="{COLOURS[lane]}"/>'
        yield f'<text x="{left + BAR + 6}" y="{top + BAR - 1}">{name}</text>'


def _bars(ratios: Ratios, row: str, top: int, unit: int) -> Iterator[str]:
    title = escape(SHOWN[row].replace("`", ""))
    yield f'<text x="{LEFT - 10}" y="{top + BAR + 5}" text-anchor="end">{title}</text>'
    for number, lane in enumerate(LANES):
        height = top + (BAR + 1) * number
        width = round(unit * ratios[row, lane])
        yield f'<rect x="{LEFT}" y="{height}" width="{width}" height="{BAR}" fill="{COLOURS[lane]}"/>'
        left = LEFT + max(width, unit if width > 0.65 * unit else 0) + 6  # the line is not written over
        yield f'<text x="{left}" y="{height + BAR - 2}" font-size="12">{ratios[row, lane]:.2f}</text>'


def pages() -> dict[Path, str]:
    """Every file that is written, with its text."""
    ratios = measured((DOCS / "performance.md").read_text("utf-8"))
    path = ROOT / "README.md"
    return {path: replaced(path.read_text("utf-8"), "speed", readme(ratios)), DOCS / "speed.svg": figure(ratios)}
