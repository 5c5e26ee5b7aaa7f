"""The image's health check, run as it stands against what listens on ports of this machine."""

import http.server
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from container.containerfile import DIRECTORY
from kit.daemons import free_port

SCRIPT = (DIRECTORY / "healthcheck").read_text("utf-8")


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Answers each request with this status; yields the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ping" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    with answering(200) as good, answering(500) as bad:
        yield {"good": good, "bad": bad, "none": free_port()}


@pytest.mark.parametrize(
    "nsqd, nsqlookupd, page, code",
    [
        ("good", "none", "none", 0),
        ("none", "good", "none", 0),
        ("good", "good", "none", 0),
        ("none", "none", "none", 1),
        ("bad", "good", "good", 1),
        ("good", "bad", "good", 1),
        ("none", "none", "good", 0),
        ("none", "none", "bad", 1),
        ("good", "none", "bad", 0),  # it is not asked, so that gnsqd need not load it
    ],
)
def test_whatever_listens_must_answer(
    tmp_path: Path, ports: dict[str, int], nsqd: str, nsqlookupd: str, page: str, code: int
) -> None:
    script = tmp_path / "healthcheck"
    text = SCRIPT.replace('4151/healthz", "4161', f'{ports[nsqd]}/ping", "{ports[nsqlookupd]}')
    script.write_text(text.replace('"4171', f'"{ports[page]}'))
    script.chmod(0o755)
    assert subprocess.run([script]).returncode == code


def test_all_that_is_named_must_answer(ports: dict[str, int]) -> None:
    good, none = f"{ports['good']}/ping", f"{ports['none']}/ping"
    for checks, code in (([good], 0), ([good, good], 0), ([good, none], 1), ([f"{ports['good']}/other"], 1)):
        assert subprocess.run([DIRECTORY / "healthcheck", *checks]).returncode == code, checks
