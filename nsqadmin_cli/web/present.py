"""Tables, links and charts as the templates need them: text, classes and addresses; markup is in the templates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import floor, isnan, log10, nan
from typing import NamedTuple
from urllib.parse import quote, urlencode

from nsqadmin_cli import units
from nsqadmin_cli.table import ALWAYS, AT_LEFT, Column, Form, Grid, Row, Table, Tone, as_json, shown
from nsqadmin_cli.units import printable
from nsqadmin_cli.web.history import Window

PAGE_ROWS = 100  # of one table on one page
AT_LEAST = "at least"
RANGES = {"5m": (300.0, "5 min"), "15m": (900.0, "15 min"), "1h": (3600.0, "hour")}  # of charts

# The address that a cell leads to, by the key of its column and the values of its row; "" for none.
Link = Callable[[str, dict[str, object]], str]


def address_of(*names: str) -> str:
    """The path of a topic, or of a channel. Browsers take `.` and `..` for directories, and servers may take an escaped
    slash for one, so these are in the query."""
    if any(name in (".", "..") or "/" in name for name in names):
        return f"/topics?{query(topic=names[0], channel=names[1] if len(names) > 1 else '')}"
    return "/".join(["/topics", *(quote(name, safe="", errors="replace") for name in names)])


def node_address(node: object) -> str:
    """The path of a node; that of a unix socket has slashes."""
    name = str(node)
    return f"/nodes?{query(node=name)}" if "/" in name else f"/nodes/{quote(name, safe='', errors='replace')}"


def query(**values: object) -> str:
    """The query of an address, without empty values."""
    return urlencode({name: str(value) for name, value in values.items() if value not in ("", None)}, errors="replace")


def with_query(address: str, **values: object) -> str:
    """Returns an address, which may have a query, with further values that are not empty."""
    more = query(**values)
    return f"{address}{'&' if '?' in address else '?'}{more}" if more else address


class HTMLCell(NamedTuple):
    text: str
    classes: str
    href: str = ""
    below: str = ""  # a second line
    lines: Sequence[str] = ()  # a sparkline


@dataclass(slots=True)
class HTMLRow:
    """`key` names what the row shows, so that a live update finds the row again; `values` are by the columns' keys."""

    key: str
    cells: list[HTMLCell]
    values: dict[str, object]
    mark: str = ""  # AT_LEAST if its numbers are sums that lack a node; another text is shown below its name


class Heading(NamedTuple):
    text: str
    classes: str
    href: str = ""  # sorts by the column, or the other way if the rows are sorted by it
    order: str = ""  # if the rows are sorted by it: ascending or descending


class Pages(NamedTuple):
    """Which `rows` are on page `number` of `last`, and the addresses of the pages before and after it, if any."""

    rows: slice
    number: int
    last: int
    previous: str
    next: str


@dataclass(slots=True)
class HTMLTable:
    """A table; `count` rows in all, of which `rows` are those of one page."""

    caption: str
    headings: list[Heading]
    rows: list[HTMLRow]
    total: list[HTMLCell] = field(default_factory=list)
    empty: str = ""
    count: int = 0
    pages: Pages | None = None


_USUAL = {"sort": "trouble", "range": "1h"}  # what an address leaves out


