"""Programs of the real NSQ that listen: nsqlookupd and nsqadmin, on free ports, with their JSON over HTTP."""

import http.client
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.daemons import DEADLINE, eventually


class JSONServer:
    """A server that answers over HTTP. `address["HTTP"]` is where it listens: host and port in one text."""

    def __init__(self, address: dict[str, str]) -> None:
        self.address = address

    def ask(self, method: str, path: str, **body: str) -> tuple[int, Any]:
        """Status and what is in the JSON that comes back."""
        connection = http.client.HTTPConnection(self.address["HTTP"], timeout=DEADLINE)
        try:
            connection.request(method, path, json.dumps(body) if body else None)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        finally:
            connection.close()


class PeerProgram(JSONServer):
    """One program; `with` ends it."""

    def __init__(
        self, command: Path | Sequence[str], log: Path, *flags: str, kinds: tuple[str, ...] = ("HTTP",)
    ) -> None:
        super().__init__({})
        self._log = log
        with log.open("wb") as output:
            argv = [os.fspath(command)] if isinstance(command, Path) else command
            self._process = subprocess.Popen([*argv, *flags], stdout=output, stderr=subprocess.STDOUT)
        for kind in kinds:
            line = re.compile(rf"\b{kind}: listening on (\S+)$", re.MULTILINE)
            found = eventually(lambda line=line: self._process.poll() or line.search(log.read_text()))  # type: ignore[misc]
            assert isinstance(found, re.Match), log.read_text()
            self.address[kind] = found[1]

    def __enter__(self) -> "PeerProgram":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)


def start_nsqlookupd(command: Path | Sequence[str], log: Path) -> PeerProgram:
    flags = ["--broadcast-address=127.0.0.1", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    return PeerProgram(command, log, *flags, kinds=("TCP", "HTTP"))
