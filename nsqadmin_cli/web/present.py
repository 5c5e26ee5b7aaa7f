"""Tables, links and sums as the templates need them: text, classes and addresses; markup is in the templates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from nsqadmin_cli import units
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.table import ALWAYS, AT_LEFT, Column, Form, Grid, Row, Table, Tone, as_json, shown
from nsqadmin_cli.units import printable
from nsqadmin_cli.web.http import PageRequest

PAGE_ROWS = 100  # of one table on one page
AT_LEAST = "at least"  # of sums that lack a node
LAST_KNOWN = "last known"  # of what only nodes have that do not answer
RANGES = {"5m": (300.0, "5 min"), "15m": (900.0, "15 min"), "1h": (3600.0, "hour")}  # of charts

# The address that a cell leads to, by the key of its column and the values of its row; "" for none.
Link = Callable[[str, dict[str, object]], str]


def address_of(*names: str) -> str:
    """Returns the path of a topic, or of a channel. Browsers take `.` and `..` for directories, and servers may take an
    escaped slash for one, so these are in the query."""
    if any(name in (".", "..") or "/" in name for name in names):
        return f"/topics?{query(topic=names[0], channel=names[1] if len(names) > 1 else '')}"
    return "/".join(["/topics", *(quote(name, safe="", errors="replace") for name in names)])


def node_address(node: object) -> str:
    """Returns the path of a node; that of a unix socket has slashes."""
    name = str(node)
    return f"/nodes?{query(node=name)}" if "/" in name else f"/nodes/{quote(name, safe='', errors='replace')}"


def query(**values: object) -> str:
    """Encodes the query of an address, without empty values."""
    return urlencode({name: str(value) for name, value in values.items() if value not in ("", None)}, errors="replace")


def with_query(address: str, **values: object) -> str:
    """Returns an address, which may have a query, with further values that are not empty."""
    more = query(**values)
    return f"{address}{'&' if '?' in address else '?'}{more}" if more else address


def link_of(key: str, row: dict[str, object]) -> str:
    """Returns the address of the topic, channel or node that a cell names; "" for other cells."""
    if key == "node":
        return node_address(row["node"])
    names = {"topic": ("topic",), "channel": ("topic", "channel")}.get(key)
    return address_of(*(str(row[name]) for name in names)) if names else ""


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
    """The `rows` that are on page `number` of `last`, and the addresses of the pages before and after it, if any."""

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
    """The part of its main table that the address of a page selects: texts to find, the column to sort by, with a
    hyphen before it for the other order, and the page; the range of the charts, a key of RANGES; and "only" for topics
    in trouble."""

    path: str
    find: str = ""
    sort: str = ""
    page: int = 1
    range: str = "1h"
    trouble: str = ""

    @classmethod
    def of(cls, request: PageRequest, sort: str = "") -> "View":
        """Returns what the address of a request selects; `sort` is the column to sort by if it selects none."""
        given = request.query
        page = given.get("page", "1")
        names = {name: given[name] for name in ("topic", "channel", "node") if given.get(name)}
        return cls(
            with_query(request.path, **names),
            given.get("find", ""),
            given.get("sort") or sort,
            int(page) if page.isdecimal() and len(page) < 6 else 1,
            given["range"] if given.get("range") in RANGES else "1h",
            "only" if given.get("trouble") else "",
        )

    def at(self, *, page: int = 1, **others: str) -> str:
        """Returns the address of another page, or of the first page with another sorting, range or choice of topics."""
        chosen = {"find": self.find, "trouble": self.trouble, "sort": self.sort, "range": self.range} | others
        chosen = {name: value for name, value in chosen.items() if value != _USUAL.get(name)}
        return with_query(self.path, **chosen, page=page if page > 1 else "")

    def pages(self, count: int, of: int = PAGE_ROWS) -> Pages:
        """Returns the page of this view if there are `count` rows, and `of` on each page."""
        last = max(1, -(-count // of))
        page = min(max(1, self.page), last)
        previous, following = self.at(page=page - 1) if page > 1 else "", self.at(page=page + 1) if page < last else ""
        return Pages(slice((page - 1) * of, page * of), page, last, previous, following)


def html_table(caption: str, table: Table, link: Link = link_of, view: View | None = None) -> HTMLTable:
    """Returns `table` for a template; with `view`, sorted, and the rows of one page."""
    used = [i for i, it in enumerate(table.columns) if it.heading or any(as_json(row[i]) for row in table.rows)]
    table.select(used)  # a column without a heading has the trouble of a row, if there is any
    columns = list(table.columns or (Column("", ""),))
    for index, column in enumerate(columns):
        if not index or column.key == "node":  # they name the row, however narrow the page is
            columns[index] = replace(column, keep=ALWAYS)
    keys = [column.key for column in columns]
    order = view.sort.removeprefix("-") if view is not None else ""
    if view is not None and order in keys:
        index = keys.index(order)
        table.sort(index)
        if view.sort != order:  # reversed; blanks stay last
            blanks = [row for row in table.rows if as_json(row[index]) is None]
            table.rows = [row for row in reversed(table.rows) if as_json(row[index]) is not None] + blanks
    count = len(table.rows)
    pages = view.pages(count) if view is not None else None
    rows = table.rows[pages.rows] if pages is not None else table.rows
    return HTMLTable(
        caption,
        [_heading(column, view) for column in columns if column.key != _BELOW],
        [_row(row, columns, link) for row in rows],
        [] if table.total is None else _row(table.total, columns, None).cells,
        table.empty,
        count,
        pages,
    )


def _heading(column: Column, view: View | None) -> Heading:
    if view is None or not column.heading:
        return Heading(column.heading, _classes(column))
    is_first = view.sort == column.key
    href = view.at(sort=f"-{column.key}" if is_first else column.key)
    is_ascending = (column.form is Form.TEXT) is is_first
    is_sorted = view.sort.removeprefix("-") == column.key
    order = ("ascending" if is_ascending else "descending") if is_sorted else ""
    return Heading(column.heading, _classes(column), href, order)


_BELOW = "remote_address"  # the column that becomes the second line of the first one
_NAMES = ("topic", "channel", "node", "client", _BELOW)


def _row(row: Row, columns: Sequence[Column], link: Link | None) -> HTMLRow:
    """Returns a row; without `link` that of the sums, where unknown values are blank."""
    values = {column.key: as_json(value) for column, value in zip(columns, row, strict=True)}
    cells = []
    second = ""
    for value, column in zip(row, columns, strict=True):
        text, tone = shown(value, column)
        if as_json(value) is None and column.form not in AT_LEFT:
            text, tone = "–" if link else "", Tone.FAINT
        if column.key == _BELOW:
            second = text
        else:
            cells.append(HTMLCell(text, _classes(column, tone), link(column.key, values) if link and text else ""))
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
    """Returns name, text and class of the rows of a grid."""
    rows = []
    for row in grid.rows:
        name, *values = (getattr(value, "value", value) for value in row)
        tone = getattr(row[-1], "tone", None)
        rows.append((printable(str(name)), " ".join(printable(str(value)) for value in values), tone_class(tone)))
    return rows


def common(snapshot: ClusterSnapshot, topic: str = "", channel: str = "") -> dict[str, Any]:
    """Returns what most live pages show, of the cluster, a topic or a channel. `sums` are two words and a sentence on
    their numbers if a node that has it, or may have it, did not answer."""
    sums = None
    answered, missing = (look.places(topic, channel) for look in (snapshot, snapshot.last_known))
    unheard = snapshot.answers.keys() - snapshot.nodes.keys() - snapshot.last_known.nodes.keys()
    most = len(answered) + len(missing) + len(unheard)
    if missing and not answered:
        ago = units.duration(snapshot.moment - max(snapshot.latest[address].moment for address in missing))
        nodes = units.shortened([*map(str, missing)], 3)
        sums = LAST_KNOWN, f"{LAST_KNOWN} {ago} ago, as {nodes} did not answer"
    elif most > len(answered):
        sums = AT_LEAST, f"{AT_LEAST}, of {len(answered)} of {most} nodes"
    return {
        "sums": sums,
        "errors": [str(error) for error in snapshot.errors],
        "taken": units.clock(snapshot.clock),
        "has_rates": snapshot.flows is not None,
    }
