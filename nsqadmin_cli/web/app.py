"""The application: routes, checks, errors, and where the work is done.

Nodes are queried with blocking sockets, so all that does so runs in threads of a pool, and the greenlets of the server
only read requests and write responses.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from importlib import resources
from pathlib import PurePosixPath
from traceback import format_exc
from typing import NamedTuple

from gevent.threadpool import ThreadPool

from gnsqd.log import Logger
from gnsqd.web import http11
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.context import Commands
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.units import printable
from nsqadmin_cli.web import actions, api, changes, views
from nsqadmin_cli.web.http import TEXT, HTTPError, Request, Response
from nsqadmin_cli.web.live import Live
from nsqadmin_cli.web.monitor import Monitor
from nsqadmin_cli.web.present import query
from nsqadmin_cli.web.security import HEADERS, Security
from nsqadmin_cli.web.site import Page, Site

MAX_BODY = 4 * 1024 * 1024  # bytes; a message of nsqd's default size, in a form
SMALL_BODY = 64 * 1024  # of any other request
_THREADS = 8  # for views and actions
_LIVE_THREADS = 2
_STATIC = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

# NSQ's codes for people.
_TEXTS = {"NOT_FOUND": "No page has this address.", "METHOD_NOT_ALLOWED": "This address cannot be used in this way."}

Handler = Callable[[Site, Request], Page | Response]


class Route(NamedTuple):
    """`pattern` has `*` for any segment; the handlers are called in a thread."""

    method: str
    pattern: tuple[str, ...]
    handler: Handler


def _routes(table: Mapping[str, Handler]) -> list[Route]:
    return [
        Route(what.split()[0], tuple(part for part in what.split()[1].split("/") if part), handler)
        for what, handler in table.items()
    ]


ROUTES = _routes(
    {
        "GET /": views.overview,
        "GET /topics": views.overview,
        "GET /topics/*": views.topic,
        "GET /topics/*/*": views.channel,
        "GET /nodes": views.nodes,
        "GET /nodes/*": views.node,
        "GET /lookup": views.lookup,
        "GET /options": views.options,
        "GET /doctor": views.doctor,
        "GET /peek": views.peek,
        "GET /tail": views.tail,
        "GET /publish": views.publish,
        "POST /publish": actions.publish,
        **{f"GET /change/{words}": changes.show for words in ("*", "*/*")},
        **{f"POST /change/{words}": changes.act for words in ("*", "*/*")},
        "GET /done/*": actions.done,
        "GET /login": views.login,
        "POST /login": actions.login,
        "POST /logout": actions.logout,
        "GET /ping": lambda site, request: Response(200, b"OK", TEXT),
        "GET /static/*": lambda site, request: _static(request.segments[1]),
        "GET /api/topics": api.topics,
        "GET /api/topics/*": api.topic,
        "GET /api/topics/*/*": api.channel,
        "GET /api/nodes": api.nodes,
        "GET /api/nodes/*": api.node,
        "GET /api/counter": api.counter,
        "POST /api/topics": api.create,
        "POST /api/topics/*": api.act,
        "POST /api/topics/*/*": api.act,
        "DELETE /api/topics/*": api.delete,
        "DELETE /api/topics/*/*": api.delete,
        "DELETE /api/nodes/*": api.tombstone,
    }
)

_BODIES: Mapping[Handler, int] = {actions.publish: MAX_BODY, actions.login: 8 * 1024}
_LIVE = (views.overview, views.topic, views.channel, views.nodes, views.node, views.lookup, views.doctor, views.tail)


class Application:
    """One page of one cluster. `commands` are shown as remedies. With `own_tokens` the tokens of the page are those of
    its node, which then gets the user's. Every page links to `grafana_url`, if it is not empty."""

    def __init__(
        self,
        cluster: Cluster,
        commands: Commands,
        security: Security,
        log: Logger,
        *,
        own_tokens: bool = False,
        grafana_url: str = "",
    ) -> None:
        self._log = log
        self._security = security
        self._own_tokens = own_tokens
        self._site = Site(cluster, Monitor(cluster, commands), security, grafana_url)
        self._pool = ThreadPool(_THREADS)
        live_pool = ThreadPool(_LIVE_THREADS)
        self._live = Live(lambda render: live_pool.apply(render))

    def body_limit(self, head: http11.Request) -> int:
        """The maximum size of a request's body: nothing before its token and its origin are known to be good."""
        request = request_of(head)
        try:
            self._security.check(request)
            handler = _handler(request)
        except HTTPError:
            return 0
        return _BODIES.get(handler, SMALL_BODY) if request.changes else 0

    def respond(self, head: http11.Request, remote_address: str) -> bytes | Generator[list[bytes]]:
        """The response to send, or its parts. Yields."""
        request = request_of(head, remote_address)
        try:
            response = self._respond(request, head)
        except Exception:
            response = Response(500, self._log_defect(request).encode(), TEXT)
        if request.changes:
            self._log.info("ADMIN: %d %s (%s)", response.status, _audited(request), request.remote_address)
        headers = [("Content-Type", response.content_type), *HEADERS, *response.headers]
        if request.is_api:
            headers.append(("X-NSQ-Content-Type", "nsq; version=1.0"))
        if not any(name == "Cache-Control" for name, _ in headers):
            headers.append(("Cache-Control", "no-store"))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1", "replace")
        if isinstance(response.body, bytes):
            return http11.render(head, response.status, response.body, lines)
        return _stream(http11.render_beginning(head, lines), response.body)

    def keep_history(self) -> None:
        """Starts to take snapshots for the charts while nobody looks."""
        self._site.monitor.keep_history()

    def close(self) -> None:
        """End the live pages, and the snapshots."""
        self._site.monitor.close()
        self._site.tails.close()
        self._live.close()

    def _respond(self, request: Request, head: http11.Request) -> Response:
        try:
            self._security.check(request)
            if request.method == "GET" and request.path == "/live":
                return Response(200, self._stream(request), "text/event-stream")
            handler = _handler(request)
            if request.changes:
                request.body = _body_of(head)
            return self._in_thread(self._handle, handler, request)
        except HTTPError as error:
            return self._in_thread(self._error, request, error)

    def _in_thread(self, function: Callable[..., Response], *args: object) -> Response:
        """What `function` returns; what it raises goes here, and not to the hub."""

        def call() -> Response | Exception:
            try:
                return function(*args)
            except Exception as error:
                return error

        outcome = self._pool.apply(call)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Response)
        return outcome

    def _handle(self, handler: Handler, request: Request) -> Response:
        """In a thread of the pool."""
        try:
            site = self._site.acting(self._security.authorization(request)) if self._own_tokens else self._site
            answer = handler(site, request)
            return answer if isinstance(answer, Response) else Response(200, self._site.render(request, answer))
        except HTTPError as error:
            return self._error(request, error)
        except NotFound as error:
            return self._error(request, HTTPError(404, _sentence(error)))
        except AdminError as error:
            return self._error(request, HTTPError(502, _sentence(error)))
        except Exception:
            return self._error(request, HTTPError(500, self._log_defect(request)))

    def _log_defect(self, request: Request) -> str:
        """Log the exception; the text to show."""
        self._log.error("ADMIN: %s %s", request.method, printable(request.path), stack=format_exc())
        return "INTERNAL_ERROR" if request.is_api else "A defect of this page, which has been logged."

    def _error(self, request: Request, error: HTTPError) -> Response:
        """In a thread of the pool, which has the templates."""
        challenge = [("WWW-Authenticate", 'Bearer realm="nsqadmin"')] if error.status == 401 else []
        if request.is_api or self._prefers_json(request):
            return Response.json({"message": str(error)}, error.status, challenge)
        if error.status == 401 and request.method == "GET" and request.path != "/live":
            return Response.redirect(f"/login?{query(next=request.target)}")
        title = "Not found" if error.status == 404 else "Error"
        page = Page("error.html", {"title": title, "text": _TEXTS.get(str(error), str(error)), "status": error.status})
        return Response(error.status, self._site.render(request, page), headers=challenge)

    def _prefers_json(self, request: Request) -> bool:
        """True for clients that ask for JSON and not for a page, and, as nsqadmin does it, for programs that ask for
        nothing special at an unknown address."""
        accepted = request.header("accept") or ""
        if "text/html" in accepted:
            return False
        return "application/json" in accepted or not any(_matches(route.pattern, request.segments) for route in ROUTES)

    def _stream(self, request: Request) -> Generator[bytes]:
        """The live part of the page at the target `at`."""
        looked_at = Request("GET", request.query.get("at", "/"), request.headers, is_live=True)
        handler = _handler(looked_at)
        if handler not in _LIVE:
            raise HTTPError(404, "NOT_FOUND")

        def check() -> None:
            self._security.check(request)
            self._security.check(looked_at)

        check()

        def render() -> str:
            try:
                page = handler(self._site, looked_at)
                assert isinstance(page, Page)
                return self._site.render_live(looked_at, page)
            except (AdminError, HTTPError) as error:
                text = str(error)
            except Exception:
                text = self._log_defect(looked_at)
            return self._site.render_live(
                looked_at, Page("error.html", {"title": "Error", "text": text, "status": 500})
            )

        return self._live.stream(render, check)


