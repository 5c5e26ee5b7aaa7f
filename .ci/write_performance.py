"""Writes what the documents have of contrib/docs/performance.json, which `make bench FLAGS="--json=FILE"` measures:
the table of performance.md, the six ratios of the README, and their figure, contrib/docs/speed.svg. `make options` runs
it; a test compares."""

import json
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "contrib" / "docs"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from benchmarks import report  # noqa: E402

RESULT = json.loads((DOCS / "performance.json").read_text("utf-8"))

# The rows of the README, and what they are called there.
SHOWN = {
    "pub": "PUB, one by one",
    "mpub-200": "MPUB of 200",
    "consume-2500": "consume",
    "channels-4": "publish and consume, 4 channels",
    "http-pub": "HTTP `/pub`",
    "tls-mpub-20": "MPUB of 20 over TLS",
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


def ratio(row: str, lane: str) -> float:
    median: float = RESULT["rows"][row]["lanes"][lane]["ratio"]["median"]
    return median


UNIT = round(LONGEST / max(ratio(row, lane) for row in SHOWN for lane in LANES))  # from 0 to 1


def performance() -> str:
    return "\n".join(_wrapped(report.markdown(RESULT)))


def _wrapped(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield line if line.startswith("|") else textwrap.fill(line, 125)


def readme() -> str:
    lines = [f"| | {' | '.join(LANES.values())} |", "|---" + "|---:" * len(LANES) + "|"]
    lines += [
        f"| {title} | {' | '.join(f'{ratio(row, lane):.2f}' for lane in LANES)} |" for row, title in SHOWN.items()
    ]
    return "\n".join(lines)


def figure() -> str:
    """Of each row a bar per lane, beside a line at 1, which is nsqd."""
    height = TOP + GROUP * len(SHOWN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="system-ui, sans-serif" font-size="14" fill="{TEXT}" role="img">',
            "<title>Throughput of gnsqd relative to nsqd</title>",
            *_legend(),
            *(line for number, row in enumerate(SHOWN) for line in _bars(row, TOP + GROUP * number)),
            f'<path d="M{LEFT + UNIT} {TOP - 8}V{height}" stroke="{TEXT}" stroke-dasharray="4 3"/>',
            "</svg>\n",
        ]
    )


def _legend() -> Iterator[str]:
    yield f'<text x="{LEFT + UNIT}" y="18" text-anchor="middle">nsqd = 1</text>'
    left = LEFT + UNIT + 100
    for number, (lane, name) in enumerate(LANES.items()):  # in the corner, where no bar is long
        top = TOP + GROUP * (len(SHOWN) - 1) + 20 * (number - 1)
        yield f'<rect x="{left}" y="{top}" width="{BAR}" height="{BAR}" fill="{COLOURS[lane]}"/>'
        yield f'<text x="{left + BAR + 6}" y="{top + BAR - 1}">{name}</text>'


def _bars(row: str, top: int) -> Iterator[str]:
    title = escape(SHOWN[row].replace("`", ""))
    yield f'<text x="{LEFT - 10}" y="{top + BAR + 5}" text-anchor="end">{title}</text>'
    for number, lane in enumerate(LANES):
        height = top + (BAR + 1) * number
        width = round(UNIT * ratio(row, lane))
        yield f'<rect x="{LEFT}" y="{height}" width="{width}" height="{BAR}" fill="{COLOURS[lane]}"/>'
        left = LEFT + max(width, UNIT if width > 0.65 * UNIT else 0) + 6  # the line is not written over
        yield f'<text x="{left}" y="{height + BAR - 2}" font-size="12">{ratio(row, lane):.2f}</text>'


def between(text: str, part: str) -> str:
    """The page with `part` between its marks; ValueError if it has none."""
    begin, end = "<!-- speed -->\n", "\n<!-- /speed -->"
    before, begins, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"a page has no {begin.strip()} or {end.strip()}")
    return before + begins + part + ends + after


def pages() -> dict[Path, str]:
    """Every file that is written, with its text."""
    readme_path, page_path = ROOT / "README.md", DOCS / "performance.md"
    return {
        readme_path: between(readme_path.read_text("utf-8"), readme()),
        page_path: between(page_path.read_text("utf-8"), performance()),
        DOCS / "speed.svg": figure(),
    }


if __name__ == "__main__":
    for path, written in pages().items():
        path.write_text(written, "utf-8")
