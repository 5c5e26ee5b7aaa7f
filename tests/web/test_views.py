"""The pages without a browser: what they show, of hostile nodes too, and of nodes that hang or are gone."""

import gc
import math
import re
import threading
import time
import weakref
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from cli.fake_nsqd import FakeServer, channel, client, node, peeked, topic
from cli.gnsqadmin import gnsqadmin
from cli.nodes import DOWN, address
from kit.daemons import DEADLINE, Instance, eventually
from kit.lookupds import EMBEDDED, LookupdInside
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, publish, wait_for
from nsqadmin_cli.message import clock
from nsqadmin_cli.web.app import ROUTES
from nsqadmin_cli.web.monitor import Diagnosis, Kept
from web.app import OWN, App

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)> \u202e\x00{{7*7}}'
VIEWS = ["/", "/topics", "/nodes", "/lookup", "/doctor", "/publish"]


def test_every_view_of_a_node(gnsqd: Instance) -> None:
    create(gnsqd, "orders", "mail")
    publish(gnsqd, "orders", b'{"a": "<b>"}')
    wait_for(gnsqd, "orders", "mail", depth=1)
    node = address(gnsqd)
    app = App([node])
    for target, pattern in (
        ("/", r"orders – – 1 0 1 \d+s 0 0 1 1 0 "),
        ("/topics/orders", "mail – – 1 "),
        ("/topics/orders/mail", "depth 1"),
        ("/nodes", f"{node} healthy gnsqd"),
        (f"/nodes/{node}?show=channels", "mail"),
        (f"/nodes/{node}", r"in/s \S+ finished/s \S+ CPU \S+ memory \d+ MB free disk \S+ .B"),
        ("/lookup", "No nsqlookupd"),
        ("/doctor", "channel orders/mail: 1 message and no consumer"),
        ("/", r"channel orders/mail: 1 message and no consumer.* 1 1 0 no consumers"),
        ("/peek?topic=orders&channel=mail", '{ "a": "<b>" }.*Nothing is consumed'),
        ("/peek?topic=orders&channel=mail&view=raw", '{"a": "<b>"}'),
        ("/peek?topic=orders&channel=mail&view=hex", "7b 22 61 22"),
        ("/publish?topic=orders", node),
    ):
        assert re.search(pattern, app.page(target)), target
    assert app.log.getvalue() == ""


def test_queued_messages_are_shown_in_pages_and_found(gnsqd: Instance) -> None:
    publish(gnsqd, "t", *(b"body-%02d" % number for number in range(25)))
    app = App([address(gnsqd)])

    def bodies(target: str) -> list[int]:
        return [int(number) for number in re.findall(r">body-(\d+)<", app.get(target).text)]

    assert bodies("/peek?topic=t") == [*range(10)]
    last = "/peek?topic=t&count=10&page=3"
    assert bodies(last) == [*range(20, 25)]
    (before,) = re.findall(r'href="([^"]*)" rel="prev"', app.get(last).text)
    assert bodies(unescape(before)) == [*range(10, 20)]
    assert 'rel="next"' not in app.get(last).text
    assert bodies("/peek?topic=t&find=ODY-1") == [*range(10, 20)]
    assert bodies("/peek?topic=t&find=ODY-1&count=4&page=3") == [18, 19]
    (id,) = re.findall(r"· ([0-9a-f]{16}) ·", app.get("/peek?topic=t&count=1").text)
    assert bodies(f"/peek?topic=t&find={id}") == [0]
    assert "No message matches." in app.page("/peek?topic=t&find=nothing")


