"""Commands for several nodes and channels at once: topologies, events, choices of `stats`, and the cheat sheet."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.gnsqadmin import Terminal, gnsqadmin
from cli.nodes import address, at, create, post, publish, wait_for_depth
from conftest import DaemonFactory
from kit.daemons import Daemon, free_port
from kit.nsq_client import Client
from nsqadmin_cli.cli import cli
from nsqadmin_cli.commands.cheat import LINES


def differences(*args: str, code: int = 0) -> list[tuple[str, str | None, str, str]]:
    result = gnsqadmin("topology", *args, "--json")
    assert (result.code, result.err) == (code, "")
    found: list[dict[str, Any]] = json.loads(result.out)["differences"]
    return [(one["topic"], one["channel"], one["node"], one["difference"]) for one in found]


def export(*daemons: Daemon) -> str:
    result = gnsqadmin("topology", "export", *at(*daemons))
    assert (result.code, result.err) == (0, "")
    return result.out


def test_a_topology_is_exported_compared_and_imported(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "orders", "billing", "archive")
    create(a, "clicks#ephemeral")
    post(a, "/channel/pause?topic=orders&channel=archive")
    post(a, "/topic/create?topic=quiet")
    post(a, "/topic/pause?topic=quiet")
    create(b, "orders", "archive", "extra")
    file = tmp_path / "topology.ndjson"
    file.write_text(export(a))
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"topic": "orders", "channel": None, "paused": False},
        {"topic": "orders", "channel": "archive", "paused": True},
        {"topic": "orders", "channel": "billing", "paused": False},
        {"topic": "quiet", "channel": None, "paused": True},
    ]
    assert differences("diff", str(file), *at(a)) == []
    expected = [
        ("orders", "archive", address(b), "unpaused"),
        ("orders", "billing", address(b), "missing"),
        ("orders", "extra", address(b), "extra"),
        ("quiet", None, address(b), "missing"),
    ]
    assert differences("diff", str(file), *at(a, b), code=1) == expected
    refused = gnsqadmin("topology", "import", str(file), *at(a, b))
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith("Error: 3 changes on 1 node. Nothing was done: use --yes")
    assert differences("import", str(file), "--dry-run", *at(a, b)) == [*expected[:2], expected[3]]
    assert differences("diff", str(file), *at(a, b), code=1) == expected
    assert differences("import", str(file), "--yes", *at(a, b)) == [*expected[:2], expected[3]]
    assert differences("diff", str(file), *at(a, b), code=1) == [expected[2]]
    assert differences("import", str(file), "--yes", *at(a, b)) == []


def test_a_difference_is_only_of_nodes_that_answered(nsqd: Daemon, tmp_path: Path) -> None:
    create(nsqd, "t")
    file = tmp_path / "topology.ndjson"
    file.write_text(export(nsqd))
    down = f"--nsqd-http-address=127.0.0.1:{free_port()}"
    for words, none in (("diff", "No differences"), ("import", "Nothing to change")):
        assert gnsqadmin("topology", words, str(file), *at(nsqd)) == (0, f"{none}.\n", "")
        code, out, err = gnsqadmin("topology", words, str(file), down, *at(nsqd))
        assert (code, out, err.count("\n")) == (1, f"{none} on the nodes that answered.\n", 1)
        assert gnsqadmin("topology", words, str(file), down) == (1, "", err)


@pytest.mark.parametrize(
    "text, reason",
    [
        (b'{"topic": "t"}\nnonsense', "line 2: 'nonsense': expected a JSON object with"),
        (b"[1]", "line 1: '[1]': expected a JSON object with"),
        (b'{"topic": "a b"}', "line 1: 'a b' is not a valid name"),
        (b'{"topic": "t", "channel": 7}', "line 1: 7 is not a valid name"),
        (b'{"topic": "t", "paused": "no"}', "line 1: \"paused\" is 'no', expected true or false"),
        (b"\xff", " is not UTF-8"),
    ],
)
def test_a_wrong_topology_is_one_line_of_error_and_nothing_is_done(
    nsqd: Daemon, tmp_path: Path, text: bytes, reason: str
) -> None:
    file = tmp_path / "topology.ndjson"
    file.write_bytes(text)
    for command in ("diff", "import"):
        code, out, err = gnsqadmin("topology", command, str(file), *(["--yes"] * (command == "import")), *at(nsqd))
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert str(file) in err
        assert reason in err
    assert nsqd.stats()["topics"] == []


def events(*looks: Any) -> list[tuple[Any, ...]]:
    """What is reported of a node with these statistics, one look after the other."""
    with FakeNsqd(*looks) as nsqd:
        result = gnsqadmin("events", "--interval=0.01", f"--count={len(looks)}", "--json", nsqd.flag)
        assert (result.code, result.err) == (0, "")
        found = [json.loads(line) for line in result.out.splitlines()]
        assert all(one["node"] == nsqd.address for one in found)
        return [(one["event"], one["topic"], one["channel"], one["detail"]) for one in found]


def test_events_are_the_changes_between_two_looks() -> None:
    x, y = client("x"), client("y")
    assert events(
        node(topic("t", channel("c", x), channel("gone"))),
        node(topic("t", channel("c", x, y) | {"paused": True}), topic("u", paused=True)),
        node(topic("t", channel("c", y)), topic("u")),
    ) == [
        ("paused", "t", "c", None),
        ("vanished", "t", "gone", None),
        ("created", "u", None, "paused"),
        ("connected", "t", "c", "y (y:1)"),
        ("unpaused", "t", "c", None),
        ("unpaused", "u", None, None),
        ("disconnected", "t", "c", "x (x:1)"),
    ]


def test_a_node_that_fails_answers_again_or_restarts_is_an_event() -> None:
    found = events(node(), "garbage", node(), node(start_time=2))
    assert [(one[0], (one[3] or "")[:24]) for one in found] == [
        ("failed", "answered JSON that is no"),
        ("answers", "nsqd 1.3.0"),
        ("restarted", "nsqd 1.3.0"),
    ]


def test_events_of_a_running_node_appear_on_a_terminal(nsqd: Daemon) -> None:
    with Terminal(120, 24, "events", "--interval=0.1", *at(nsqd)) as terminal:
        terminal.wait_for("Watching 1 node.")
        with Client(nsqd.tcp_address) as consumer:
            consumer.identify(client_id="worker", hostname="h")
            consumer.subscribe("orders", "billing")
            terminal.wait_for("created       orders/billing", "connected     orders/billing", "worker (127.0.0.1:")
        terminal.wait_for("disconnected  orders/billing")
        terminal.process.send_signal(2)
        assert terminal.end() == 130


@pytest.fixture
def several(nsqd_factory: DaemonFactory) -> Iterator[list[str]]:
    """Two nodes with channels of which one is paused, one has no consumer and one is well."""
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "orders", "billing", "archive", "well")
    create(b, "orders", "well")
    post(a, "/channel/pause?topic=orders&channel=archive")
    publish(a, "orders", 3)
    for name in ("billing", "archive", "well"):
        wait_for_depth(a, "orders", name, 3)
    post(a, "/channel/empty?topic=orders&channel=archive")
    with Client(a.tcp_address) as consumer:
        consumer.subscribe("orders", "well")
        yield at(a, b)


def table(*args: str) -> list[list[str]]:
    result = gnsqadmin("stats", *args)
    assert (result.code, result.err) == (0, "")
    return [line.split() for line in result.out.splitlines()]


def test_stats_are_compact_unless_asked_for_more(several: list[str]) -> None:
    lines = table(*several)
    assert lines[3] == ["topic", "/", "channel", "node", "depth", "in", "flight", "messages", "clients"]
    assert ["billing", several[0].partition("=")[2], "3", "0", "3", "0"] in lines
    assert ["well", "2", "nodes", "3", "0", "3", "1"] in lines
    assert not any(line[:1] == [several[1].partition("=")[2]] and line[1] != "nsqd" for line in lines)
    shares = [line for line in table("--nodes", *several) if line[:1] == [several[1].partition("=")[2]]]
    assert [line[1:] for line in shares] == [shares[0][1:], ["0", "0"], ["0", "0", "0", "0"]]


def test_stats_have_the_columns_and_the_order_that_are_asked_for(several: list[str]) -> None:
    lines = table("--sort=depth", "--columns=topic,channel,depth", *several)
    assert lines[0] == ["topic", "channel", "depth"]
    assert [line[1:] for line in lines[2:]] == [["billing", "3"], ["well", "3"], ["archive", "0"]]
    assert table("--columns=topic,channel,depth", *several)[0] == ["topic", "channel", "depth"]
    assert gnsqadmin("stats", "--columns=all", *several).out.count("topic / channel") == 1  # the tree
    result = gnsqadmin("stats", "--by=channel", "--columns=depth,channel", "-o", "csv", *several)
    assert result.out.splitlines()[:2] == ["depth,channel", "0,archive"]


def test_trouble_leaves_channels_that_are_well_out(several: list[str]) -> None:
    result = gnsqadmin("stats", "--trouble", "--columns=channel", "-o", "csv", *several)
    assert result.out.splitlines() == ["channel", "archive", "billing"]
    assert table("--trouble", several[1]) == [["No", "channel", "is", "in", "trouble."]]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--columns=dept"], "'dept' is not a column of --by channel: channel, "),
        (["--sort=x"], "'x' is not a column of --by channel: channel, topic, depth, "),
        (["--sort=depth", "--by=tree"], "--sort requires another --by"),
        (["--trouble", "--by=node"], "--trouble is about channels"),
    ],
)
def test_wrong_choices_of_stats_are_wrong_usage(nsqd: Daemon, arguments: list[str], reason: str) -> None:
    create(nsqd, "t", "c")
    code, out, err = gnsqadmin("stats", *arguments, *at(nsqd))
    assert (code, out) == (2, "")
    assert reason in err


def test_the_cheat_sheet_has_commands_that_exist() -> None:
    result = gnsqadmin("cheat")
    assert (result.code, len(result.out.splitlines()), len(LINES)) == (0, 10, 10)
    for line, meaning in LINES:
        assert line in result.out
        assert meaning in result.out
        ctx = click.Context(cli)
        found: click.Command | None = cli
        arguments = shlex.split(line)[1:]
        while isinstance(found, click.Group):
            found = found.get_command(ctx, arguments.pop(0))
        assert found is not None, line
        found.make_parser(ctx).parse_args(arguments)
