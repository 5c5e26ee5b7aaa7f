"""The application: a router of gnsqd whose handlers are called in threads, with its checks and errors.

Nodes are queried with blocking sockets, so all that does so runs in threads of a pool, and the greenlets of the server
only read requests and write responses.
"""

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import PurePosixPath
from traceback import format_exc
from types import SimpleNamespace

from gevent.event import Event
from gevent.threadpool import ThreadPool

from gnsqd.hub.cooperative import WouldYield
from gnsqd.log import Logger
from gnsqd.web import http11, routes
from gnsqd.web.routes import Content, HTTPError, Role, Route, Router, StreamedContent
from gnsqd.web.server import Answer, add_headers
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.context import CommandLines
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.units import printable
from nsqadmin_cli.web import api, changes, messages, nodes, queues
from nsqadmin_cli.web.http import HTML, TEXT, PageRequest, Redirect, Response
from nsqadmin_cli.web.monitor import INTERVAL, Monitor
from nsqadmin_cli.web.present import query
from nsqadmin_cli.web.security import HEADERS, Security
from nsqadmin_cli.web.site import Page, PageSite

Handler = Callable[[PageSite, PageRequest], Page | Response]

_THREADS = 8  # for views and actions
_LIVE_THREADS = 2
_MOST_STREAMS = 32
_STATIC = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

# What people read instead of NSQ's codes, and the codes that the JSON API has instead of texts.
_TEXTS = {"NOT_FOUND": "No page has this address.", "METHOD_NOT_ALLOWED": "This address cannot be used in this way."}
_CODES = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 500: "INTERNAL_ERROR"}


class BodyLimits:
    """The maximum size of the bodies of requests, in bytes."""

    message = 4 * 1024 * 1024  # of nsqd's default size, in a form
    login = 8 * 1024
    form = 64 * 1024


# Messages need the role full, as gnsqd's own /channel/peek.
_page = partial(Route, "GET, HEAD", v1=False, logged=False, role=Role.READ)
_form = partial(Route, "POST", v1=False, logged=False, body="form")
_api = partial(Route, logged=False, body="form")
_read_api = partial(Route, "GET, HEAD", logged=False, role=Role.READ)

ROUTES = (
    _page("/", "queues.overview"),
    _page("/topics", "queues.overview"),
    _page("/topics/:topic", "queues.topic"),
    _page("/topics/:topic/:channel", "queues.channel"),
    _page("/nodes", "nodes.nodes"),
    _page("/nodes/:node", "nodes.node"),
    _page("/lookup", "nodes.lookup"),
    _page("/options", "nodes.options"),
    _page("/doctor", "nodes.doctor"),
    _page("/peek", "messages.peek", role=Role.FULL),
    _page("/tail", "messages.tail", role=Role.FULL),
    _page("/publish", "messages.publish"),
    _form("/publish", "messages.send", body="message"),
    _page("/change/:command", "changes.show"),
    _page("/change/:group/:command", "changes.show"),
    _page("/change/channel/deferred", "changes.show", role=Role.FULL),
    _page("/change/replay-dead", "changes.show", role=Role.FULL),
    _form("/change/:command", "changes.act"),
    _form("/change/:group/:command", "changes.act"),
    _page("/done/:name", "changes.done"),
    _page("/login", "login", role=Role.ANYBODY),
    _form("/login", "login", body="login", role=Role.ANYBODY),
    _form("/logout", "log_out", role=Role.READ),
    _page("/ping", "ping", role=Role.ANYBODY),
    _page("/static/:name", "static", role=Role.ANYBODY),
    _read_api("/api/topics", "api.topics"),
    _read_api("/api/topics/:topic", "api.topic"),
    _read_api("/api/topics/:topic/:channel", "api.channel"),
    _read_api("/api/nodes", "api.nodes"),
    _read_api("/api/nodes/:node", "api.node"),
    _read_api("/api/counter", "api.counter"),
    _api("POST", "/api/topics", "api.create"),
    _api("POST", "/api/topics/:topic", "api.act"),
    _api("POST", "/api/topics/:topic/:channel", "api.act"),
    _api("DELETE", "/api/topics/:topic", "api.delete"),
    _api("DELETE", "/api/topics/:topic/:channel", "api.delete"),
    _api("DELETE", "/api/nodes/:node", "api.tombstone"),
)

_LIVE = [queues.overview, queues.topic, queues.channel, messages.tail]
_LIVE += [nodes.nodes, nodes.node, nodes.lookup, nodes.doctor]


