"""The page below a path of a reverse proxy that passes the path on unchanged."""

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from cli.fake_nsqd import FakeServer, channel, node, topic
from kit.daemons import DEADLINE, Daemon
from kit.peer_program import PeerProgram
from kit.traffic import create
from web.app import App, WebProcess

# Looks like an address of this site, but is a message.
BODY = '<a href="/nowhere" src="/nowhere">'


@pytest.fixture
def fake() -> FakeServer:
    message = {"id": "0" * 16, "timestamp": 1, "attempts": 1, "on_disk": False, "size": 9, "body": BODY}
    documents: dict[str, list[Any]] = {
        "/stats": [node(topic("t", channel("c"), depth=3), topic("a/b"), topic("..", channel(".")))],
        "/channel/peek": [{"depth": 1, "backend_depth": 0, "messages": [message]}],
    }
    return FakeServer(documents)


def addresses(markup: str) -> set[str]:
    """The addresses in it, except those of places on the same page."""
    return {unescape(one) for one in re.findall(r'\s(?:href|action|src)="([^"#]+)"', markup)}


def test_every_address_on_every_page_is_below_the_base_path(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.app.INTERVAL", 0.01)
    app = App([fake.address], base_path="/nsq")
    statuses: dict[str, int] = {}
    left = {"/nsq/", "/nsq/done/none", "/nsq/change/topic/delete?topic=t"}
    while left:
        target = left.pop()
        answer = app.get(target, Accept="text/html")
        statuses[target] = answer.status
        if answer.headers["Content-Type"].startswith("text/html"):
            assert [one for one in addresses(answer.text) if not one.startswith("/nsq/")] == [], target
            left |= addresses(answer.text) - statuses.keys()
    assert {target for target, status in statuses.items() if status == 404} == {"/nsq/done/none"}
    assert {"/nsq/static/page.js", "/nsq/topics/t/c", "/nsq/topics?topic=a%2Fb", "/nsq/doctor"} <= statuses.keys()
    assert "Channel ." in app.page("/nsq/topics?topic=..&channel=.")
    assert BODY in app.page("/nsq/peek?topic=t&channel=c")
    with app.live("/nsq/topics/t", whole=True) as parts:
        assert "/nsq/topics/t/c" in addresses(next(parts))


def answer_of(address: str, path: str) -> int:
    """The status, after redirections."""
    try:
        return int(urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE).status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.peer
@pytest.mark.parametrize("base", ["/nsq", "/nsq/", "/ops/n.s_q-1~", "/", ""])
def test_the_same_paths_are_served_as_by_nsqadmin(
    peer_binary: Callable[[str], Path], tmp_path: Path, gnsqd: Daemon, base: str
) -> None:
    create(gnsqd, "Te", "Ch")
    flags = ["--nsqd-http-address={}:{}".format(*gnsqd.http_address), f"--base-path={base}"]
    paths = ["/", "/ping", "/topics", "/topics/", "/api/topics", "/api/topics/", "/api/nope", "/nope", "/TOPICS/Te/Ch/"]
    paths += ["/nsq", "/nsqx", "/NSQ", *(base.rstrip("/") + path for path in paths)]
    theirs = PeerProgram(peer_binary("nsqadmin"), tmp_path / "admin", "--http-address=127.0.0.1:0", *flags)
    with theirs, WebProcess(tmp_path, *flags) as web:
        for path in paths:
            assert answer_of(web.address, path) == answer_of(theirs.address["HTTP"], path), path
