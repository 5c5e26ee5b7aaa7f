"""The page's application in this process, asked without a socket; and the same as a process."""

import http.client
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from cli.fake_nsqd import FakeServer
from gnsqd.log import Level, Logger
from gnsqd.web.http11 import RequestReader
from kit import preloaded
from kit.daemons import DEADLINE, Instance, eventually
from nsqadmin_cli.context import ClusterContext, ClusterSettings, CommandLines
from nsqadmin_cli.web.app import Application
from nsqadmin_cli.web.security import Security

HOST = "localhost:4171"
OWN = {"Origin": f"http://{HOST}"}  # what a browser sends with a form of the page

WEB = [sys.executable, "-P", "-m", "nsqadmin_cli", "web"]
# The same with a live update every 50 ms, rates over any time, and a quick doctor.
FAST = """
from nsqadmin_cli import cli
from nsqadmin_cli.web import app, monitor, site

app.INTERVAL = monitor.INTERVAL = 0.05
site.SHARED = site.FRESH = monitor._LEAST = 0.0
monitor._EXAMINING = 0.1
cli.main()
"""


class PageAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def shown(self) -> str:
        """The text of a page."""
        return shown(self.text)

    def json(self) -> Any:
        return json.loads(self.body)


def _parse(raw: bytes, method: str = "GET") -> PageAnswer:
    class Received:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(raw)

    response = http.client.HTTPResponse(Received(), method=method)  # type: ignore[arg-type]
    response.begin()
    return PageAnswer(response.status, dict(response.getheaders()), response.read())


def shown(markup: str) -> str:
    """Returns the text of some HTML, with single blanks."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", markup.replace("<wbr>", ""))).split())


class App:
    """The application for some nodes and nsqlookupds; `own` are its own options."""

    def __init__(
        self,
        nodes: Sequence[str] = (),
        lookupds: Sequence[str] = (),
        *,
        timeout: float = 5.0,
        token_files: Sequence[str] = (),
        read_only: bool = False,
        loopback: bool = True,
        token_file: str = "",
        **own: Any,
    ) -> None:
        settings = ClusterSettings(ClusterContext(tuple(nodes), tuple(lookupds), timeout, token_file=token_file))
        self.log = io.StringIO()
        log = Logger("", Level.INFO, self.log)
        security = Security(token_files, log, loopback=loopback, read_only=read_only)
        self.app = Application(settings.cluster(), CommandLines(settings), security, log, **own)

    def ask(self, method: str, target: str, body: bytes = b"", /, **headers: str) -> PageAnswer:
        """Sends `headers`, with an underscore for each hyphen. The body is announced, and may be longer than what is
        sent."""
        sent = {"Host": HOST, "Content-Length": str(len(body))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        reader = RequestReader(self.app.body_limit, {})
        requests = reader.feed("\r\n".join(lines).encode("latin-1") + body) or reader.feed_eof()
        if not requests:
            return _parse(reader.refusal)
        answer = self.app.respond(requests[0], "127.0.0.1:50000")
        if isinstance(answer, bytes):
            return _parse(answer, method)
        with closing(answer):
            return _parse(next(answer)[0] + b"0\r\n\r\n")  # without its events

    def get(self, target: str, **headers: str) -> PageAnswer:
        return self.ask("GET", target, **headers)

    @contextmanager
    def live(self, target: str, *, whole: bool = False) -> Iterator[Iterator[str]]:
        """Yields the texts of the live part of a page; or its markup."""
        head = f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\nAccept: text/event-stream\r\n\r\n".encode()
        (request,) = RequestReader(self.app.body_limit, {}).feed(head)
        answer = self.app.respond(request, "127.0.0.1:50000")
        assert not isinstance(answer, bytes), answer
        with closing(answer):
            chunks = (part.decode() for parts in answer for part in parts)
            parts = (json.loads(text.removeprefix("data: ")) for text in chunks if text.startswith("data: "))
            yield parts if whole else map(shown, parts)

    def page(self, target: str) -> str:
        """Returns the text of a page that must be there."""
        answer = self.get(target)
        assert answer.status == 200, (target, answer.status, answer.text)
        return answer.shown

    def post(self, target: str, headers: dict[str, str] = OWN, /, **fields: str) -> PageAnswer:
        """Sends a form as a browser does, and follows the redirection."""
        answer = self.ask("POST", target, urlencode(fields).encode(), **headers)
        return self.get(answer.headers["Location"]) if answer.status == 303 else answer

    def api(self, method: str, path: str, **body: str) -> tuple[int, Any]:
        """Asks as peer_program.JSONServer.ask does."""
        answer = self.ask(method, path, json.dumps(body).encode() if body else b"")
        return answer.status, answer.json()


def admin_of(daemon: Instance) -> str:
    """Returns host and port of the daemon's own page."""
    match = re.search(r"ADMIN: listening on (\S+)", daemon.log())
    assert match, daemon.log()
    return match[1]


def ask(address: str, method: str, path: str, body: str = "", token: str = "") -> tuple[int, str]:
    """Status and body of a page's answer."""
    with closing(http.client.HTTPConnection(address, timeout=DEADLINE)) as connection:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def wait_until_quiet(fake: FakeServer, seconds: float) -> None:
    """Waits until nobody has asked for something for so long."""
    last = [len(fake.asked), time.monotonic()]

    def is_quiet() -> bool:
        if len(fake.asked) != last[0]:
            last[:] = len(fake.asked), time.monotonic()
        return time.monotonic() - last[1] > seconds

    eventually(is_quiet)


class WebProcess:
    """`gnsqadmin web` on a free port; `with` ends it. With `fast`, its live updates are fast."""

    def __init__(self, directory: Path, *flags: str, fast: bool = False) -> None:
        self._log = directory / "web.log"
        flags = ("--http-address=127.0.0.1:0", *flags)
        assert preloaded.can_start(WEB[:-1])
        with self._log.open("wb") as log, open("/dev/null", "rb") as nothing:
            command = [sys.executable, "-P", "-c", FAST, "web", *flags]
            self.process: Any = (
                subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log)
                if fast
                else preloaded.start(WEB[:-1], ["web", *flags], [nothing, log, log])
            )
        line = re.compile(r"the page is at (http://([^/\s]+)\S*)$", re.MULTILINE)
        match = eventually(lambda: self.process.poll() is not None or line.search(self.log()))
        assert isinstance(match, re.Match), self.log()
        self.url, self.address = match.groups()

    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        return ask(self.address, "GET", path)

    def end(self) -> int:
        self.process.terminate()
        code: int = self.process.wait(DEADLINE)
        return code

    def __enter__(self) -> "WebProcess":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.end()
        assert "Traceback" not in self.log(), self.log()
