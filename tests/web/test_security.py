"""Access to the page: names of the host, origins, tokens, read-only, and the headers of every response."""

import json
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from cli.fake_nsqd import FakeServer, node, peeked, topic
from cli.gnsqadmin import FakeNode, http_answer
from kit.daemons import eventually
from kit.lookupds import EMBEDDED, IDENTITY, LookupdInside, Registrant
from kit.traffic import DaemonFactory
from web.app import HOST, OWN, App, PageAnswer, admin_of, ask, shown

FORM = urlencode({"topic": "made", "confirmed": "yes"}).encode()
CREATE = "/change/topic/create"
JSON = b'{"action": "pause"}'
FULL, READ = "0123456789abcdef-full", "0123456789abcdef-read"


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer({"/stats": [node(topic("t"))], "/topic/create": [{}], "/topic/peek": [peeked()]})


@pytest.fixture
def app(fake: FakeServer) -> App:
    return App([fake.address])


def log_in(app: App, path: str = "/login", headers: dict[str, str] = OWN, /, **fields: str) -> PageAnswer:
    """Sends the form with the full token, or with these fields, and follows no redirection."""
    return app.ask("POST", path, urlencode({"token": FULL} | fields).encode(), **headers)


@pytest.fixture
def tokens(tmp_path: Path) -> list[str]:
    """Returns the sources of a token for each role."""
    for name, token in (("full", FULL), ("read", READ)):
        (tmp_path / name).write_text(f"{token}\n")
    return [f"full:{tmp_path / 'full'}", f"read:{tmp_path / 'read'}"]


def test_every_response_forbids_scripts_of_others_and_frames(app: App) -> None:
    for target in ("/", "/topics/t", "/nope", "/api/topics", "/static/page.js", "/ping", "/topics/none"):
        answer = app.get(target)
        policy = answer.headers["Content-Security-Policy"]
        for directive in ("default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'"):
            assert directive in policy
            assert "unsafe" not in policy
        names = ("X-Frame-Options", "X-Content-Type-Options", "Referrer-Policy")
        assert [answer.headers[name] for name in names] == ["DENY", "nosniff", "same-origin"]
        head = answer.text.partition("<main")[0]
        assert not re.search(r"(?i)<script(?![^>]* src=)|\son\w+=|style=|javascript:", head)


