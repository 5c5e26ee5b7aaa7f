"""`gnsqadmin top`: a full screen of the queues, updated each second.

Each node is asked on its own thread, so that one that hangs delays neither the others nor the display. `TopView`, which
turns answers and keys into lines, is independent of the terminal.
"""

import math
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import click

from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.api import ChannelStats, NodeStats, Nsqd, TopicStats
from nsqadmin_cli.budget import ALLOWANCE, Allowance, LookBudget
from nsqadmin_cli.cluster import Answers, Cluster
from nsqadmin_cli.command_base import command, duration, option
from nsqadmin_cli.context import ClusterSettings, CommandLines
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, drain_seconds, node_flows, summed, through
from nsqadmin_cli.table import ALWAYS, Cell, Column, Form, Line, Table, Tone, as_json
from nsqadmin_cli.units import plural

_DISCOVERY = 15.0  # seconds between questions to the nsqlookupds

HISTORY = 60  # looks that are remembered
_FLAT = 10  # messages that do not count as a backlog


@dataclass(slots=True)
class _Watched:
    """One node: its last answer, and the flows between the last two that were no errors."""

    node: Nsqd
    answer: NodeStats | NodeError | None = None
    flows: dict[Key, Flow] = field(default_factory=dict)
    moment: float = field(default_factory=time.monotonic)  # of the last answer, or of the beginning
    gone: bool = False


class Watcher:
    """Owns the threads that ask all nodes of a cluster every `interval` seconds, for consumers if `clients` is set."""

    def __init__(self, cluster: Cluster, interval: float) -> None:
        self.interval = interval
        self.clients = False
        self.troubles: list[AdminError] = []  # with the nsqlookupds
        self._cluster = cluster
        self._nodes: dict[Address, _Watched] = {}
        self._budget = LookBudget()
        self.stopped = threading.Event()  # to be set at the end; threads that wait for an answer are abandoned
        threading.Thread(target=self._discover, name="discover", daemon=True).start()

    @property
    def pending(self) -> bool:
        """True if a first answer is pending."""
        return not self._nodes or any(watched.answer is None for watched in self._nodes.values())

    def see(self) -> tuple[Answers[NodeStats], dict[Address, dict[Key, Flow]]]:
        """Returns the last answers of all nodes, by address, and the flows of each."""
        answers: Answers[NodeStats] = {}
        flows: dict[Address, dict[Key, Flow]] = {}
        for address, watched in sorted(self._nodes.items()):
            silent = time.monotonic() - watched.moment
            if silent > 2 * self.interval + 2 and not isinstance(watched.answer, NodeError):
                answers[address] = NodeError("nsqd", address, f"no answer for {silent:.0f} s")
            elif watched.answer is not None:  # else it has been asked just now
                answers[address], flows[address] = watched.answer, watched.flows
        return answers, flows

    def _discover(self) -> None:
        """Finds nodes repeatedly, watches new ones and drops nodes that are gone."""
        while True:
            try:
                nodes = {node.address: node for node in self._cluster.nsqds()}
                self.troubles = list(self._cluster.lookupd_errors)
            except AdminError as error:
                nodes = {address: watched.node for address, watched in self._nodes.items()}
                self.troubles = [error]
            known = dict(self._nodes)
            if known.keys() != nodes.keys():
                self._budget = LookBudget(len(nodes))
            for address in known.keys() - nodes.keys():
                known.pop(address).gone = True
            for address in nodes.keys() - known.keys():
                known[address] = _Watched(nodes[address])
                threading.Thread(target=self._watch, args=(known[address],), name=str(address), daemon=True).start()
            self._nodes = known
            if self.stopped.wait(_DISCOVERY) or not self._cluster.lookupds:
                return

    def _watch(self, watched: _Watched) -> None:
        node, latest, held = watched.node, None, None  # the last answer that was no error, and its allowance
        while not watched.gone:
            due, allowance = time.monotonic() + self.interval, Allowance(self._budget)
            ALLOWANCE.set(allowance)
            # Nothing of the old answer is changed: who looks at it meanwhile sees one or the other.
            try:
                answer = node.stats(clients=self.clients)
            except AdminError as error:
                allowance.release()
                reason = error.reason if isinstance(error, NodeError) else str(error)  # a file for TLS, for one
                watched.flows, watched.answer = {}, NodeError(node.program, node.address, reason)
            else:
                watched.flows = node_flows(latest, answer) if latest else {}
                watched.answer, watched.moment = answer, answer.moment
                if held is not None:
                    held.release()
                latest, held = answer, allowance
            if self.stopped.wait(max(0.05, due - time.monotonic())):
                return


