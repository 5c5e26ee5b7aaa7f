"""Asking a daemon's HTTP API: with whole requests, and with raw bytes for what is hardly HTTP."""

import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPResponse
from typing import NamedTuple

from kit.daemons import DEADLINE, Address, Instance, open_socket

V1 = "nsq; version=1.0"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


def message(code: str) -> str:
    """Returns the body of an error."""
    return f'{{"message":"{code}"}}'


def ask(nsqd: Instance, what: str, body: bytes = b"") -> tuple[int, str]:
    """Status and body of the answer to `what`, such as `GET /ping`."""
    method, target = what.split(" ", 1)
    status, _, answer = nsqd.http(method, target, body)
    return status, answer.decode()


def refusals(nsqd: Instance, requests: Iterable[str], before: str = "") -> dict[str, tuple[int, str]]:
    """Status and code of the error that each request, which begins with `before`, is answered with."""
    found = {}
    for request in requests:
        status, body = ask(nsqd, before + request)
        error = re.fullmatch(r'{"message":"(\w+)"}', body)
        found[request] = status, error[1] if error else f"no error: {body}"
    return found


def head(line: str, *headers: str) -> bytes:
    """Returns a request of HTTP/1.1 up to its body; `line` is method and target."""
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


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


def exchange(nsqd: Instance, data: bytes) -> list[tuple[int, str]]:
    """Returns the answers to `data`, after which this side of the connection ends if the daemon has not ended it."""
    with open_socket(nsqd.http_address, DEADLINE) as sock:
        with suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        return split_responses(read_all(sock))


def read_all(sock: socket.socket) -> bytes:
    """Receives up to the end; a reset is one too."""
    data = b""
    with suppress(ConnectionError):
        while more := sock.recv(65536):
            data += more
    return data


_DATE = re.compile(r"^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$")


class Answer(NamedTuple):
    status: int
    reason: str
    headers: dict[str, str]
    body: str


def whole_answer(address: Address, request: bytes, normal: Callable[[str], str]) -> Answer:
    """Returns the answer to one request, after which this side of the connection ends, with its body normalised."""
    with open_socket(address, DEADLINE) as sock:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        response = HTTPResponse(sock, method=request.split(b" ", 1)[0].decode())
        response.begin()
        raw = response.read().decode("utf-8", "replace")  # the real daemons have compressed pages
    headers = {name.title(): _DATE.sub("now", value) for name, value in response.headers.items()}
    body = normal(raw)
    if body != raw:  # a little more or less than 2 KiB may be in chunks, or not
        headers.pop("Transfer-Encoding", "")
        headers["Content-Length"] = "any"
    return Answer(response.status, response.reason, headers, body)


def _in_order(separator: str) -> Callable[[re.Match[str]], str]:
    return lambda match: separator.join(sorted(match[0].split(separator)))


# The real daemon's producers come in the order of a hash.
_NORMAL: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r'"(start_time|connect_ts|http_port|tcp_port)":\d+', r'"\1":N'),
    (r'"memory":{[^}]*}', lambda match: re.sub(r":\d+", ":N", match[0])),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:N"),
    (r"(\[V2 \S+):\d{5} ", r"\1:N "),
    (r"nsqd v1\.3\.0 \(built w/\S+\)", "nsqd v1.3.0"),
    (r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", "start_time T"),
    (r"uptime (\d+m)?[\d.]+(ns|\u00b5s|ms|s)", "uptime D"),
    (r"connected: (\d+m)?\d+s", "connected: 0s"),
    (r"^(   \w+ +\t)\d+$", r"\1N"),
    (r'(?<="producers":\[{"client_id")(.*)(?=}\]})', _in_order('},{"client_id"')),
    (r"(?<=^Producers:\n).+(\n.+)*", _in_order("\n")),
]


def normal(text: str) -> str:
    """Removes ports, times, memory, versions and paths from an answer of a daemon."""
    for pattern, replacement in _NORMAL:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text