@pytest.mark.parametrize(
    "host, here, elsewhere",  # on a loopback address, where this machine's own names are served, and on another
    [
        ("localhost:4171", 200, 200), ("127.8.8.8:1", 200, 200), ("[::1]:4171", 200, 200), ("LOCALHOST.", 200, 403),
        ("10.0.0.1:4171", 403, 200), ("[fe80::1]:4171", 403, 200), ("nsq:4171", 403, 200), ("box.example:1", 403, 200),
        ("", 403, 200),  # not a browser
        ("evil.example:4171", 403, 403), ("127.0.0.1.evil.example", 403, 403), ("[", 403, 403),
        ("box.example.evil.example", 403, 403),
    ],
)  # fmt: skip
def test_names_that_anybody_could_register_are_refused_without_a_token_and_on_loopback(
    fake: FakeServer, tokens: list[str], monkeypatch: pytest.MonkeyPatch, host: str, here: int, elsewhere: int
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box.example")
    own = {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for loopback, status in ((True, here), (False, elsewhere)):
        app = App([fake.address], loopback=loopback)
        assert app.get("/topics/t", Host=host).status == status
        assert app.get("/api/nodes", Host=host).status == (403 if status == 403 else 502)  # the fake has no /info
        assert app.ask("POST", CREATE, FORM, Host=host, **own).status == (303 if status == 200 else 403)
        read_only = App([fake.address], loopback=loopback, read_only=True)  # reading is also for those here alone
        assert read_only.get("/api/topics", Host=host).status == status
        app = App([fake.address], loopback=loopback, token_files=tokens)
        expected = status if loopback else 200
        assert app.get("/topics/t", Host=host, Authorization=f"Bearer {READ}").status == expected


SAME, OTHER = f"http://{HOST}", "http://evil.example"


def test_changes_come_from_the_page_or_from_no_browser(app: App) -> None:
    for headers, form, api in (
        ({"Origin": SAME}, True, True),
        ({"Sec-Fetch-Site": "same-origin"}, True, True),
        ({}, False, True),  # no browser, as curl
        ({"Origin": OTHER}, False, False),
        ({"Origin": "null"}, False, False),
        ({"Origin": f"{SAME}.evil.example"}, False, False),
        ({"Origin": "http://localhost:4172"}, False, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": SAME}, False, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": SAME}, False, False),
        ({"Sec-Fetch-Site": "none"}, False, False),
    ):
        assert app.ask("POST", CREATE, FORM, **headers).status == (303 if form else 403), headers
        for method, path in (("DELETE", "/api/topics/t"), ("POST", "/publish"), ("POST", "/api/topics")):
            status = app.ask(method, path, JSON, **headers).status
            assert (status == 403) is not (api if "api" in path else form), headers
        assert (app.get("/topics/t", Accept="text/event-stream", **headers).status == 403) is not api, headers


def test_read_only_refuses_every_change(fake: FakeServer) -> None:
    app = App([fake.address], read_only=True)
    for method, path in (
        ("POST", CREATE), ("POST", "/publish"), ("POST", "/api/topics"), ("POST", "/api/topics/t"),
        ("POST", "/api/topics/t/c"), ("DELETE", "/api/topics/t"), ("DELETE", "/api/topics/t/c"),
        ("DELETE", "/api/nodes/a:1"),
    ):  # fmt: skip
        assert app.ask(method, path, FORM, **OWN).status == 403, path
    page = app.get("/topics/t").text
    assert "read-only" in page
    assert 'method="post"' not in page
    assert "/change" not in page
    plan = app.get("/change/topic/delete?topic=t")
    assert (plan.status, "loses no messages" in plan.shown, 'method="post"' in plan.text) == (200, True, False)


def test_a_token_of_its_role_is_needed(fake: FakeServer, tokens: list[str]) -> None:
    app = App([fake.address], token_files=tokens)
    assert app.get("/topics/t").headers["Location"] == "/login?next=%2Ftopics%2Ft"
    refused = app.get("/api/topics")
    assert (refused.status, refused.headers["WWW-Authenticate"][:6]) == (401, "Bearer")
    assert [app.get(target).status for target in ("/ping", "/static/page.css")] == [200, 200]
    for token, status in ((FULL, 303), (READ, 403), ("0123456789abcdef-none", 401)):
        assert app.ask("POST", CREATE, FORM, Authorization=f"Bearer {token}", **OWN).status == status
    assert app.get("/api/topics", Authorization=f"Bearer {READ}").status == 200
    assert app.ask("DELETE", "/api/topics/t", Authorization=f"Bearer {READ}").status == 403
    # Messages need the full role, as gnsqd's own peek.
    for target in (
        "/peek?topic=t",
        "/change/channel/deferred?topic=t&channel=c",
        "/change/replay-dead?topic=t",
        "/tail?topic=t",
    ):
        for accept in ("text/html", "text/event-stream"):
            headers = {"Accept": accept, "Authorization": f"Bearer {READ}", "Sec-Fetch-Site": "same-origin"}
            assert app.get(target, **headers).status == 403, target
    assert app.get("/peek?topic=t", Authorization=f"Bearer {FULL}").status == 200
    # A reader sees no buttons and no link to messages.
    for token, is_shown in ((FULL, True), (READ, False)):
        page = app.get("/topics/t", Authorization=f"Bearer {token}").text
        assert ("/change" in page, "/peek" in page) == (is_shown, is_shown)


@pytest.mark.parametrize("base", ["", "/nsq"])
def test_log_in_and_out_by_forms(
    fake: FakeServer, tokens: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    app = App([fake.address], token_files=tokens, base_path=base)
    assert app.get(f"{base}/topics/t?page=1").headers["Location"] == f"{base}/login?next=%2Ftopics%2Ft%3Fpage%3D1"
    assert app.get("/nsqx").status == (404 if base else 401)  # outside, also for who has no token
    assert log_in(app, f"{base}/login", token="wrong").status == 403
    assert log_in(app, f"{base}/login", {"Origin": OTHER}).status == 403
    answer = log_in(app, f"{base}/login", next="/topics/t?sort=depth")
    assert answer.headers["Location"] == f"{base}/topics/t?sort=depth"
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert attributes == [f"Path={base or '/'}", "HttpOnly", "SameSite=Strict", "Max-Age=43200"]
    assert FULL not in cookie
    session = {"Cookie": f"other=1; {cookie}"}
    assert app.get(f"{base}/topics/t", **session).status == 200
    done = app.ask("POST", f"{base}{CREATE}", FORM, **session, **OWN)
    assert done.headers["Location"].startswith(f"{base}/topics/made?notice=")
    assert app.ask("POST", f"{base}{CREATE}", FORM, **session, Origin=OTHER).status == 403
    out = app.ask("POST", f"{base}/logout", **session, **OWN)
    assert (out.headers["Location"], f"Path={base or '/'};" in out.headers["Set-Cookie"]) == (f"{base}/", True)
    assert app.get(f"{base}/topics/t", **session).status == 303
    # A token that is taken away ends its sessions.
    monkeypatch.setattr("gnsqd.web.http_auth.CHECK_SECONDS", 0.0)
    session = {"Cookie": log_in(app, f"{base}/login").headers["Set-Cookie"].partition(";")[0]}
    assert app.get(f"{base}/", **session).status == 200
    (tmp_path / "full").write_text("another-0123456789abcdef\n")
    assert app.get(f"{base}/", **session).status == 303


def test_a_session_ends_after_its_time(fake: FakeServer, tokens: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    app = App([fake.address], token_files=tokens)
    for seconds, status in ((60.0, 200), (-1.0, 303)):
        monkeypatch.setattr("nsqadmin_cli.web.security._SESSION_SECONDS", seconds)
        session = {"Cookie": log_in(app).headers["Set-Cookie"].partition(";")[0]}
        assert app.get("/topics/t", **session).status == status
    for to in ("//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nX: y", ""):
        assert log_in(app, next=to).headers["Location"] == "/"  # a page of this site


def test_large_bodies_are_refused(app: App) -> None:
    for path, most in (("/publish", 4 << 20), ("/login", 8 << 10), (CREATE, 64 << 10), ("/api/topics", 64 << 10)):
        assert app.ask("POST", path, b"x" * (most + 1), **OWN).status == 413
        assert app.ask("POST", path, b"x" * most, **OWN).status != 413


def test_the_audit_line_of_a_change_has_no_line_ends(app: App) -> None:
    form = urlencode({"topic": "t\r\nINFO: forged"}).encode()
    app.ask("POST", CREATE, form, **OWN)
    assert not re.search(r"(?m)^INFO: forged", app.log.getvalue())


def test_only_statistics_are_asked_for_with_the_token_of_the_page(tokens: list[str], tmp_path: Path) -> None:
    with FakeNode(http_answer(json.dumps(node(topic("t"))).encode())) as asked:
        app = App([asked.address], token_files=tokens, token_file=str(tmp_path / "read"), own_tokens=True)

        def sent(method: str, target: str, token: str, body: bytes = b"") -> set[str]:
            asked.requests.clear()
            app.ask(method, target, body, Authorization=f"Bearer {token}", **OWN)
            return {found[1].decode() for one in asked.requests if (found := re.search(rb"Bearer (\S+)", one))}

        assert sent("GET", "/topics/t", FULL) == {READ}
        assert sent("GET", "/api/topics/t", READ) == {READ}
        assert sent("GET", "/peek?topic=t", FULL) == sent("POST", "/api/topics/t", FULL, JSON) == {FULL}
        session = {"Cookie": log_in(app).headers["Set-Cookie"]}
        asked.requests.clear()
        assert app.ask("POST", CREATE, FORM, **session, **OWN).status == 303
        assert all(f"Bearer {FULL}".encode() in one for one in asked.requests)
        assert sent("GET", "/peek?topic=t", READ) == sent("POST", CREATE, READ, FORM) == set()


def test_tokens_of_the_daemon_do_not_go_to_nodes_that_registered(
    gnsqd_factory: DaemonFactory, tokens: list[str], tmp_path: Path
) -> None:
    """Sends them no token, also if they are asked to change something. The daemon's own page has its statistics
    nevertheless, also after its tokens were replaced."""
    (tmp_path / "topics").write_text("publishes-to-a-topic publish:u\n")  # does not read statistics
    flags = [f"--http-auth-token-file={source}" for source in (*tokens, f"read:{tmp_path / 'topics'}")]
    daemon = gnsqd_factory(*EMBEDDED, "--admin-http-address=127.0.0.1:0", *flags)
    page = admin_of(daemon)
    with FakeNode(http_answer(b'{"message":"UNAUTHORIZED"}', "401 Unauthorized")) as other:
        identity = {**IDENTITY, "broadcast_address": "127.0.0.1", "http_port": int(other.address.split(":")[1])}
        with Registrant(LookupdInside(daemon), identity) as registered:
            registered.register("t")
            assert daemon.http("POST", "/topic/create?topic=t", headers={"Authorization": f"Bearer {FULL}"})[0] == 200
            reason = f"nsqd at {other.address}: answered HTTP 401 (UNAUTHORIZED): it was not sent the token"
            status, text = ask(page, "GET", "/topics/t", token=READ)
            assert (status, reason in shown(text)) == (200, True), text
            assert ask(page, "POST", "/api/topics/t", '{"action": "pause"}', FULL)[0] == 200
            assert ask(page, "GET", "/peek?topic=t", token=FULL)[0] == 200
            assert len(other.requests) >= 3
            assert not any(b"authorization" in one.lower() for one in other.requests)
        for name in ("full", "read"):
            (tmp_path / name).write_text(f"replaced-{name}-0123456789\n")
        new = "replaced-read-0123456789"
        eventually(lambda: ask(page, "GET", "/api/topics/t", token=new)[0] == 200)
        # Once the page lists its nodes again: until then it has "at least 1".
        eventually(lambda: "topics 1 " in shown(ask(page, "GET", "/", token=new)[1]))
    assert daemon.http("GET", "/stats", headers={"Authorization": f"Bearer {new}"})[0] == 200
