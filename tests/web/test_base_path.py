"""The page below a path of a reverse proxy that passes the path on unchanged."""

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from cli.fake_nsqd import FakeServer, channel, node, topic
from cli.gnsqadmin import gnsqadmin
from cli.nodes import DOWN
from kit.daemons import DEADLINE, Daemon
from kit.peer_program import PeerProgram
from kit.traffic import create
from web.app import OWN, App, WebProcess

TOKEN = "0123456789abcdef"
# Looks like an address of this site, but is a message.
BODY = '<a href="/nowhere" src="/nowhere">'


@pytest.fixture
def node_of_base() -> FakeServer:
    message = {"id": "0" * 16, "timestamp": 1, "attempts": 1, "on_disk": False, "size": 9, "body": BODY}
    documents: dict[str, list[Any]] = {
        "/stats": [node(topic("t", channel("c"), depth=3), topic("t.c.dead"), topic("a/b"))],
        "/channel/peek": [{"depth": 1, "backend_depth": 0, "messages": [message]}],
        "/channel/rules": [{"rate": 0.0}],
        "/topic/create": [{}],
        "/channel/pause": [{}],
    }
    return FakeServer(documents)


def test_every_address_on_every_page_is_below_the_base_path(node_of_base: FakeServer) -> None:
    app = App([node_of_base.address], base_path="/nsq")
    seen: dict[str, int] = {}
    left = ["/nsq/", "/nsq/login", "/nsq/done/none", "/nsq/change/topic/delete?topic=t"]
    while left:
        target = left.pop()
        answer = app.get(target, Accept="text/html")
        seen[target] = answer.status
        if answer.headers["Content-Type"].startswith("text/html"):
            text = answer.text
            assert re.findall(r'(?:href|action|src)="/nowhere"', text) == []
            addresses = [unescape(one) for one in re.findall(r'\s(?:href|action|src)="([^"#]+)"', text)]
            assert [address for address in addresses if not address.startswith("/nsq/")] == [], target
            gone = re.findall(r'\smethod="post" action="([^"]+)"', text)  # are for POST
            left += [one for one in {*addresses} - seen.keys() - {*gone} if one not in left and "action=" not in one]
    assert {status for target, status in seen.items() if "/done/" not in target} <= {200, 303, 400, 502}
    assert {"/nsq/static/page.js", "/nsq/topics/t/c", "/nsq/topics?topic=a%2Fb", "/nsq/doctor"} <= seen.keys()
    assert BODY in app.page("/nsq/peek?topic=t&channel=c")
    assert 'data-base="/nsq"' in app.get("/nsq/").text


def test_the_live_part_has_the_addresses_of_the_page(node_of_base: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.live.INTERVAL", 0.01)
    app = App([node_of_base.address], base_path="/nsq")
    with app.live("/nsq/topics/t", whole=True) as parts:
        links = re.findall(r'href="([^"]*)"', next(parts))
    assert "/nsq/topics/t/c" in links
    assert all(link.startswith("/nsq/") for link in links)


def test_redirections_and_cookies_are_below_the_base_path(node_of_base: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    app = App([node_of_base.address], base_path="/nsq", token_files=[f"full:{tmp_path / 'tokens'}"])
    assert app.get("/nsq/topics/t?sort=depth").headers["Location"] == "/nsq/login?next=%2Ftopics%2Ft%3Fsort%3Ddepth"
    form = urlencode({"token": TOKEN, "next": "/topics/t?sort=depth"}).encode()
    answer = app.ask("POST", "/nsq/login", form, **OWN)
    assert answer.headers["Location"] == "/nsq/topics/t?sort=depth"
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert "Path=/nsq" in attributes
    session = {"Cookie": name, **OWN}
    assert app.get("/nsq", **session).headers["Location"] == "/nsq/"
    form = urlencode({"topic": "t", "confirmed": "yes"}).encode()
    done = app.ask("POST", "/nsq/change/topic/create", form, **session)
    assert re.fullmatch(r"/nsq/topics/t\?notice=.+", done.headers["Location"])
    assert app.get(done.headers["Location"], **session).status == 200
    assert app.get("/other").status == 404  # also for who has no token
    out = app.ask("POST", "/nsq/logout", **session)
    assert (out.headers["Location"], "Path=/nsq" in out.headers["Set-Cookie"].split("; ")) == ("/nsq/", True)


@pytest.mark.parametrize("path", ["nsq", "/a b", "/a?b", "//a", "/../a", "/ä", '/"'])
def test_what_is_not_a_path_is_refused(path: str) -> None:
    result = gnsqadmin("web", f"--base-path={path}", "--http-address=127.0.0.1:0", f"--nsqd-http-address={DOWN}")
    assert (result.code, "is not a path such as /nsq" in result.err) == (2, True)


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
