"""Changes on the page, of gnsqd and of the real nsqd: the form of a command, its plan, and what was then done."""

import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

from cli.fake_nsqd import FakeServer, channel, node, topic
from cli.gnsqadmin import gnsqadmin
from cli.nodes import DOWN, address, at, fill, publish
from kit.daemons import Daemon, eventually
from kit.http_api import ask, topic_stats
from kit.nsq_client import Client
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory, create, post, wait_for
from kit.traffic import publish as publish_bodies
from web.app import OWN, Answer, App

T = {"topic": "t"}
C = T | {"channel": "c"}


@pytest.fixture
def gnsqd(gnsqd_factory: DaemonFactory) -> Daemon:
    """With a journal and three messages that are finished."""
    daemon = gnsqd_factory("--durability=process", "--retention-bytes=1000000", "--drain-timeout=1h")
    fill(daemon, "t", "c", count=3)
    post(daemon, "/channel/empty?topic=t&channel=c")
    return daemon


def plan(app: App, words: str, status: int = 200, /, **fields: str) -> str:
    """Returns the text of the page of a command, such as "topic delete", with these values."""
    answer = app.get(f"/change/{words.replace(' ', '/')}?{urlencode(fields)}")
    assert answer.status == status, answer.text
    return answer.shown


def confirm(app: App, words: str, /, **fields: str) -> Answer:
    """Sends what the form of a plan has, and returns the page behind it. Without confirmation, the plan comes again."""
    path = f"/change/{words.replace(' ', '/')}"
    page = app.get(f"{path}?{urlencode(fields)}").text
    (form,) = re.findall(r'<form class="line" method="post".*?</form>', page, re.DOTALL)
    sent = {name: unescape(value) for name, value in re.findall(r'name="([^"]*)" value="([^"]*)"', form)}
    assert sent.pop("confirmed") == "yes"
    assert 'name="confirmed"' in app.post(path, **sent).text
    done = app.post(path, **sent, confirmed="yes")
    assert (done.status, 'name="confirmed"' in done.text) == (200, False), done.text
    return done


def act(app: App, words: str, /, **fields: str) -> str:
    """Returns the text of the page where a button ends that needs no plan."""
    return app.post(f"/change/{words.replace(' ', '/')}", **fields, confirmed="yes").shown


def test_topics_and_channels_are_created_paused_emptied_and_deleted(nsqd: Daemon) -> None:
    app = App([address(nsqd)])
    assert "Done: topic create t" in act(app, "topic create", **T)
    act(app, "channel create", **T, channel="c#ephemeral")
    for _ in range(2):
        assert "Done: channel create t c" in act(app, "channel create", **C)
    assert {one["channel_name"] for one in topic_stats(nsqd, "t")["channels"]} == {"c", "c#ephemeral"}
    act(app, "channel pause", **C)
    assert nsqd.channel_stats("t", "c")["paused"] is True
    assert "paused" in app.page("/topics/t/c")
    act(app, "channel unpause", **C)
    assert nsqd.channel_stats("t", "c")["paused"] is False
    act(app, "topic pause", **T)
    publish(nsqd, "t", 3)
    for words in ("topic delete", "topic empty"):
        assert "loses 3 messages" in plan(app, words, **T)
    assert (topic_stats(nsqd, "t")["paused"], topic_stats(nsqd, "t")["depth"]) == (True, 3)
    assert "emptied" in confirm(app, "topic empty", **T).shown
    assert topic_stats(nsqd, "t")["depth"] == 0
    act(app, "topic unpause", **T)
    fill(nsqd, "t", "c", count=5)
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c")
        assert "loses 5 messages and disconnects 1 client" in plan(app, "channel delete", **C)
        assert "deleted" in confirm(app, "channel delete", **C).shown
    assert nsqd.channel_stats("t", "c") == {}
    assert "deleted" in confirm(app, "topic delete", **T).shown
    assert nsqd.stats()["topics"] == []
    assert "Traceback" not in app.log.getvalue()
    assert "303 POST /change/topic/delete t (127.0.0.1)" in app.log.getvalue()