def _audited(request: Request) -> str:
    """What a request asks for, in one line."""
    words = [request.method, request.path]
    if request.segments[:1] != ("login",) and not request.is_api:
        try:
            words += [text for name, text in request.form.items() if text and name not in ("body", "confirmed")]
        except HTTPError:
            pass
    return " ".join(printable(word, 100) for word in words)


def request_of(head: http11.Request, remote_address: str = "") -> Request:
    """The request without its body."""
    return Request(head.method, head.target, head.headers, remote_address.rpartition(":")[0].strip("[]"))


def _body_of(head: http11.Request) -> bytes:
    """The whole body; HTTPError if it is too large, or has not come."""
    if head.too_big and not head.limit:
        raise HTTPError(503, "too many large messages arrive at the moment")
    if head.too_big:
        raise HTTPError(413, f"more than {head.limit} bytes")
    if head.broken:
        raise HTTPError(400, "the body is incomplete")
    return head.body


def _stream(beginning: bytes, parts: Generator[bytes]) -> Generator[list[bytes]]:
    yield [beginning]
    with closing(parts):
        for part in parts:
            yield [part]


def _matches(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(pattern) == len(segments) and all(
        part in ("*", segment) for part, segment in zip(pattern, segments, strict=True)
    )


def _handler(request: Request) -> Handler:
    """HTTPError if there is none, with NSQ's codes."""
    routes = [route for route in ROUTES if _matches(route.pattern, request.segments)]
    method = "GET" if request.method == "HEAD" else request.method
    for route in routes:
        if route.method == method:
            return route.handler
    raise HTTPError(405, "METHOD_NOT_ALLOWED") if routes else HTTPError(404, "NOT_FOUND")


def _sentence(error: AdminError) -> str:
    return "; ".join(printable(text, 1000) for text in map(str, (error, *error.causes)))


def _static(name: str) -> Response:
    kind = _STATIC.get(PurePosixPath(name).suffix)
    file = resources.files("nsqadmin_cli.web") / "static" / name
    if kind is None or "/" in name or "\\" in name or not file.is_file():
        raise HTTPError(404, "NOT_FOUND")
    return Response(200, file.read_bytes(), kind, [("Cache-Control", "no-cache")])