SUBJECTS = ("channel", "topic", "node")
CONSUMER = "consumer"  # of one channel, reached by Enter

_STUCK_LOOKS = 5  # without a message finished, with clients that could


@dataclass(slots=True)
class TopRow:
    """A topic or channel, summed over nodes: its state and history."""

    topic: str
    channel: str  # empty for a topic
    counts: TopicStats | ChannelStats
    flow: Flow = Flow()
    smooth_flow: Flow | None = None  # None before the second snapshot
    depths: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    idle: int = 0  # looks since something went out
    lonely: int = 0  # nodes with messages of this channel, but without consumers

    def update(self, counts: TopicStats | ChannelStats, flow: Flow | None, lonely: int) -> None:
        """Adds a snapshot. Flows are smoothed over about five, so that drain times do not jump."""
        self.counts, self.flow, self.lonely = counts, flow or Flow(), lonely
        self.depths.append(counts.depth)
        self.idle = 0 if flow and flow.egress else self.idle + 1
        if self.smooth_flow is None:
            self.smooth_flow = flow
        elif flow is not None and flow != self.smooth_flow:
            pairs = zip(self.smooth_flow, flow, strict=True)
            self.smooth_flow = Flow(*(old + (new - old) * 0.3 if new or old > 1e-3 else 0.0 for old, new in pairs))

    def drain_seconds(self) -> float | None:
        return drain_seconds(self.counts, self.smooth_flow or Flow())

    def trouble(self) -> tuple[str, Tone]:
        """Returns its worst problem in a word or two, and how bad it is."""
        counts, flow = self.counts, self.smooth_flow or Flow()
        if counts.paused:
            return "paused", Tone.NOTE
        if isinstance(counts, ChannelStats):
            if self.lonely:
                return "no clients" if not counts.client_count else f"no clients/{self.lonely}", Tone.BAD
            if counts.depth and self.idle >= _STUCK_LOOKS:
                return "stuck", Tone.BAD
            if flow.timeouts > 0.01:
                return "timeouts", Tone.NOTE
            if flow.requeues > max(0.01, flow.egress):
                return "requeues", Tone.NOTE
        if self.drain_seconds() is None and flow.is_growing:
            return "growing", Tone.NOTE
        return "", Tone.PLAIN


# By the heading of the column: the key that sorts by it, and the value of a row; the largest comes first.
ORDERS: dict[str, tuple[str, Callable[[TopRow], float]]] = {
    "depth": ("d", lambda row: row.counts.depth),
    "in/s": ("i", lambda row: row.flow.ingress),
    "out/s": ("o", lambda row: row.flow.egress),
    "drain": ("e", lambda row: math.inf if (seconds := row.drain_seconds()) is None else seconds),
    "in flight": ("f", lambda row: getattr(row.counts, "in_flight_count", 0)),
    "requeues/s": ("r", lambda row: row.flow.requeues),
    "timeouts/s": ("t", lambda row: row.flow.timeouts),
    "clients": ("c", lambda row: getattr(row.counts, "client_count", 0)),
    "trouble": ("x", lambda row: {Tone.BAD: 2, Tone.NOTE: 1}.get(row.trouble()[1], 0)),
    "name": ("n", lambda row: 0),
}
_ORDER_OF_KEY = {key: heading for heading, (key, _) in ORDERS.items()}
_SORT_HELP = f"Initial sort column: {', '.join(ORDERS)}."

