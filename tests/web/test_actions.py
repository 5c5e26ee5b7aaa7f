"""Changes by the forms of the page, of gnsqd and of the real nsqd: plans first, what is lost, and what was done."""

import re
from html import unescape
from urllib.parse import urlencode

import pytest

from cli.gnsqadmin import gnsqadmin
from cli.nodes import DOWN, address, at, fill, publish
from kit.daemons import Daemon, eventually
from kit.http_api import topic_stats
from kit.nsq_client import Client
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory, create, post, wait_for
from web.app import OWN, Answer, App


def plan(app: App, **fields: str) -> str:
    """The text of a plan, which has one form, to confirm it."""
    answer = app.get(f"/plan?{urlencode(fields)}")
    assert answer.status == 200, answer.text
    return answer.shown


def confirm(app: App, **fields: str) -> Answer:
    """Follow a plan to its end: send what its form has."""
    page = app.get(f"/plan?{urlencode(fields)}").text
    form = page[page.index('action="/act"') :]
    sent = dict(re.findall(r'name="([^"]*)" value="([^"]*)"', form))
    return app.post("/act", **{name: unescape(value) for name, value in sent.items()})


def test_topics_and_channels_are_created_paused_emptied_and_deleted(nsqd: Daemon) -> None:
    app = App([address(nsqd)])

    def act(action: str, **names: str) -> str:
        return app.post("/act", action=action, topic="t", **names).shown

    assert "created" in act("create")
    assert "created" in act("create", channel="c#ephemeral")
    assert "created" in act("create", channel="c")
    assert "already existed" in act("create", channel="c")
    assert {one["channel_name"] for one in topic_stats(nsqd, "t")["channels"]} == {"c", "c#ephemeral"}
    assert "paused" in act("pause", channel="c")
    assert nsqd.channel_stats("t", "c")["paused"] is True
    assert "paused" in app.page("/topics/t/c")
    act("unpause", channel="c")
    assert nsqd.channel_stats("t", "c")["paused"] is False
    act("pause")
    publish(nsqd, "t", 3)
    for action in ("delete", "empty"):  # without confirmation
        shown = act(action)
        assert "Confirm" in shown
        assert "loses 3 messages" in shown
    assert (topic_stats(nsqd, "t")["paused"], topic_stats(nsqd, "t")["depth"]) == (True, 3)
    assert "emptied" in confirm(app, action="empty", topic="t").shown
    assert topic_stats(nsqd, "t")["depth"] == 0
    act("unpause")
    fill(nsqd, "t", "c", count=5)
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c")
        assert "loses 5 messages and disconnects 1 client" in plan(app, action="delete", topic="t", channel="c")
        assert "deleted" in confirm(app, action="delete", topic="t", channel="c").shown
    assert nsqd.channel_stats("t", "c") == {}
    assert "deleted" in confirm(app, action="delete", topic="t").shown
    assert nsqd.stats()["topics"] == []
    assert "Traceback" not in app.log.getvalue()
    assert "303 POST /act delete t c (127.0.0.1)" in app.log.getvalue()


def test_a_plan_shows_what_the_command_line_shows(nsqd_factory: DaemonFactory) -> None:
    nodes = [nsqd_factory(), nsqd_factory()]
    for number, node in enumerate(nodes):
        fill(node, "t", "c", "d", count=number + 2)
    app = App([address(node) for node in nodes])
    for words in (("topic", "delete", "t"), ("channel", "empty", "t", "c"), ("topic", "empty", "t", "--with-channels")):
        printed = gnsqadmin(*words, "--dry-run", *at(*nodes)).out
        fields = {"action": words[1], "topic": "t"} | ({"channel": "c"} if words[0] == "channel" else {})
        fields |= {"with_channels": "yes"} if "--with-channels" in words else {}
        shown = plan(app, **fields)
        (warning,) = re.findall(r"^(.* loses .*?)\. Nothing was done", printed, re.MULTILINE)
        assert warning in shown
        for node in nodes:
            (row,) = re.findall(rf"^{re.escape(address(node))} .*", printed, re.MULTILINE)
            assert " ".join(row.split()) in shown


def test_a_result_can_be_loaded_again_without_doing_it_again(nsqd: Daemon) -> None:
    app = App([address(nsqd)])
    answer = app.ask("POST", "/act", urlencode({"action": "create", "topic": "t"}).encode(), **OWN)
    post(nsqd, "/topic/delete?topic=t")
    for _ in range(2):
        assert "created" in app.page(answer.headers["Location"])
    assert nsqd.stats()["topics"] == []


def test_a_node_that_fails_is_reported_and_the_others_are_changed(nsqd: Daemon) -> None:
    create(nsqd, "t")
    app = App([address(nsqd), DOWN])
    page = app.post("/act", action="pause", topic="t").shown
    assert "Failed on some targets" in page
    assert f"nsqd at {DOWN}: connection refused" in page
    assert nsqd.stats()["topics"][0]["paused"] is True


@pytest.mark.parametrize("topic", ["", "a b", "x" * 65, "<b>", "a#b"])
def test_invalid_names_are_refused(topic: str) -> None:
    app = App([DOWN])
    answer = app.post("/act", action="create", topic=topic)
    assert answer.status == 400
    assert "Not a valid name" in answer.shown


def test_publish_a_message(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    app = App([address(nsqd)])
    page = app.post("/publish", topic="t", body="two\r\nlines é", node=address(nsqd), defer="")
    assert f"1 message published to t at {address(nsqd)}" in page.shown
    with Client(nsqd.tcp_address) as consumer:
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
        ({"topic": "t", "body": "x" * 2_000_000}, "MSG_TOO_BIG"),
    ],
)
def test_what_cannot_be_published_is_kept_in_the_form(nsqd: Daemon, fields: dict[str, str], reason: str) -> None:
    page = App([address(nsqd)]).post("/publish", **fields)
    assert reason in page.shown
    assert f">\n{fields['body']}</textarea>" in page.text
    assert nsqd.stats()["topics"] == []


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

    app.post("/act", action="create-at-lookupd", topic="later")
    assert lookupd.ask("GET", "/lookup?topic=later")[0] == 200
    assert "no node has it; nsqlookupd still lists it" in app.page("/topics/later")
    assert "deleted" in confirm(app, action="delete", topic="later").shown
    assert lookupd.ask("GET", "/lookup?topic=later")[0] == 404

    shown = plan(app, action="tombstone", topic="t", node=address(nsqd))
    assert "to be hidden" in shown
    assert "loses" not in shown
    confirm(app, action="tombstone", topic="t", node=address(nsqd))
    (producer,) = lookupd.ask("GET", "/nodes")[1]["producers"]
    assert producer["tombstones"] == [True]
    assert nsqd.stats()["topics"] != []
    assert f"Tombstoned at nsqlookupd: {address(nsqd)}" in app.page("/topics/t")
    assert "Tombstones" in app.page("/lookup")

    assert "loses no messages" in plan(app, action="tombstone", topic="t", node=address(nsqd), with_delete="yes")
    confirm(app, action="tombstone", topic="t", node=address(nsqd), with_delete="yes")
    assert nsqd.stats()["topics"] == []
