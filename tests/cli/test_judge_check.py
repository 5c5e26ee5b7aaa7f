"""`check`: limits, exit codes, and the line that monitoring systems read."""

import json
import re
from typing import Any

import pytest

from cli.fake_nsqd import FakeLookupd, FakeNsqd, channel, client, node, producer, topic
from cli.gnsqadmin import FakeNode, gnsqadmin, misuse, ok, on_terminal
from cli.nodes import DOWN, Cluster, address, at, at_lookupd, fill, publish
from kit.daemons import Daemon, eventually
from kit.exposition import series
from kit.nsq_client import Client
from kit.traffic import DaemonFactory, create, post, wait_for
from nsqadmin_cli.command_base import Parsed
from nsqadmin_cli.commands.check import METRICS

OK, WARNING, CRITICAL, UNKNOWN = range(4)


def checked(*args: str) -> tuple[int, str, list[str]]:
    """Exit code, first line without performance data, and the lines below it."""
    code, out, err = gnsqadmin("check", *args)
    assert err == ""
    first, *rest = out.splitlines()
    text, bar, performance = first.partition(" | ")
    assert bar
    assert all(re.fullmatch(r"[a-z_]+=(U|[0-9.]+s?);[0-9:.]*;[0-9:.]*;0", part) for part in performance.split())
    return code, text, rest


def judged(*args: str) -> dict[str, Any]:
    code, out, err = gnsqadmin("check", "--json", *args)
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    assert code == ("OK", "WARNING", "CRITICAL", "UNKNOWN").index(found["status"])
    return found