HELP = (
    ("d i o e f", "sort by depth, in/s, out/s, drain time, in flight"),
    ("r t c x n", "sort by requeues/s, timeouts/s, clients, trouble, name"),
    ("R", "reverse the order"),
    ("/", "filter names by a text: type it, Enter applies it, Escape drops it"),
    ("Tab", "channels, topics, nodes"),
    ("Up Down PgUp PgDn Home End", "move the cursor"),
    ("Enter", "consumers of the channel, channels of the topic; Escape returns"),
    ("p", "pause, unpause the channel or topic"),
    ("P T", "peek at its queued messages; tail the topic until Ctrl-C"),
    ("E D", "empty, delete it, after confirmation"),
    ("+ -", "longer, shorter interval"),
    ("Space", "pause, continue"),
    ("q", "quit"),
    ("", ""),
    ("in/s, finished/s", "messages published, and finished by clients"),
    ("out/s", "messages that a topic passed to all its channels; to sort, also finished/s"),
    ("drain", "time until the queue is empty at the current rates; never: it does not shrink"),
    ("trend", "depth over the last updates"),
)


@dataclass(slots=True, kw_only=True)
class TopView:
    """Owns the data and the user's view settings."""

    interval: float
    subject: str = "channel"
    order: str = "depth"
    needle: str = ""
    reverse: bool = False
    held: bool = False
    helping: bool = False
    typing: bool = False  # the needle
    within: Key = ("", "")  # the topic or channel whose channels or consumers are shown
    cursor: int = 0  # among the rows shown last
    troubles: Sequence[AdminError] = ()
    _offset: int = 0
    _index: int = 0
    _selected: object = None  # the row that the cursor stays with, None for the first
    _shown: list[object] = field(default_factory=list)  # all rows, as displayed last
    _snapshot: ClusterSnapshot = field(default_factory=lambda: ClusterSnapshot({}, []))
    _rows: dict[Key, TopRow] = field(default_factory=dict)
    _page: int = 10  # rows shown last

    def update(self, answers: Answers[NodeStats], node_flows: dict[Address, dict[Key, Flow]]) -> None:
        snapshot = self._snapshot = ClusterSnapshot(answers, [])
        flows = snapshot.flows = summed(node_flows.values())
        snapshot.node_rates = {address: through(of_node) for address, of_node in node_flows.items()}
        known, self._rows = self._rows, {}  # without topics and channels that are gone
        for topic in snapshot.totals.topics:
            both: tuple[TopicStats | ChannelStats, ...] = (topic, *topic.channels)
            for counts in both:
                key: Key = topic.topic_name, getattr(counts, "channel_name", "")
                row = self._rows[key] = known.get(key) or TopRow(*key, counts)
                shares = snapshot.channel_shares.get(key, {}).values()
                lonely = sum(share.depth > 0 and not share.client_count for share in shares)
                row.update(counts, flows.get(key), lonely)

    def _to_first(self) -> None:
        self._index, self._selected = 0, None

    def _current(self) -> object:
        return self._shown[self._index] if self._index < len(self._shown) else None

    def action(self, key: str) -> tuple[str, ...]:
        """Returns the words and names of the gnsqadmin command of a key for the row at the cursor; none if it has
        none."""
        row = self._current()
        if self.typing or self.helping or not isinstance(row, TopRow):
            return ()
        names = (row.topic, row.channel) if row.channel else (row.topic,)
        noun = "channel" if row.channel else "topic"
        pause = "unpause" if row.counts.paused else "pause"
        words = {"p": f"{noun} {pause}", "E": f"{noun} empty", "D": f"{noun} delete", "P": "peek"}
        if key == "T":
            return ("tail", row.topic)
        return (words[key], *names) if key in words else ()

    def press(self, key: str) -> bool:
        """Handles a key; returns False to quit."""
        match key:
            case "enter" | "escape" | "backspace" if self.typing:
                self.typing = key == "backspace"
                self.needle = {"enter": self.needle, "escape": "", "backspace": self.needle[:-1]}[key]
                self._to_first()
            case _ if self.typing:
                if len(key) == 1 and len(self.needle) < 64:
                    self.needle += key
                self._to_first()
            case _ if self.helping:
                self.helping = False
            case "q" | "Q":
                return False
            case _ if key in _ORDER_OF_KEY:
                self.order, self.reverse = _ORDER_OF_KEY[key], False
                self._to_first()
            case "R":
                self.reverse = not self.reverse
            case "/":
                self.typing = True
            case "escape":
                if any(self.within):  # what Enter came from
                    self.subject = "channel" if self.subject == CONSUMER else "topic"
                    self.within = ("", "")
                else:
                    self.needle = ""
                self._to_first()
            case "enter":
                if isinstance(row := self._current(), TopRow):
                    self.within = (row.topic, row.channel)
                    self.subject = CONSUMER if row.channel else "channel"
                    self._to_first()
            case "tab":
                shown = "channel" if self.subject == CONSUMER else self.subject
                self.subject, self.within = SUBJECTS[(SUBJECTS.index(shown) + 1) % len(SUBJECTS)], ("", "")
                self._to_first()
            case "?" | "h":
                self.helping = True
            case " ":
                self.held = not self.held
            case "+":
                self.interval = min(60.0, self.interval * 2)
            case "-":
                self.interval = max(0.25, self.interval / 2)
            case "up" | "down" | "page up" | "page down" | "home" | "end" if self._shown:
                last, page = len(self._shown) - 1, self._page
                steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -last, "end": last}
                self._index = max(0, min(self._index + steps[key], last))
                self._selected = _name_of(self._shown[self._index])
        return True

    def blocks(self, width: int, height: int) -> tuple[list[Line], Table, Line]:
        """Returns the header, the table with as many rows as fit on `height` lines, and the last line."""
        head = self._head(width - 1)  # the last column stays empty
        if self.helping:
            table = Table((Column("key", "key", tone=Tone.STRONG), Column("meaning", "what it does")), [*HELP])
            return head, table, Line.of("any key returns", Tone.FAINT)
        self._page = room = max(1, height - len(head) - 4)  # a blank line, headings, a rule and the last line
        table = self._table()
        self._shown = list(table.rows)
        # The cursor stays with its row, once it was moved; as many rows are displayed around it as there is room for.
        names = [_name_of(row) for row in table.rows]
        if self._selected in names:
            self._index = names.index(self._selected)
        self._index = max(0, min(self._index, len(names) - 1))
        self._offset = max(0, min(self._offset, len(names) - room), self._index - room + 1)
        self._offset = min(self._offset, self._index)
        self.cursor = self._index - self._offset
        bars = 16 if width >= 120 else 8 if width >= 90 else 6
        shown = table.rows[self._offset : self._offset + room]
        table.rows = [self._cells(row, bars) if isinstance(row, TopRow) else row for row in shown]
        return head, table, self._foot(len(self._shown), len(shown), width - 1)

    def _head(self, width: int) -> list[Line]:
        totals, errors, flow = self._snapshot.totals, self._snapshot.errors, through(self._snapshot.flows or {})
        nodes = plural(len(self._snapshot.answers), "node")
        up = (f"{len(self._snapshot.nodes)} of {nodes}", Tone.BAD) if errors else (nodes, Tone.GOOD)
        summary = (
            f"in {units.compact_rate(flow.ingress)}/s",
            f"out {units.compact_rate(flow.egress)}/s",
            f"depth {units.compact(totals.depth)}",
            f"in flight {units.compact(totals.in_flight_count)}",
            plural(totals.topic_count, "topic"),
            plural(totals.channel_count, "channel"),
        )
        title = ("gnsqadmin top ", Tone.STRONG), (time.strftime("%H:%M:%S"), Tone.FAINT), ("  ", Tone.PLAIN)
        first = _fitted([*title, up, *((f"  {item}", Tone.PLAIN) for item in summary)], width)
        nodes_by_address = self._snapshot.nodes.items()
        ill = [f"nsqd at {address}: {node.health}" for address, node in nodes_by_address if node.health != "OK"]
        troubles = [*map(str, self.troubles), *map(str, errors), *ill]
        if (more := len(troubles) - 3) > 0:
            troubles[3:] = [f"and {more} more: Tab shows the nodes"]
        shortened = (textwrap.shorten(text, max(9, width), placeholder=" …") for text in troubles)
        return [first, *(Line.of(text, Tone.BAD) for text in shortened)]

    def _foot(self, count: int, shown: int, width: int) -> Line:
        if self.typing:
            return Line(((f"only names with: {self.needle}", Tone.STRONG), ("█", Tone.PLAIN)))
        parts = [f"{plural(count, self.subject)} by {self.order}"]
        if self.subject in ("node", CONSUMER):
            parts = [plural(count, self.subject)]
        elif self.reverse:
            parts[0] += ", reversed"
        if any(self.within):
            parts[0] += f" of {'/'.join(filter(None, self.within))}"
        if shown < count:
            parts.append(f"{self._offset + 1:,}-{self._offset + shown:,}")
        if self.needle:
            parts.append(f"with {self.needle!r}")
        parts.append("held" if self.held else f"every {self.interval:g} s")
        tone = Tone.STRONG if self.held or self.needle else Tone.PLAIN
        items = [(f"{' · ' if number else ''}{part}", tone) for number, part in enumerate(parts)]
        return _fitted([*items, (" ", Tone.PLAIN), *((f"  {key}", Tone.FAINT) for key in _KEYS)], width)

    def _table(self) -> Table:
        """Returns all rows of the current view: cells of nodes and consumers, or TopRows."""
        snapshot = self._snapshot
        if self.subject == CONSUMER:
            table = stat_tables.client_table(snapshot, with_places=False, of=self.within)
            nodes = snapshot.nodes.values()
            asked = all(channel.clients is not None for node in nodes for _, channel in node.channels())
            table.empty = "No consumers." if asked else "asking"
            return table
        if self.subject == "node":
            table = stat_tables.node_table(snapshot, without=("daemon", *stat_tables.LISTING, *stat_tables.PROCESS))
            table.total = None  # the first line has the sums
            return table
        of_channels, needle = self.subject == "channel", self.needle.lower()
        rows = [row for row in self._rows.values() if bool(row.channel) == of_channels]
        rows = [row for row in rows if self.within[0] in ("", row.topic)]
        rows = [row for row in rows if needle in row.channel.lower() or needle in row.topic.lower()]
        rows.sort(key=lambda row: (row.channel, row.topic))
        rows.sort(key=ORDERS[self.order][1], reverse=self.order != "name")
        if self.reverse:
            rows.reverse()
        columns = _CHANNEL_COLUMNS if of_channels else _TOPIC_COLUMNS
        return Table(columns, list(rows), empty="Nothing to show." if snapshot.answers else "asking")  # type: ignore[arg-type]

    def _cells(self, row: TopRow, bars: int) -> list[object]:
        trouble, tone = row.trouble()
        seconds, flow = row.drain_seconds(), row.smooth_flow
        if not row.counts.depth or flow is None or (seconds is not None and not flow.egress):
            drain = Cell("", None)  # nothing is queued, or the time is not known yet
        elif seconds is None or seconds > 100 * 86400:
            drain = Cell("never", Tone.BAD if row.flow.ingress else Tone.NOTE)
        else:
            drain = Cell(units.duration(seconds) if seconds >= 1 else "<1s", None)
        cells: list[object] = [Cell(row.channel or row.topic, tone)]
        if row.channel:
            cells.append(row.topic)
        # As many messages as leave in a second, or ten, are a flat line.
        least = max(_FLAT, flow.egress if flow else 0.0)
        trend = units.sparkline(list(row.depths)[-bars:], least * 8).rjust(bars)
        cells += [row.counts.depth, row.flow.ingress, row.flow.egress, drain, trend]
        if isinstance(row.counts, ChannelStats):
            cells += [row.counts.in_flight_count, row.counts.deferred_count]
            cells += [row.flow.requeues, row.flow.timeouts, row.counts.client_count]
        return [*cells, Cell(trouble, tone)]


