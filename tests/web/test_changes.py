"""Changes on the page, of gnsqd and of the real nsqd: the form of a command, its plan, and what was then done; messages
that are published by a form, and shown while they arrive."""

import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

from cli.fake_nsqd import FakeServer, channel, node, topic
from cli.gnsqadmin import gnsqadmin
from cli.nodes import DOWN, address, at, fill, publish
from kit.daemons import Instance, eventually
from kit.http_api import ask
from kit.nsq_client import NSQClient
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory, create, post, wait_for
from web.app import OWN, App, PageAnswer

T = {"topic": "t"}
C = T | {"channel": "c"}


@pytest.fixture
def gnsqd(gnsqd_factory: DaemonFactory) -> Instance:
    """Starts a gnsqd with a journal and three messages that are finished."""
    daemon = gnsqd_factory("--durability=process", "--retention-bytes=1000000", "--drain-timeout=1h")
    fill(daemon, "t", "c", count=3)
    post(daemon, "/channel/empty?topic=t&channel=c")
    return daemon


def plan(app: App, words: str, status: int = 200, /, **fields: str) -> str:
    """Returns the text of the page of a command, such as "topic delete", with these values."""
    answer = app.get(f"/change/{words.replace(' ', '/')}?{urlencode(fields)}")
    assert answer.status == status, answer.text
    return answer.shown


def confirm(app: App, words: str, /, **fields: str) -> PageAnswer:
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


def test_a_topic_is_paused_emptied_and_deleted_with_its_consumers(nsqd: Instance) -> None:
    app = App([address(nsqd)])
    create(nsqd, "t")
    for _ in range(2):
        assert "Done: channel create t c" in act(app, "channel create", **C)
    act(app, "topic pause", **T)
    assert "paused" in app.page("/topics/t").partition("As of")[0]
    publish(nsqd, "t", 3)
    assert "emptied" in confirm(app, "topic empty", **T).shown
    assert (nsqd.topic_stats("t")["paused"], nsqd.topic_stats("t")["depth"]) == (True, 0)
    act(app, "topic unpause", **T)
    fill(nsqd, "t", "c", count=5)
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c")
        assert "loses 5 messages and disconnects 1 client" in plan(app, "topic delete", **T)
        assert "deleted" in confirm(app, "topic delete", **T).shown
    assert nsqd.stats()["topics"] == []
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


def test_a_result_can_be_loaded_again_without_doing_it_again(nsqd: Instance) -> None:
    create(nsqd, "t")
    app = App([address(nsqd)])
    answer = app.ask("POST", "/change/topic/delete", urlencode(T | {"confirmed": "yes"}).encode(), **OWN)
    create(nsqd, "t")
    for _ in range(2):
        assert "deleted" in app.page(answer.headers["Location"])
    assert len(nsqd.stats()["topics"]) == 1


def test_a_node_that_fails_is_reported_and_the_others_are_changed(nsqd: Instance) -> None:
    create(nsqd, "t")
    page = act(App([address(nsqd), DOWN]), "topic pause", **T)
    assert "failed on some nodes" in page
    assert f"nsqd at {DOWN}: connection refused" in page
    assert nsqd.stats()["topics"][0]["paused"] is True


def test_only_the_matches_that_were_shown_are_changed(nsqd: Instance) -> None:
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


def test_a_form_has_what_the_command_requires_and_no_secrets(gnsqd: Instance) -> None:
    app = App([address(gnsqd)])
    for words, fields, reason in (("topic/delete", {}, "Missing argument"), ("channel/rules", C, "nothing to change")):
        answer = app.post(f"/change/{words}", **fields, confirmed="yes")
        assert answer.status == 400
        assert reason in answer.shown
        assert "Done:" not in answer.shown
    assert app.get("/change/topic/delete?confirmed=yes").status == 200
    form = app.get("/change/replay-dead?topic=t").text
    assert ('name="limit"' in form, "secret" in form, 'name="rate"' in form) == (True, False, False)


