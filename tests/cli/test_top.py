"""`gnsqadmin top`: what it shows and does by keys, first without a terminal, then on one."""

import signal
import termios
from typing import Any

import pytest
from msgspec.structs import replace

from cli.fake_nsqd import StatsNsqd
from cli.fake_nsqd import node as fake_node
from cli.gnsqadmin import FakeNode, Terminal, failure
from cli.nodes import DOWN, at, fill, publish
from kit.daemons import Instance
from nsqadmin_cli.api import ChannelStats, ClientCounts, NodeStats, TopicStats
from nsqadmin_cli.cluster import Answers
from nsqadmin_cli.commands.top import TopView
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import Flow, Key
from nsqadmin_cli.table import Cell, Tone

NODE = Address("a", 1)
BUSY = Flow(10, 10)


def channel(name: str, depth: int = 0, clients: int = 1, *, paused: bool = False) -> ChannelStats:
    return ChannelStats(name, depth, 0, 0, 0, 0, 0, 0, clients, paused)


def node(*channels: ChannelStats) -> NodeStats:
    return NodeStats("1.3.0", "OK", 1, (TopicStats("t", 0, 0, 0, 0, False, channels=channels),))


def view(answers: Answers[NodeStats], flows: dict[Key, Flow] | None = None, looks: int = 1, **how: Any) -> TopView:
    top = TopView(interval=1, **how)
    for _ in range(looks):
        top.update(answers, {NODE: flows or {}})
    return top


def texts(top: TopView, width: int = 160, height: int = 40) -> list[str]:
    """Returns the lines of its head, and the line of its foot."""
    lines, _, last = top.blocks(width, height)
    return ["".join(text for text, _ in line.parts) for line in (*lines, last)]


def press(top: TopView, *keys: str) -> None:
    """Presses keys of which none leaves."""
    assert [key for key in keys if not top.press(key)] == []


def column(top: TopView, key: str, height: int = 40) -> list[Any]:
    """Returns the values of a column as it is shown."""
    _, table, _ = top.blocks(160, height)
    index = [one.key for one in table.columns].index(key)
    values = [row[index] for row in table.rows]
    return [value.value if isinstance(value, Cell) else value for value in values]


def test_it_sorts_by_keys_and_turns_round() -> None:
    flows = {("t", "a"): Flow(1, 9), ("t", "b"): Flow(5, 5), ("t", "c"): Flow(9, 1)}
    top = view({NODE: node(channel("a", 5), channel("b", 7, 2), channel("c", 6))}, flows)
    orders = {"d": "bca", "i": "cba", "o": "abc", "c": "bac", "n": "abc", "e": "bca"}
    for key, expected in orders.items():
        press(top, key)
        assert "".join(column(top, "channel")) == expected, key
    press(top, "d", "R")
    assert "".join(column(top, "channel")) == "acb"
    assert "reversed" in texts(top)[-1]


def test_it_filters_by_what_is_typed_holds_and_helps() -> None:
    top = view({NODE: node(channel("billing"), channel("archive"))})
    for keys, foot, names in (
        (["/", "B", "q", "backspace", "i"], "only names with: Bi", ["billing"]),
        (["enter"], "with 'Bi'", ["billing"]),
        (["d"], "with 'Bi'", ["billing"]),  # a command again, and no letter
        (["escape"], "", ["archive", "billing"]),
        (["/", "x", "escape"], "", ["archive", "billing"]),
    ):
        press(top, *keys)
        assert foot in texts(top)[-1], keys
        assert column(top, "channel") == names, keys
    press(top, " ")
    assert top.held
    assert "held" in texts(top)[-1]
    press(top, " ", "?")
    assert not top.held
    keys = " ".join(column(top, "key")).split()
    assert all(key in keys for key in "dioefrtcxnR/q+-")
    press(top, "q")  # any key leaves the help
    assert column(top, "channel") == ["archive", "billing"]
    assert not top.press("q")  # which leaves


