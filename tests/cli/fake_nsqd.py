"""An nsqd that answers what a test specifies, something else at each look, and an nsqlookupd likewise."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


def node(*topics: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns the statistics of an nsqd with these topics."""
    return {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": topics, "producers": None} | changes


def topic(name: str, *channels: dict[str, Any], **counts: Any) -> dict[str, Any]:
    zeros: dict[str, Any] = dict.fromkeys(("depth", "backend_depth", "message_count", "message_bytes"), 0)
    return {"topic_name": name, "channels": channels, **zeros, "paused": False} | counts


def channel(name: str, *clients: dict[str, Any], **counts: Any) -> dict[str, Any]:
    names = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count", "requeue_count")
    zeros: dict[str, Any] = dict.fromkeys((*names, "timeout_count"), 0)
    texts = {"channel_name": name, "clients": clients, "client_count": len(clients), "paused": False}
    return texts | zeros | counts


def client(name: str, *, connected: float = 0.0, **counts: Any) -> dict[str, Any]:
    """Returns a consumer that has been `connected` that many seconds."""
    names = ("state", "ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count", "sample_rate")
    zeros: dict[str, Any] = dict.fromkeys(names, 0)
    texts = {"client_id": name, "hostname": name, "remote_address": f"{name}:1", "version": "V2", "user_agent": ""}
    flags: dict[str, Any] = {"deflate": False, "snappy": False, "connect_ts": int(time.time() - connected)}
    return texts | zeros | flags | counts


def peeked(*bodies: str, **changes: Any) -> dict[str, Any]:
    """Returns the answer of /channel/peek and /topic/peek with these messages."""
    message = {"id": "0" * 16, "timestamp": 1, "attempts": 1, "on_disk": False, "body_base64": None} | changes
    messages = [{"body": body, "size": len(body)} | message for body in bodies]
    return {"depth": len(bodies), "backend_depth": 0, "messages": messages}


class FakeServer:
    """A server on a loopback port that answers a path with its document: of several, each time the next one, and the
    last one for ever. A document may be a function that returns it. What it has none for is 404. `clock` is what its
    clock is ahead, in seconds."""

    def __init__(self, documents: Mapping[str, Sequence[Any]], *, clock: float = 0.0, kind: str = "nsqd") -> None:
        self.asked: list[str] = []
        self.requests: list[str] = []  # method and path
        self.peers: set[Any] = set()  # the other ends of its connections
        self._documents = {path: list(found) for path, found in documents.items()}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler) -> None:  # noqa: N805
                path = urlsplit(handler.path).path
                self.asked.append(handler.path)
                self.peers.add(handler.client_address)
                self.requests.append(f"{handler.command} {path}")
                found = self._documents.get(path)
                missing = "INVALID_OPTION" if path.startswith("/config/") else "NOT_FOUND"
                document = found[0] if found else {"message": missing}
                body = json.dumps(document() if callable(document) else document).encode()
                if found and len(found) > 1:
                    found.pop(0)
                handler.send_response(200 if found else 404)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def do_POST(handler) -> None:  # noqa: N805
                handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
                handler.do_GET()

            do_DELETE = do_PUT = do_POST  # noqa: N815

            def date_time_string(handler, timestamp: float | None = None) -> str:  # noqa: N805
                return formatdate(time.time() + clock, usegmt=True)

            def log_message(handler, *args: object) -> None:  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.address = f"127.0.0.1:{self.port}"
        self.flag = f"--{kind}-http-address={self.address}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def queries(self, path: str) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(asked).query) for asked in self.asked if urlsplit(asked).path == path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class StatsNsqd(FakeServer):
    """An nsqd with these statistics, one for each look."""

    def __init__(self, *looks: Any, clock: float = 0.0, lookupds: Sequence[str] | None = None) -> None:
        config = {} if lookupds is None else {"/config/nsqlookupd_tcp_addresses": [lookupds]}
        super().__init__({"/stats": looks, "/ping": ["OK"]} | config, clock=clock)


class FakeListing(FakeServer):
    """An nsqlookupd that lists these producers and topics."""

    def __init__(self, *producers: dict[str, Any], topics: Sequence[str] = ()) -> None:
        super().__init__({"/nodes": [{"producers": producers}], "/topics": [{"topics": topics}]}, kind="lookupd")


def producer(port: int, **tombstones: bool) -> dict[str, Any]:
    """Returns a node at a port of 127.0.0.1, for HTTP and TCP, with its topics and whether they are tombstoned."""
    return {
        "remote_address": f"127.0.0.1:{port}",
        "hostname": "h",
        "broadcast_address": "127.0.0.1",
        "tcp_port": port,
        "http_port": port,
        "version": "1.3.0",
        "topics": list(tombstones),
        "tombstones": list(tombstones.values()),
    }
