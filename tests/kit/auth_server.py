"""An auth server for tests: says what the test specifies, and notes what it was asked."""

import json
import re
import ssl
from collections.abc import Callable
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit

from kit.daemons import DEADLINE

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


def response(body: bytes | str, status: str = "200 OK", *headers: str) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(raw)}", *headers, "", ""])
    return head.encode() + raw


def grant(*authorizations: object, **fields: object) -> bytes:
    """Returns a valid answer, except for what `fields` change."""
    return response(json.dumps({"ttl": 3600, "authorizations": authorizations} | fields))


class _Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128


class AuthServer:
    """Runs in `with`. `answer` is sent for every request: bytes, or what a callable gives for the request's target.

    While `awake` is cleared it answers nothing. `requests` are the requests, `targets` what they asked for.
    """

    def __init__(
        self, answer: bytes | Callable[[str], bytes] = b"", tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.awake = Event()
        self.awake.set()
        server = self

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                try:
                    sock = tls.wrap_socket(self.request, server_side=True) if tls else self.request
                    sock.settimeout(DEADLINE)
                    request = b""
                    while not _is_whole(request):
                        data = sock.recv(65536)
                        if not data:
                            return
                        request += data
                    server.requests.append(request)
                    server.awake.wait(DEADLINE)
                    sock.sendall(server.answer if isinstance(server.answer, bytes) else server.answer(_target(request)))
                    if tls:
                        sock.unwrap()
                except OSError:  # the client had enough
                    pass

        self._server = _Server((host, 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self.port: int = self._server.server_address[1]
        self.address = f"{host}:{self.port}"

    @property
    def targets(self) -> list[str]:
        return [_target(request) for request in self.requests]

    def reset(self, answer: bytes | Callable[[str], bytes]) -> None:
        self.answer = answer
        self.requests.clear()
        self.awake.set()

    def __enter__(self) -> "AuthServer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.awake.set()
        self._server.shutdown()
        self._thread.join(DEADLINE)
        self._server.server_close()


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: ([0-9]+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def _target(request: bytes) -> str:
    return request.split(b" ")[1].decode()


def query(target: str) -> dict[str, str]:
    """Returns the parameters that a target asks with."""
    fields = parse_qs(urlsplit(target).query, keep_blank_values=True, strict_parsing=True, errors="surrogateescape")
    return {name: value for name, (value,) in fields.items()}
