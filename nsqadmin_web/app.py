"""The WSGI application: routes, checks, errors, and where the work is done.

Nodes are queried with blocking sockets, so all that does so runs in threads of a pool, and the greenlets of gevent's
server only read requests and write responses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import PurePosixPath
from traceback import format_exc
from typing import Any, NamedTuple

from gevent.threadpool import ThreadPool

from gnsqd.log import Logger
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.context import Commands
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.units import printable
from nsqadmin_web import actions, api, views
from nsqadmin_web.http import MAX_BODY, TEXT, HTTPError, Request, Response
from nsqadmin_web.live import Live
from nsqadmin_web.monitor import Monitor
from nsqadmin_web.present import query
from nsqadmin_web.security import HEADERS, Security
from nsqadmin_web.site import Page, Site

_THREADS = 8  # for views and actions
_LIVE_THREADS = 2
_STATIC = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

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
        "GET /doctor": views.doctor,
        "GET /peek": views.peek,
        "GET /publish": views.publish,
        "POST /publish": actions.publish,
        "GET /plan": actions.plan,
        "POST /act": actions.act,
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

_LIVE = (views.overview, views.topic, views.channel, views.nodes, views.node, views.lookup, views.doctor)


class Application:
    """One page of one cluster. `commands` are shown as remedies. With `own_tokens` the tokens of the page are those of
    its node, which then gets the user's."""

    def __init__(
        self, cluster: Cluster, commands: Commands, security: Security, log: Logger, *, own_tokens: bool = False
    ) -> None:
        self._log = log
        self._security = security
        self._own_tokens = own_tokens
        self._site = Site(cluster, Monitor(cluster, commands), security)
        self._pool = ThreadPool(_THREADS)
        live_pool = ThreadPool(_LIVE_THREADS)
        self._live = Live(lambda render: live_pool.apply(render))

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        request = request_of(environ)
        try:
            response = self._respond(request, environ)
        except Exception:
            response = Response(500, self._log_defect(request).encode(), TEXT)
        if request.changes:
            self._log.info("ADMIN: %d %s (%s)", response.status, _audited(request), request.remote_address)
        headers = [("Content-Type", response.content_type), *HEADERS, *response.headers]
        if request.is_api:
            headers.append(("X-NSQ-Content-Type", "nsq; version=1.0"))
        if not any(name == "Cache-Control" for name, _ in headers):
            headers.append(("Cache-Control", "no-store"))
        if isinstance(response.body, bytes):
            headers.append(("Content-Length", str(len(response.body))))
        start_response(response.status_line, headers)
        if not isinstance(response.body, bytes):
            return response.body
        return [response.body] if request.method != "HEAD" else []

    def _respond(self, request: Request, environ: dict[str, Any]) -> Response:
        try:
            self._security.check(request)
            if request.method == "GET" and request.path == "/live":
                return Response(200, self._stream(request), "text/event-stream")
            handler = _handler(request)
            request.body = _read_body(environ)
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

        found = self._pool.apply(call)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Response)
        return found

    def _handle(self, handler: Handler, request: Request) -> Response:
        """In a thread of the pool."""
        try:
            site = self._site.acting(self._security.authorization(request)) if self._own_tokens else self._site
            found = handler(site, request)
            return found if isinstance(found, Response) else Response(200, self._site.render(request, found))
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
        if request.is_api or (error.status in (404, 405) and not self._is_known(request)):
            return Response.json({"message": str(error)}, error.status, challenge)
        if error.status == 401 and request.method == "GET" and request.path != "/live":
            return Response.redirect(f"/login?{query(next=request.target)}")
        page = Page("error.html", {"title": "Error", "text": str(error), "status": error.status})
        return Response(error.status, self._site.render(request, page), headers=challenge)

    def _is_known(self, request: Request) -> bool:
        return any(_matches(route.pattern, request.segments) for route in ROUTES)

    def _stream(self, request: Request) -> Iterator[bytes]:
        """The live part of the page at the target `at`."""
        looked_at = Request("GET", request.query.get("at", "/"), request.headers, is_live=True)
        handler = _handler(looked_at)
        if handler not in _LIVE:
            raise HTTPError(404, "NOT_FOUND")

        def render() -> str:
            try:
                page = handler(self._site, looked_at)
                assert isinstance(page, Page)
                return self._site.render_live(looked_at, page)
            except (AdminError, HTTPError) as error:
                text = str(error)
            except Exception:
                text = self._log_defect(looked_at)
            return self._site.render_live(looked_at, Page("error.html", {"text": text, "status": 500}))

        return self._live.stream(render, lambda: self._security.check(request))


def _audited(request: Request) -> str:
    """What a request asks for, in one line."""
    words = [request.method, request.path]
    if request.path in ("/act", "/publish"):
        try:
            words += [request.form[name] for name in ("action", "topic", "channel", "node") if request.form.get(name)]
        except HTTPError:
            pass
    return " ".join(printable(word, 100) for word in words)


def request_of(environ: Mapping[str, Any]) -> Request:
    """The request of a WSGI server; ours has REQUEST_URI, in which names may have an encoded slash."""
    told = environ.get("QUERY_STRING", "")
    path = environ.get("PATH_INFO", "/").encode("latin-1").decode("utf-8", "replace")
    target = environ.get("REQUEST_URI") or (f"{path}?{told}" if told else path)
    headers = {key: value for key, value in environ.items() if key.startswith("HTTP_")}
    return Request(environ["REQUEST_METHOD"], target, headers, environ.get("REMOTE_ADDR", ""))


def _read_body(environ: Mapping[str, Any]) -> bytes:
    """The whole body; HTTPError if it is too large, or does not come."""
    try:
        if int(environ.get("CONTENT_LENGTH") or 0) > MAX_BODY:
            raise HTTPError(413, f"more than {MAX_BODY} bytes")
        body = bytes(environ["wsgi.input"].read(MAX_BODY + 1))
    except (OSError, ValueError) as error:
        raise HTTPError(400, f"the body is incomplete: {error}") from None
    if len(body) > MAX_BODY:
        raise HTTPError(413, f"more than {MAX_BODY} bytes")
    return body


def _matches(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(pattern) == len(segments) and all(
        part in ("*", segment) for part, segment in zip(pattern, segments, strict=True)
    )


def _handler(request: Request) -> Handler:
    """HTTPError if there is none, with NSQ's codes."""
    found = [route for route in ROUTES if _matches(route.pattern, request.segments)]
    method = "GET" if request.method == "HEAD" else request.method
    for route in found:
        if route.method == method:
            return route.handler
    raise HTTPError(405, "METHOD_NOT_ALLOWED") if found else HTTPError(404, "NOT_FOUND")


def _sentence(error: AdminError) -> str:
    return "; ".join(printable(str(one), 1000) for one in (error, *error.causes))


def _static(name: str) -> Response:
    kind = _STATIC.get(PurePosixPath(name).suffix)
    file = resources.files("nsqadmin_web") / "static" / name
    if kind is None or "/" in name or "\\" in name or not file.is_file():
        raise HTTPError(404, "NOT_FOUND")
    return Response(200, file.read_bytes(), kind, [("Cache-Control", "no-cache")])