def test_the_cursor_moves_within_what_there_is_and_the_rows_with_it() -> None:
    top = view({NODE: node(*(channel(f"c{number:03d}") for number in range(100)))}, order="name")
    assert column(top, "channel", 15) == [f"c{number:03d}" for number in range(10)]
    for key, first, current in (
        ("down", "c000", "c001"),
        ("page down", "c002", "c011"),
        ("up", "c002", "c010"),
        ("page up", "c000", "c000"),
        ("end", "c090", "c099"),
        ("down", "c090", "c099"),
        ("home", "c000", "c000"),
        ("up", "c000", "c000"),
    ):
        press(top, key)
        names = column(top, "channel", 15)
        assert (names[0], names[top.cursor]) == (first, current), key
    assert "1-10" in texts(top, height=15)[-1]


def test_the_cursor_stays_with_its_row_once_it_was_moved() -> None:
    top = view({})
    for depths, keys, current in (
        ({"a": 3, "b": 2, "c": 1}, [], "a"),
        ({"a": 3, "b": 2, "c": 4}, [], "c"),  # the first row, for it was not moved yet
        ({"a": 3, "b": 2, "c": 4}, ["down"], "a"),
        ({"a": 9, "b": 2, "c": 4}, [], "a"),
        ({"b": 2}, [], "b"),
    ):
        top.update({NODE: node(*(channel(name, depth) for name, depth in depths.items()))}, {})
        press(top, *keys)
        assert column(top, "channel")[top.cursor] == current
    top.update({NODE: node()}, {})
    assert (column(top, "channel"), top.action("D")) == ([], ())


def test_enter_shows_what_is_inside_and_escape_returns() -> None:
    x = ClientCounts("x", "h", "x:1", "V2", "", 3, 1, 0, 0, 0, 0, 1, 0, False, False)
    clients = (x, replace(x, client_id="y", remote_address="y:1"))
    one, other = replace(channel("a", 5), clients=clients), replace(channel("b"), clients=clients[:1])
    top = view({NODE: node(one, other)})
    column(top, "channel")
    press(top, "enter")
    assert column(top, "client") == ["x", "y"]
    assert texts(top)[-1].startswith("2 consumers of t/a")
    press(top, "escape")
    assert column(top, "channel") == ["a", "b"]
    top.update({NODE: node(channel("a", 5))}, {})  # without consumers, as before the next answer
    column(top, "channel")
    press(top, "enter")
    assert top.blocks(160, 40)[1].empty == "asking"
    topics = [TopicStats(name, 0, 0, 0, 0, False, channels=(channel(f"of_{name}"),)) for name in ("t", "u")]
    top = view({NODE: replace(node(), topics=tuple(topics))}, subject="topic", order="name")
    assert column(top, "topic") == ["t", "u"]
    press(top, "down")
    assert column(top, "topic") == ["t", "u"]
    press(top, "enter")
    assert texts(top)[-1].startswith("1 channel by name of u")
    assert column(top, "channel") == ["of_u"]
    press(top, "escape")
    assert column(top, "topic") == ["t", "u"]


def test_keys_act_on_the_row_at_the_cursor() -> None:
    top = view({NODE: node(channel("a", 3), channel("b", 2, paused=True))})
    assert top.action("p") == ()  # nothing was displayed yet
    column(top, "channel")
    words = ("channel pause", "channel empty", "channel delete", "peek")
    assert [top.action(key) for key in "pEDPT"] == [*((each, "t", "a") for each in words), ("tail", "t")]
    top.press("down")
    column(top, "channel")
    assert top.action("p") == ("channel unpause", "t", "b")
    for key in ("/", "?"):
        top.press(key)
        assert top.action("D") == ()
        top.press("escape")
    top.press("tab")
    column(top, "topic")
    assert [top.action(key) for key in "pE"] == [("topic pause", "t"), ("topic empty", "t")]
    top.press("tab")
    assert column(top, "node") == ["a:1"]
    assert top.action("p") == ()
    top.press("tab")
    assert column(top, "channel") == ["a", "b"]