class View(NamedTuple):
    """What the address of a page selects of its main table: texts to find, the column to sort by, with a hyphen before
    it for the other order, and the page; the range of the charts, a key of RANGES; and "only" for topics in trouble."""

    path: str
    find: str = ""
    sort: str = ""
    page: int = 1
    range: str = "1h"
    trouble: str = ""

    def at(self, *, page: int = 1, **others: str) -> str:
        """The address of another page, or of the first page of another sorting or range, or of all topics or some."""
        chosen = {"find": self.find, "trouble": self.trouble, "sort": self.sort, "range": self.range} | others
        chosen = {name: value for name, value in chosen.items() if value != _USUAL.get(name)}
        return with_query(self.path, **chosen, page=page if page > 1 else "")

    def pages(self, count: int, of: int = PAGE_ROWS) -> Pages:
        """The page of this view if there are `count` rows, and `of` on each page."""
        last = max(1, -(-count // of))
        page = min(max(1, self.page), last)
        previous, following = self.at(page=page - 1) if page > 1 else "", self.at(page=page + 1) if page < last else ""
        return Pages(slice((page - 1) * of, page * of), page, last, previous, following)


def html_table(
    caption: str, table: Table, link: Link = lambda key, row: "", view: View | None = None, *, below: str = ""
) -> HTMLTable:
    """`table` for a template; with `view`, sorted, and the rows of one page. The column `below` becomes the second line
    of the first one."""
    used = [i for i, it in enumerate(table.columns) if it.heading or any(as_json(row[i]) for row in table.rows)]
    table.select(used)  # a column without a heading has the trouble of a row, if there is any
    columns = list(table.columns or (Column("", ""),))
    for index, column in enumerate(columns):
        if not index or column.key == "node":  # they name the row, however narrow the page is
            columns[index] = replace(column, keep=ALWAYS)
    keys = [column.key for column in columns]
    order = view.sort.removeprefix("-") if view is not None else ""
    if view is not None and order in keys:
        _sort(table, keys.index(order), is_reversed=view.sort != order)
    count = len(table.rows)
    pages = view.pages(count) if view is not None else None
    rows = table.rows[pages.rows] if pages is not None else table.rows
    return HTMLTable(
        caption,
        [_heading(column, view) for column in columns if column.key != below],
        [_row(row, columns, link, below) for row in rows],
        [] if table.total is None else _row(table.total, columns, lambda key, row: "", below, unknown="").cells,
        table.empty,
        count,
        pages,
    )


def _sort(table: Table, index: int, *, is_reversed: bool) -> None:
    table.sort(index)
    if is_reversed:
        blanks = [row for row in table.rows if as_json(row[index]) is None]
        table.rows = [row for row in reversed(table.rows) if as_json(row[index]) is not None] + blanks


def _heading(column: Column, view: View | None) -> Heading:
    if view is None or not column.heading:
        return Heading(column.heading, _classes(column))
    is_first = view.sort == column.key
    href = view.at(sort=f"-{column.key}" if is_first else column.key)
    is_ascending = (column.form is Form.TEXT) is is_first
    is_sorted = view.sort.removeprefix("-") == column.key
    order = ("ascending" if is_ascending else "descending") if is_sorted else ""
    return Heading(column.heading, _classes(column), href, order)


_NAMES = ("topic", "channel", "node", "client", "remote_address")


def _row(row: Row, columns: Sequence[Column], link: Link, below: str, unknown: str = "–") -> HTMLRow:
    values = {column.key: as_json(value) for column, value in zip(columns, row, strict=True)}
    cells = []
    second = ""
    for value, column in zip(row, columns, strict=True):
        text, tone = shown(value, column)
        if as_json(value) is None and column.form not in AT_LEFT:
            text, tone = unknown, Tone.FAINT
        if column.key == below:
            second = text
        else:
            cells.append(HTMLCell(text, _classes(column, tone), link(column.key, values) if text else ""))
    key = " ".join(printable(str(value)) for name, value in values.items() if name in _NAMES)
    return HTMLRow(key, [cells[0]._replace(below=second), *cells[1:]], values)


def _classes(column: Column, tone: Tone = Tone.PLAIN) -> str:
    classes = [f"k{column.keep}"]
    if column.form not in AT_LEFT:
        classes.append("n")
    if column.key == "node":
        classes.append("address")
    if tone is not Tone.PLAIN:
        classes.append(tone_class(tone))
    return " ".join(classes)


def tone_class(tone: Tone | None) -> str:
    return "" if tone is None else tone.name.lower().replace("_", "-")


def facts(grid: Grid) -> list[tuple[str, str, str]]:
    """Name, text and class of the rows of a grid."""
    rows = []
    for row in grid.rows:
        name, *values = (getattr(value, "value", value) for value in row)
        tone = getattr(row[-1], "tone", None)
        rows.append((printable(str(name)), " ".join(printable(str(value)) for value in values), tone_class(tone)))
    return rows


class Chart(NamedTuple):
    """One figure, in a box that is `_HEIGHT` high, and as wide as two for each step; a shape for each run of steps."""

    name: str
    width: int
    shapes: list[str]
    highest: str
    top: str  # of the box
    label: str
    values: str  # of all steps, with a bar between them; empty if unknown


class Charts(NamedTuple):
    """The charts of a page, how long ago their left end and their middle are, and links to other ranges of time."""

    charts: list[Chart]
    seconds: float  # of a step
    begin: str
    middle: str
    ranges: list[tuple[str, str, bool]]  # text, address, and whether it is the range that is shown


_HEIGHT = 120
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 72, 16, 18


def charts_of(window: Window | None, view: View, depth: str = "depth") -> Charts | None:
    """The charts of depth, under this name, and rates, as far as there are values. Rates are in the same scale."""
    if window is None:
        return None
    last = RANGES[view.range][1]
    top = _top(window.ingress, window.egress)
    charts = [
        _chart(depth, window.depth, lambda value: f"{round(value):,}", _top(window.depth), last),
        _chart("in/s", window.ingress, units.rate, top, last),
        _chart("finished/s", window.egress, units.rate, top, last),
    ]
    span = len(window.steps) * window.seconds
    begin, middle = (units.duration(seconds).removesuffix(" 0m").removesuffix(" 0s") for seconds in (span, span / 2))
    ranges = [(text, view.at(range=key), key == view.range) for key, (_, text) in RANGES.items()]
    return Charts([chart for chart in charts if chart.shapes], window.seconds, begin, middle, ranges)


def _chart(name: str, values: Sequence[float], text: Callable[[float], str], top: float, last: str) -> Chart:
    shapes = []
    for run in _runs(values):
        points = _placed(run, 2, top, _HEIGHT)
        (left, first), (right, final) = points[0], points[-1]
        middles = [(x + 1, y) for x, y in points]
        shapes.append(_points([(left, _HEIGHT), (left, first), *middles, (right + 2, final), (right + 2, _HEIGHT)]))
    texts = ["" if isnan(value) else text(value) for value in values]
    lowest, highest = (text(limit(_known(values), default=0.0)) for limit in (min, max))
    label = f"{name} in the last {last}: {texts[-1] or 'unknown'} now, {lowest} to {highest}"
    return Chart(name, 2 * len(values), shapes, highest, text(top), label, "|".join(texts))


def add_sparklines(table: HTMLTable, key: str, values_of: Callable[[dict[str, object]], Sequence[float]]) -> None:
    """Adds a line to each cell of the column `key`: the highest values of up to 18 spans of time, in the same scale."""
    series = [values_of(row.values) for row in table.rows]
    top = _top(*series)
    for row, values in zip(table.rows, series, strict=True):
        length = max(1, -(-len(values) // _SPARK_POINTS))
        ends = range(len(values), 0, -length)
        highest = [max(_known(values[max(0, end - length) : end]), default=nan) for end in reversed(ends)]
        width = _SPARK_WIDTH / max(1, len(highest) - 1)
        lines = [_points(_placed(run, width, top, _SPARK_HEIGHT)) for run in _runs(highest) if len(run) > 1]
        column = [*row.values].index(key)
        row.cells[column] = row.cells[column]._replace(lines=lines)


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not isnan(value)]


def _top(*series: Sequence[float]) -> float:
    """The least round number that no value exceeds, so that a scale changes rarely."""
    highest = max((value for values in series for value in _known(values)), default=0.0)
    power = 10.0 ** floor(log10(max(highest, 1.0)))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= highest)


def _runs(values: Sequence[float]) -> list[list[tuple[int, float]]]:
    """The values that have no gap between them, with their indexes."""
    groups = groupby(enumerate(values), lambda pair: isnan(pair[1]))
    return [list(run) for is_gap, run in groups if not is_gap]


def _placed(run: Sequence[tuple[int, float]], width: float, top: float, height: int) -> list[tuple[int, int]]:
    """The points of values in a box of this height, with room for the line at both ends."""
    return [(round(index * width), round(height - 1 - value / top * (height - 2))) for index, value in run]


def _points(points: Sequence[tuple[int, int]]) -> str:
    """The points of a line, without those inside of its level parts."""
    around = zip([None, *points], points, [*points[1:], None], strict=False)
    kept = [here for before, here, after in around if not (before and after and before[1] == here[1] == after[1])]
    return " ".join(f"{x},{y}" for x, y in kept)
