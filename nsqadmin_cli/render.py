"""What gnsqadmin shows to people, drawn with rich; no other module knows rich.

On a terminal a table is fitted to the width: with full headings and exact numbers where they fit, else with short
headings, else with shortened numbers, at last by folding names. Elsewhere nothing is shortened and nothing coloured.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table

from nsqadmin_cli.api import Address, NodeError, printable
from nsqadmin_cli.models import ChannelStats, NodeStats, TopicStats, Totals

_PLAIN = Style.null()
_FAINT = Style.parse("dim")
_STRONG = Style.parse("bold")
_NODE = Style.parse("cyan")
_GOOD = Style.parse("green")
_NOTE = Style.parse("yellow")
_BAD = Style.parse("bold red")

_UNLIMITED = 1_000_000  # columns of what is no terminal: no name is folded


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of text in one style."""

    text: str = ""
    style: Style = _PLAIN


class Column:
    """One-line cells below each other as one renderable.

    Rich takes some 50 µs for every cell of a table. With a whole column as one cell, the ten thousand rows of a large
    cluster take one second and not five.
    """

    def __init__(self, cells: Sequence[Cell], right: bool = False) -> None:
        self.cells = cells
        self.right = right
        self.width = max((cell_len(cell.text) for cell in cells), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for cell in self.cells:
            yield Segment(cell.text.rjust(options.max_width) if self.right else cell.text, cell.style)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


@dataclass(frozen=True, slots=True)
class Line:
    """What a row of the statistics is about: a topic or channel, on one node or summed up, or the total of all."""

    name: str
    node: str
    counts: TopicStats | ChannelStats | Totals
    style: Style = _PLAIN


@dataclass(frozen=True, slots=True)
class Count:
    """A column of numbers: the attribute that it shows and its headings."""

    attribute: str
    heading: str
    short: str
    narrow: bool = False  # it is shown on the narrowest terminals too

    def cell(self, counts: TopicStats | ChannelStats | Totals, compact: bool) -> Cell:
        """The number as a cell; blank for what topics do not count."""
        memory = counts.depth - counts.backend_depth
        value: int | None = memory if self.attribute == "memory" else getattr(counts, self.attribute, None)
        if value is None:
            return Cell()
        return Cell(_compact(value) if compact else f"{value:,}", self._style(value, counts))

    def _style(self, value: int, counts: TopicStats | ChannelStats | Totals) -> Style:
        if self.attribute == "client_count" and isinstance(counts, ChannelStats) and counts.depth and not value:
            return _BAD  # messages wait and nobody takes them
        if value and self.attribute in ("backend_depth", "timeout_count"):
            return _NOTE
        return _PLAIN if value else _FAINT


_COUNTS = (
    Count("depth", "depth", "depth", narrow=True),
    Count("memory", "in memory", "mem"),
    Count("backend_depth", "on disk", "disk"),
    Count("in_flight_count", "in flight", "inflt", narrow=True),
    Count("deferred_count", "deferred", "def"),
    Count("requeue_count", "requeued", "req"),
    Count("timeout_count", "timed out", "t-o"),
    Count("message_count", "messages", "msgs"),
    Count("client_count", "clients", "clients", narrow=True),
)


@dataclass(frozen=True, slots=True)
class Form:
    """A way to show the table: which numbers, how long, and the spaces on both sides of a column."""

    counts: Sequence[Count]
    short: bool
    compact: bool
    padding: int
    name_room: int  # columns that it must leave to names, if they need them

    def headings(self) -> list[str]:
        return [count.short if self.short else count.heading for count in self.counts]


# From wide to narrow: 120 columns for one node have the first, 80 the third, 80 columns for several nodes the fourth.
_FORMS = (
    Form(_COUNTS, short=False, compact=False, padding=1, name_room=32),
    Form(_COUNTS, short=True, compact=False, padding=1, name_room=32),
    Form(_COUNTS, short=True, compact=True, padding=0, name_room=24),
    Form([count for count in _COUNTS if count.attribute != "memory"], True, True, padding=0, name_room=16),
    Form([count for count in _COUNTS if count.narrow], True, True, padding=0, name_room=16),
)


def show_stats(answers: Mapping[Address, NodeStats | NodeError], totals: Totals) -> None:
    """Print the nodes, then a table of their topics and channels, if there are any, on standard output."""
    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")
    width = console.width if console.file.isatty() else _UNLIMITED
    console.width = _UNLIMITED  # rich cuts nothing: what is still too wide is for the terminal to wrap
    console.print(_nodes_table(answers))
    if totals.topics:
        nodes = {address: answer for address, answer in answers.items() if isinstance(answer, NodeStats)}
        total = [Line(_summary(totals), "", totals, _STRONG)] if len(totals.topics) > 1 else []
        console.print()
        console.print(_stats_table(width, list(_lines(nodes, totals)), total, with_nodes=len(answers) > 1))


def _nodes_table(answers: Mapping[Address, NodeStats | NodeError]) -> Table:
    """One line for each node: who and how it is."""
    rows = []
    for address, answer in answers.items():
        node = Cell(str(address), _NODE)
        if isinstance(answer, NodeError):
            rows.append((node, Cell(), Cell("failed", _BAD), Cell()))
            continue
        health = Cell("healthy", _GOOD) if answer.health == "OK" else Cell(printable(answer.health), _BAD)
        uptime = Cell(f"up {_uptime(time.time() - answer.start_time)}", _FAINT)
        rows.append((node, Cell(f"nsqd {printable(answer.version)}"), uptime, health))
    grid = Table.grid(padding=(0, 3))
    grid.add_row(*(Column(cells) for cells in zip(*rows, strict=True)))
    return grid


def _lines(nodes: Mapping[Address, NodeStats], totals: Totals) -> Iterator[Line]:
    """Each topic followed by its channels; each of them followed by its share on every node, if several have it."""
    topics: dict[str, dict[Address, TopicStats]] = {}
    channels: dict[tuple[str, str], dict[Address, ChannelStats]] = {}
    for address, node in nodes.items():
        for topic in node.topics:
            topics.setdefault(topic.topic_name, {})[address] = topic
            for channel in topic.channels:
                channels.setdefault((topic.topic_name, channel.channel_name), {})[address] = channel
    for topic in totals.topics:
        yield from _with_shares(topic.topic_name, topic, topics[topic.topic_name], _STRONG)
        for channel in topic.channels:
            shares = channels[topic.topic_name, channel.channel_name]
            yield from _with_shares(f"  {channel.channel_name}", channel, shares, _PLAIN)


def _with_shares(
    name: str,
    total: TopicStats | ChannelStats,
    shares: Mapping[Address, TopicStats] | Mapping[Address, ChannelStats],
    style: Style,
) -> Iterator[Line]:
    """The line of one topic or channel, and those of its shares."""
    paused = sum(share.paused for share in shares.values())
    if paused:
        name += " (paused)" if paused == len(shares) else f" (paused {paused}/{len(shares)})"
        style += _NOTE
    if len(shares) == 1:
        yield Line(name, str(next(iter(shares))), total, style)
        return
    yield Line(name, f"{len(shares)} nodes", total, style)
    for address, share in shares.items():
        yield Line("    (paused)" if share.paused else "", str(address), share, _NOTE)


def _summary(totals: Totals) -> str:
    topics, channels = totals.topic_count, totals.channel_count
    return f"{topics:,} topic{'s' * (topics != 1)}, {channels:,} channel{'s' * (channels != 1)}"


def _stats_table(width: int, lines: Sequence[Line], total: Sequence[Line], *, with_nodes: bool) -> Table:
    """The table in the first form that leaves names enough of `width`; longer names are folded.

    `total` is one more line, or none, below a rule.
    """
    for form in _FORMS:
        headings = [*["topic / channel", "node"][: 1 + with_nodes], *form.headings()]
        sections = [[_cells(line, form, with_nodes) for line in part] for part in (lines, total)]
        texts = (headings, *([cell.text for cell in row] for rows in sections for row in rows))
        longest, *others = (max(map(cell_len, column)) for column in zip(*texts, strict=True))
        room = width - sum(others) - len(others) * (1 + 2 * form.padding)
        if room >= min(longest, form.name_room):
            break
    table = Table(
        box=box.HORIZONTALS,
        show_edge=False,
        pad_edge=False,
        padding=(0, form.padding),
        header_style=_STRONG,
        border_style=_FAINT,
    )
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index > with_nodes else "left", no_wrap=True)
    for rows in filter(None, sections):
        columns = zip(*_folded(rows, max(room, form.name_room)), strict=True)
        table.add_row(*(Column(column, right=i > with_nodes) for i, column in enumerate(columns)), end_section=True)
    return table