def test_dead_letters_are_shown_in_words_and_replayed_from_their_topic(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--max-attempts=2")
    create(gnsqd, "t", "c")
    publish(gnsqd, "t", b'{"a": 1}')
    with NSQClient(gnsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        for _ in range(2):
            consumer.command(b"REQ %b 0" % (message := consumer.message()).id)
        eventually(lambda: [one["depth"] for one in gnsqd.stats("t.c.dead")["topics"]] == [1])
    app = App([address(gnsqd)])
    page, at = app.get("/peek?topic=t.c.dead"), clock(message.timestamp)
    assert re.search(rf"Failed 2 times in t / c , last at 2\S+ \S+ : requeued · published at {at} · ", page.shown)
    assert '<pre tabindex="0">{\n  "a": 1\n}</pre>' in unescape(page.text)
    assert '"reason":"requeued"' in app.page("/peek?topic=t.c.dead&view=raw")
    for target in ("/topics/t.c.dead", "/peek?topic=t.c.dead"):
        assert 'href="/change/replay-dead?topic=t.c.dead"' in app.get(target).text
    assert "/change/replay-dead" in app.get("/topics/t/c").text
    assert "/change/replay-dead" not in app.get("/topics/t").text
    assert app.post("/change/replay-dead", topic="t", channel="c", confirmed="yes").status == 200
    wait_for(gnsqd, "t", "c", depth=1)


def test_topics_are_completed_and_a_new_one_asks(gnsqd: Instance) -> None:
    create(gnsqd, "orders", "c")
    app = App([address(gnsqd)])
    assert '<option value="orders"></option>' in app.get("/publish").text
    form = {"topic": "orderz", "body": "x", "defer": "1h"}
    asked = app.post("/publish", **form)
    assert "orderz is a new topic; did you mean orders?" in asked.shown
    assert 'name="new" value="orderz"' in asked.text
    assert 'value="1h"' in asked.text
    assert "is a new topic" in app.post("/publish", **form | {"topic": "other", "new": "orderz"}).shown
    assert [one["topic_name"] for one in gnsqd.stats()["topics"]] == ["orders"]
    assert "1 message published to orderz" in app.post("/publish", new="orderz", **form).shown


def test_what_there_is_not_is_a_dash_and_no_zero() -> None:
    latency = {"count": 0, "percentiles": [{"quantile": 0.99, "value": 0}]}
    alone = topic("t", depth=3, e2e_processing_latency=latency)
    app = App([FakeServer({"/stats": [node(alone), node(topic("t", channel("c")))]}).address, DOWN])
    assert "t – – 3 3 – – – – 0 0 – " in app.page("/")
    assert "channel depth – " in app.page("/topics/t")
    assert "latency – (no message was finished yet)" in app.page("/topics/t")
    row = app.page("/nodes").rpartition(f"{DOWN} failed: connection refused ")[2].partition(" As of")[0]
    assert set(row.split()) == {"–"}
    app.app._site.monitor.changed()
    assert "channel depth at least 0 " in app.page("/topics/t")


@pytest.fixture
def rates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each look take another snapshot, which has rates from the second one on."""
    for name in ("monitor._LEAST", "monitor.INTERVAL", "site.FRESH"):
        monkeypatch.setattr(f"nsqadmin_cli.web.{name}", 0.0)


@pytest.mark.usefixtures("rates_at_once")
def test_rates_come_with_the_second_snapshot() -> None:
    counts = iter(range(0, 100_000, 10))
    app = App([FakeServer({"/stats": [lambda: node(topic("t", message_count=next(counts)))]}).address])
    assert "Rates need a second snapshot" in app.page("/")
    assert "Rates need" not in app.page("/")
    for path in ("/", "/topics/t"):
        assert re.search(r'aria-label="in/s in the last hour: [1-9]', app.get(path).text)


@pytest.mark.usefixtures("rates_at_once")
def test_the_latest_snapshot_alone_is_whole() -> None:
    """Answers of nodes may be large."""
    fake = FakeServer({"/stats": [node(topic("t", channel("c", client("w"))))]})
    app = App([fake.address])
    snapshots = []
    for _ in range(5):
        app.page("/topics/t/c")
        snapshots.append(weakref.ref(app.app._site.monitor.snapshot(60.0)))
    gc.collect()
    assert [snapshot() is not None for snapshot in snapshots] == [False] * 4 + [True]


@pytest.mark.usefixtures("rates_at_once")
def test_nodes_and_their_total_are_of_one_snapshot_also_when_the_details_are_older() -> None:
    depths = iter(range(1000, 2000))
    fakes = [FakeServer({"/stats": [lambda: node(topic("t", depth=next(depths)))], "/ping": ["OK"]}) for _ in range(2)]
    app = App([fake.address for fake in fakes])
    for _ in range(3):
        app.page("/")  # takes another snapshot
        counts = re.findall(r'<td class="k9 n">([\d,]+)</td>', app.get("/nodes").text)
        first, second, total = (int(text.replace(",", "")) for text in counts)
        assert first + second == total


Trouble = tuple[str, dict[str, Any], dict[str, Any]]
# In the order of the page: the word, the channel in the first look, and its changes until the second.
TROUBLES: dict[str, Trouble] = {
    "bill.failing": ("requeue storm", {"ready": 1}, {"requeue_count": 900}),
    "bill.alone": ("no consumers", {"in_flight_count": 1}, {}),
    "bill.c.dead": ("dead letters", {"depth": 3}, {}),
    "bill.held": ("paused channel", {"paused": True, "depth": 1}, {}),
    "bill.slow-most": ("growing", {"ready": 1, "depth": 90_000}, {"message_count": 1, "depth": 90_001}),
    "bill.slow": ("growing", {"ready": 1, "depth": 9000}, {"message_count": 1, "depth": 9001}),
    "bill.burst": ("", {"ready": 1}, {"message_count": 100, "depth": 100}),
    "bill.empty": ("", {"paused": True}, {}),
    "bill.fine": ("", {"ready": 1, "depth": 1}, {}),
}
PROCESS = {"cpu_seconds": 1.0, "memory_bytes": 5_000_000, "connection_count": 7, "disk_bytes": 10**9}


@pytest.mark.usefixtures("rates_at_once")
def test_topics_in_trouble_come_first_with_a_word_and_alone_if_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(ready: int = 0, **counts: Any) -> dict[str, Any]:
        return channel("c", *[client("x", ready_count=ready)] * bool(ready), **counts)

    first = [topic(name, seen(**before)) for name, (_, before, _) in TROUBLES.items()]
    second = [topic(name, seen(**before | then)) for name, (_, before, then) in TROUBLES.items()]
    app = App([FakeServer({"/stats": [node(*look, process=PROCESS) for look in (first, second)]}).address])
    app.app._site.monitor.diagnosis.value()
    monkeypatch.setattr("nsqadmin_cli.web.site.FRESH", 3600.0)

    def shown(target: str) -> list[tuple[str, str]]:
        row = r'<a href="/topics/(bill[^"/]*)">(?:(?!</tr>).)*<td class="k9[^"]*">([a-z ]*)</td>\s*</tr>'
        return re.findall(row, app.get(target).text, re.DOTALL)

    words = [(name, word) for name, (word, *_) in TROUBLES.items()]
    assert shown("/") == words
    assert shown("/?trouble=only") == words[:-3]
    assert shown("/?sort=-trouble")[:3] == [words[5], words[4], words[3]]
    assert shown("/?find=bill.s&trouble=only&sort=topic") == [words[5], words[4]]
    assert app.page("/?find=bill").index("bill.alone") < app.page("/?find=bill").index("nodes 1/1")
    links = unescape(app.get("/?find=bill&trouble=only&sort=depth").text)
    for link in ("find=bill&sort=depth", "trouble=only&sort=depth", "find=bill&trouble=only&sort=topic"):
        assert f'href="/?{link}"' in links


@pytest.mark.usefixtures("rates_at_once")
def test_figures_of_a_process_are_shown_for_nodes_that_report_them() -> None:
    low = node(process=PROCESS | {"free_disk_bytes": 99_000_000})
    fakes = [FakeServer({"/stats": [look], "/ping": ["OK"]}) for look in (low, node())]
    app = App([fake.address for fake in fakes])
    app.page("/nodes")
    page = app.page("/nodes")
    assert f"{fakes[0].address} low on disk nsqd" in page
    assert "0 0 0% 5.0 MB 99 MB 7" in page
    assert f"{fakes[1].address} healthy nsqd" in page
    assert "0 0 – – – – 0 0 0" in page
    assert "CPU – memory – free disk – connections –" in app.page(f"/nodes/{fakes[1].address}")


def test_a_thousand_findings_are_folded_by_kind_and_shown_in_pages() -> None:
    channels = [channel(f"c{number:04}") for number in range(1000)]
    app = App([FakeServer({"/stats": [node(topic("t", *channels, channel("full", depth=9)))]}).address])
    text = app.get("/doctor").text
    assert len(text) < 20_000
    kinds = re.findall(r"<h2>([a-z ]+) <span[^>]*>(\S+)</span>", text)
    assert kinds == [("no consumers", "(1)"), ("orphan channel", "(1,000)")]
    about = r"channel t/(\w+): no consumer"
    assert re.findall(about, text) == ["c0000", "c0001", "c0002"]
    (link,) = re.findall(r'href="(/doctor\?[^"]*)"', text)
    assert re.findall(about, app.get(link).text) == [f"c{number:04}" for number in range(50)]
    assert re.findall(about, app.get(f"{link}&page=20").text) == [f"c{number:04}" for number in range(950, 1000)]


def test_old_findings_are_shown_until_a_new_examination_has_others() -> None:
    app = App([FakeServer({"/stats": [node(topic("t", channel("c", depth=5)))]}).address])
    assert "Doctor examines" in app.page("/")
    app.page("/doctor")
    kept, may_end = app.app._site.monitor.diagnosis, threading.Event()

    def examine() -> Diagnosis:
        may_end.wait(DEADLINE)
        return Diagnosis((), time.time(), 1.0)

    old = replace(kept.value(), clock=time.time() - 680)
    kept._kept, kept._get = (old, time.monotonic() - 680, kept._change), examine
    for target in ("/doctor", "/"):
        assert "5 messages and no consumer" in app.page(target)
        assert re.search("examined 11m 2.s ago : a new examination is under way", app.page(target))
    may_end.set()
    eventually(lambda: "No problems." in app.page("/doctor"), "examined again")


def test_what_was_asked_before_a_change_is_shown_to_nobody_after_it() -> None:
    state, asked, may_answer, values = ["old"], threading.Event(), threading.Event(), dict[int, str]()

    def ask() -> str:
        answer = state[0]
        asked.set()
        assert may_answer.wait(DEADLINE)
        return answer

    def look(number: int) -> threading.Thread:
        thread = threading.Thread(target=lambda: values.update({number: kept.value()}), daemon=True)
        thread.start()
        return thread

    kept = Kept(ask, math.inf)
    may_answer.set()
    assert kept.value() == "old"
    asked.clear()
    may_answer.clear()
    kept.expire()
    looks = [look(0)]
    assert asked.wait(DEADLINE)
    looks.append(look(1))
    looks[1].join(0.2)  # without the old value
    state[0] = "new"
    kept.expire()  # while somebody asks
    looks.append(look(2))
    looks[2].join(0.2)
    assert values == {}
    may_answer.set()
    for thread in looks:
        thread.join(DEADLINE)
    assert (values[1], values[2]) == ("new", "new")


@pytest.mark.usefixtures("rates_at_once")
def test_a_paused_channel_is_not_said_to_become_empty() -> None:
    for paused in (False, True):
        clients = [client("w", connect_ts=1, finish_count=count) for count in (0, 1)]
        looks = [node(topic("t", channel("c", one, depth=900, paused=paused))) for one in clients]
        app = App([FakeServer({"/stats": looks}).address])
        app.page("/topics/t/c")
        assert ("empty in" in app.page("/topics/t/c")) is not paused


def test_buttons_pause_what_is_not_paused_and_clients_of_one_name_have_their_addresses() -> None:
    clients = [client("worker", remote_address=f"10.0.0.7:{port}") for port in (1, 2)]
    looks = [node(topic("t", channel("c", *clients, paused=one), paused=one)) for one in (True, False)]
    paused, other = (FakeServer({"/stats": [look]}).address for look in looks)
    cell = re.compile(r'<th scope="row" class="k9">worker ?<span class="below">([^<]*)</span>')
    for target in ("/topics/t/c", f"/nodes/{paused}?show=clients"):
        assert cell.findall(App([paused]).get(target).text) == ["10.0.0.7:1", "10.0.0.7:2"]
    for nodes, buttons in (([paused], ["Unpause"]), ([other], ["Pause"]), ([paused, other], ["Pause", "Unpause"])):
        for target in ("/topics/t", "/topics/t/c"):
            assert re.findall(r">(Pause|Unpause)</button>", App(nodes).get(target).text) == buttons


def test_names_of_a_hostile_node_are_text_everywhere() -> None:
    odd = topic(HOSTILE, channel(HOSTILE, client(HOSTILE), client("", user_agent=HOSTILE), depth=5), depth=3)
    stats = node(odd, topic(".."), version=HOSTILE, health=HOSTILE)
    fake = FakeServer({"/stats": [stats], "/channel/peek": [peeked(HOSTILE, id=HOSTILE)], "/ping": [HOSTILE]})
    app = App([fake.address], timeout=2.0)
    name = quote(HOSTILE, safe="")
    both = f"topic={name}&channel={name}"
    views = [
        f"/topics/{name}",
        f"/topics/{name}/{name}",
        f"/topics/{name}x",
        f"/nodes/{fake.address}",
        f"/nodes/{name}",
    ]
    views += [f"/?find={name}&sort={name}&page=-1", f"/publish?topic={name}", f"/peek?{both}", f"/tail?topic={name}"]
    views += [f"/login?next={name}", f"/done/{name}", f"/{name}"]
    changes = [f"topic/delete?topic={name}", f"channel/empty?{both}", f"drain/start?node={name}"]
    changes += [f"channel/{words}={name}" for words in (f"rewind?{both}&to", f"rules?{both}&rate")]
    changes += [f"channel/deferred?{both}&cancel={name}", f"config/set?node={fake.address}&option={name}&value={name}"]
    for view in (*VIEWS, *views, *(f"/change/{change}" for change in changes)):
        text = app.get(view).text
        for markup in ("<script>", "<img", "onerror=alert(2)>", "\x00", "\u202e"):
            assert markup not in text, (view, markup)
        assert "alert(1)" not in text or "{{7*7}}" in text or view.endswith(name), view
    links = set(re.findall(r'href="(/topics\?topic=%22[^"]*)"', unescape(app.get("/").text)))
    assert {app.get(link).status for link in links} == {200}
    assert "Traceback" not in app.log.getvalue()


def test_five_hundred_topics_are_shown_in_pages_and_found() -> None:
    names = [f"topic-{number:03}" for number in range(500)]
    topics = [topic(name, message_count=number) for number, name in enumerate(names)]
    app = App([FakeServer({"/stats": [node(*topics)]}).address], grafana_url="https://grafana.example/d/nsq")
    assert '<a href="https://grafana.example/d/nsq">Grafana</a>' in app.get("/").text
    assert "messages 124,750" in app.page("/")
    rows = re.compile(r'<th [^>]*><a href="/topics/(topic-\d+)"').findall  # findings of doctor may name topics too
    for target, shown in (("/", names[:100]), ("/?page=5", names[400:]), ("/?page=99999", names[400:])):
        assert rows(app.get(target).text) == shown
    for column, order, first in (
        ("message_count", "descending", names[-1]), ("-message_count", "ascending", names[0]),
        ("topic", "ascending", names[0]), ("-topic", "descending", names[-1]),
    ):  # fmt: skip
        page = app.get(f"/?sort={column}").text
        assert rows(page)[0] == first
        other = column.removeprefix("-") if column.startswith("-") else f"-{column}"
        assert f'aria-sort="{order}"><a href="/?sort={other}"' in page
    assert rows(app.get("/?find=C-49").text) == names[490:]
    assert 'rel="next"' in app.get("/?find=topic&page=1").text
    assert "No topic matches" in app.page("/?find=nothing")
    app = App([FakeServer({"/stats": [node(topic("orders", channel("billing"), channel("mail")))]}).address])
    links = re.findall(r'href="(/topics/[^"]*)"', app.get("/?find=BILL").text)
    assert links == ["/topics/orders", "/topics/orders/billing", "/topics/orders"]


def test_a_node_that_hangs_delays_the_pages_once_and_is_shown(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.monitor._QUICK", 0.1)
    fake = FakeServer({"/stats": [node(topic("t", channel("c")))], "/channel/peek": [peeked()]})
    app = App([fake.address, hanging], timeout=2.0)
    assert "nodes 1/2" in app.page("/")
    names = "topic=t&channel=c"
    views = ["/", "/topics/t", "/nodes", f"/nodes/{hanging}", f"/peek?{names}"]
    for view in (*views, f"/change/channel/deferred?{names}", f"/change/channel/rules?{names}"):
        app.app._site.monitor.changed()
        assert "no complete answer within 0.1 s" in app.get(view).shown, view


@pytest.mark.usefixtures("rates_at_once")
def test_sums_without_a_node_are_marked_and_what_only_it_has_is_as_it_was_last_known() -> None:
    shared = topic("shared", channel("c", depth=3), depth=4, message_count=9)
    other = [topic("shared", channel("c", depth=30), channel("d", depth=5)), topic("lost", channel("x", depth=6))]
    fakes = [FakeServer({"/stats": looks}) for looks in ([node(shared, topic("near"))], [node(*other), {}])]
    app = App([fake.address for fake in fakes])
    complete = app.page("/")
    assert "depth 48" in complete
    assert re.search("at least|last known|≥", complete) is None
    page = app.page("/")
    for text in ("nodes 1/2 topics at least 2", "depth at least 7", "in/s at least 0", "shared ≥ 0 ≥ 0 ≥ 7 ≥ 4 ≥ 3"):
        assert text in page
    assert "Topics (3) at least, of 1 of 2 nodes" in page
    assert "near 0 – 0" in page  # the other node had no such topic
    assert re.search("lost last known ([0–] ){0,2}6 0 6", page)
    assert re.search("up to [0-9]+ at least", App([fakes[0].address, DOWN]).page("/"))  # which has not answered yet
    page = app.page("/topics/shared")
    assert "depth at least 4 channel depth at least 3" in page
    assert re.search(r"Channels \(2\) at least, of 1 of 2 nodes .* c ≥ 0 ≥ 0 ≥ 3 .* d last known (– )*5", page)
    assert "1 node ≥ 4" in page
    for target in ("/topics/lost", "/topics/lost/x", "/topics/shared/d"):
        page = app.page(target)
        assert re.search(rf"last known \d+s ago, as {fakes[1].address} did not answer", page)
        assert re.search("depth last known [56]", page)
        text = app.get(target).text  # one page, as a later one may have the chart that this one does not have yet
        assert ": unknown now, " in text or "unknown" not in text
    for target, what in (("/topics/none", "the topic none"), ("/topics/shared/none", "the channel none")):
        answer = app.get(target)
        assert answer.status == 502  # it may have it
        assert f"no node that answered has {what}" in answer.shown


def test_the_range_of_the_charts_is_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.site.FRESH", 3600.0)
    topics = topic("t", channel("c", client("w"))), topic("..", channel("c"))
    app = App([FakeServer({"/stats": [node(*topics)]}).address])
    for target in ("/?find=t&range=5m", "/topics/t?range=5m", "/topics/t/c?range=5m", "/topics?topic=..&range=5m"):
        text = unescape(app.get(target).text)
        assert "depth in the last 5 min: 0 now" in text.replace(" with channels", "")
        path = target.removesuffix("range=5m")
        assert f'<a href="{target}" aria-current="true">5 min</a>' in text
        assert f'<a href="{path}range=15m">15 min</a>' in text
        assert f'<a href="{path[:-1]}">hour</a>' in text
        assert re.search(r'<th [^>]*><a href="[^"]*sort=[^"]*range=5m"', text)
    monitor = app.app._site.monitor
    latest = monitor.snapshot(60.0)
    latest.moment += 5.0
    monitor.history.add(latest)
    text = app.get("/?range=5m").text
    assert '<input type="hidden" name="range" value="5m">' in text
    assert len(re.findall(r'<svg aria-hidden="true"><polyline points="0,15 72,15"/></svg> 0</td>', text)) == len(topics)
    assert "in the last hour" in app.get("/?range=2m").text


def test_nodes_and_nsqlookupds_that_are_down_are_shown() -> None:
    app = App([DOWN])
    for target in ("/", f"/nodes/{DOWN}"):
        assert "connection refused" in app.page(target)
    answer = App(lookupds=[DOWN]).get("/")
    assert answer.status == 502
    assert f"nsqlookupd at {DOWN}: connection refused" in answer.shown
    assert "connection refused" in App(lookupds=[DOWN]).page("/lookup")


MISSING = {
    **dict.fromkeys(("/topics/none", "/topics/t/none", "/nodes/none:1", "/nope", "/a/b/c/d", "/done/none"), 404),
    **dict.fromkeys(("/static/none.css", "/static/..%2Fapp.py", "/static/%2e%2e"), 404),
    **dict.fromkeys(("/change/topic/delete?topic=none", "/change/topic/explode?topic=t"), 404),
    # Only commands that change the cluster have a page.
    **dict.fromkeys(
        (f"/change/{path}" for path in ("bench", "data/repair", "topic/show", "topic", "topic/create/t")), 404
    ),
    **dict.fromkeys(("/peek", "/peek?topic=t&count=0", "/peek?topic=t&count=1e9"), 400),
    **dict.fromkeys(("/change/topic/create?topic=a%20b", "/change/topic/tombstone?topic=t&node=a:1"), 400),
}


def test_what_is_not_there_is_a_page_or_json_for_a_client_that_asks_for_it() -> None:
    app = App([FakeServer({"/stats": [node(topic("t"))]}).address])
    assert {target: app.get(target).status for target in MISSING} == MISSING
    assert app.log.getvalue() == ""
    assert app.get("/nope", Accept="text/html,*/*").shown.startswith("Not found · gnsqadmin")
    assert "No page has this address." in app.get("/a/b/c/d", Accept="text/html").shown
    assert "This address cannot be used in this way." in app.ask("DELETE", "/nodes", **OWN).shown
    assert app.get("/done/none", Accept="application/json").json() == {"message": "This result is no longer kept."}
    assert app.get("/nope").json() == app.get("/api/nope").json() == {"message": "NOT_FOUND"}


def test_no_reading_request_creates_a_topic_as_that_of_a_consumer_would(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory(*EMBEDDED, "--lookup-creates-topics")
    lookupd = LookupdInside(daemon)
    lookupd.ask("/topic/create?topic=listed", "POST")
    app = App(lookupds=[lookupd.http_address])
    reading = [re.sub(":[a-z]+", "*", route.path) for route in ROUTES if "GET" in route.method]
    reading += ["/?find=*", "/peek?topic=*", "/tail?topic=*", "/api/topics?inactive=true"]
    reading += [f"/change/topic/{action}?topic=*" for action in ("create", "delete")]
    names = ("create", "rewind", "rules", "deferred")
    reading += [f"/change/channel/{name}?topic=*&channel=*&to=first&rate=1" for name in names]
    for name in ("nope", "listed"):
        for target in reading:
            app.get(target.replace("*", name))
        gnsqadmin("topic", "show", name, f"--lookupd-http-address={lookupd.http_address}")
        assert (lookupd.ask("/topics"), daemon.stats()["topics"]) == ({"topics": ["listed"]}, [])
    assert lookupd.found("nope") == {daemon.tcp_address[1]}  # for a consumer


def test_texts_have_contrast() -> None:
    """Requires 4.5 to 1 of every text against every background, light and dark (WCAG 2.2, 1.4.3)."""
    css = App().get("/static/page.css").text
    for scheme in re.findall(r":root \{(.*?)\}", css, re.DOTALL):
        colours = dict(re.findall(r"--(\w+): (#\w+);", scheme))
        for text in ("text", "faint", "link", "good", "note", "bad"):
            for ground in ("back", "raised"):
                dark, light = sorted((_luminance(colours[text]), _luminance(colours[ground])))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground, scheme)


def _luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[index : index + 2], 16) / 255 for index in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
