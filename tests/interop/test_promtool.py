"""Prometheus' own tool judges what contrib/ has for Prometheus, and a page of /metrics.

The alert rules run on invented series, and on those of running daemons: `promtool test rules` evaluates them minute by
minute. What it reads is YAML, of which JSON is a part.
"""

import json
import math
import random
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from prometheus_client import generate_latest

from kit.daemons import Instance, eventually, interpreter, own_command
from kit.exposition import Series, series
from kit.faulty_gnsqd import Faults
from kit.http_api import ask
from kit.nsq_client import NSQClient
from kit.small_disk import SmallDisk
from kit.traffic import DaemonFactory, create, publish, take, wait_for
from pyspark_nsq.progress import Progress, QueryMetrics

pytestmark = [pytest.mark.peer, pytest.mark.one_lane]

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
ALERTS = CONTRIB / "grafana" / "gnsqd-alerts.yml"
DASHBOARDS = sorted((CONTRIB / "grafana").glob("*-dashboard.json"))

PAUSED, WITHOUT_CONSUMERS, NOT_READY, DEAD_LETTERS, TIMEOUTS, REQUEUES, FALLS_BEHIND = (
    f"NsqChannel{name}"
    for name in ("Paused", "WithoutConsumers", "NotReady", "DeadLetters", "Timeouts", "Requeues", "FallsBehind")
)

Promtool = Callable[..., str]


@pytest.fixture
def promtool(peer_binary: Callable[[str], Path], tmp_path: Path) -> Promtool:
    """Runs promtool, which must find nothing to complain about, and returns what it prints."""

    def run(*arguments: str | Path, input: bytes = b"") -> str:
        command = [peer_binary("promtool"), *arguments]
        result = subprocess.run(command, input=input, capture_output=True, cwd=tmp_path)
        output = (result.stdout + result.stderr).decode()
        assert result.returncode == 0, output
        return output

    return run


# What contrib/ has


def test_rules_and_scrape_configs_are_valid(promtool: Promtool, tmp_path: Path) -> None:
    promtool("check", "config", CONTRIB / "prometheus" / "gnsqd.yml")
    shutil.copy(CONTRIB / "container" / "prometheus.yml", tmp_path)
    shutil.copy(ALERTS, tmp_path)
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert f"{ALERTS.read_text('utf-8').count('expr:')} rules found" in checked


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_expressions_of_a_dashboard_are_valid(path: Path, promtool: Promtool, tmp_path: Path) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions)
    ]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", "panels.yml")


# What gnsqd serves


def test_page_has_nothing_to_complain_about(gnsqd_factory: Callable[..., Instance], promtool: Promtool) -> None:
    gnsqd = gnsqd_factory(
        "--metrics-clients",
        "--max-attempts=5",
        "--max-channel-depth=1000",
        "--min-free-disk=1",
        "--e2e-processing-latency-percentile=0.99,0.5",
        "--lookupd-tcp-address=127.0.0.1:1",
    )
    with NSQClient(gnsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.publish("t", b"x")
        client.command(b"FIN " + client.message().id)
        page = gnsqd.http("GET", "/metrics")[2]
    assert page.count(b"# TYPE gnsqd_") > 40
    assert promtool("check", "metrics", input=page) == ""


def test_page_of_pipelines_has_nothing_to_complain_about(promtool: Promtool) -> None:
    metrics, key = QueryMetrics(), ("t", "n:4150")
    metrics.add("archive", Progress(1, "2026-11-21T20:41:28Z", 1, 1.0, {key: 1}, 0, 0, {key: 1}))
    page = generate_latest(metrics.registry)
    assert page.count(b"# TYPE gnsq_pipeline_") > 10
    assert promtool("check", "metrics", input=page) == ""


# The alerts


class Figures(NamedTuple):
    """A channel's state: `timeouts`, `requeues`, `dead` letters and the `growth` of its depth per second; `age` in
    seconds.

    It takes 10 messages per second.
    """

    depth: int = 0
    growth: int = 0
    age: int = 0
    clients: int = 2
    ready: int = 10
    paused: int = 0
    timeouts: int = 0
    requeues: int = 0
    dead: int = 0
    deferred: int = 0

    @property
    def alert(self) -> str | None:
        """The alert that fires when this has lasted for long enough, by contrib/docs/metrics.md."""
        if self.paused:
            return PAUSED
        queued = self.depth > 0 or self.growth > 0
        if not self.clients or not self.ready:
            return (NOT_READY if self.clients else WITHOUT_CONSUMERS) if queued else None
        if self.dead:
            return DEAD_LETTERS
        if self.timeouts or self.requeues:
            return TIMEOUTS if self.timeouts else REQUEUES
        return FALLS_BEHIND if self.growth or self.age > 900 else None


def series_of(channel: str, states: Sequence[Figures]) -> list[dict[str, str]]:
    """Returns the series of a channel that is in each state for a minute, in which 600 messages are published."""
    values: dict[str, list[int]] = defaultdict(list)
    grown = timeouts = requeues = dead = 0
    for minute, state in enumerate(states):
        grown = grown + 60 * state.growth if state.growth else 0
        timeouts += 60 * state.timeouts
        requeues += 60 * state.requeues
        dead += 60 * state.dead
        values["depth"].append(state.depth + grown)
        values["oldest_message_age_seconds"].append(state.age)
        values["clients"].append(state.clients)
        values["ready"].append(state.ready)
        values["paused"].append(state.paused)
        values["deferred"].append(state.deferred)
        values["messages_total"].append(600 * minute)
        values["timeouts_total"].append(timeouts)
        values["requeues_total"].append(requeues)
        values["dead_letters_total"].append(dead)
    labels = f'{{job="gnsqd",instance="i",topic="t",channel="{channel}"}}'
    return [
        {"series": f"gnsqd_channel_{name}{labels}", "values": " ".join(map(str, each))} for name, each in values.items()
    ]


Check = tuple[int, str, Sequence[tuple[str, int]]]  # a minute, an expression, and the samples, as (labels, value)


@pytest.fixture
def evaluate(promtool: Promtool, tmp_path: Path) -> Callable[..., None]:
    """Checks that each expression has its samples then: `evaluate(series, *checks)`."""

    def run(series: list[dict[str, str]], *checks: Check) -> None:
        expected = [
            {
                "expr": expression,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
            for minute, expression, samples in checks
        ]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
        (tmp_path / "alerts_test.yml").write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [test]}))
        promtool("test", "rules", "alerts_test.yml")

    return run