class Application(Router):
    """One page of one cluster. `commands` are shown as remedies. With `own_tokens` the tokens of the page are those of
    its node, which then gets the user's. Every page links to `grafana_url`, if it is not empty. All paths begin with
    `base_path`."""

    def __init__(
        self,
        cluster: Cluster,
        commands: CommandLines,
        security: Security,
        log: Logger,
        *,
        own_tokens: bool = False,
        grafana_url: str = "",
        base_path: str = "",
    ) -> None:
        handlers = SimpleNamespace(queues=queues, nodes=nodes, messages=messages, changes=changes, api=api)
        handlers.login, handlers.log_out = _login, lambda site, request: security.log_out(request)
        handlers.static, handlers.ping = _static, lambda site, request: Content(b"OK", TEXT)
        super().__init__(handlers, BodyLimits, log, ROUTES, base_path)
        self._log = log
        self.security = security
        self._own_tokens = own_tokens
        self._base = base_path
        self._site = PageSite(cluster, Monitor(cluster, commands), security, grafana_url, base_path)
        self._pool = ThreadPool(_THREADS)
        self._live_pool = ThreadPool(_LIVE_THREADS)
        self._streams = 0  # of live pages
        self._closed = Event()

    def roles(self, head: http11.Request) -> tuple[Role, str]:
        """Returns the roles of the router. There is nothing outside of the base path, also for who has no token."""
        return super().roles(head) if f"{head.path}/".startswith(f"{self._base}/") else (Role.ANYBODY, "")

    def body_limit(self, head: http11.Request) -> int:
        """Permits no body before its token and its origin are known to be good."""
        try:
            self.security.check(PageRequest(head, self._base), self.roles(head)[0])
        except HTTPError:
            return 0
        return super().body_limit(head)

    def respond(self, head: http11.Request, remote_address: str) -> Answer:
        """Returns the response to send, or its parts. Yields to the hub."""
        if not head.may_yield:
            raise WouldYield
        request = PageRequest(head, self._base)
        try:
            self.security.check(request, self.roles(head)[0])
            answer = super().respond(head, remote_address)
        except HTTPError as error:
            answer = self.refuse(head, remote_address, error, b"")
        if request.changes and isinstance(answer, bytes):
            host = remote_address.rpartition(":")[0].strip("[]")
            self._log.info("ADMIN: %s %s (%s)", answer[9:12].decode(), _audited(request), host)
        caching = b"no-cache" if request.segments[:1] == ("static",) else b"no-store"
        return add_headers(b"%sCache-Control: %s\r\n" % (HEADERS, caching), answer)

    def refuse(self, head: http11.Request, remote_address: str, error: HTTPError, headers: bytes) -> bytes:
        """Refuses as the router does, with a page for people. Yields to the hub."""
        request = PageRequest(head, self._base)
        content = self._pool.apply(self._error, (request, error))
        content.headers += headers
        return routes.render_result(head, error.status, content, request.is_api)

    def keep_history(self) -> None:
        """Starts to take snapshots for the charts while nobody looks."""
        self._site.monitor.keep_history()

    def close(self) -> None:
        self._site.monitor.close()
        self._site.tails.close()
        self._closed.set()

    def _bind(self, route: Route, handler: Handler) -> routes.Handler:  # type: ignore[override]
        return partial(self._answer, route.role, handler)

    def _answer(self, role: Role, handler: Handler, head: http11.Request) -> Content | StreamedContent:
        """Calls a handler in a thread of the pool, or sends the live part of its page, which needs `role`."""
        request = PageRequest(head, self._base)
        if request.is_live and handler in _LIVE:
            if self._streams >= _MOST_STREAMS:
                raise HTTPError(503, "too many live pages are open")
            return StreamedContent("text/event-stream", self._events(role, handler, request))
        content: Content = self._pool.apply(self._handle, (handler, request))
        return content

    def _events(self, role: Role, handler: Handler, request: PageRequest) -> Generator[bytes]:
        """Yields server-sent events with the live part of a page, where it changed, while the client is there and has
        the role. All take their numbers from one Monitor, which queries the nodes once for all of them."""
        self._streams += 1
        try:
            yield b"retry: 5000\n\n"
            last = ""
            while not self._closed.wait(INTERVAL) and self.security.role(request) >= role:
                html: str = self._live_pool.apply(self._render_live, (handler, request))
                # An empty event finds out whether the client is there.
                yield b":\n\n" if html == last else b"data: %s\n\n" % json.dumps(html).encode()
                last = html
        finally:
            self._streams -= 1

    def _handle(self, handler: Handler, request: PageRequest) -> Content:
        """Calls a handler, in a thread of the pool. Raises nothing, which would go to the hub."""
        try:
            if request.changes:
                _check_body(request.head)
            site = self._site.acting(self.security.authorization(request)) if self._own_tokens else self._site
            answer = handler(site, request)
            if isinstance(answer, Page):
                return Content(self._site.render(request, answer), HTML, answer.status)
            if isinstance(answer, Redirect):
                return self._redirect(answer)
            return answer if isinstance(answer, Content) else Content(json.dumps(answer).encode())
        except HTTPError as error:
            return self._error(request, error)
        except AdminError as error:
            sentence = "; ".join(printable(text, 1000) for text in map(str, (error, *error.causes)))
            return self._error(request, HTTPError(404 if isinstance(error, NotOnNode) else 502, sentence))
        except Exception:
            return self._error(request, HTTPError(500, self._log_defect(request)))

    def _redirect(self, to: Redirect) -> Content:
        lines = f"Location: {self._base}{to.to}\r\n"
        if to.cookie is not None:
            name, value, seconds = to.cookie
            path = self._base or "/"
            lines += f"Set-Cookie: {name}={value}; Path={path}; HttpOnly; SameSite=Strict; Max-Age={seconds}\r\n"
        return Content(b"", TEXT, 303, lines.encode("latin-1", "replace"))

    def _log_defect(self, request: PageRequest) -> str:
        """Logs the exception, and returns the text to show."""
        self._log.error("ADMIN: %s %s", request.method, printable(request.path), stack=format_exc())
        return "A defect of this page, which has been logged."

    def _error(self, request: PageRequest, error: HTTPError) -> Content:
        """Returns the answer for an error, in a thread of the pool, which has the templates. Raises nothing."""
        text, status = str(error), error.status
        challenge = b'WWW-Authenticate: Bearer realm="nsqadmin"\r\n' if status == 401 else b""
        accepted = request.header("accept") or ""
        # As nsqadmin does it, also for programs that ask for nothing special at an unknown address.
        prefers_json = "application/json" in accepted or not self.methods(request.head.path)
        if request.is_api or ("text/html" not in accepted and prefers_json):
            document = {"message": _CODES.get(status, text) if request.is_api else text}
            return Content(json.dumps(document).encode(), status=status, headers=challenge)
        if status == 401 and request.method == "GET" and not request.is_live:
            return self._redirect(Redirect(f"/login?{query(next=request.target)}"))
        page = Page("error.html", title="Not found" if status == 404 else "Error", text=_TEXTS.get(text, text))
        try:
            return Content(self._site.render(request, page), HTML, status, challenge)
        except Exception:
            return Content(self._log_defect(request).encode(), TEXT, 500)

    def _render_live(self, handler: Handler, request: PageRequest) -> str:
        """Returns the live part of a page. Raises nothing."""
        try:
            page = handler(self._site, request)
            assert isinstance(page, Page)
            return self._site.render_live(request, page)
        except (AdminError, HTTPError) as error:
            text = str(error)
        except Exception:
            text = self._log_defect(request)
        return self._site.render_live(request, Page("error.html", title="Error", text=text))


