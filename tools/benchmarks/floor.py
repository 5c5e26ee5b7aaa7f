"""A gevent server on nsqd's flags that does no work. Its rates show what gevent alone costs.

It answers every command with OK and keeps nothing; the message of a PUB goes at once to the next consumer. It serves
the loads of FLOOR_ROWS in `rows`, where all commands of a connection have the same length.
"""

import json
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator

import gevent
from gevent import ssl
from gevent.server import StreamServer

OK = struct.pack(">Ii", 6, 0) + b"OK"
HTTP_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
READ = 65536  # bytes


def main() -> None:
    flags = {name.lstrip("-"): value for name, _, value in (flag.partition("=") for flag in sys.argv[1:])}
    context = None
    if flags.get("tls-cert"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(flags["tls-cert"], flags["tls-key"])
    server = Server(context)
    for protocol, serve in (("tcp", server.nsq), ("http", server.http)):
        host, _, port = flags[f"{protocol}-address"].rpartition(":")
        listener = StreamServer((host, int(port)), serve)
        listener.start()
        print(f"INFO: {protocol.upper()}: listening on {host}:{listener.server_port}", file=sys.stderr, flush=True)
    gevent.signal_handler(signal.SIGTERM, os._exit, 0)
    gevent.wait()


class Server:
    """Its consumers take turns."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._consumers: deque[socket.socket] = deque()

    def nsq(self, sock: socket.socket, _: object) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock, data = self._identify(sock)
        if data.startswith(b"SUB"):
            sock.sendall(OK)
            self._consumers.append(sock)
            while sock.recv(READ):  # RDY, FIN
                pass
            self._consumers.remove(sock)
        elif data:
            line = data.index(b"\n") + 1
            length = line + 4 + int.from_bytes(data[line : line + 4], "big")
            for last in answers(sock, data, length, OK):
                if self._consumers:
                    self._deliver(last[line + 4 :])

    def _identify(self, sock: socket.socket) -> tuple[socket.socket, bytes]:
        """The socket, with TLS if the client requests it, and the first command after it."""
        data = sock.recv(READ)
        while not data.endswith(b"}"):
            data += sock.recv(READ)
        granted = json.dumps({"tls_v1": self._tls is not None and b'"tls_v1":true' in data}).encode()
        sock.sendall(struct.pack(">Ii", 4 + len(granted), 0) + granted)
        if self._tls is not None and b"true" in granted:
            sock = self._tls.wrap_socket(sock, server_side=True)
            sock.sendall(OK)
        return sock, sock.recv(READ)

    def _deliver(self, body: bytes) -> None:
        self._consumers.rotate()
        head = struct.pack(">IiqH16s", 30 + len(body), 2, 0, 1, b"0123456789abcdef")
        self._consumers[0].sendall(head + body)

    def http(self, sock: socket.socket, _: object) -> None:
        data = sock.recv(READ)
        head, _, body = data.partition(b"\r\n\r\n")
        if head.startswith(b"GET /stats"):
            topic = {"depth": 0, "channels": [{"backend_depth": 0}]}
            body = json.dumps({"topics": [topic]}).encode()
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        _, _, length = head.lower().partition(b"content-length: ")
        whole = len(head) + 4 + int(length.split()[0] if length else 0)
        for _ in answers(sock, data, whole, HTTP_OK):
            pass


def answers(sock: socket.socket, data: bytes, length: int, answer: bytes) -> Iterator[bytes]:
    """Answer each `length` bytes, beginning with `data`, until the client closes; gives before each answer what was
    received last."""
    came = 0
    while data:
        came += len(data)
        while came >= length:
            came -= length
            yield data
            sock.sendall(answer)
        data = sock.recv(READ)


if __name__ == "__main__":
    main()
