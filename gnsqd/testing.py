"""A gnsqd for the tests of programs that use NSQ: on free ports, with a directory of its own, removed afterwards.

    with running("--mem-queue-size=100") as daemon:
        writer = nsq.Writer([daemon.tcp_address])

It is a process, so tests run with the same daemon as production. The default command is forked from a process that has
imported gnsqd (`preloaded`), which takes a fraction of the time of a new interpreter. `pytest_plugin` has fixtures.
This module imports only the standard library.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, Unpack

if TYPE_CHECKING:
    from ssl import SSLContext

    from gnsqd.preloaded import Preloaded, Process

GNSQD = (sys.executable, "-P", "-m", "gnsqd")
START_SECONDS = 30.0
EXIT_SECONDS = 30.0
ASK_SECONDS = 5.0  # until a daemon that is asked about its queues counts as hanging
SHOWN = 4000  # characters of a log

_POLL_SECONDS = 0.002
_LONGEST_POLL_SECONDS = 0.1
_COUNTS = "/stats?format=json&include_clients=false&include_mem=false"
_LOOKUPD = "[nsqlookupd] "
_LISTENING = re.compile(  # in either --log-format
    rf'^({re.escape(_LOOKUPD)}|.*"daemon":"nsqlookupd")?.*\b(TCP|HTTPS?|ADMIN): listening on ([^\s"]+)(?:"}})?$',
    re.MULTILINE,
)
_ADDRESSES = (  # attribute, prefix and kind in the log, flag
    ("tcp_address", "", "TCP", "tcp-address"),
    ("http_address", "", "HTTP", "http-address"),
    ("https_address", "", "HTTPS", "https-address"),
    ("admin_address", "", "ADMIN", "admin-http-address"),
    ("lookupd_tcp_address", _LOOKUPD, "TCP", "embedded-lookupd-tcp-address"),
    ("lookupd_http_address", _LOOKUPD, "HTTP", "embedded-lookupd-http-address"),
)


class StartFailed(Exception):
    """The daemon ended, or did not answer, instead of serving; the text ends with its log. Or it was not started, as
    gnsqd would refuse or ignore a flag; then it is one line."""


class NotEmpty(AssertionError):
    """A channel did not become empty in time; the text has the daemon's queues."""


class Settings(TypedDict, total=False):
    """The settings of a daemon that are not flags."""

    config: str | Path  # a config file; its keys for addresses and directories do not count
    topics: Sequence[str]  # created at each start and reset; channels as TOPIC/CHANNEL
    lookupd: bool  # nsqlookupd in the same process
    tls: bool  # certificates for TCP and HTTPS, by an authority of its own
    tokens: Mapping[str, str]  # for HTTP, by their roles: full, read, or one for topics, such as publish:orders.*


