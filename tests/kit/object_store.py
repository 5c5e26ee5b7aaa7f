"""An object store for tests: versitygw, which serves a directory by S3's API, and a proxy in front of it that fails.

A program gets the URL of the bucket, and the rest by the variables of `environment`, which both have.
"""

import contextlib
import math
import os
import re
import signal
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import parse_qs, unquote, urlsplit

from obstore.store import S3Store

from kit.daemons import DEADLINE, eventually, free_port, wait_until_stopped

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

_BUCKET, _KEY_ID, _SECRET = "bucket", "tests", "secret of tests"


class _Endpoint:
    """A port of 127.0.0.1 that serves the bucket."""

    url = f"s3://{_BUCKET}"

    def __init__(self) -> None:
        self.port = free_port()
        self._config: S3Config = {"access_key_id": _KEY_ID, "secret_access_key": _SECRET, "region": "us-east-1"}
        self._config["endpoint"] = f"http://127.0.0.1:{self.port}"
        self.environment = {f"AWS_{name.upper()}": str(value) for name, value in self._config.items()}
        self.environment["AWS_ALLOW_HTTP"] = "true"

    def connect(self, retries: int = 0) -> S3Store:
        """Returns a client of the bucket that repeats a failed request up to `retries` times, if obstore would."""
        options: ClientConfig = {"allow_http": True}
        return S3Store(_BUCKET, config=self._config, client_options=options, retry_config={"max_retries": retries})

    def __enter__(self) -> Self:
        return self


class ObjectStore(_Endpoint):
    """versitygw with one bucket, empty at first; `with` ends it. A restart keeps the port and the objects.

    `objects` is the directory of the bucket, with a file for each object; a test may read, change and delete these.
    """

    def __init__(self, command: Path, directory: Path) -> None:
        super().__init__()
        self.objects = directory / _BUCKET
        self.objects.mkdir(parents=True)
        self.log = directory / "versitygw.log"
        flags = [f"--port=127.0.0.1:{self.port}", "--quiet", "--keep-alive", "posix"]
        self._argv = [os.fspath(command), *flags, os.fspath(directory)]
        self.start()

    def start(self) -> None:
        """Starts it and waits until it accepts connections."""
        keys = {"ROOT_ACCESS_KEY": _KEY_ID, "ROOT_SECRET_KEY": _SECRET}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, env=os.environ | keys, stdout=log, stderr=log)
        eventually(lambda: self._process.poll() is not None or self._accepts(), "a server that accepts connections")
        assert self._process.poll() is None, self.log.read_text()

    def _accepts(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)

    def pause(self) -> None:
        """Stops it by SIGSTOP: the system accepts connections, and nothing is answered until `resume`."""
        self._process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self._process.pid)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def keys(self) -> list[str]:
        """Returns the keys of the objects, in the order in which the server lists them."""
        names = (path.relative_to(self.objects).as_posix() for path in self.objects.rglob("*") if path.is_file())
        return sorted(name for name in names if not name.startswith(".sgwtmp/"))  # of puts under way

    def __exit__(self, *error: object) -> None:
        self.kill()


@dataclass(frozen=True)
class Fault:
    """The misfortune of a request and its answer; without arguments, none."""

    error: str = ""  # status and S3's code, with which the proxy answers instead of the server: "503 SlowDown"
    reaches_server: bool = True
    share: float = 1.0  # of the answer's bytes, after which the connection is reset
    seconds: float | None = 0.0  # by which the answer is late, None without an end; `behave` ends that


INTERNAL_ERROR = Fault("500 InternalError", reaches_server=False)
SLOW_DOWN = Fault("503 SlowDown", reaches_server=False)
RESET = Fault(reaches_server=False, share=0)
ANSWER_LOST = Fault(share=0)  # the server has executed the request, and the client does not know
ANSWER_TORN = Fault(share=0.5)
ANSWER_HELD = Fault(seconds=None)