TOPOLOGY = '{"topic": "t", "channel": "d"}\n{"topic": "u", "paused": true}\n'
# Commands with these fields, the status of the page, and a text of the plan, if there is one.
PLANS: list[tuple[str, dict[str, str], int, str]] = [
    ("channel rewind", C, 200, ""),
    ("channel rewind", C | {"to": "first"}, 200, "3 messages will be delivered again to the channel c"),
    ("channel rewind", C | {"to": "yesterday"}, 400, "--to: 'yesterday' is not a time ago"),
    ("channel rules", C, 200, ""),
    ("channel rules", C | {"rate": "100", "ordered": "no"}, 200, "gets rate 100.0, ordered false."),
    ("channel deferred", C | {"cancel": "0" * 16}, 404, "no node has the deferred message"),
    ("drain start", {"node": "nowhere:1"}, 404, ""),
    ("topology import", {"file": "/etc/hostname"}, 400, "the text, line 1: '/etc/hostname'"),  # no file is read
    ("topology import", {"file": TOPOLOGY}, 200, "2 changes on 1 node"),
]


def test_plans_are_shown_and_change_nothing(gnsqd: Instance) -> None:
    app, before = App([address(gnsqd)]), gnsqd.stats()["topics"]
    for words, fields, status, text in PLANS:
        shown = plan(app, words, status, **fields)
        assert text in shown, (words, fields)
        assert ("Yes," in shown) is (status == 200 and text != ""), (words, fields)
    assert gnsqd.stats()["topics"] == before


def test_what_was_planned_is_done(gnsqd: Instance) -> None:
    app = App([address(gnsqd)])
    assert "channel rewind: done" in confirm(app, "channel rewind", **C, to="first").shown
    assert gnsqd.channel_stats("t", "c")["depth"] == 3
    assert "ADMIN: 303 POST /change/channel/rewind t c first" in app.log.getvalue()
    confirm(app, "channel rules", **C, **{"idle-timeout": "9h", "idle-policy": "empty"})
    assert gnsqd.channel_stats("t", "c")["rules"]["idle_timeout"] == 9 * 3600 * 10**9
    confirm(app, "topology import", file=TOPOLOGY)
    assert (gnsqd.channel_stats("t", "d") != {}, gnsqd.topic_stats("u")["paused"]) == (True, True)


def test_options_are_shown_and_changed(gnsqd: Instance) -> None:
    app, change = App([address(gnsqd)]), {"node": address(gnsqd), "option": "log_level"}
    assert "mem_queue_size" in app.page(f"/options?node={address(gnsqd)}")
    assert app.get("/options?node=nowhere:1").status == 404
    assert f"{address(gnsqd)} info" in plan(app, "config set", **change, value="error")
    act(app, "config set", **change, value="error")
    assert ask(gnsqd, "GET /config/log_level")[1] == "4"
    assert "'loud' is not a value for log_level" in act(app, "config set", **change, value="loud")


def test_a_deferred_message_is_shown_and_cancelled(gnsqd: Instance) -> None:
    post(gnsqd, "/pub?topic=t&defer=3600000", b"later")
    wait_for(gnsqd, "t", "c", deferred_count=1)
    app = App([address(gnsqd)])
    shown = app.get(f"/change/channel/deferred?{urlencode(C)}")
    assert "later" in shown.shown
    (message,) = re.findall(r'href="/change/channel/deferred\?topic=t&amp;channel=c&amp;cancel=(\w{16})"', shown.text)
    assert f"The message {message} will not be delivered" in plan(app, "channel deferred", **C, cancel=message)
    assert "cancelled" in confirm(app, "channel deferred", **C, cancel=message).shown
    assert gnsqd.channel_stats("t", "c")["deferred_count"] == 0