class Daemon:
    """One daemon; StartFailed for bad flags and settings. Its ports are reserved for it until this object is gone, so
    that every start has the same.

    tcp_address, http_address                   of nsqd, as `host:port`
    lookupd_tcp_address, lookupd_http_address   of nsqlookupd in the same process, with `lookupd`; otherwise empty
    https_address                               of nsqd, if it has certificates
    ca_file, client_cert_file, client_key_file  of the authority and a client, with `tls`; otherwise empty
    admin_address                               of the page, with --admin-http-address; otherwise empty
    data_path                                   where its topics and channels are kept
    log_path                                    where it writes its log
    """

    def __init__(
        self, data_path: Path, flags: Sequence[str] = (), command: Sequence[str] = GNSQD, **settings: Unpack[Settings]
    ) -> None:
        self.data_path = data_path
        self.log_path = data_path.with_name(f"{data_path.name}.log")
        self.tcp_address = self.http_address = self.lookupd_tcp_address = self.lookupd_http_address = ""
        self.admin_address = self.https_address = self.ca_file = self.client_cert_file = self.client_key_file = ""
        self._token = ""
        self._creating: Sequence[str] = ()
        listeners = ["tcp", "http"]
        more = ["--https-address=127.0.0.1:0", *self._prepare(settings), f"--data-path={data_path}", *flags]
        if settings.get("lookupd"):
            listeners += ["embedded-lookupd-tcp", "embedded-lookupd-http"]
            more.insert(0, "--lookup-creates-topics")
        self._check_flags(flags, tuple(command) == GNSQD)
        self._command = command
        self._flags = [f"--{name}-address=127.0.0.1:{self._reserve_port()}" for name in listeners] + more
        self._process: subprocess.Popen[bytes] | Process | None = None

    def __repr__(self) -> str:
        addresses = f"TCP {self.tcp_address}, HTTP {self.http_address}"
        return f"<{self._command[-1]}: {addresses}, data in {self.data_path}, {self._end_state() or 'running'}>"

    def _end_state(self) -> str:
        """Returns how the daemon has ended, "" while it runs."""
        code = 0 if self._process is None else self._process.poll()
        return "" if code is None else f"exited with code {code}" if self._process else "stopped"

    def _check_flags(self, flags: Sequence[str], are_ours: bool) -> None:
        """Raises StartFailed unless these are strings, and for gnsqd flags with their values."""
        for word in [flags] if isinstance(flags, str) else flags:
            if word is flags or not isinstance(word, str):
                raise StartFailed(
                    f'each flag of gnsqd is a string of its own, such as "--mem-queue-size=0", not {word!r}'
                )
        if not are_ours:
            return
        from gnsqd.configuration import BadValue, FlagError, HelpRequested, parse_flags  # loads slowly

        try:
            _, ignored = parse_flags(flags)
        except HelpRequested:
            return
        except (BadValue, FlagError) as error:
            raise StartFailed(f"gnsqd: {error}{_proposal(str(error))}") from None
        if ignored:
            raise StartFailed(f"gnsqd ignores {ignored[0]!r}: a flag begins with --")

    def _prepare(self, settings: Settings) -> list[str]:
        """Writes the files of the settings into a directory beside the data path; returns the flags for them."""
        if unknown := settings.keys() - Settings.__annotations__:
            known = ", ".join(Settings.__annotations__)
            raise StartFailed(f"gnsqd: unknown setting {min(unknown)!r}; there are {known}")
        if settings.keys() <= {"lookupd"}:
            return []
        from gnsqd import fixture_files  # few need it
        from gnsqd.shared.errors import NSQError

        directory = self.data_path.with_name(f"{self.data_path.name}.files")
        directory.mkdir(parents=True, exist_ok=True)
        flags = []
        try:
            self._creating = fixture_files.creating_requests(settings.get("topics", ()))
            if config := settings.get("config"):
                flags.append(fixture_files.copy_config(str(config), directory))
            if tokens := settings.get("tokens"):
                flag, self._token = fixture_files.write_tokens(tokens, directory)
                flags.append(flag)
        except NSQError as error:
            raise StartFailed(f"gnsqd: {error}") from None
        if settings.get("tls"):
            flags += [f"--https-address=127.0.0.1:{self._reserve_port()}", *fixture_files.write_certificates(directory)]
            files = (str(directory / name) for name in ("ca.crt", "client.crt", "client.key"))
            self.ca_file, self.client_cert_file, self.client_key_file = files
        return flags

    def _reserve_port(self) -> int:
        """Returns a bound port, which Linux assigns to nobody else; nobody listens there, so the daemon can."""
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            weakref.finalize(self, os.close, sock.detach())
        return port

    def start(self) -> None:
        """Starts the daemon and waits until it serves; raises StartFailed. A second start has the first one's data."""
        if self._process is not None:
            raise RuntimeError("the daemon runs already")
        self.data_path.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = self._start_process(log)
        try:
            self._wait_until_it_serves()
            self._create_topics()
        except BaseException:
            self.kill()
            raise

    def _start_process(self, log: IO[bytes]) -> "subprocess.Popen[bytes] | Process":
        """Forks the process if the command is GNSQD and that is possible, else runs the command itself."""
        if tuple(self._command) == GNSQD and _preloaded().can_start(self._command):
            with open(os.devnull, "rb") as nothing, suppress(OSError):  # without its parent it starts as any other
                return _preloaded().start(self._command, self._flags, [nothing, log, log])
        command = [*self._command, *self._flags]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait_until_it_serves(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            code = self._process.poll()
            self._read_addresses()
            if code is None and self.tcp_address and self._answers():
                return self._read_addresses()  # those of nsqlookupd are logged later
            if code is not None or time.monotonic() > deadline:
                what = f"did not serve within {START_SECONDS:g} s" if code is None else f"exited with code {code}"
                raise self._failure(what)
            time.sleep(_POLL_SECONDS)

    def _read_addresses(self) -> None:
        addresses = {(registry, kind): address for registry, kind, address in _LISTENING.findall(self.log())}
        for attribute, prefix, kind, flag in _ADDRESSES:  # not all log levels have these lines
            given = re.sub(r".*:0$", "", last_flag(self._flags, flag))
            setattr(self, attribute, addresses.get((prefix, kind), given))

    def _failure(self, what: str) -> StartFailed:
        return StartFailed(f"{' '.join(self._command)} {what}\n{self.log()[-SHOWN:]}")

    def _answers(self) -> bool:
        """Returns True for any status: the daemon may require a token. Without HTTP there is only the log."""
        if not last_flag(self._flags, "http-address"):
            return _LISTENING.search(self.log()) is not None
        try:
            return bool(self.http_address and _ask(self.http_address, "GET", "/ping"))
        except OSError:
            return False

    def stop(self) -> int:
        """Stops the daemon as an operator would, with its messages kept in the data path; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the daemon as a crash would: messages in memory are lost."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops the daemon, and starts it on the same ports; raises StartFailed."""
        self.stop()
        self.start()

    def reset(self) -> None:
        """Deletes all topics with their channels and messages, ends consumers' connections, and creates the initial
        topics again; raises StartFailed. Connections that only publish stay. Where deleting does not leave an empty
        daemon, because it has ended, drains or requires another token, a new one is started on the same ports."""
        try:
            empty = self._process is not None and self._process.poll() is None and self._delete_topics()
        except OSError:
            empty = False
        if empty:
            self._create_topics()
        else:
            self.kill()
            shutil.rmtree(self.data_path, ignore_errors=True)
            self.start()

    def _delete_topics(self) -> bool:
        """Returns True if nothing is left afterwards, and the daemon accepts messages."""
        for topic in self._topics():
            self._request("POST", f"/topic/delete?topic={topic}".replace("#", "%23"))
        if self.lookupd_http_address:
            _ask(self.lookupd_http_address, "POST", "/topic/delete?topic=*")
            if _json_of(_ask(self.lookupd_http_address, "GET", "/topics"))["topics"]:
                return False
        return not self._topics() and self._request("GET", "/readyz")[0] == 200

    def _create_topics(self) -> None:
        """Creates the initial topics and channels, of which some may exist; raises StartFailed."""
        for path in self._creating:
            try:
                status, body = self._request("POST", path)
            except OSError as error:
                raise StartFailed(f"gnsqd: POST {path}: {error}") from None
            if status != 200:
                raise StartFailed(f"gnsqd: POST {path}: {status} {body.decode('utf-8', 'replace')}")

    def _topics(self) -> list[str]:
        return [topic["topic_name"] for topic in _json_of(self._request("GET", _COUNTS))["topics"] or []]

    def _request(self, method: str, path: str, timeout: float = START_SECONDS) -> tuple[int, bytes]:
        """Returns status and body of an answer of nsqd, which may require a token, TLS and a client certificate; raises
        OSError."""
        if not self.ca_file:
            return _ask(self.http_address, method, path, timeout, self._token)
        return _ask(self.https_address, method, path, timeout, self._token, self._client_context)

    @cached_property
    def _client_context(self) -> "SSLContext":
        from ssl import create_default_context  # loads slowly

        context = create_default_context(cafile=self.ca_file)
        context.load_cert_chain(self.client_cert_file, self.client_key_file)
        return context

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
        """Returns the log since the last start."""
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def stats(self) -> Any:
        """Returns the answer of /stats?format=json; raises OSError."""
        return _json_of(self._request("GET", "/stats?format=json"))

    def wait_until_empty(self, topic: str, channel: str, timeout: float = 10.0) -> None:
        """Returns when the channel exists and has nothing queued, in flight or deferred, and the topic nothing queued;
        raises NotEmpty after `timeout` seconds, or if the daemon has ended."""
        __tracebackhide__ = True
        from difflib import get_close_matches  # both load slowly
        from urllib.parse import quote

        start, pause, state = time.monotonic(), _POLL_SECONDS, "does not answer"
        names = f"&topic={quote(topic)}&channel={quote(channel)}"
        while True:
            with suppress(OSError):
                rows = _json_of(self._request("GET", _COUNTS + names, ASK_SECONDS))["topics"]
                state = "is not empty" if rows else "does not exist"
                for row in rows or []:
                    (counts,) = row["channels"]
                    if not any((row["depth"], counts["depth"], counts["in_flight_count"], counts["deferred_count"])):
                        return
            if (taken := time.monotonic() - start) > timeout or self._end_state():
                queues = self.queues()
                known = [line.partition(":")[0] for line in queues.splitlines() if not line.startswith(" ")]
                near = get_close_matches(f"{topic}/{channel}", known, 1, 0.8) if state == "does not exist" else []
                proposal = f" (did you mean {near[0]}?)" if near else ""
                raise NotEmpty(f"{topic}/{channel} {state} after {taken:.1f} s{proposal}:\n{queues}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    def queues(self) -> str:
        """Returns what /queues of gnsqd shows: what each topic and channel holds, who consumes it, and advice; or why
        that is not known. Raises nothing."""
        if state := self._end_state():
            return f"queues unknown: the daemon has {state}"
        try:
            status, body = self._request("GET", "/queues", ASK_SECONDS)
        except Exception as error:  # nothing must hide why a test has failed
            return f"queues unknown: no answer from {self.http_address or 'a daemon without HTTP'}: {error}"
        if status == 404:
            command = f"gnsqadmin doctor --nsqd-http-address={self.http_address}"
            return f"queues unknown: this is not gnsqd; `{command}` examines it while it runs"
        text = body.decode("utf-8", "replace").strip()
        return text if status == 200 else f"queues unknown: the daemon answers {status} {text}"

    def report(self) -> str:
        """Returns the queues, and the end of the log, without the requests of `wait_until_empty`, for a failed test."""
        log = "\n".join(line for line in self.log().splitlines() if _COUNTS not in line)
        end = log if len(log) <= SHOWN else log[-SHOWN:].partition("\n")[2]
        return f"{self}\n{self.queues()}\n\n{end}".strip()


def _proposal(error: str) -> str:
    """Returns the flag that may be meant by one that gnsqd does not have."""
    _, undefined, word = error.partition("not defined: -")
    if not undefined:
        return ""
    from difflib import get_close_matches

    from gnsqd.options import OPTIONS

    name, _, value = word.partition(" ")
    (nearest, *_) = *get_close_matches(name, [option.flag for option in OPTIONS], 1), ""
    return f"; did you mean --{nearest}{value and f'={value}'}?" if nearest else ""


def last_flag(flags: Sequence[str], name: str) -> str:
    """Returns the value of the last `-name=value` or `--name=value`, which is the one that counts; "" without any."""
    values = [value for flag, _, value in (flag.partition("=") for flag in flags) if flag.lstrip("-") == name]
    return values[-1] if values else ""


def _json_of(answer: tuple[int, bytes]) -> Any:
    """Returns a JSON answer; raises OSError if its status is not 200."""
    status, body = answer
    if status != 200:
        raise OSError(f"status {status}")
    import json

    return json.loads(body)


def _ask(
    at: str, method: str, path: str, timeout: float = START_SECONDS, token: str = "", tls: "SSLContext | None" = None
) -> tuple[int, bytes]:
    """Returns status and body of an answer; raises OSError."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # load TLS, and every pytest imports this

    if not at:
        raise OSError("no address")
    connection = HTTPSConnection(at, context=tls) if tls else HTTPConnection(at)
    connection.timeout = timeout
    with closing(connection):
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except HTTPException as error:
            raise OSError(f"{path}: {error}") from error


@cache
def _preloaded() -> "Preloaded":
    from gnsqd.preloaded import Preloaded

    return Preloaded("gnsqd")


@contextmanager
def running(*flags: str, command: Sequence[str] = GNSQD, **settings: Unpack[Settings]) -> Iterator[Daemon]:
    """Starts a daemon, with flags as on its command line; stops and removes it at the end. Raises StartFailed.

    `command` is how to start it, to run the same tests with another nsqd. An exception that leaves the block has the
    daemon's `report` as a note.
    """
    with tempfile.TemporaryDirectory(prefix="gnsqd-") as directory:
        daemon = Daemon(Path(directory) / "data", flags, command, **settings)
        daemon.start()
        try:
            yield daemon
        except BaseException as error:  # pytest's among them
            error.add_note(daemon.report())
            raise
        finally:
            daemon.stop()


@asynccontextmanager
async def running_async(
    *flags: str, command: Sequence[str] = GNSQD, **settings: Unpack[Settings]
) -> AsyncIterator[Daemon]:
    """Does as `running` for a program with asyncio, whose event loop goes on meanwhile."""
    from asyncio import to_thread  # loads slowly

    daemon = running(*flags, command=command, **settings)
    started = await to_thread(daemon.__enter__)
    try:
        yield started
    except BaseException as error:
        await to_thread(daemon.__exit__, type(error), error, error.__traceback__)
        raise
    await to_thread(daemon.__exit__, None, None, None)
