"""A gnsqd for the tests of programs that use NSQ: on free ports, with a directory of its own, gone afterwards.

    with running("--mem-queue-size=100") as daemon:
        writer = nsq.Writer([daemon.tcp_address])

It is a process, started by `command`: what is tested with it meets the daemon that serves in production. With pytest
there is the fixture `gnsqd` (see `pytest_plugin`). The standard library alone is imported here.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

GNSQD = (sys.executable, "-m", "gnsqd")
START_SECONDS = 30.0
EXIT_SECONDS = 30.0

_SHOWN = 4000  # characters of the log in an error
# Not of the nsqlookupd that may be in the same process.
_LISTENING = re.compile(r"^(?!\[nsqlookupd\] ).*\b(TCP|HTTP): listening on (\S+:\d+)$", re.MULTILINE)


class StartFailed(Exception):
    """The daemon ended, or did not answer, instead of serving; the text ends with its log."""


class Daemon:
    """One daemon. Addresses are `host:port` and known once it runs; so is its data after it was stopped.

    data_path   where its topics and channels are kept
    log_path    where it writes its log
    """

    def __init__(self, data_path: Path, flags: Sequence[str] = (), command: Sequence[str] = GNSQD) -> None:
        self.data_path = data_path
        self.log_path = data_path.with_name(f"{data_path.name}.log")
        self.tcp_address = ""
        self.http_address = ""
        self._argv = [
            *command,
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--https-address=127.0.0.1:0",
            f"--data-path={data_path}",
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it serves; StartFailed. A second start finds what the first left in the data path."""
        if self._process is not None:
            raise RuntimeError("the daemon runs already")
        self.data_path.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_until_it_serves()
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_serves(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            code = self._process.poll()
            listening = dict(_LISTENING.findall(self.log()))
            self.tcp_address, self.http_address = listening.get("TCP", ""), listening.get("HTTP", "")
            if self.tcp_address and self.http_address and self._answers():
                return
            if code is not None:
                raise StartFailed(f"{self._argv[0]} exited with code {code}\n{self.log()[-_SHOWN:]}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self._argv[0]} did not serve within {START_SECONDS:g} s\n{self.log()[-_SHOWN:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        import urllib.request  # with TLS it loads slowly, and every run of pytest imports this module

        try:
            with urllib.request.urlopen(f"http://{self.http_address}/ping", timeout=START_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> int:
        """End it as an operator would, with its messages kept in the data path; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: what it had in memory is lost."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            return self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process = None

    def log(self) -> str:
        """What it has logged since its last start."""
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""


@contextmanager
def running(*flags: str, command: Sequence[str] = GNSQD) -> Iterator[Daemon]:
    """A daemon that serves, with flags as on its command line; stopped and removed at the end. StartFailed.

    `command` is how to start it, to run the same tests with another nsqd.
    """
    with tempfile.TemporaryDirectory(prefix="gnsqd-") as directory:
        daemon = Daemon(Path(directory) / "data", flags, command)
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.stop()