@dataclass
class _Rule:
    fault: Fault
    method: str
    part: str
    times: float
    over: Event = field(default_factory=Event)


class FailingProxy(_Endpoint):
    """Passes on requests byte by byte, because they are signed, except where `misbehave` asks for a fault.

    `with` ends it. `requests` are their methods and keys. A GET that lists the keys with a prefix has the method LIST
    and that prefix; a POST that deletes any number has the method DELETE and an empty key.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self.requests: list[tuple[str, str]] = []
        self._server = ("127.0.0.1", store.port)
        self._rules: list[_Rule] = []
        self._clients: list[socket.socket] = []
        self._lock = Lock()
        self.listen()

    def misbehave(self, fault: Fault, method: str = "", part: str = "", times: float = math.inf) -> None:
        """Applies the fault to requests with this method, or any, and `part` in the key: to the next `times`."""
        with self._lock:
            self._rules.append(_Rule(fault, method, part, times))

    def behave(self) -> None:
        """Ends all faults, and sends the answers that are held."""
        with self._lock:
            for rule in self._rules:
                rule.over.set()
            self._rules.clear()

    def refuse(self) -> None:
        """Refuses connections, and ends the open ones, until `listen`."""
        with contextlib.suppress(OSError):  # refuses already
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which `close` would not
        self._acceptor.join(DEADLINE)
        self._listener.close()
        while self._clients:
            with contextlib.suppress(OSError):  # many have ended before
                self._clients.pop().shutdown(socket.SHUT_RDWR)

    def listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._acceptor = Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __exit__(self, *error: object) -> None:
        self.behave()
        self.refuse()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close will reset
                self._clients.append(client)
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # Where the server or the client is gone, the connection ends.
        with client, client.makefile("rb") as requests, contextlib.suppress(OSError):
            while self._pass_on(client, requests):
                pass

    def _pass_on(self, client: socket.socket, requests: BinaryIO) -> bool:
        """Returns False at the end of the connection."""
        request = _message(requests)
        if not request:
            return False
        method, key = _method_and_key(request)
        self.requests.append((method, key))
        rule = self._next_rule(method, key)
        answer = self._exchange(request) if rule.fault.reaches_server else b""
        rule.over.wait(rule.fault.seconds)
        if rule.fault.error:
            answer = _error(rule.fault.error, has_body=method != "HEAD")
        client.sendall(answer[: int(len(answer) * rule.fault.share)])
        return bool(answer) and rule.fault.share == 1

    def _next_rule(self, method: str, key: str) -> _Rule:
        with self._lock:
            for rule in self._rules:
                if rule.method in ("", method) and rule.part in key and rule.times > 0:
                    rule.times -= 1
                    return rule
        return _Rule(Fault(), method, key, 1)

    def _exchange(self, request: bytes) -> bytes:
        with socket.create_connection(self._server) as server, server.makefile("rb") as answers:
            server.sendall(request)
            return _message(answers, has_body=not request.startswith(b"HEAD "))


def _message(source: BinaryIO, has_body: bool = True) -> bytes:
    """Returns the next request or answer; b"" where the connection ends before that does."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (line := source.readline()):
            return b""
        head += line
    lengths = re.findall(rb"\r\ncontent-length: *(\d+)", head.lower())
    length = int(lengths[0]) if lengths and has_body else 0
    body = source.read(length)
    return head + body if len(body) == length else b""


def _method_and_key(request: bytes) -> tuple[str, str]:
    method, target, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    if "list-type" in query:
        return "LIST", query.get("prefix", [""])[0]
    return "DELETE" if "delete" in query else method, unquote(url.path).removeprefix(f"/{_BUCKET}").lstrip("/")


def _error(error: str, has_body: bool) -> bytes:
    status, code = error.split(" ")
    body = f"<Error><Code>{code}</Code><Message>A test asked for it</Message></Error>"
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body * has_body).encode()