def test_a_node_is_drained_and_its_drain_cancelled_and_the_page_does_not_wait(gnsqd: Instance) -> None:
    fill(gnsqd, "t", "c", count=1)
    app, where = App([address(gnsqd), DOWN]), {"node": address(gnsqd)}
    form = plan(app, "drain start", **where)
    assert "makes it refuse publishers" in form
    assert "Wait until" not in form
    confirm(app, "drain start", **where, watch="yes")
    assert json.loads(ask(gnsqd, "GET /drain")[1])["draining"] is True
    assert "not draining" not in plan(app, "drain cancel", **where)
    act(app, "drain cancel", **where)
    assert json.loads(ask(gnsqd, "GET /drain")[1])["draining"] is False


def test_a_node_that_cannot_do_it_is_an_error_on_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    app = App([FakeServer({"/stats": [node(topic("t", channel("c")))]}).address])
    for words, more in (("rewind", {"to": "first"}), ("rules", {}), ("deferred", {})):
        assert "it is not gnsqd" in plan(app, f"channel {words}", **C, **more)
    assert capfd.readouterr().err == ""


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
    assert "no node has it; nsqlookupd still lists it" in app.page("/topics/later")
    assert "deleted" in confirm(app, "topic delete", topic="later").shown
    assert lookupd.ask("GET", "/lookup?topic=later")[0] == 404

    where = T | {"node": address(nsqd)}
    shown = plan(app, "topic tombstone", **where)
    assert "to be hidden" in shown
    assert "loses" not in shown
    act(app, "topic tombstone", **where)
    assert f"Tombstoned at nsqlookupd: {address(nsqd)}" in app.page("/topics/t")
    assert "Tombstones" in app.page("/lookup")
    assert nsqd.stats()["topics"] != []


def test_publish_a_message(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    app = App([address(nsqd)])
    page = app.post("/publish", topic="t", body="two\r\nlines é", node=address(nsqd), defer="")
    assert f"1 message published to t at {address(nsqd)}" in page.shown
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        assert consumer.message().body == "two\nlines é".encode()
    app.post("/publish", topic="t", body="later", defer="1h")
    wait_for(nsqd, "t", "c", deferred_count=1)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"topic": "a b", "body": "x"}, "not a valid name"),
        ({"topic": "t", "body": ""}, "cannot be empty"),
        ({"topic": "t", "body": "x", "defer": "soon"}, "is not a duration"),
        ({"topic": "t", "body": "x", "defer": "99d"}, "30 days"),
        ({"topic": "t", "new": "t", "body": "x" * 2_000_000}, "MSG_TOO_BIG"),
    ],
)
def test_what_cannot_be_published_is_kept_in_the_form(nsqd: Instance, fields: dict[str, str], reason: str) -> None:
    page = App([address(nsqd)]).post("/publish", **fields)
    assert reason in page.shown
    assert f">\n{fields['body']}</textarea>" in page.text
    assert nsqd.stats()["topics"] == []


def test_live_messages_are_copies_while_somebody_looks(gnsqd: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.app.INTERVAL", 0.02)
    monkeypatch.setattr("nsqadmin_cli.web.site.SHARED", 0.0)
    create(gnsqd, "t", "c")
    publish(gnsqd, "alone", 1)
    app = App([address(gnsqd)])
    assert "No message yet" in app.page("/tail?topic=t")
    assert len(gnsqd.topic_stats("t")["channels"]) == 1
    with app.live("/tail?topic=t") as events:
        eventually(lambda: next(events) and len(gnsqd.topic_stats("t")["channels"]) == 2)
        post(gnsqd, "/mpub?topic=t", b'{"order": 1}\n<b>two</b>')
        text = next(found for found in events if "2 received" in found)
        assert text.index("<b>two</b>") < text.index('"order": 1')
        wait_for(gnsqd, "t", "c", depth=2)  # as before
        monkeypatch.setattr("nsqadmin_cli.web.tail._PATIENCE", 0.0)
    eventually(lambda: len(gnsqd.topic_stats("t")["channels"]) == 1)
    with app.live("/tail?topic=alone") as events:
        assert "Create a channel first" in next(events)
    assert gnsqd.stats("alone")["topics"][0]["depth"] == 1
    assert App([address(gnsqd)], read_only=True).get("/tail?topic=t").status == 403
    assert app.get("/tail?topic=none").status == 404