def test_nodes_have_rates_and_a_status() -> None:
    other, down = Address("b", 1), Address("c", 1)
    top = TopView(subject="node", interval=1)
    flows = {("t", ""): Flow(10, 9), ("t", "c"): Flow(9, 8), ("t", "d"): Flow(9, 1)}
    answers: Answers[NodeStats] = {NODE: node(), other: node(), down: NodeError("nsqd", down, "refused")}
    top.update(answers, {NODE: flows, other: {("t", ""): Flow(1, 0)}})
    assert column(top, "ingress_rate")[:2] == [10, 1]
    assert column(top, "egress_rate")[:2] == [9, 0]
    assert column(top, "node") == ["a:1", "b:1", "c:1"]
    assert column(top, "status") == ["healthy", "healthy", "failed: refused"]
    assert "in 11/s  out 9.0/s" in texts(top)[0]


TROUBLE: list[tuple[ChannelStats, Flow, int, str, Tone]] = [
    (channel("c", 5, 0), Flow(), 1, "no clients", Tone.BAD),
    (channel("c", 0, 0), Flow(), 9, "", Tone.PLAIN),
    (channel("c", 5), Flow(), 4, "", Tone.PLAIN),
    (channel("c", 5), Flow(), 5, "stuck", Tone.BAD),
    (channel("c", 5), BUSY, 9, "", Tone.PLAIN),
    (channel("c", 5, 0, paused=True), Flow(), 9, "paused", Tone.NOTE),
    (channel("c", 15), Flow(20, 10), 2, "growing", Tone.NOTE),
    (channel("c", 1), Flow(20, 10), 2, "", Tone.PLAIN),
    (channel("c", 5), BUSY._replace(timeouts=1), 2, "timeouts", Tone.NOTE),
    (channel("c", 5), BUSY._replace(requeues=11), 2, "requeues", Tone.NOTE),
    (channel("c", 5), BUSY._replace(requeues=9), 2, "", Tone.PLAIN),
]


def test_trouble_is_named_and_the_time_to_drain() -> None:
    for one, flow, looks, text, tone in TROUBLE:
        _, table, _ = view({NODE: node(one)}, {("t", "c"): flow}, looks).blocks(160, 40)
        assert [row[-1] for row in table.rows] == [Cell(text, tone)], (one, flow, looks)
    top = view({NODE: node(channel("c", 5, 1)), Address("b", 1): node(channel("c", 5, 0))}, {("t", "c"): BUSY})
    assert column(top, "trouble") == ["no clients/1"]  # though other nodes have some
    for depth, flow, drain in (
        (0, Flow(), ""),
        (100, Flow(10, 30), "5s"),
        (100, BUSY, "never"),
        (5, Flow(0, 90), "<1s"),
    ):
        assert column(view({NODE: node(channel("c", depth))}, {("t", "c"): flow}), "drain") == [drain]


def test_a_slow_consumer_with_few_queued_messages_is_not_never() -> None:
    slow = node(replace(channel("c", 1), in_flight_count=1), replace(channel("d", 2), in_flight_count=1))
    for flows in ([Flow()], [Flow(3)], [Flow(3), Flow()], [Flow(3), *[Flow()] * 3, Flow(0, 1)]):
        top = TopView(interval=1)
        for flow in flows + [Flow()] * 60:
            top.update({NODE: slow}, {NODE: {("t", "c"): flow, ("t", "d"): flow}})
            assert "never" not in column(top, "drain")
        assert column(top, "drain") == ["", ""]


def trend(*depths: int, flow: Flow | None = None) -> str:
    """Returns the trend of a channel with these depths, one look after the other."""
    top = TopView(interval=1)
    for depth in depths:
        top.update({NODE: node(channel("c", depth))}, {NODE: {("t", "c"): flow}} if flow else {})
    (shown,) = column(top, "trend")
    return str(shown).strip()


def test_trends_show_the_depths_of_the_last_looks() -> None:
    assert trend(0, 100, 200, 400, 800) == "▁▂▃▅█"
    assert trend(0, 9, 0, 3) == "▁▁▁▁"  # it keeps up
    assert trend(0, 450, 0, 150, flow=Flow(900, 900)) == "▁▁▁▁"
    top = view({NODE: node(replace(channel("c"), in_flight_count=7, deferred_count=8))}, {("t", "c"): BUSY}, 3)
    assert [column(top, key) for key in ("trend", "drain", "trouble")] == [["▁▁▁".rjust(16)], [""], [""]]
    for stats in (node(), node(channel("c", 1))):
        top.update({NODE: stats}, {})
    assert column(top, "trend") == ["▁".rjust(16)]  # what was deleted is forgotten