def test_a_plan_shows_what_the_command_line_shows(nsqd_factory: DaemonFactory) -> None:
    nodes = [nsqd_factory(), nsqd_factory()]
    for number, each in enumerate(nodes):
        fill(each, "t", "c", "d", count=number + 2)
    app = App([address(each) for each in nodes])
    for words in (("topic", "delete", "t"), ("channel", "empty", "t", "c"), ("topic", "empty", "t", "--with-channels")):
        printed = gnsqadmin(*words, "--dry-run", *at(*nodes)).out
        more = {"with-channels": "yes"} if "--with-channels" in words else {}
        shown = plan(app, " ".join(words[:2]), **(C if words[0] == "channel" else T), **more)
        (warning,) = re.findall(r"^(.* loses .*?)\. Nothing was done", printed, re.MULTILINE)
        assert warning in shown
        for each in nodes:
            (row,) = re.findall(rf"^{re.escape(address(each))} .*", printed, re.MULTILINE)
            assert " ".join(row.split()) in shown


def test_a_result_can_be_loaded_again_without_doing_it_again(nsqd: Daemon) -> None:
    create(nsqd, "t")
    app = App([address(nsqd)])
    answer = app.ask("POST", "/change/topic/delete", urlencode(T | {"confirmed": "yes"}).encode(), **OWN)
    create(nsqd, "t")
    for _ in range(2):
        assert "deleted" in app.page(answer.headers["Location"])
    assert len(nsqd.stats()["topics"]) == 1


def test_a_node_that_fails_is_reported_and_the_others_are_changed(nsqd: Daemon) -> None:
    create(nsqd, "t")
    page = act(App([address(nsqd), DOWN]), "topic pause", **T)
    assert "failed on some nodes" in page
    assert f"nsqd at {DOWN}: connection refused" in page
    assert nsqd.stats()["topics"][0]["paused"] is True


@pytest.mark.parametrize("name", ["a b", "x" * 65, "<b>", "a#b"])
def test_invalid_names_are_refused(name: str) -> None:
    assert "is not a valid topic name" in plan(App([DOWN]), "topic create", 400, topic=name)


def test_only_the_matches_that_were_shown_are_changed(nsqd: Daemon) -> None:
    create(nsqd, "t1")
    app = App([address(nsqd)])
    form = app.get("/change/topic/delete?topic=t*").text
    (seen,) = re.findall(r'name="seen" value="(\w+)"', form)
    assert 'href="/topics/' not in form  # no page is that of a pattern
    create(nsqd, "t2")
    for sent in ({}, {"seen": seen}):
        answer = app.post("/change/topic/delete", topic="t*", confirmed="yes", **sent)
        assert (answer.status, "Others match than were shown" in answer.shown) == (409, True)
    assert len(nsqd.stats()["topics"]) == 2
    assert "deleted" in confirm(app, "topic delete", topic="t*").shown
    assert nsqd.stats()["topics"] == []


