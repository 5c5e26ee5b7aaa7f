"""Rewind, rules, deferred messages, drain and options on the page: what it shows, the plan, and what is then done."""

import json
import re

import pytest

from cli.fake_nsqd import FakeServer, channel, node, topic
from cli.nodes import address, fill
from kit.daemons import Daemon, eventually
from kit.http_api import ask
from kit.traffic import DaemonFactory, post, publish, wait_for
from web.app import App

PLACE = "topic=t&channel=c"


@pytest.fixture
def gnsqd(gnsqd_factory: DaemonFactory) -> Daemon:
    """With a journal and three messages that are finished."""
    daemon = gnsqd_factory("--durability=process", "--retention-bytes=1000000", "--drain-timeout=1h")
    fill(daemon, "t", "c", count=3)
    post(daemon, "/channel/empty?topic=t&channel=c")
    return daemon


def confirmed(app: App, tool: str, **fields: str) -> str:
    """The result of a plan that is confirmed; without that, it is shown again."""
    unconfirmed = app.post(f"/{tool}", **fields)
    assert (unconfirmed.status, "Yes, do it" in unconfirmed.shown) == (200, True)
    done = app.post(f"/{tool}", **fields, confirmed="yes")
    assert (done.status, "Yes, do it" in done.shown) == (200, False)
    return done.shown