FIRING = 'sum by (alertname, channel) (ALERTS{alertstate="firing",channel!=""})'
FIRING_TOGETHER = 'count by (channel) (ALERTS{alertstate="firing",channel!=""}) > 1'


def firing(alerts: dict[str, str | None]) -> list[tuple[str, int]]:
    """Returns the samples of FIRING, by channel."""
    return [(f'{{alertname="{alert}",channel="{channel}"}}', 1) for channel, alert in alerts.items() if alert]


def all_states() -> Iterator[Figures]:
    backlogs = [(0, 0, 0), (10, 0, 5), (10, 0, 2000), (5000, 0, 5), (5000, 5, 5), (5000, 5, 2000)]
    consumers = [(0, 0), (2, 0), (2, 10)]
    returned = [(0, 0, 0), (2, 2, 0), (0, 2, 0), (2, 2, 1)]
    for backlog, (clients, ready), paused, back in product(backlogs, consumers, (0, 1), returned):
        yield Figures(*backlog, clients, ready, paused, *back)


def test_each_state_of_a_channel_causes_one_alert_or_none(evaluate: Callable[..., None]) -> None:
    states = {f"c{number}": state for number, state in enumerate(all_states())}
    series = [each for channel, state in states.items() for each in series_of(channel, [state] * 121)]
    expected = firing({channel: state.alert for channel, state in states.items()})
    assert len({labels.split(",")[0] for labels, _ in expected}) == 7
    evaluate(series, (120, FIRING, expected))


def test_at_no_time_two_alerts_of_a_channel_fire(evaluate: Callable[..., None]) -> None:
    chance = random.Random(1)
    states = list(all_states())
    end = 300
    series = []
    for channel in range(60):
        story: list[Figures] = []
        while len(story) <= end:
            story += [chance.choice(states)] * chance.choice((1, 7, 20, 90))
        series += series_of(f"c{channel}", story[: end + 1])
    fired = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing",channel=~"c[0-9]"}[5h]))'
    evaluate(
        series,
        *((minute, FIRING_TOGETHER, []) for minute in range(10, end + 1, 2)),
        (end, f"count({fired})", [("{}", 7)]),  # the seed lets each of the seven fire
    )


QUIET = Figures(depth=3, age=1)
LOST = QUIET._replace(clients=0, ready=0)
UNREADY = QUIET._replace(ready=0)
DUE_AT_ONCE = (
    [Figures(deferred=5000)] * 30 + [Figures(5000 - 500 * n, age=60 * n) for n in range(10)] + [Figures()] * 60
)