def _audited(request: PageRequest) -> str:
    """Returns the request and the values of its form in one line."""
    words = [request.method, request.path]
    if request.segments[:1] != ("login",) and not request.is_api:
        with suppress(HTTPError):
            words += [text for name, text in request.form.items() if text and name not in ("body", "confirmed", "seen")]
    return " ".join(printable(word, 100) for word in words)


def _check_body(head: http11.Request) -> None:
    """Raises HTTPError if the body is too large, or has not come."""
    if head.too_big and not head.limit:
        raise HTTPError(503, "too many large messages arrive at the moment")
    if head.too_big:
        raise HTTPError(413, f"more than {head.limit} bytes")
    if head.broken:
        raise HTTPError(400, "the body is incomplete")


def _login(site: PageSite, request: PageRequest) -> Page | Response:
    """Shows the form for a token, again after an unknown one; else leads to the page that needed it."""
    if not site.security.has_tokens:
        return Redirect("/")
    given = request.form if request.changes else request.query
    to = given.get("next", "/")
    if request.changes:
        is_local = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
        if answer := site.security.log_in(given.get("token", "").strip(), to if is_local else "/"):
            return answer
    return Page("login.html", 403 if request.changes else 200, title="Log in", next=to, failed=request.changes)


def _static(site: PageSite, request: PageRequest) -> Response:
    name = request.segments[1]
    kind = _STATIC.get(PurePosixPath(name).suffix)
    file = resources.files("nsqadmin_cli.web") / "static" / name
    if kind is None or "\\" in name or not file.is_file():
        raise HTTPError(404, "NOT_FOUND")
    return Content(file.read_bytes(), kind)