def test_head_and_foot_have_whole_items_only_and_not_all_trouble() -> None:
    ill: Answers[NodeStats] = {NODE: replace(node(channel("c")), health="NOK - disk")}
    assert "nsqd at a:1: NOK - disk" in str(texts(view(ill)))
    down = {Address(f"n{number}", 1): NodeError("nsqd", Address(f"n{number}", 1), "down") for number in range(9)}
    lines = texts(view({**ill, **down}))
    assert "1 of 10 nodes" in str(lines)
    assert "and 7 more" in str(lines)
    assert len(lines) == 6
    hanging = NodeError("nsqd", Address("b", 1), "no complete answer within 5 s")
    top = view({NODE: node(channel("c", 7)), hanging.address: hanging})
    whole = texts(top)
    for width in (40, 60, 80, 86, 100, 120, 160):
        shown = texts(top, width)
        for text, full in zip(shown, whole, strict=True):
            assert len(text) < width
            assert full == text or f"{full}  "[len(text.removesuffix(" …"))] == " "
            assert text.split()[-1] in full.split() or text.endswith("…")
        assert (shown[0] == whole[0], shown[2] == whole[2]) == (width >= 100, width >= 160)


def test_top_shows_running_nodes_and_keys_run_commands_with_their_confirmations(nsqd: Instance) -> None:
    assert failure("top") == "a full screen requires a terminal; elsewhere use gnsqadmin stats --watch"
    fill(nsqd, "orders", "billing", "archive", count=1234)
    flags = at(nsqd, DOWN)
    with Terminal(120, 24, "top", "--interval=0.25", "--sort=name", *flags) as terminal:
        terminal.wait_for("1,234", "no clients", "1 of 2 nodes", f"{DOWN}: connection refused", "archive", "billing")
        publish(nsqd, "orders", 766)
        terminal.wait_for("2,000", "2 channels by name")
        terminal.type("\x1b[B")
        terminal.wait_for("> billing")
        terminal.type("p")
        terminal.wait_for(f"$ gnsqadmin channel pause orders billing {' '.join(flags)}", "paused", "Enter returns")
        assert nsqd.channel_stats("orders", "billing")["paused"]
        assert not nsqd.channel_stats("orders", "archive")["paused"]
        terminal.type("\r")
        terminal.wait_for("> billing", "paused", "q quit")
        terminal.type("E")
        terminal.wait_for("Emptying the channel billing in the topic orders on 1 node loses 2,000 messages", "[y/N]")
        terminal.type("n\r")
        terminal.wait_for("not confirmed, nothing was done", "Enter returns")
        terminal.type("\r")
        terminal.wait_for("> billing", "q quit")
        terminal.type("/bill")
        terminal.wait_for("only names with: bill")
        terminal.type("\r")
        assert "archive" not in terminal.wait_for("1 channel by name · with 'bill'")
        terminal.type("\t\t")
        terminal.wait_for("2 nodes", "failed: connection refused")
        terminal.resize(60, 10)
        terminal.type("?")
        terminal.wait_for("any key returns")
        terminal.type("x")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.printed.endswith("\x1b[?1049l")
        assert termios.tcgetattr(terminal.slave) == terminal.settings
    assert nsqd.channel_stats("orders", "billing")["depth"] == 2000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was_and_a_node_that_hangs_delays_no_other(number: signal.Signals) -> None:
    fine, top = StatsNsqd(fake_node()), ("top", "--show=node", "--timeout=60")
    with FakeNode(hangs=True) as silent, Terminal(120, 24, *top, *at(silent, fine)) as terminal:
        terminal.wait_for("1 of 2 nodes", "healthy", "failed: no answer for")
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
        assert "\x1b[?1049l" in terminal.printed
        assert "Traceback" not in terminal.printed
        assert termios.tcgetattr(terminal.slave) == terminal.settings