def test_nothing_is_said_to_be_done_without_what_the_command_requires(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    for words, fields, reason in (("topic/delete", {}, "Missing argument"), ("channel/rules", C, "nothing to change")):
        answer = app.post(f"/change/{words}", **fields, confirmed="yes")
        assert (answer.status, reason in answer.shown, "Done:" in answer.shown) == (400, True, False)
    assert app.get("/change/topic/delete?confirmed=yes").status == 200


def test_the_page_neither_waits_for_a_drain_nor_takes_secrets(gnsqd: Daemon) -> None:
    fill(gnsqd, "t", "c", count=1)
    app, where = App([address(gnsqd)]), {"node": address(gnsqd)}
    assert "Wait until" not in plan(app, "drain start", **where)
    assert "draining" in act(app, "drain start", **where, watch="yes")
    form = app.get("/change/replay-dead?topic=t").text
    assert ('name="limit"' in form, "secret" in form, 'name="rate"' in form) == (True, False, False)


def test_only_commands_that_change_the_cluster_have_a_page() -> None:
    for path in ("bench", "data/repair", "topic/show", "topic", "topic/create/t", "nothing"):
        assert App([DOWN]).get(f"/change/{path}").status == 404, path


def test_a_channel_is_rewound(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "Yes," not in plan(app, "channel rewind", **C)
    assert "3 messages will be delivered again to the channel c" in plan(app, "channel rewind", **C, to="first")
    assert "--to: 'yesterday' is not a time ago" in plan(app, "channel rewind", 400, **C, to="yesterday")
    assert "channel rewind: done" in confirm(app, "channel rewind", **C, to="first").shown
    assert gnsqd.channel_stats("t", "c")["depth"] == 3
    assert "ADMIN: 303 POST /change/channel/rewind t c first" in app.log.getvalue()


def test_rules_are_shown_and_changed(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "Yes," not in plan(app, "channel rules", **C)
    assert "gets rate 100.0, ordered true." in plan(app, "channel rules", **C, rate="100", ordered="yes")
    assert "gets ordered false." in plan(app, "channel rules", **C, ordered="no")
    assert "'many' is not a valid float" in plan(app, "channel rules", 400, **C, rate="many")
    assert "changed" in confirm(app, "channel rules", **C, rate="100").shown
    assert gnsqd.channel_stats("t", "c")["rules"]["rate"] == 100
    confirm(app, "channel rules", **C, **{"idle-timeout": "9h", "idle-policy": "empty"})
    assert gnsqd.channel_stats("t", "c")["rules"]["idle_timeout"] == 9 * 3600 * 10**9


def test_a_deferred_message_is_shown_and_cancelled(gnsqd: Daemon) -> None:
    post(gnsqd, "/pub?topic=t&defer=3600000", b"later")
    wait_for(gnsqd, "t", "c", deferred_count=1)
    app = App([address(gnsqd)])
    shown = app.get(f"/change/channel/deferred?{urlencode(C)}")
    assert "later" in shown.shown
    (message,) = re.findall(r'href="/change/channel/deferred\?topic=t&amp;channel=c&amp;cancel=(\w{16})"', shown.text)
    assert f"The message {message} will not be delivered" in plan(app, "channel deferred", **C, cancel=message)
    assert "cancelled" in confirm(app, "channel deferred", **C, cancel=message).shown
    assert gnsqd.channel_stats("t", "c")["deferred_count"] == 0
    plan(app, "channel deferred", 404, **C, cancel=message)


def test_a_node_is_drained_and_its_drain_cancelled(gnsqd: Daemon) -> None:
    fill(gnsqd, "t", "c", count=1)
    app, where = App([address(gnsqd), DOWN]), {"node": address(gnsqd)}
    assert "makes it refuse publishers" in plan(app, "drain start", **where)
    confirm(app, "drain start", **where)
    assert json.loads(ask(gnsqd, "GET /drain")[1])["draining"] is True
    assert "not draining" not in plan(app, "drain cancel", **where)
    act(app, "drain cancel", **where)
    assert json.loads(ask(gnsqd, "GET /drain")[1])["draining"] is False
    plan(app, "drain start", 404, node="nowhere:1")


def test_options_are_shown_and_changed(gnsqd: Daemon) -> None:
    app, where = App([address(gnsqd)]), {"node": address(gnsqd)}
    assert "mem_queue_size" in app.page(f"/options?{urlencode(where)}")
    assert app.get("/options?node=nowhere:1").status == 404
    change = where | {"option": "log_level", "value": "error"}
    assert f"{address(gnsqd)} info" in plan(app, "config set", **change)
    act(app, "config set", **change)
    assert ask(gnsqd, "GET /config/log_level")[1] == "4"
    assert "'loud' is not a value for log_level" in act(app, "config set", **change | {"value": "loud"})


def test_a_topology_is_imported_from_text_and_no_file_is_read(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "the text, line 1: '/etc/hostname'" in plan(app, "topology import", 400, file="/etc/hostname")
    lines = '{"topic": "t", "channel": "d"}\n{"topic": "u", "paused": true}\n'
    assert "2 changes on 1 node" in plan(app, "topology import", file=lines)
    confirm(app, "topology import", file=lines)
    assert (gnsqd.channel_stats("t", "d") != {}, topic_stats(gnsqd, "u")["paused"]) == (True, True)


def test_a_node_that_cannot_do_it_is_an_error_on_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    app = App([FakeServer({"/stats": [node(topic("t", channel("c")))]}).address])
    for words, more in (("rewind", {"to": "first"}), ("rules", {}), ("deferred", {})):
        assert "it is not gnsqd" in plan(app, f"channel {words}", **C, **more)
    assert capfd.readouterr().err == ""


def test_dead_letters_are_shown_and_replayed(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "/replay-dead" not in app.get("/topics/t/c").text
    header: dict[str, object] = {"id": "0" * 16, **C, "attempts": 5, "timestamp": 1, "reason": "timed out", "died": 2}
    letter = json.dumps(header).encode()
    publish_bodies(gnsqd, "t.c.dead", letter + b"\nfirst", letter + b"\nsecond")
    eventually(lambda: gnsqd.stats("t.c.dead")["topics"][0]["depth"] == 2)
    app.app._site.monitor.changed()
    assert "/change/replay-dead" in app.get("/topics/t/c").text
    assert "Would publish 2 messages" in plan(app, "replay-dead", **C)
    assert "Would publish 1 message" in plan(app, "replay-dead", **C, limit="1")
    plan(app, "replay-dead", 400, **C, limit="0")
    assert gnsqd.channel_stats("t", "c")["depth"] == 0
    act(app, "replay-dead", **C, limit="1")
    wait_for(gnsqd, "t", "c", depth=1)


@pytest.mark.peer
def test_with_nsqlookupd(nsqd_factory: DaemonFactory, nsqlookupd: PeerProgram) -> None:
    lookupd = nsqlookupd
    nsqd = nsqd_factory("--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.address['TCP']}")
    eventually(lambda: lookupd.ask("GET", "/nodes")[1]["producers"])
    app = App(lookupds=[lookupd.address["HTTP"]])
    create(nsqd, "t", "c")
    eventually(lambda: "c" in lookupd.ask("GET", "/channels?topic=t")[1]["channels"])
    page = app.page("/lookup")
    assert f"nsqlookupd {lookupd.address['HTTP']}" in page
    assert address(nsqd) in page
    assert "1/1" in app.page("/nodes")

    act(app, "topic create", topic="later", **{"lookupd-only": "yes"})
    assert lookupd.ask("GET", "/lookup?topic=later")[0] == 200
    assert "no node has it; nsqlookupd still lists it" in app.page("/topics/later")
    assert "deleted" in confirm(app, "topic delete", topic="later").shown
    assert lookupd.ask("GET", "/lookup?topic=later")[0] == 404

    where = T | {"node": address(nsqd)}
    shown = plan(app, "topic tombstone", **where)
    assert "to be hidden" in shown
    assert "loses" not in shown
    act(app, "topic tombstone", **where)
    (producer,) = lookupd.ask("GET", "/nodes")[1]["producers"]
    assert producer["tombstones"] == [True]
    assert nsqd.stats()["topics"] != []
    assert f"Tombstoned at nsqlookupd: {address(nsqd)}" in app.page("/topics/t")
    assert "Tombstones" in app.page("/lookup")

    assert "loses no messages" in plan(app, "topic tombstone", **where, delete="yes")
    confirm(app, "topic tombstone", **where, delete="yes")
    assert nsqd.stats()["topics"] == []