def _fitted(items: Sequence[tuple[str, Tone]], width: int) -> Line:
    """Returns the items, without the last ones if these are not on `width` columns as a whole."""
    ends = accumulate(len(text) for text, _ in items)
    return Line(tuple(item for item, end in zip(items, ends, strict=True) if end <= width))


_KEYS = "q quit", "? help", "Tab view", "Enter open", "p pause", "P peek", "T tail", "E empty", "D delete", "/ filter"
_DEPTH = Column("depth", "depth", form=Form.COUNT, keep=ALWAYS), Column("ingress_rate", "in/s", form=Form.RATE, keep=8)
_OUT = Column("egress_rate", "out/s", form=Form.RATE, keep=8)
_TREND = Column("drain", "drain", keep=7), Column("trend", "trend", keep=6, tone=Tone.NODE)
_TROUBLE = Column("trouble", "", keep=7)
_TOPIC_COLUMNS = (Column("topic", "topic"), *_DEPTH, _OUT, *_TREND, _TROUBLE)
_CHANNEL_COLUMNS = (
    Column("channel", "channel"),
    Column("topic", "topic", keep=ALWAYS, tone=Tone.STRONG),
    *_DEPTH,
    Column("egress_rate", "finished/s", "fin/s", form=Form.RATE, keep=8),
    *_TREND,
    Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=7),
    Column("deferred_count", "deferred", "def", Form.COUNT, keep=2),
    Column("requeue_rate", "req/s", form=Form.RATE, keep=4),
    Column("timeout_rate", "t-o/s", form=Form.RATE, keep=5, tone=Tone.NOTE),
    Column("client_count", "clients", "cl", Form.COUNT, keep=ALWAYS),
    _TROUBLE,
)