@pytest.mark.parametrize(
    "states, alerts",
    [
        pytest.param([UNREADY], {8: None, 10: NOT_READY}, id="RDY 0"),
        pytest.param([UNREADY, UNREADY, QUIET], {50: None, 99: None}, id="backoff"),
        pytest.param([Figures(ready=0)], {99: None}, id="RDY 0 without messages"),
        pytest.param([LOST], {8: None, 10: WITHOUT_CONSUMERS}, id="no consumers"),
        pytest.param([LOST, LOST, QUIET], {50: None, 99: None}, id="consumers that reconnect"),
        pytest.param([QUIET._replace(paused=1)], {59: None, 61: PAUSED}, id="paused"),
        pytest.param([Figures(5000, 5, 1)], {14: None, 16: FALLS_BEHIND}, id="growing"),
        pytest.param([Figures(20, 0, 1000)], {14: None, 16: FALLS_BEHIND}, id="old"),
        # DPUB with an hour's delay: many are deferred, and some are just due.
        pytest.param([Figures(deferred=36000), Figures(20, deferred=36000)], {50: None, 99: None}, id="deferred"),
        pytest.param(DUE_AT_ONCE, dict.fromkeys(range(30, 60)), id="deferred to the same time"),
    ],
)
def test_alerts_fire_after_a_while(
    evaluate: Callable[..., None], states: list[Figures], alerts: dict[int, str | None]
) -> None:
    before = 10
    series = series_of("c", [QUIET] * before + (states * 100)[:100])
    checks = [(before + minute, FIRING, firing({"c": alert})) for minute, alert in alerts.items()]
    evaluate(series, *checks)


@pytest.mark.parametrize(
    "metric, label, values, times, alert",
    [
        pytest.param(
            "gnsqd_nsqlookupd_connected",
            "address",
            {"a": "1x10 0x20", "b": "1x30", "c": "1 0 1 0 1 0 1 0 0 0 1x20"},
            (14, 17),
            ("GnsqdLookupdDisconnected", "a"),
            id="lost nsqlookupd",
        ),
        pytest.param(
            "gnsqd_certificate_not_after_timestamp_seconds",
            "file",
            {"renewed": f"{2 * 86400 + 600}x20 {30 * 86400}x40", "soon": f"{2 * 86400 + 1800}x60"},
            (29, 31),
            ("GnsqdCertificateExpires", "soon"),
            id="certificate that expires in two days",
        ),
        pytest.param(
            "gnsqd_certificate_not_after_timestamp_seconds",
            "file",
            {"renewed": f"{30 * 86400}x60", "late": "_x30 1800x30"},
            (29, 31),
            ("GnsqdCertificateExpired", "late"),
            id="certificate that has expired",
        ),
        pytest.param(
            "gnsq_pipeline_last_progress_timestamp_seconds",
            "pipeline",
            {"stalled": "0x60", "running": "0+60x60", "ended": "0x20 stale"},
            (30, 32),
            ("GnsqPipelineStalled", "stalled"),
            id="pipeline without progress",
        ),
    ],
)
def test_one_of_several_causes_an_alert(
    evaluate: Callable[..., None],
    metric: str,
    label: str,
    values: dict[str, str],
    times: tuple[int, int],
    alert: tuple[str, str],
) -> None:
    series = [
        {"series": f'{metric}{{instance="i",{label}="{name}"}}', "values": those} for name, those in values.items()
    ]
    expression = f'sum by (alertname, {label}) (ALERTS{{alertstate="firing"}})'
    quiet, fires = times
    expected = [(f'{{alertname="{alert[0]}",{label}="{alert[1]}"}}', 1)]
    evaluate(series, (quiet, expression, []), (fires, expression, expected))


# The alerts of running daemons


LIMIT = "--max-channel-depth=1"
Story = Iterator[Instance]  # yields a daemon when it is well, and again, or another one, when it is not


def publishing(channel: str, *flags: str, **figures: int) -> Callable[[DaemonFactory, Path], Story]:
    """Returns the story of a daemon with these flags, whose channel has the figures after three messages."""

    def story(start: DaemonFactory, path: Path) -> Story:
        nsqd = start(*flags)
        create(nsqd, "t", quote(channel))
        yield nsqd
        for _ in range(3):
            ask(nsqd, "POST /pub?topic=t", b"x")
        wait_for(nsqd, "t", channel, **figures)
        yield nsqd

    return story


def failing(start: DaemonFactory, path: Path) -> Story:
    nsqd = start("--max-attempts=1")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        yield nsqd
        client.publish("t", b"x")
        client.command(b"REQ %b 0" % client.message().id)
        wait_for(nsqd, "t.c.dead", depth=1)
        yield nsqd


def idle(start: DaemonFactory, path: Path) -> Story:
    nsqd = start("--channel-idle-timeout=100ms", "--channel-idle-policy=delete")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        yield nsqd
    eventually(lambda: not nsqd.channel_stats("t", "c"))
    yield nsqd


def low_on_disk(start: DaemonFactory, path: Path) -> Story:
    disk = SmallDisk(path / "small", size=1 << 20, inodes=100)
    with closing(disk), Instance(disk.inside(own_command()), disk.path) as nsqd:
        yield nsqd
        disk.fill(leave=10)
        yield nsqd


