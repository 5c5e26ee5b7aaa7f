"""`check`: limits, exit codes, and the line that monitoring systems read."""

import json
import re
from typing import Any

import pytest

from cli.fake_nsqd import FakeListing, StatsNsqd, channel, client, node, producer, topic
from cli.gnsqadmin import FakeNode, gnsqadmin, misuse, ok
from cli.nodes import DOWN, Registered, address, at, at_lookupd, fill, publish
from kit.daemons import Instance, eventually
from kit.exposition import series
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, wait_for
from nsqadmin_cli.command_base import Parsed
from nsqadmin_cli.commands.check import METRICS

OK, WARNING, CRITICAL, UNKNOWN = range(4)


def checked(*args: str) -> tuple[int, str, list[str]]:
    """Returns the exit code, the first line without performance data, and the lines below it."""
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
    verdict: dict[str, Any] = json.loads(out)
    assert code == ("OK", "WARNING", "CRITICAL", "UNKNOWN").index(verdict["status"])
    return verdict


def test_what_is_beyond_a_limit_counts_and_what_is_at_it_does_not() -> None:
    metrics = {metric.option: metric for metric in METRICS}
    for option, value, limits, status in (
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
    ):
        metric = metrics[option]
        parsed = Parsed("limits", metric.parse).convert(limits, None, None)
        is_critical, is_warning = (metric.beyond(value, limit) for limit in (parsed.critical, parsed.warning))
        assert ("CRITICAL" if is_critical else "WARNING" if is_warning else "OK") == status, (option, limits)


