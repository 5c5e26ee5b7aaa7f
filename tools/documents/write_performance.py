"""Draws the ratios of the README, contrib/docs/speed.svg, from the table of performance.md, which is pasted from
`make bench`."""

from collections.abc import Iterator
from html import escape

from documents.marks import DOCS, cells, part

# The rows of the picture by their titles in the table, and what they are called there.
SHOWN = {
    "PUB one by one": "PUB, one by one",
    "MPUB 20": "MPUB of 20",
    "consume, RDY 2500": "consume",
    "publish (MPUB 20) and consume at once": "publish and consume",
    "16 publishers (PUB) and 16 consumers at once": "16 publishers, 16 consumers",
    "HTTP /pub, 8 connections": "HTTP /pub",
    "PUB one by one, TLS": "PUB over TLS",
    "PUB round trip, p99": "round trip of a PUB, p99",
    "start, by its command": "start",
}
LANE = "gnsqd compiled"
COLUMNS = ("speed", "CPU time per message")

# The picture: sizes in pixels, colours that can be read on white and on black.
WIDTH = 600
LEFT = 250  # of the bars
LONGEST = 300  # bar
TOP = 34
BAR = 13
GROUP = 34
TEXT = "#767676"
COLOURS = dict(zip(COLUMNS, ("#2f81f7", "#c77700"), strict=True))

Ratios = dict[str, tuple[float, float]]  # of a row, those of COLUMNS; 0 if there is none


def measured(page: str) -> Ratios:
    """Returns the medians of each row, relative to nsqd. The speed of a time is its inverse."""
    found = {}
    row = unit = ""
    for title, its_unit, lane, _, ratio, _, cpu_ratio, *_ in cells(part(page, "speed")):
        row, unit = (title, its_unit) if title else (row, unit)
        if lane == LANE and row in SHOWN:
            rate, cpu = (float(cell.split()[0]) if cell else 0.0 for cell in (ratio, cpu_ratio))
            found[row] = 1 / rate if unit.startswith("ms") else rate, cpu
    return found


def figure(ratios: Ratios) -> str:
    """Returns an SVG: a bar for each row and column, and a line at 1, which is nsqd."""
    height = TOP + GROUP * len(SHOWN)
    unit = round(LONGEST / max(map(max, ratios.values())))  # from 0 to 1
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="system-ui, sans-serif" font-size="14" fill="{TEXT}" role="img">',
            "<title>Speed and CPU time per message of gnsqd, relative to nsqd</title>",
            *_legend(unit),
            *(line for number, row in enumerate(SHOWN) for line in _bars(ratios, row, TOP + GROUP * number, unit)),
            f'<path d="M{LEFT + unit} {TOP - 8}V{height}" stroke="{TEXT}" stroke-dasharray="4 3"/>',
            "</svg>\n",
        ]
    )


def _legend(unit: int) -> Iterator[str]:
    yield f'<text x="{LEFT + unit}" y="18" text-anchor="middle">nsqd = 1</text>'
    for number, name in enumerate(COLUMNS):  # beside the last rows, where no bar is long
        top = TOP + GROUP * (len(SHOWN) - 2) + 20 * (number + 1)
        yield f'<text x="{WIDTH - 170}" y="{top}" fill="{COLOURS[name]}">{name}</text>'


def _bars(ratios: Ratios, row: str, top: int, unit: int) -> Iterator[str]:
    title = escape(SHOWN[row])
    yield f'<text x="{LEFT - 10}" y="{top + BAR + 5}" text-anchor="end">{title}</text>'
    for number, (column, value) in enumerate(zip(COLUMNS, ratios[row], strict=True)):
        height = top + (BAR + 1) * number
        width = round(unit * value)
        if value:
            yield f'<rect x="{LEFT}" y="{height}" width="{width}" height="{BAR}" fill="{COLOURS[column]}"/>'
            left = LEFT + max(width, unit if width > 0.65 * unit else 0) + 6  # the line is not written over
            yield f'<text x="{left}" y="{height + BAR - 2}" font-size="12">{value:.2f}</text>'


def speed(_: str) -> str:
    return figure(measured((DOCS / "performance.md").read_text("utf-8")))
