"""Tables, links and charts as the templates need them: text, classes and addresses; markup is in the templates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isnan
from typing import NamedTuple
from urllib.parse import quote, urlencode

from nsqadmin_cli import units
from nsqadmin_cli.table import ALWAYS, AT_LEFT, Column, Form, Grid, Row, Table, Tone, as_json, shown
from nsqadmin_cli.units import printable
from nsqadmin_cli.web.history import Hour

PAGE_ROWS = 100  # of one table on one page

# The address that a cell leads to, by the key of its column and the values of its row; "" for none.
Link = Callable[[str, dict[str, object]], str]


def address_of(*names: str) -> str:
    """The path of a topic, or of a channel; browsers take `.` and `..` for directories, so these are in the query."""
    if any(name in (".", "..") for name in names):
        return f"/topics?{query(topic=names[0], channel=names[1] if len(names) > 1 else '')}"
    return "/".join(["/topics", *(quote(name, safe="", errors="replace") for name in names)])


def node_address(node: object) -> str:
    return f"/nodes/{quote(str(node), safe='', errors='replace')}"


def query(**values: object) -> str:
    """The query of an address, without empty values."""
    return urlencode({name: str(value) for name, value in values.items() if value not in ("", None)}, errors="replace")


class HTMLCell(NamedTuple):
    text: str
    classes: str
    href: str = ""
    below: str = ""  # a second line


class HTMLRow(NamedTuple):
    """`key` names what the row shows, so that a live update finds the row again."""

    key: str
    cells: list[HTMLCell]


class Heading(NamedTuple):
    text: str
    classes: str
    href: str = ""  # sorts by the column, or the other way if the rows are sorted by it
    order: str = ""  # if the rows are sorted by it: ascending or descending


@dataclass(slots=True)
class HTMLTable:
    """A table; `count` rows in all, of which `rows` are those of page `page` of `pages`."""

    caption: str
    headings: list[Heading]
    rows: list[HTMLRow]
    total: list[HTMLCell] = field(default_factory=list)
    empty: str = ""
    count: int = 0
    page: int = 1
    pages: int = 1
    previous: str = ""
    next: str = ""


class View(NamedTuple):
    """What the address of a page selects of its main table: texts to find, the column to sort by, with a hyphen before
    it for the other order, and the page."""

    path: str
    find: str = ""
    sort: str = ""
    page: int = 1

    def at(self, *, sort: str | None = None, page: int = 1) -> str:
        """The address of another sorting or page."""
        sorted_by = self.sort if sort is None else sort
        join = "&" if "?" in self.path else "?"
        parameters = query(find=self.find, sort=sorted_by, page=page if page > 1 else "")
        return f"{self.path}{join}{parameters}" if parameters else self.path


def html_table(
    caption: str, table: Table, link: Link = lambda key, row: "", view: View | None = None, *, below: str = ""
) -> HTMLTable:
    """`table` for a template; with `view`, sorted, and the rows of one page. The column `below` becomes the second line
    of the first one."""
    columns = list(table.columns or (Column("", ""),))
    for index, column in enumerate(columns):
        if not index or column.key == "node":  # they name the row, however narrow the page is
            columns[index] = replace(column, keep=ALWAYS)
    keys = [column.key for column in columns]
    order = view.sort.removeprefix("-") if view is not None else ""
    if view is not None and order in keys:
        _sort(table, keys.index(order), is_reversed=view.sort != order)
    count = len(table.rows)
    pages = max(1, -(-count // PAGE_ROWS)) if view is not None else 1
    page = min(max(1, view.page), pages) if view is not None else 1
    rows = table.rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS] if view is not None else table.rows
    made = HTMLTable(
        caption,
        [_heading(column, view) for column in columns if column.key != below],
        [HTMLRow(_key(row, columns), _cells(row, columns, link, below)) for row in rows],
        [] if table.total is None else _cells(table.total, columns, lambda key, row: "", below),
        table.empty,
        count,
        page,
        pages,
    )
    if view is not None:
        made.previous = view.at(page=page - 1) if page > 1 else ""
        made.next = view.at(page=page + 1) if page < pages else ""
    return made


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


def _key(row: Row, columns: Sequence[Column]) -> str:
    pairs = zip(columns, row, strict=True)
    return " ".join(printable(str(as_json(value))) for column, value in pairs if column.key in _NAMES)


def _cells(row: Row, columns: Sequence[Column], link: Link, below: str) -> list[HTMLCell]:
    values = {column.key: as_json(value) for column, value in zip(columns, row, strict=True)}
    cells = []
    second = ""
    for value, column in zip(row, columns, strict=True):
        text, tone = shown(value, column)
        if column.key == below:
            second = text
        else:
            cells.append(HTMLCell(text, _classes(column, tone), link(column.key, values) if text else ""))
    return [cells[0]._replace(below=second), *cells[1:]]


def _classes(column: Column, tone: Tone = Tone.PLAIN) -> str:
    classes = [f"k{column.keep}"]
    if column.form not in AT_LEFT:
        classes.append("n")
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
    """One figure in the last hour, in a box of `_CHART_WIDTH` by `_CHART_HEIGHT`; each shape is a run of steps."""

    name: str
    shapes: list[str]
    highest: str
    label: str


_CHART_WIDTH, _CHART_HEIGHT = 480, 120


def charts_of(hour: Hour | None, depth: str = "depth") -> list[Chart]:
    """The charts of depth, under this name, and rates, as far as there are values."""
    if hour is None:
        return []
    count = lambda value: f"{round(value):,}"  # noqa: E731
    figures = (
        (depth, hour.depth, count),
        ("in/s", hour.ingress, units.rate),
        ("finished/s", hour.egress, units.rate),
    )
    return [_chart(name, values, text) for name, values, text in figures if not all(map(isnan, values))]


def _chart(name: str, values: Sequence[float], text: Callable[[float], str]) -> Chart:
    known = [value for value in values if not isnan(value)]
    highest = max(*known, 1.0)
    width = _CHART_WIDTH / len(values)
    shapes = []
    for is_gap, run in groupby(enumerate(values), lambda pair: isnan(pair[1])):
        if is_gap:
            continue
        heights = [(index, round(_CHART_HEIGHT - 2 - value / highest * (_CHART_HEIGHT - 6))) for index, value in run]
        (first, left), (last, right) = heights[0], heights[-1]
        points = [f"{first * width:g},{_CHART_HEIGHT}", f"{first * width:g},{left}"]
        points += [f"{(index + 0.5) * width:g},{height}" for index, height in heights]
        points += [f"{(last + 1) * width:g},{right}", f"{(last + 1) * width:g},{_CHART_HEIGHT}"]
        shapes.append(" ".join(points))
    latest, lowest, most = text(known[-1]), text(min(known)), text(max(known))
    return Chart(name, shapes, most, f"{name} in the last hour: {latest} now, {lowest} to {most}")