def _cells(line: Line, form: Form, with_nodes: bool) -> list[Cell]:
    left = [Cell(printable(line.name), line.style), Cell(line.node, _NODE)]
    return [*left[: 1 + with_nodes], *(count.cell(line.counts, form.compact) for count in form.counts)]


def _folded(rows: Iterable[Sequence[Cell]], room: int) -> Iterator[list[Cell]]:
    """The rows with names of at most `room` columns; the rest of a name, and its "(paused)", make rows of their own."""
    for name, *others in rows:
        if cell_len(name.text) <= room:
            yield [name, *others]
            continue
        text, note, paused = name.text.partition(" (")
        first, *rest = [*chop_cells(text, room), *([f"   {note}{paused}"] if note else [])]
        yield [Cell(first, name.style), *others]
        for part in rest:
            yield [Cell(part, name.style), *(Cell() for _ in others)]


def _uptime(seconds: float) -> str:
    """A duration in its two largest units."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{value}{unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s"))]
    first = next((index for index, part in enumerate(parts) if not part.startswith("0")), len(parts) - 1)
    return " ".join(parts[first : first + 2])


def _compact(count: int) -> str:
    """A number in at most five characters, rounded down: 9,999 stays, then 10.0k, 999k, 1.00M."""
    if abs(count) < 10_000:
        return f"{count:,}"
    text = str(abs(count))
    sign = "-" if count < 0 else ""
    power, places = divmod(len(text) - 1, 3)
    digits = text[: places + 1] + ("." + text[places + 1 : 3] if places < 2 else "")
    return f"{sign}{digits}{' kMGTPEZ'[power]}"