def test_counts_are_summed_over_nodes_and_the_worst_stands_first(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon, count in ((a, 30), (b, 20)):
        fill(daemon, "t", "c", "d", count=count)
    publish(b, "waits", 4)
    assert checked(*at(a, b)) == (OK, "NSQ OK - 2 nodes, 2 topics, 2 channels, depth 104", [])
    assert " | depth=104;;;0 topic_depth=4;;;0 channel_depth=50;;;0 " in ok("check", *at(a, b))
    metrics = judged(*at(a, b))["metrics"]
    expected = {"depth": 104, "clients": 0, "nodes": 2, "requeue_rate": None, "drain_time": None}
    assert {name: metrics[name] for name in expected} == expected
    with NSQClient(a.tcp_address) as consumer:
        consumer.subscribe("t", "d", rdy=9)
        wait_for(a, "t", "d", in_flight_count=9)
        result = checked("--channel-depth=45,49", "--topic-depth=3,", "--clients-min=1", *at(a, b))
    deep, lonely = "channel t/c: depth 50 is more than 49", "channel t/c: clients 0 is less than 1"
    assert result[:2] == (CRITICAL, f"NSQ CRITICAL - {deep}, and 2 more problems")
    assert result[2] == [f"CRITICAL {deep}", f"CRITICAL {lonely}", "WARNING topic waits: depth 4 is more than 3"]


@pytest.mark.peer
def test_a_node_that_went_away_is_critical_while_nsqlookupd_lists_it(cluster: Registered) -> None:
    assert checked(cluster.flag, "--nodes-min=2")[0] == OK
    gone = cluster.nodes[1]
    gone.kill()
    eventually(lambda: len(cluster.lookupd.ask("GET", "/nodes")[1]["producers"]) == 1, "nsqlookupd forgets it")
    assert checked(cluster.flag, "--nodes-min=2") == (CRITICAL, "NSQ CRITICAL - healthy nodes 1 is less than 2", [])
    refused = f"NSQ CRITICAL - nsqd at {address(gone)}: connection refused"
    assert checked(cluster.flag, *at(gone)) == (CRITICAL, refused, [])


def test_messages_in_flight_and_deferred_take_no_time_to_drain_and_slow_consumers_have_some(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    check = ("--drain-time=1m", "--interval=0.1", *at(nsqd))
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=5)
        publish(nsqd, "t", 5)
        post(nsqd, "/pub?topic=t&defer=60000", b"later")
        wait_for(nsqd, "t", "c", in_flight_count=5, deferred_count=1)
        verdict = judged(*check)
        assert (verdict["status"], verdict["metrics"]["drain_time"]) == ("OK", 0)
        publish(nsqd, "t", 5)
        wait_for(nsqd, "t", "c", depth=5)
        verdict = judged(*check)
        assert (verdict["status"], verdict["metrics"]["drain_time"]) == ("OK", 0.1)
        publish(nsqd, "t", 4995)
        wait_for(nsqd, "t", "c", depth=5000)
        assert judged(*check)["status"] == "CRITICAL"  # 1,000 times that


def test_rates_and_the_time_to_drain_take_two_looks() -> None:
    looks = []
    for depth, count in ((1000, 0), (999, 100)):
        storm = channel("storm", client("x"), requeue_count=count, timeout_count=count)
        looks.append(node(topic("t", channel("slow", depth=depth, message_count=1000, clients=None), storm)))
    limits = ("--requeue-rate=1,10000", "--timeout-rate=2.5", "--drain-time=1s,10d", "--interval=0.3")
    with StatsNsqd(*looks) as nsqd:
        verdict = judged(*limits, nsqd.flag)
        assert len(nsqd.queries("/stats")) == 2
    assert [(one["status"], one["metric"], one["channel"]) for one in verdict["problems"]] == [
        ("CRITICAL", "timeout_rate", "storm"),
        ("WARNING", "requeue_rate", "storm"),
        ("WARNING", "drain_time", "slow"),
    ]
    assert verdict["metrics"]["drain_time"] > 250  # one message in 0.3 s or more, of 999
    deep = [node(topic("t", channel("c", depth=depth, message_count=1))) for depth in (3**40, 3**40 - 1)]
    with StatsNsqd(*deep) as nsqd:
        assert checked("--drain-time=1s", "--interval=0.1", nsqd.flag)[0] == CRITICAL  # with numbers in full
    with StatsNsqd(looks[0]) as nsqd:
        never = checked("--drain-time=10m", "--interval=0.1", nsqd.flag)
    reason = "NSQ CRITICAL - channel t/slow: it does not become empty, but should within 10m 0s"
    assert never == (CRITICAL, reason, [])


def test_problems_are_of_what_was_asked_for_and_harmless_for_what_reads_them() -> None:
    """Names from elsewhere forge no performance data, and there are no more lines than monitoring systems take."""
    names = ["c", *(f"x{number}#ephemeral" for number in range(1000)), "a|depth=0\n\x1b[2Jb"]
    topics = topic("t", *(channel(name, depth=9) for name in names)), topic("audit", channel("c", depth=99))
    with StatsNsqd(node(*topics)) as nsqd:
        limit = ("--channel-depth=3,5", nsqd.flag)
        code, first, rest = checked(*limit)
        assert (code, first[-25:], len(rest)) == (CRITICAL, ", and 1,002 more problems", 21)
        assert rest[-1] == "and 983 more: --json has them all"
        assert len(judged(*limit)["problems"]) == 1003
        forged = checked(*limit, "--exclude=audit", "--exclude=t/[cx]*")
        assert forged == (CRITICAL, r"NSQ CRITICAL - channel t/a¦depth=0\n\x1b[2Jb: depth 9 is more than 5", [])
        left = checked(*limit, "--exclude=audit", "--exclude=t/*")
        assert left == (OK, "NSQ OK - 1 node, 1 topic, 0 channels, depth 0", [])
        excluding = ("--exclude=audit", "--exclude=t/a|*", "--exclude=*#ephemeral")
        code, out, err = gnsqadmin("check", *limit, *excluding, "-o", "csv")
    row = "CRITICAL,channel_depth,t,c,,9,3,5,channel t/c: depth 9 is more than 5"
    assert (code, err) == (CRITICAL, "")
    assert out.splitlines() == ["status,metric,topic,channel,node,value,warning,critical,text", row]


def test_what_is_ill_down_or_nowhere_is_a_problem(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    down = f"nsqlookupd at {DOWN}: connection refused"
    ill, well, empty = StatsNsqd(node(health="NOK - no space left")), StatsNsqd(node()), FakeListing()
    lookupd, of_well = FakeListing(producer(ill.port)), FakeListing(producer(well.port))
    with FakeNode(hangs=True) as hanging:
        for flags, status, reason in (
            (at(nsqd, DOWN), CRITICAL, f"nsqd at {DOWN}: connection refused"),
            ([lookupd.flag, *at(nsqd)], CRITICAL, f"nsqd at {ill.address}: NOK - no space left"),
            (at(nsqd, hanging), CRITICAL, f"nsqd at {hanging.address}: no complete answer within 0.3 s"),
            ([of_well.flag, *at_lookupd(DOWN)], WARNING, down),
            ([empty.flag], UNKNOWN, "nsqlookupd lists no nodes"),
            ([*at_lookupd(DOWN), "--nodes-min=1"], UNKNOWN, down),
            (["--topic=x", *at(nsqd)], UNKNOWN, "no node has the topic x"),
            (["--topic=x", "--channel=c", *at(nsqd)], UNKNOWN, "no node has the channel x/c"),
            (["--topic=t", "--channel=x", *at(nsqd)], UNKNOWN, "no node has the channel t/x"),
            (["--channel=x", *at(nsqd)], UNKNOWN, "no node has the channel x"),
            (["--topic=t", "--channel=c", "--clients-min=0", *at(nsqd)], OK, "1 node, 1 topic, 1 channel, depth 0"),
        ):
            name = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[status]
            assert checked("--timeout=0.3", *flags)[:2] == (status, f"NSQ {name} - {reason}")


WRONG = {
    "--depth=x": "'x' is not a whole number, expected CRITICAL, WARNING,CRITICAL or WARNING, as in 1000,5000",
    "--depth=-1": "'-1' is not a whole number",
    "--depth=1.5": "'1.5' is not a whole number",
    "--depth=": "'' does not contain a limit",
    "--depth=,": "',' does not contain a limit",
    "--depth=10,5": "the warning limit of '10,5' is more than the critical one",
    "--clients-min=1,2": "the warning limit of '1,2' is less than the critical one",
    "--requeue-rate=1e3": "'1e3' is not a number",
    "--drain-time=1x": "'1x' is not a duration",
    "--nonsense": "No such option",
}


def test_wrong_usage_is_unknown() -> None:
    for option, text in WRONG.items():
        assert text in misuse("check", option), option
    for option, text in (("--depth=x", WRONG["--depth=x"]), ("--context=nowhere", "no context 'nowhere'")):
        code, out, err = gnsqadmin("check", option)
        assert (code, out, text in err) == (UNKNOWN, "", True)


def test_metrics_have_the_format_of_prometheus(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    code, out, err = gnsqadmin("check", "--format=prometheus", "--clients-min=1", *at(nsqd))
    assert (code, err) == (CRITICAL, "")
    metrics = {name.removeprefix("gnsqadmin_check_"): value for (name, _), value in series(out.encode()).items()}
    assert (metrics["status"], metrics["clients"], metrics["nodes"], metrics["channel_depth"]) == (2, 0, 1, 0)
    assert "drain_time_seconds" not in metrics  # which takes two snapshots
    helps = dict(re.findall("# HELP gnsqadmin_check_([a-z_]+) (.*)", out))
    assert helps["clients"] == "Smallest number of consumers of a channel."
    assert len(set(helps.values())) == len(helps)