def test_well_nodes_without_limits_are_ok(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    fill(a, "t", "c", count=7)
    assert checked(*at(a, b)) == (OK, "NSQ OK - 2 nodes, 1 topic, 1 channel, depth 7", [])
    out = ok("check", *at(a, b))
    assert " | depth=7;;;0 topic_depth=0;;;0 channel_depth=7;;;0 " in out
    assert " nodes=2;;;0\n" in out
    metrics = judged(*at(a, b))["metrics"]
    expected = {"depth": 7, "clients": 0, "nodes": 2, "requeue_rate": None, "drain_time": None}
    assert {name: metrics[name] for name in expected} == expected


@pytest.mark.parametrize(
    "option, value, limits, status",
    [
        ("--channel-depth", 10, "10", "OK"),
        ("--channel-depth", 10, "9", "CRITICAL"),
        ("--channel-depth", 10, "9,", "WARNING"),
        ("--channel-depth", 10, "5,10", "WARNING"),
        ("--channel-depth", 10, "5,9", "CRITICAL"),
        ("--channel-depth", 0, "0", "OK"),
        ("--clients-min", 1, "1", "OK"),
        ("--clients-min", 0, "1", "CRITICAL"),
        ("--clients-min", 1, "2,1", "WARNING"),
        ("--nodes-min", 0, "2,1", "CRITICAL"),
        ("--drain-time", 61, "1m", "CRITICAL"),
        ("--requeue-rate", 0.6, "0.5,2", "WARNING"),
    ],
)
def test_what_is_beyond_a_limit_counts_and_what_is_at_it_does_not(
    option: str, value: float, limits: str, status: str
) -> None:
    [metric] = [metric for metric in METRICS if metric.option == option]
    parsed = Parsed("limits", metric.parse).convert(limits, None, None)
    beyond = {"CRITICAL": metric.beyond(value, parsed.critical), "WARNING": metric.beyond(value, parsed.warning)}
    assert next((name for name, true in beyond.items() if true), "OK") == status


def test_counts_are_summed_over_nodes_and_the_worst_stands_first(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon, count in ((a, 30), (b, 20)):
        fill(daemon, "t", "c", "d", count=count)
    publish(b, "waits", 4)
    with Client(a.tcp_address) as consumer:
        consumer.subscribe("t", "d", rdy=9)
        wait_for(a, "t", "d", in_flight_count=9)
        found = checked("--channel-depth=45,49", "--topic-depth=3,", "--clients-min=1", *at(a, b))
    assert found == (
        CRITICAL,
        "NSQ CRITICAL - channel t/c: depth 50 is more than 49, and 2 more problems",
        [
            "CRITICAL channel t/c: depth 50 is more than 49",
            "CRITICAL channel t/c: clients 0 is less than 1",
            "WARNING topic waits: depth 4 is more than 3",
        ],
    )


@pytest.mark.peer
def test_a_node_that_went_away_is_critical_while_nsqlookupd_lists_it(cluster: Cluster) -> None:
    assert checked(cluster.flag, "--nodes-min=2")[0] == OK
    gone = cluster.nodes[1]
    gone.kill()
    eventually(lambda: len(cluster.lookupd.ask("GET", "/nodes")[1]["producers"]) == 1, "nsqlookupd forgets it")
    assert checked(cluster.flag, "--nodes-min=2") == (CRITICAL, "NSQ CRITICAL - healthy nodes 1 is less than 2", [])
    refused = f"NSQ CRITICAL - nsqd at {address(gone)}: connection refused"
    assert checked(cluster.flag, *at(gone)) == (CRITICAL, refused, [])


def test_messages_in_flight_and_deferred_take_no_time_to_drain_and_slow_consumers_have_some(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    check = ("--drain-time=1m", "--interval=0.1", *at(nsqd))
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=5)
        publish(nsqd, "t", 5)
        post(nsqd, "/pub?topic=t&defer=60000", b"later")
        wait_for(nsqd, "t", "c", in_flight_count=5, deferred_count=1)
        found = judged(*check)
        assert (found["status"], found["metrics"]["drain_time"]) == ("OK", 0)
        publish(nsqd, "t", 5)
        wait_for(nsqd, "t", "c", depth=5)
        found = judged(*check)
        assert (found["status"], found["metrics"]["drain_time"]) == ("OK", 0.1)
        publish(nsqd, "t", 4995)
        wait_for(nsqd, "t", "c", depth=5000)
        assert judged(*check)["status"] == "CRITICAL"  # 1,000 times that


def test_rates_and_the_time_to_drain_take_two_looks() -> None:
    looks = [
        node(topic("t", slow, channel("storm", client("x"), requeue_count=count, timeout_count=count)))
        for depth, count in ((1000, 0), (999, 100))
        for slow in [channel("slow", depth=depth, message_count=1000, clients=None)]
    ]
    limits = ("--requeue-rate=1,10000", "--timeout-rate=2.5", "--drain-time=1s,10d", "--interval=0.3")
    with FakeNsqd(*looks) as nsqd:
        found = judged(*limits, nsqd.flag)
        assert len(nsqd.queries("/stats")) == 2
    assert [(one["status"], one["metric"], one["channel"]) for one in found["problems"]] == [
        ("CRITICAL", "timeout_rate", "storm"),
        ("WARNING", "requeue_rate", "storm"),
        ("WARNING", "drain_time", "slow"),
    ]
    assert found["metrics"]["drain_time"] > 250  # one message in 0.3 s or more, of 999
    deep = [node(topic("t", channel("c", depth=depth, message_count=1))) for depth in (3**40, 3**40 - 1)]
    with FakeNsqd(*deep) as nsqd:
        assert checked("--drain-time=1s", "--interval=0.1", nsqd.flag)[0] == CRITICAL  # with numbers in full
    with FakeNsqd(looks[0]) as nsqd:
        never = checked("--drain-time=10m", "--interval=0.1", nsqd.flag)
    reason = "NSQ CRITICAL - channel t/slow: it does not become empty, but should within 10m 0s"
    assert never == (CRITICAL, reason, [])


def test_patterns_leave_out_topics_and_channels() -> None:
    topics = topic("t", channel("c", depth=5), channel("x#ephemeral", depth=50)), topic("audit", channel("c", depth=99))
    with FakeNsqd(node(*topics)) as nsqd:
        limit = ("--channel-depth=10", nsqd.flag)
        assert checked(*limit)[0] == CRITICAL
        left = checked(*limit, "--exclude=audit", "--exclude=*#ephemeral")
    assert left == (OK, "NSQ OK - 1 node, 1 topic, 1 channel, depth 5", [])


def test_a_topic_or_channel_that_is_nowhere_is_unknown(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    assert checked("--topic=t", "--channel=c", "--clients-min=0", *at(nsqd))[0] == OK
    for args, what in (
        (["--topic=x"], "topic x"),
        (["--topic=x", "--channel=c"], "channel x/c"),
        (["--topic=t", "--channel=x"], "channel t/x"),
        (["--channel=x"], "channel x"),
    ):
        assert checked(*args, *at(nsqd)) == (UNKNOWN, f"NSQ UNKNOWN - no node has the {what}", [])


def test_nodes_that_cannot_be_asked_or_are_ill_are_critical(nsqd: Daemon) -> None:
    with FakeNsqd(node(health="NOK - no space left")) as ill, FakeNode(hangs=True) as hanging:
        for place, reason in (
            (DOWN, "connection refused"),
            (ill.address, "NOK - no space left"),
            (hanging.address, "no complete answer within 0.3 s"),
        ):
            code, first, _ = checked("--timeout=0.3", *at(nsqd, place))
            assert (code, first) == (CRITICAL, f"NSQ CRITICAL - nsqd at {place}: {reason}")


def test_nsqlookupds_that_do_not_answer_are_a_warning_or_leave_all_unknown() -> None:
    down = f"nsqlookupd at {DOWN}: connection refused"
    with FakeNsqd(node()) as nsqd, FakeLookupd(producer(nsqd.port)) as lookupd:
        assert checked(lookupd.flag, *at_lookupd(DOWN)) == (WARNING, f"NSQ WARNING - {down}", [])
    with FakeLookupd() as lookupd:
        assert checked(lookupd.flag)[:2] == (UNKNOWN, "NSQ UNKNOWN - nsqlookupd lists no nodes")
    assert checked(*at_lookupd(DOWN), "--nodes-min=1") == (UNKNOWN, f"NSQ UNKNOWN - {down}", [])


@pytest.mark.parametrize(
    "args, text",
    [
        (["--depth=x"], "'x' is not a whole number, expected CRITICAL, WARNING,CRITICAL or WARNING, as in 1000,5000"),
        (["--depth=-1"], "'-1' is not a whole number"),
        (["--depth=1.5"], "'1.5' is not a whole number"),
        (["--depth="], "'' does not contain a limit"),
        (["--depth=,"], "',' does not contain a limit"),
        (["--depth=10,5"], "the warning limit of '10,5' is more than the critical one"),
        (["--clients-min=1,2"], "the warning limit of '1,2' is less than the critical one"),
        (["--requeue-rate=1e3"], "'1e3' is not a number"),
        (["--drain-time=1x"], "'1x' is not a duration"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_is_unknown(args: list[str], text: str) -> None:
    assert text in misuse("check", *args)


def test_a_monitoring_system_gets_unknown_whatever_was_wrong() -> None:
    for args, text in ((["--depth=x"], "'x' is not a whole number"), (["--context=nowhere"], "no context 'nowhere'")):
        code, out, err = gnsqadmin("check", *args)
        assert (code, out) == (UNKNOWN, "")
        assert text in err


def test_names_from_elsewhere_cannot_forge_performance_data() -> None:
    with FakeNsqd(node(topic("t", channel("a|depth=0\n\x1b[2Jb", depth=9)))) as nsqd:
        code, first, rest = checked("--channel-depth=5", nsqd.flag)
    assert (code, rest) == (CRITICAL, [])
    assert first == r"NSQ CRITICAL - channel t/a¦depth=0\n\x1b[2Jb: depth 9 is more than 5"


def test_on_a_terminal_the_status_has_a_colour_except_with_no_color(nsqd: Daemon) -> None:
    assert "\x1b[32mOK\x1b[0m" in on_terminal(80, "check", *at(nsqd)).out
    assert "\x1b" not in on_terminal(80, "check", *at(nsqd), NO_COLOR="1").out


def test_metrics_have_the_format_of_prometheus(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    code, out, err = gnsqadmin("check", "--format=prometheus", "--clients-min=1", *at(nsqd))
    assert (code, err) == (CRITICAL, "")
    found = {name.removeprefix("gnsqadmin_check_"): value for (name, _), value in series(out.encode()).items()}
    assert (found["status"], found["clients"], found["nodes"], found["channel_depth"]) == (2, 0, 1, 0)
    assert "drain_time_seconds" not in found  # which takes two snapshots
    helps = dict(re.findall("# HELP gnsqadmin_check_([a-z_]+) (.*)", out))
    assert helps["depth"] == "Depth of all topics and channels together."
    assert helps["topic_depth"] == "Largest depth of a topic."
    assert helps["clients"] == "Smallest number of consumers of a channel."
    assert len(set(helps.values())) == len(helps)


def test_csv_has_a_row_for_each_problem() -> None:
    with FakeNsqd(node(topic("t", channel("c", depth=9)))) as nsqd:
        code, out, err = gnsqadmin("check", "--channel-depth=3,5", nsqd.flag, "-o", "csv")
    assert (code, err) == (CRITICAL, "")
    assert out.splitlines() == [
        "status,metric,topic,channel,node,value,warning,critical,text",
        "CRITICAL,channel_depth,t,c,,9,3,5,channel t/c: depth 9 is more than 5",
    ]


def test_a_monitoring_system_gets_no_more_than_it_takes() -> None:
    with FakeNsqd(node(topic("t", *(channel(f"c{number}", depth=9) for number in range(1000))))) as nsqd:
        code, first, rest = checked("--channel-depth=5", nsqd.flag)
        assert len(judged("--channel-depth=5", nsqd.flag)["problems"]) == 1000
    assert first.endswith(", and 999 more problems")
    assert (code, len(rest), rest[-1]) == (CRITICAL, 21, "and 980 more: --json has them all")