def test_a_channel_is_rewound(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "Yes, do it" not in app.page(f"/rewind?{PLACE}")
    assert "3 messages will be delivered again to the channel c" in app.page(f"/rewind?{PLACE}&to=first")
    invalid = app.get(f"/rewind?{PLACE}&to=yesterday")
    assert (invalid.status, "to: 'yesterday' is not a time ago" in invalid.shown) == (400, True)
    assert "Rewind: done" in confirmed(app, "rewind", topic="t", channel="c", to="first")
    assert gnsqd.channel_stats("t", "c")["depth"] == 3
    assert "ADMIN: 303 POST /rewind t c first" in app.log.getvalue()


def test_rules_are_shown_and_changed(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "Yes, do it" not in app.page(f"/rules?{PLACE}")
    assert "gets rate 100.0, ordered true." in app.page(f"/rules?{PLACE}&rate=100&ordered=yes")
    assert "rate: 'many' is not a number" in app.get(f"/rules?{PLACE}&rate=many").shown
    assert "100" not in app.page(f"/rules?{PLACE}")
    assert "changed" in confirmed(app, "rules", topic="t", channel="c", rate="100")
    assert gnsqd.channel_stats("t", "c")["rules"]["rate"] == 100
    assert "changed" in confirmed(app, "rules", topic="t", channel="c", idle_timeout="9h", idle_policy="empty")
    assert gnsqd.channel_stats("t", "c")["rules"]["idle_timeout"] == 9 * 3600 * 10**9


def test_a_deferred_message_is_shown_and_cancelled(gnsqd: Daemon) -> None:
    post(gnsqd, "/pub?topic=t&defer=3600000", b"later")
    wait_for(gnsqd, "t", "c", deferred_count=1)
    app = App([address(gnsqd)])
    shown = app.get(f"/deferred?{PLACE}")
    assert "later" in shown.shown
    (message,) = re.findall(r'href="/deferred\?topic=t&amp;channel=c&amp;cancel=(\w{16})"', shown.text)
    assert f"The message {message} will not be delivered" in app.page(f"/deferred?{PLACE}&cancel={message}")
    assert "cancelled" in confirmed(app, "deferred", topic="t", channel="c", cancel=message)
    assert gnsqd.channel_stats("t", "c")["deferred_count"] == 0
    assert app.get(f"/deferred?{PLACE}&cancel={message}").status == 404


def test_a_node_is_drained_and_its_drain_cancelled(gnsqd: Daemon) -> None:
    fill(gnsqd, "t", "c", count=1)
    app, where = App([address(gnsqd)]), f"node={address(gnsqd)}"
    assert "not draining" in app.page(f"/drain?{where}")
    assert "makes it refuse publishers" in app.page(f"/drain?{where}&action=start")
    for action, expected in (("start", True), ("cancel", False)):
        assert "Drain: done" in confirmed(app, "drain", node=address(gnsqd), action=action)
        assert json.loads(ask(gnsqd, "GET /drain")[1])["draining"] is expected
        assert ("not draining" in app.page(f"/drain?{where}")) is not expected
    assert app.get("/drain?node=nowhere:1").status == 404


def test_options_are_shown_and_changed(gnsqd: Daemon) -> None:
    app, where = App([address(gnsqd)]), f"node={address(gnsqd)}"
    assert "mem_queue_size" in app.page(f"/config?{where}")
    assert "log_level becomes error until" in app.page(f"/config?{where}&option=log_level&value=error")
    assert "Options: done" in confirmed(app, "config", node=address(gnsqd), option="log_level", value="error")
    assert ask(gnsqd, "GET /config/log_level")[1] == "4"
    answer = app.post("/config", node=address(gnsqd), option="log_level", value="loud", confirmed="yes")
    assert "'loud' is not a value for log_level" in answer.shown


def test_a_node_that_cannot_do_it_is_an_error_on_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    app = App([FakeServer({"/stats": [node(topic("t", channel("c")))]}).address])
    for tool in ("rewind?to=first&", "rules?", "deferred?"):
        answer = app.get(f"/{tool}{PLACE}")
        assert "it is not gnsqd" in answer.shown, (answer.status, answer.shown)
    assert app.get("/rules?topic=t").status == 400
    assert capfd.readouterr().err == ""


def test_dead_letters_are_shown_and_replayed(gnsqd: Daemon) -> None:
    app = App([address(gnsqd)])
    assert "/replay-dead" not in app.get("/topics/t/c").text
    header = {
        "id": "0" * 16,
        "topic": "t",
        "channel": "c",
        "attempts": 5,
        "timestamp": 1,
        "reason": "timed out",
        "died": 2,
    }
    publish(gnsqd, "t.c.dead", json.dumps(header).encode() + b"\nfirst", json.dumps(header).encode() + b"\nsecond")
    eventually(lambda: gnsqd.stats("t.c.dead")["topics"][0]["depth"] == 2)
    app.app._site.monitor.changed()
    assert "/replay-dead" in app.get("/topics/t/c").text
    assert "Would publish 2 messages" in app.page(f"/replay-dead?{PLACE}")
    assert "At most 1 message will be published again to" in app.page(f"/replay-dead?{PLACE}&limit=1")
    assert app.get(f"/replay-dead?{PLACE}&limit=0").status == 400
    assert gnsqd.channel_stats("t", "c")["depth"] == 0
    assert "Published 1 message (5 B) to t" in confirmed(app, "replay-dead", topic="t", channel="c", limit="1")
    wait_for(gnsqd, "t", "c", depth=1)


def channels(daemon: Daemon) -> int:
    return len(daemon.stats()["topics"][0]["channels"])


def test_live_messages_are_copies_that_are_received_while_somebody_looks(
    gnsqd: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.live.INTERVAL", 0.02)
    monkeypatch.setattr("nsqadmin_cli.web.site.SHARED", 0.0)
    app = App([address(gnsqd)])
    assert "No message yet" in app.page("/tail?topic=t")
    assert channels(gnsqd) == 1
    with app.live("/tail?topic=t") as events:
        eventually(lambda: next(events) and channels(gnsqd) == 2)
        publish(gnsqd, "t", b'{"order": 1}', b"<b>two</b>")
        text = next(found for found in events if "2 received" in found)
        assert text.index("<b>two</b>") < text.index('"order": 1')
        wait_for(gnsqd, "t", "c", depth=2)  # as before
        monkeypatch.setattr("nsqadmin_cli.web.tail._PATIENCE", 0.0)
    eventually(lambda: channels(gnsqd) == 1)


def test_live_messages_are_refused_where_they_would_be_lost(
    gnsqd_factory: DaemonFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.live.INTERVAL", 0.02)
    daemon = gnsqd_factory()
    publish(daemon, "t", b"x")
    app = App([address(daemon)])
    with app.live("/tail?topic=t") as events:
        assert "Create a channel first" in next(events)
    assert App([address(daemon)], read_only=True).get("/tail?topic=t").status == 403
    assert app.get("/tail?topic=none").status == 404
    assert daemon.stats()["topics"][0]["depth"] == 1
