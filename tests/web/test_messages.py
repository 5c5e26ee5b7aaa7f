"""Messages on the page: published by a form, and shown while they arrive."""

import pytest

from cli.nodes import address
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client
from kit.traffic import create, publish, wait_for
from web.app import App


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
        ({"topic": "t", "new": "t", "body": "x" * 2_000_000}, "MSG_TOO_BIG"),
    ],
)
def test_what_cannot_be_published_is_kept_in_the_form(nsqd: Daemon, fields: dict[str, str], reason: str) -> None:
    page = App([address(nsqd)]).post("/publish", **fields)
    assert reason in page.shown
    assert f">\n{fields['body']}</textarea>" in page.text
    assert nsqd.stats()["topics"] == []


def channels(daemon: Daemon) -> int:
    return len(daemon.stats("t")["topics"][0]["channels"])


def test_live_messages_are_copies_that_are_received_while_somebody_looks_and_none_that_would_be_lost(
    gnsqd: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.app.INTERVAL", 0.02)
    monkeypatch.setattr("nsqadmin_cli.web.site.SHARED", 0.0)
    create(gnsqd, "t", "c")
    publish(gnsqd, "alone", b"x")
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
    with app.live("/tail?topic=alone") as events:
        assert "Create a channel first" in next(events)
    assert gnsqd.stats("alone")["topics"][0]["depth"] == 1
    assert App([address(gnsqd)], read_only=True).get("/tail?topic=t").status == 403
    assert app.get("/tail?topic=none").status == 404
