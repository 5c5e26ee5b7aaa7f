"""The rules for all commands: wrong usage, unknown names, confirmation, and daemons that lack the command."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import RunResult, Terminal, document, gnsqadmin, misuse
from cli.nodes import address, at, fill, publish
from kit.daemons import Instance, own_command
from kit.http_api import ask
from kit.traffic import DaemonFactory, create, post, wait_for

ID = "0000000000000000"

MISUSE = {
    "xyz": "No such command 'xyz'.",
    "stat": "No such command 'stat'; did you mean stats?",
    "channel delet t c": "No such command 'delet'; did you mean delete?",
    "context save": "No such command 'save'; there are list, set, use, remove.",
    "'\x1b[31m'": r"No such command '\\x1b[31m'.",
    "stats --nonsense": "No such option",
    "stats extra": "Got unexpected extra argument",
    "stats --count=2": "--count requires --watch.",
    "stats --sort=depth --by=tree": "--sort requires another --by",
    "stats --trouble --by=node": "--trouble is about channels",
    "counter --count=2": "--count requires --watch.",
    "lookup": "--lookupd-http-address",
    "doctor --data-path=/nonexistent/path": "does not exist",
    "topic create t --lookupd-only": "--lookupd-only requires an nsqlookupd: give it by --lookupd-http-address.",
    "topic tombstone t x:1": "tombstones are kept by nsqlookupd: give it by --lookupd-http-address.",
    "channel delete t 'c\x1b[2J' --yes": r"'c\x1b[2J' is not a valid channel name: expected 1 to 64 of",
    "channel pause t": "give TOPIC and CHANNEL, or TOPIC/CHANNEL.",
    "channel pause t/c c": "give TOPIC and CHANNEL, or TOPIC/CHANNEL.",
    "channel pause 't/c d'": "'c d' is not a valid channel name",
    "channel pause 'a b*' c": "'a b*' is not a valid topic name",
    "channel deferred t c --cancel='x\n' -y": r"--cancel: 'x\n' is not the id of a message.",
    "channel deferred t c --limit=1001": "1001 is not in the range 1<=x<=1000",
    "channel rules t c --rate=fast": "'fast' is not a valid float",
    "config set log_level": "Missing argument 'VALUE...'.",
    "config set log_level info warn": "log_level takes one value.",
    "config set nsqlookupd_tcp_addresses a:1 b": "'b' is not a host:port of an nsqlookupd.",
    "config set nsqlookupd_tcp_addresses unix:/x": "'unix:/x' is not a host:port of an nsqlookupd.",
    "config set ../stats 1": "Invalid value for 'OPTION': '../stats' is not a valid option name.",
    "config set '\x1b[2J' 1": r"Invalid value for 'OPTION': '\x1b[2J' is not a valid option name.",
    "pub t ''": "A message cannot be empty.",
    "pub t x --file y": "Give messages or a file, not both.",
    "pub t --repeat 3": "--repeat requires a MESSAGE.",
    "pub t --delimiter ab": "is not a single byte",
    "pub t:x x": "is not a valid topic name",
    "pub t x --rate 0": "0 is not in the range",
    "pub t x --defer soon": "is not a duration",
    "tail": "Missing argument 'TOPIC...'",
    "tail t --grep '('": "is not a regular expression",
    "tail t --where x": "expected KEY=VALUE",
    "tail t --sample 100": "100 is not in the range",
    "tail t -n 0": "0 is not in the range",
    "tail t --from first --sample 5": "--sample needs a channel, which --from does not have.",
    "save t - --from first --channel c": "--from reads without a channel: leave out --channel and --create.",
    "save t - --to next": "--to requires --from, without --follow.",
    "save t - --from-store file:///x": "--from-store requires --from, without --follow.",
    "save t - --from x --from-store file:///x": "--from: 'x' is not a number, a time ago (-15m), a time with its zone",
    "data restore file:///x /tmp/x --until soon": "'soon' is not a time ago (-15m), or a time with its zone",
    "copy t u --from first --to next --follow": "--to requires --from, without --follow.",
    "copy t --nsqd-http-address=a:1 --to-nsqd-http-address=a:1": "source and destination are the same",
    "replay-dead t": "t is not a dead-letter topic, which ends in .dead: also give the CHANNEL.",
    "web --grafana-url=grafana:3000": "'grafana:3000' is not an address, expected http://",
    **{f"web --base-path={path!r}": "is not a path such as /nsq"
       for path in ("nsq", "/a b", "/a?b", "//a", "/../a", "/ä", '/"')},
    **{f"topic show {name!r}": "is not a valid topic name"
       for name in ("", "a b", "x" * 65, "t$", "#ephemeral", "t#ephemera", "é")},
    **{f"stats --timeout={seconds!r}": "Invalid value for '--timeout'"
       for seconds in ("0", "-1", "nan", "inf", "3601", "soon", "")},
    **{f"context set {name!r} --timeout=1": "a context name has 1 to 64 of" for name in ("a b", "", "x" * 65, "é")},
    **{f"data {command} /nonexistent/path": "does not exist"
       for command in ("ls", "verify", "convert", "repair", "recover-bad")},
}  # fmt: skip


@pytest.mark.parametrize("words", MISUSE)
def test_wrong_usage_is_explained(words: str) -> None:
    found = misuse(*shlex.split(words))
    assert MISUSE[words] in found
    assert "\n" not in found
    assert "\x1b" not in found


def test_wrong_usage_ends_with_2_and_a_hint() -> None:
    code, out, err = gnsqadmin("channel", "delet", "t")
    assert (code, out) == (2, "")
    usage, *_, error = err.splitlines()
    assert usage.startswith("Usage: gnsqadmin channel")
    assert error == "Error: No such command 'delet'; did you mean delete?"


# Nodes have the topic orders with the channels billing and archive.
NOWHERE = {
    "stats --topic=oders": "the topic oders; did you mean orders?",
    "stats --topic=oders --json": "the topic oders; did you mean orders?",
    "stats --topic=quite": "the topic quite",
    "stats --topic=\udcff&topic=orders": r"the topic \udcff&topic=orders; did you mean orders?",
    "stats --topic=oders --watch=1": "the topic oders; did you mean orders?",
    "stats --topic=orders --channel=biling": "the channel biling in the topic orders; did you mean billing?",
    "stats --channel=biling": "the channel biling; did you mean billing?",
    "tree --channel=bill": "the channel bill; did you mean billing?",
    "counter --topic=oders": "the topic oders; did you mean orders?",
    "doctor --topic=oders --interval=0.1": "the topic oders; did you mean orders?",
    "doctor --topic=orders --channel=x --interval=0.1": "the channel x in the topic orders",
    "topic show oders": "the topic oders; did you mean orders?",
    "topic pause oders": "the topic oders; did you mean orders?",
    "topic unpause u": "the topic u",
    "topic empty u -y": "the topic u",
    "topic delete u -y": "the topic u",
    "topic pause x* -y": "a topic that matches x*",
    "channel create oders c": "the topic oders; did you mean orders?",
    "channel show orders biling": "the channel biling in the topic orders; did you mean billing?",
    "channel pause orders c": "the channel c in the topic orders",
    "channel unpause orders c": "the channel c in the topic orders",
    "channel empty orders c -y": "the channel c in the topic orders",
    "channel delete oders billing": "the channel billing in the topic oders; did you mean orders?",
    "channel pause orders/x* -y": "a channel that matches orders/x*",
    "tail oders": "the topic oders; did you mean orders?",
    "save oders -": "the topic oders; did you mean orders?",
    "save orders - --channel=biling": "the channel biling of orders; --create creates it; did you mean billing?",
    "config get log_level max_mesage_size": "the option max_mesage_size; did you mean max_msg_size?",
    "config set log_levle info": "the option log_levle; did you mean log_level?",
}
NOWHERE_OF_OURS = {
    "peek orders c": "the channel c in the topic orders",
    "peek u": "the topic u",
    "replay-dead t c": "the topic t.c.dead",
    "replay-dead t c --dry-run": "the topic t.c.dead",
    "replay-dead t#ephemeral c": "the topic t.c.dead#ephemeral",
    "channel deferred orders x": "the channel x in the topic orders",
    "channel deferred u c": "the channel c in the topic u",
    f"channel deferred orders x --cancel={ID} -y": "the channel x in the topic orders",
    "channel rewind orders x --to=first -y": "the channel x in the topic orders",
    "channel rewind u c --to=first -y": "the channel c in the topic u",
    "channel rules orders x": "the channel x in the topic orders",
    "channel rules u c": "the channel c in the topic u",
}


def test_what_no_node_has_is_not_found_and_the_nearest_name_suggested(
    nsqd: Instance, daemon_command: list[str]
) -> None:
    create(nsqd, "orders", "billing", "archive")
    table = NOWHERE | (NOWHERE_OF_OURS if daemon_command == own_command() else {})
    found = {words: gnsqadmin(*words.split(), *at(nsqd)) for words in table}
    assert found == {words: RunResult(4, "", f"Error: no node has {what}\n") for words, what in table.items()}
    assert [topic["topic_name"] for topic in nsqd.stats()["topics"]] == ["orders"]


@pytest.mark.parametrize("words", ["topic range u", "tail u --from=first", "save u - --from=first"])
def test_log_that_is_nowhere_is_not_found_where_there_are_logs(gnsqd_factory: DaemonFactory, words: str) -> None:
    with_logs, without = gnsqd_factory("--durability=process"), gnsqd_factory()
    assert gnsqadmin(*words.split(), *at(with_logs, without)) == RunResult(4, "", "Error: no node has the topic u\n")
    create(without, "u")
    reason = "has no log of the topic: that needs --durability, and a topic that is not ephemeral"
    result = gnsqadmin(*words.split(), *at(without))
    assert (result.code, result.err) == (1, f"Error: nsqd at {address(without)}: {reason}\n")


REFUSED = {
    f"channel deferred t c --cancel={ID} -y": (4, f"no node has the deferred message {ID}"),
    f"channel deferred t c --cancel={ID} -n": (4, f"no node has the deferred message {ID}"),
    f"channel rewind t c --to={ID} -y": (4, f"no node has the message {ID}"),
    "channel rules t c --rate=-1 -y": (2, "--rate: -1.0 is not valid"),
    "channel rules t c --burst=5 -y": (2, "--burst: 5 is not valid"),
    "channel deferred t c --from=soon": (2, "--from: 'soon' is not a time with its zone (2026-12-01T00:00:00Z) or"),
    "channel deferred t c --from=2026-12-01": (2, "--from: '2026-12-01' is not a time with its zone"),
    "channel rewind t c --to=soon": (2, "--to: 'soon' is not a time ago (-15m)"),
    "channel rewind t c --to=first --until=5": (2, "--until: '5' is not a time ago (-15m)"),
    "channel rewind t c --to=-1d --until=-2d": (2, "--until: -2d is before --to."),
    f"topic range t --at={ID}": (4, f"no node has the message {ID}"),
    "topic range t --channel=x": (4, "no node has the channel x in the topic t"),
    "topic range t --at=soon": (2, "--at: 'soon' is not a number, a time ago (-15m), a time with its zone"),
    "tail t --from=soon": (2, "--from: 'soon' is not a number"),
    "tail t --from=6": (1, "its log of t ends at 5, before --from 6"),
    "save t - --from=first --to=soon": (2, "--to: 'soon' is not a number"),
    "tail t --from=": (2, "--from: '' is not a number"),
    "save t - --from=3 --to=": (2, "--to: '' is not a number"),
    "topic range t --at=": (2, "--at: '' is not a number"),
    "save t - --from=3 --to=2": (2, "--to: 2 is before --from."),
    "stats --columns=dept": (2, "'dept' is not a column of --by channel: channel, "),
    "stats --sort=x": (2, "'x' is not a column of --by channel: channel, topic, depth, "),
}
KEEPING = ("--durability=process", "--retention-bytes=1000000", "--max-defer-time=8760h", "--drain-timeout=90s")


@pytest.fixture
def filled(gnsqd_factory: DaemonFactory) -> Instance:
    """Starts a node that keeps finished messages: three are in t:c and one is deferred, t:done has finished four."""
    node = gnsqd_factory(*KEEPING)
    fill(node, "t", "c", "done", count=3)
    post(node, "/pub?topic=t&defer=3600000", b"later")
    wait_for(node, "t", "done", deferred_count=1)
    post(node, "/channel/empty?topic=t&channel=done")
    create(node, "alone")
    publish(node, "alone", 2)
    return node


def state(node: Instance) -> list[Any]:
    """Returns all that commands could have changed."""
    paths = ["/channel/rules?topic=t&channel=c", "/drain", "/config/log_level"]
    return [node.stats()["topics"], *(ask(node, f"GET {path}") for path in paths)]


def test_what_nodes_do_not_take_changes_nothing(filled: Instance) -> None:
    before = state(filled)
    for words, (code, reason) in REFUSED.items():
        result = gnsqadmin(*words.split(), *at(filled))
        assert result.code == code, (words, result)
        assert result.out == "", (words, result)
        assert reason in result.err, (words, result)
    assert state(filled) == before


CONFIRMED = {
    "topic delete t": "Deleting the topic t on 1 node loses 4 messages",
    "topic empty t --with-channels": "Emptying the topic t on 1 node loses 4 messages",
    "channel empty t c": "Emptying the channel c in the topic t on 1 node loses 4 messages",
    "channel delete t c": "Deleting the channel c in the topic t on 1 node loses 4 messages",
    "channel pause t/*": "Pausing 2 channels",
    "channel deferred t c --cancel {0}": "The message {0} will not be delivered to the channel c in the topic t",
    "channel rewind t done --to first": "4 messages will be delivered again to the channel done in the topic t",
    "channel rules t c --rate=10 --ordered": "The channel c in the topic t gets rate 10.0, ordered true",
    "drain start": "Draining 1 node makes it refuse publishers, and exit when empty, after 1m 30s at the latest",
    "topology import {1}": "1 change on 1 node",
}
HINT = "Nothing was done: use --yes to do it, or --dry-run to see more"


def test_nothing_is_done_without_a_terminal_and_yes_and_a_dry_run_shows_it(filled: Instance, tmp_path: Path) -> None:
    (tmp_path / "topology").write_text('{"topic": "t", "channel": "new"}\n')
    (deferred,) = document("channel", "deferred", "t", "c", *at(filled))["messages"]
    before = state(filled)
    for row, warning in CONFIRMED.items():
        words = row.format(deferred["id"], tmp_path / "topology").split()
        refused = gnsqadmin(*words, *at(filled), stdin="y\n")
        assert refused == (5, "", f"Error: {warning.format(deferred['id'])}. {HINT}\n")
        plan = gnsqadmin(*words, "--dry-run", *at(filled))
        assert (plan.code, plan.err) == (0, ""), row
        planned = document(*words, "-n", "--yes", *at(filled))
        if words[0] in ("topic", "channel"):
            assert (plan.out[-18:], planned["dry_run"]) == ("Nothing was done.\n", True), row
    lost = "2 messages in alone would be lost with the temporary channel of this command: there is no other"
    tail = gnsqadmin("tail", "alone", *at(filled), stdin="y\n")
    assert tail == (5, "", f"Error: {lost}. Nothing was done: use --yes to do it\n")
    assert state(filled) == before


@pytest.mark.parametrize(
    "keys, last, code",
    [
        *((keys, "Error: not confirmed, nothing was done", 5) for keys in ("n\r", "\r", "yess\r", "\x04")),
        ("\x03", "", 130),
        ("y\r", "3           0          0   emptied", 0),
    ],
)
def test_all_but_a_clear_yes_on_a_terminal_is_no(gnsqd: Instance, keys: str, last: str, code: int) -> None:
    fill(gnsqd, "t", "c", count=3)
    with Terminal(120, 40, "channel", "empty", "t", "c", *at(gnsqd)) as terminal:
        question = terminal.wait_for("Empty it? [y/N]")
        assert f"{address(gnsqd)}       3           0          0   to be emptied" in question
        assert "Emptying the channel c in the topic t on 1 node loses 3 messages." in question
        terminal.type(keys)
        terminal.wait_for(last)
        assert terminal.end() == code
        assert "Traceback" not in terminal.printed
    assert gnsqd.channel_stats("t", "c")["depth"] == (3 if code else 0)


OTHER = "it is not gnsqd, or an older one"
OURS = {
    "topic range t": f"cannot read ranges: {OTHER}",
    "tail t --from=first": f"cannot read ranges: {OTHER}",
    "save t - --from=first": f"cannot read ranges: {OTHER}",
    "channel deferred t c": f"cannot list deferred messages: {OTHER}",
    "channel rewind t c --to=first -y": f"cannot rewind channels: {OTHER}",
    "channel rules t c --rate=5 -y": "has no delivery rules: it is not gnsqd, or older",
    "peek t c": "only gnsqd supports peek; for messages that nsqd has on disk, use gnsqadmin peek --data-path",
    "drain status": "cannot drain: only gnsqd can",
    "drain start -y": "cannot drain: only gnsqd can",
    "drain start -n": "cannot drain: only gnsqd can",
}


@pytest.mark.peer
def test_commands_that_the_real_nsqd_lacks_say_so(peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    with Instance([str(peer_binary("nsqd"))], tmp_path / "nsqd") as nsqd:
        create(nsqd, "t", "c")
        for words, reason in OURS.items():
            result = gnsqadmin(*words.split(), *at(nsqd))
            assert (result.code, result.err.splitlines()[0]) == (1, f"Error: nsqd at {address(nsqd)}: {reason}")


@pytest.mark.peer
def test_a_node_that_lacks_a_command_is_passed_over_beside_one_that_has_it(
    gnsqd: Instance, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    create(gnsqd, "t", "c")
    with Instance([str(peer_binary("nsqd"))], tmp_path / "nsqd") as nsqd:
        create(nsqd, "other")  # and not t, so that it is not asked about it
        for words in ("channel rules t c --rate=5 -y", "channel deferred t c", "peek t c", "drain start -n"):
            beside = gnsqadmin(*words.split(), *at(gnsqd, nsqd))
            assert (beside.code, beside.err) == (0, ""), words
            assert ("nsqd cannot drain" in beside.out) is words.startswith("drain")
        create(nsqd, "t", "c")
        result = gnsqadmin("channel", "rules", "t", "c", "--rate=6", "-y", *at(gnsqd, nsqd))
        assert (result.code, result.err) == (0, "")
        assert re.search(rf"(?m)^{address(gnsqd)} .* changed$", result.out)
        assert re.search(rf"(?m)^{address(nsqd)} .* nsqd has no delivery rules: it is not gnsqd", result.out)
