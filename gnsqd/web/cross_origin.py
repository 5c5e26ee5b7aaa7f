"""Lets pages of other origins use an HTTP API from a browser (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol).

A browser shows a response to the script of such a page only if a header names the page's origin. Before it sends what a
form could not, such as a token, it asks by a preflight request, which has no token itself. Cookies are never allowed.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

from gnsqd.gotext import quote
from gnsqd.shared.errors import StartError
from gnsqd.web.http11 import Request, render
from gnsqd.web.routes import Router
from gnsqd.web.server import Answer, Responder, add_headers

ANY = b"*"
# As browsers send it: in lower case, without a path and without the default port.
_ORIGIN = (
    r"(?!https://[^:]+:443$|http://[^:]+:80$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?"
)
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: %s\r\n"
    b"Access-Control-Allow-Headers: Authorization, Content-Encoding, Content-Type\r\n"
    b"Access-Control-Max-Age: 600\r\n"
)


def allow_origins(origins: Sequence[str], router: Router) -> Callable[[Responder], Responder]:
    """Returns a function that makes a responder, whose requests `router` answers in the end, allow these origins. It
    changes nothing without any. Raises StartError."""
    if not origins:
        return lambda responder: responder
    return partial(CrossOrigin, list(map(parse_origin, origins)), router)


def parse_origin(text: str) -> bytes:
    """Returns an origin as requests have it, or ANY; raises StartError."""
    if text != ANY.decode() and not re.fullmatch(_ORIGIN, text):
        form = "* or an origin as browsers send it, such as https://ops.example.com or http://localhost:3000"
        raise StartError(f"--http-allow-origin must be {form}, not {quote(text)}")
    return text.encode()


class CrossOrigin:
    """Answers preflight requests, and adds headers to the responses of `responder`."""

    def __init__(self, origins: Sequence[bytes], router: Router, responder: Responder) -> None:
        self._origins = origins
        self._router = router
        self._responder = responder

    def body_limit(self, request: Request) -> int:
        return self._responder.body_limit(request)

    def respond(self, request: Request, remote_address: str) -> Answer:
        """Returns the response; yields, and raises WouldYield, as the responder does."""
        origin = ANY if ANY in self._origins else request.headers.get(b"origin", b"")
        headers = b"Vary: Origin\r\n"
        if origin in self._origins:
            headers += b"Access-Control-Allow-Origin: %s\r\n" % origin
            is_preflight = request.method == "OPTIONS" and b"access-control-request-method" in request.headers
            if is_preflight and (methods := self._router.methods(request.path)):
                return render(request, 200, b"", headers + _PREFLIGHT % methods.encode())
        return add_headers(headers, self._responder.respond(request, remote_address))