def _name_of(row: object) -> object:
    """Returns what a row stays the same by, in two displays."""
    if isinstance(row, TopRow):
        return row.topic, row.channel
    assert isinstance(row, list)
    return [as_json(cell) for cell in row[:3]]  # a node's address and state; a consumer's name, node and address


@command(
    examples="""
        gnsqadmin top
        gnsqadmin top --lookupd-http-address lookup.example:4161 --sort trouble
        gnsqadmin top --filter orders --interval 5
    """
)
def top(
    settings: ClusterSettings,
    interval: float = option("Interval between updates.", duration(60), default="1"),
    order: str = option(_SORT_HELP, click.Choice([*ORDERS]), "--sort", default="depth", metavar="COLUMN"),
    needle: str = option("Show only names that contain this text.", None, "--filter", default="", metavar="TEXT"),
    subject: str = option("Initial view.", click.Choice(SUBJECTS), "--show", default=SUBJECTS[0]),
) -> None:
    """Keys sort and filter, and show the consumers of a channel. They also pause, empty, delete, peek at or tail the
    selected topic or channel, with the same confirmation as the commands. ? lists the keys, q quits. Nodes are queried
    separately, so a node that hangs does not delay the others; it is shown as failed.

    The last column shows problems: no clients (queued messages are not consumed; a number is the number of such nodes),
    stuck (clients are connected and finish nothing), paused, timeouts, requeues (more than are finished), growing (more
    messages arrive than are finished).
    """
    from nsqadmin_cli.render.layout import lay_out, lay_out_line
    from nsqadmin_cli.render.screen import Screen

    view = TopView(subject=subject, order=order, needle=needle, interval=interval)
    commands = CommandLines(settings)
    with Screen() as screen:
        watcher = Watcher(settings.cluster(), interval)
        started = time.monotonic()
        due = 0.0
        try:
            while True:
                now = time.monotonic()
                if now >= due:
                    if not view.held:
                        view.troubles = watcher.troubles
                        view.update(*watcher.see())
                    due = now + (0.1 if watcher.pending and now < started + 2 else view.interval)
                width, height = screen.size()
                head, table, foot = view.blocks(width, height)
                lines = [lay_out_line(line) for line in head]
                rows = [[("  ", Tone.PLAIN), *parts] for parts in lay_out(table, width - 3, cut=True)]
                if table.rows and not view.helping:  # below headings and a rule
                    text = "".join(text for text, _ in rows[view.cursor + 2])
                    rows[view.cursor + 2] = [(f"> {text[2:]}".ljust(width - 1), Tone.SELECTED)]
                lines += [[], *rows]
                lines += [[]] * (height - len(lines) - 1)
                screen.draw([*lines[: height - 1], lay_out_line(foot)])
                key = screen.key(due - time.monotonic())
                if words := view.action(key):
                    screen.run(commands.on_all(*words))
                elif key and not view.press(key):
                    return
                watcher.interval, watcher.clients = view.interval, view.subject == CONSUMER
        finally:
            watcher.stopped.set()