def below_min_free_disk(start: DaemonFactory, path: Path) -> Story:
    yield start("--min-free-disk=1")
    nsqd = start(f"--min-free-disk={1 << 60}")
    assert ask(nsqd, "POST /pub?topic=t", b"x")[0] != 200
    yield nsqd


def syncing_slowly(start: DaemonFactory, path: Path) -> Story:
    faults = Faults(path / "faults", interpreter(own_command()))
    with Instance(faults.command, path / "slow", "--durability=disk") as nsqd:
        publish(nsqd, "t", b"x")
        yield nsqd
        faults.set({"call": "fdatasync", "name": "*.journal.*", "hold": True})
        with NSQClient(nsqd.tcp_address) as client:
            client.command(b"PUB t", b"x")
            eventually(lambda: scrape(nsqd)["gnsqd_sync_lag_seconds", ()] > 1)
            yield nsqd
            faults.set()
            assert client.response() == b"OK"


def damaged_journal(start: DaemonFactory, path: Path) -> Story:
    nsqd = start("--durability=process")
    publish(nsqd, "t", b"first body", b"second body")
    create(nsqd, "t", "c")
    take(nsqd, "t", "c", 2)
    yield nsqd
    nsqd.kill()
    (file,) = nsqd.data_path.glob("t.journal.*")
    file.write_bytes(file.read_bytes().replace(b"first body", b"other body"))
    yield nsqd.restart()


def damaged_disk_queue(start: DaemonFactory, path: Path) -> Story:
    nsqd = start("--mem-queue-size=0")
    yield nsqd
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"lost", b"lost")
    wait_for(nsqd, "t", "c", depth=2)
    (file,) = nsqd.data_path.glob("t:c.diskqueue.0*.dat")
    file.write_bytes(bytes(file.stat().st_size))
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        wait_for(nsqd, "t", "c", depth=0)
        yield nsqd


def scrape(nsqd: Instance) -> Series:
    return series(nsqd.http("GET", "/metrics")[2])


# Figures that depend on the machine, and the only alerts that are tested with them.
OF_MACHINE = {
    "gnsqd_hub_lag_seconds": ["GnsqdBusy"],
    "gnsqd_sync_lag_seconds": ["GnsqdSyncLags"],
    "gnsqd_free_disk_bytes": ["GnsqdLowOnDisk"],
}


@pytest.mark.parametrize(
    "story, alerts",
    [
        (publishing("c", LIMIT, depth=1), ["NsqMessagesRejected", WITHOUT_CONSUMERS]),
        (publishing("c", LIMIT, "--overflow-policy=drop-oldest", depth=1), ["NsqMessagesDropped", WITHOUT_CONSUMERS]),
        (publishing("e#ephemeral", "--mem-queue-size=1", message_count=3), [WITHOUT_CONSUMERS]),
        (publishing("c", "--message-ttl=100ms", message_count=3, depth=0), ["NsqMessagesExpired"]),
        (failing, [DEAD_LETTERS]),
        (idle, ["GnsqdIdleChannels"]),
        (low_on_disk, ["GnsqdLowOnDisk"]),
        (below_min_free_disk, ["GnsqdLowOnDisk"]),
        (syncing_slowly, ["GnsqdSyncLags"]),
        (damaged_journal, ["GnsqdDataDamaged"]),
        (damaged_disk_queue, ["GnsqdDataDamaged"]),
    ],
)
def test_alert_fires_for_a_running_daemon_in_this_state_and_not_before(
    story: Callable[[DaemonFactory, Path], Story],
    alerts: list[str],
    gnsqd_factory: DaemonFactory,
    tmp_path: Path,
    evaluate: Callable[..., None],
) -> None:
    well, ill = (scrape(nsqd) for nsqd in story(gnsqd_factory, tmp_path))
    history = []
    for name, labels in well.keys() | ill.keys():
        values = [page.get((name, labels), math.nan) for page in (well, ill)]
        if OF_MACHINE.get(name, alerts) == alerts:
            texts = ["_" if math.isnan(value) else f"{value:f}" for value in values]
            selector = ",".join(f'{key}="{value}"' for key, value in (*labels, ("job", "gnsqd"), ("instance", "i")))
            # Two scrapes ten and twenty minutes long, with a sample each minute.
            history.append({"series": f"{name}{{{selector}}}", "values": f"{texts[0]}x9 {texts[1]}x19"})
    expression = 'sum by (alertname) (ALERTS{alertstate="firing"})'
    expected = [(f'{{alertname="{alert}"}}', 1) for alert in alerts]
    evaluate(history, (9, expression, []), (18, expression, expected), (18, FIRING_TOGETHER, []))
