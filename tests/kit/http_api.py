"""Asking a daemon's HTTP API: with whole requests, and with raw bytes for what is hardly HTTP."""

import re
import socket
from contextlib import suppress
from typing import Any

from kit.daemons import DEADLINE, Daemon, open_socket


def message(code: str) -> str:
    """The body of an error."""
    return f'{{"message":"{code}"}}'


def ask(nsqd: Daemon, what: str, body: bytes = b"") -> tuple[int, str]:
    """Status and body of the answer to `what`, such as `GET /ping`."""
    method, target = what.split(" ", 1)
    status, _, answer = nsqd.http(method, target, body)
    return status, answer.decode()


def topic_stats(nsqd: Daemon, name: str) -> dict[str, Any]:
    (topic,) = nsqd.stats(name)["topics"]
    return dict(topic)


def head(line: str, *headers: str) -> bytes:
    """A request of HTTP/1.1 up to its body; `line` is method and target."""
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r]*\r\n((?:[^\r]+\r\n)*)\r\n")


def split_responses(data: bytes) -> list[tuple[int, str]]:
    """Status and body of each response; one without a length goes to the end. 100 has no body."""
    found = []
    while data:
        match = RESPONSE.match(data)
        assert match, data
        length = re.search(rb"Content-Length: (\d+)", match[2])
        if match[1] == b"100":
            end = match.end()
        else:
            end = match.end() + int(length[1]) if length else len(data)
        found.append((int(match[1]), data[match.end() : end].decode()))
        data = data[end:]
    return found


def exchange(nsqd: Daemon, data: bytes) -> list[tuple[int, str]]:
    """The answers to `data`, after which this side of the connection ends, unless the daemon has ended it before."""
    with open_socket(nsqd.http_address, DEADLINE) as sock:
        with suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        return split_responses(read_all(sock))


def read_all(sock: socket.socket) -> bytes:
    """Up to the end; a reset is one too."""
    data = b""
    with suppress(ConnectionError):
        while more := sock.recv(65536):
            data += more
    return data
