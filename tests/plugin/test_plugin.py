"""The pytest plugin and the context manager, as a project uses them that has tests with NSQ.

The project's tests run in a pytest of their own, where nothing of this suite's conftest is around.
"""

import asyncio
import importlib.metadata
import os
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from gnsqd import testing
from kit.daemons import own_command

PLUGIN = "gnsqd.pytest_plugin"


Project = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Runs pytest over one file of a project's tests."""

    def run(source: str, *flags: str) -> subprocess.CompletedProcess[str]:
        directory = tmp_path / "project"
        directory.mkdir()
        (directory / "test_project.py").write_text(textwrap.dedent(source), "utf-8")
        # Where the package is installed, pytest finds the plugin by itself.
        path = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        # Without the summary, which repeats the errors where CI is in the environment.
        command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "-rN", "--strict-markers", *flags]
        return subprocess.run(command, cwd=directory, env=path, capture_output=True, text=True, timeout=100)

    return run


def test_a_project_that_does_not_use_it_pays_for_three_modules() -> None:
    source = f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100)
    assert set(done.stdout.split()) == {"gnsqd", PLUGIN, "gnsqd.testing"}, done.stderr


def test_installed_package_announces_the_plugin() -> None:
    if "site-packages" not in testing.__file__:
        pytest.skip("runs from a source tree, which announces nothing")
    plugins = {entry.value for entry in importlib.metadata.entry_points(group="pytest11")}
    assert PLUGIN in plugins


def test_fixture_gives_a_daemon_to_publish_to_and_marker_its_flags(project: Project) -> None:
    run = project(
        """
        import json, socket, struct, urllib.request
        import pytest

        def publish(daemon, body):
            host, port = daemon.tcp_address.split(":")
            with socket.create_connection((host, int(port)), 10) as client:
                client.sendall(b"  V2PUB t\\n" + struct.pack(">i", len(body)) + body)
                return client.recv(100)[8:]

        def depth(daemon):
            with urllib.request.urlopen(f"http://{daemon.http_address}/stats?format=json") as answer:
                return [topic["depth"] for topic in json.load(answer)["topics"]]

        def test_a_message_waits(gnsqd):
            assert publish(gnsqd, b"hello") == b"OK"
            assert depth(gnsqd) == [1]

        def test_every_test_has_its_own_daemon(gnsqd):
            assert depth(gnsqd) == []

        @pytest.mark.gnsqd_flags("--max-msg-size=4")
        def test_flags(gnsqd):
            assert publish(gnsqd, b"hello").startswith(b"E_BAD_MESSAGE PUB message too big")

        def test_messages_survive_a_stop_and_not_a_kill(gnsqd_factory):
            kept, lost = gnsqd_factory(), gnsqd_factory("--mem-queue-size=1000")
            for daemon, end in ((kept, kept.stop), (lost, lost.kill)):
                publish(daemon, b"hello")
                end()
                daemon.start()
            assert (sum(depth(kept)), sum(depth(lost))) == (1, 0)
        """
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout


def test_failures_show_the_log_of_the_daemon(project: Project) -> None:
    run = project(
        """
        import pytest

        def test_fails(gnsqd):
            assert False

        @pytest.mark.gnsqd_flags("--node-id=5000")
        def test_never(gnsqd):
            raise AssertionError("not reached")
        """
    )
    assert run.returncode == 1
    assert "log of gnsqd in" in run.stdout
    assert "TCP: listening on 127.0.0.1:" in run.stdout
    assert "test_never: " in run.stdout
    assert run.stdout.count("--node-id must be [0,1024)") == 1
    assert "AssertionError: not reached" not in run.stdout


def test_flags_that_gnsqd_would_refuse_or_ignore_are_a_line_of_error(project: Project) -> None:
    run = project(
        """
        import pytest

        flags = pytest.mark.gnsqd_flags

        @flags("--mem-queue-siz=0")
        def test_typo(gnsqd): pass

        @flags("--mem-queue-size 0")
        def test_space(nsq): pass

        @flags(["--mem-queue-size=0"])
        def test_list(gnsqd): pass

        @flags("mem-queue-size=0")
        def test_dashes(gnsqd): pass

        @flags(mem_queue_size=0)
        def test_keyword(gnsqd): pass

        @flags("--mem-queue-size=0")
        def test_session(nsq_session): pass

        def test_number(gnsqd_factory):
            gnsqd_factory("--mem-queue-size", 0)
        """
    )
    unknown, strings = "gnsqd: flag provided but not defined: -", "each flag of gnsqd is a string of its own, such as "
    for line in (
        f"test_typo: {unknown}mem-queue-siz; did you mean --mem-queue-size?",
        f"test_space: {unknown}mem-queue-size 0; did you mean --mem-queue-size=0?",
        f"""test_list: {strings}"--mem-queue-size=0", not ['--mem-queue-size=0']""",
        "test_dashes: gnsqd ignores 'mem-queue-size=0': a flag begins with --",
        "test_keyword: gnsqd_flags has no argument 'mem_queue_size'",
        "test_session: gnsqd_flags is for gnsqd and nsq; nsq_session has its flags from the fixture nsq_session_flags",
        f'E       gnsqd.testing.StartFailed: {strings}"--mem-queue-size=0", not 0',
    ):
        assert f"\n{line}\n" in run.stdout, run.stdout
    assert "1 failed, 6 errors" in run.stdout
    assert run.stdout.count("\n") < 50
    assert "testing.py" not in run.stdout


def test_flags_of_the_session_are_strings(project: Project) -> None:
    run = project(
        """
        import pytest

        @pytest.fixture(scope="session")
        def nsq_session_flags():
            return "--mem-queue-size=0"

        def test_it(nsq_session): pass
        """
    )
    assert "nsq_session_flags: each flag of gnsqd is a string of its own" in run.stdout, run.stdout


def test_nsq_is_nsqd_and_nsqlookupd_on_ports_that_stay(project: Project) -> None:
    run = project(
        """
        import json, urllib.request

        def ask(address, path, data=None):
            with urllib.request.urlopen(f"http://{address}{path}", data=data) as answer:
                return json.loads(answer.read() or b"null")

        def addresses(nsq):
            return [nsq.tcp_address, nsq.http_address, nsq.lookupd_tcp_address, nsq.lookupd_http_address]

        def test_consumer_finds_the_topic_before_and_after_a_restart(nsq, gnsqd_factory):
            before = addresses(nsq)
            assert len(set(before)) == 4
            for end in (nsq.stop, nsq.kill, lambda: None):
                (producer,) = ask(nsq.lookupd_http_address, "/lookup?topic=t")["producers"]
                assert nsq.tcp_address == f"{producer['broadcast_address']}:{producer['tcp_port']}"
                end()
                nsq.restart()
                assert addresses(nsq) == before
            other = gnsqd_factory(f"--lookupd-tcp-address={nsq.lookupd_tcp_address}")
            assert other.lookupd_http_address == ""
        """,
        "-Werror",
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_nsq_session_keeps_its_addresses_and_nothing_of_the_test_before(project: Project) -> None:
    run = project(
        """
        import json, pytest, urllib.request

        known = []

        def ask(address, path, data=None):
            with urllib.request.urlopen(f"http://{address}{path}", data=data) as answer:
                return json.loads(answer.read()) if data is None else None

        @pytest.fixture(scope="session")
        def nsq_session_flags():
            return ("--max-msg-size=100",)

        @pytest.fixture
        def application(nsq_session):
            return nsq_session

        @pytest.mark.parametrize("turn", range(5))
        def test_starts_with_nothing(application, turn):
            nsq = application
            assert not ask(nsq.http_address, "/stats?format=json")["topics"]
            assert not ask(nsq.lookupd_http_address, "/topics")["topics"]
            assert ask(nsq.http_address, "/config/max_msg_size") == 100
            known.append((nsq.tcp_address, nsq.lookupd_http_address))
            assert len(set(known)) == 1
            ask(nsq.http_address, "/pub?topic=t", b"hello")
            ask(nsq.http_address, "/topic/pause?topic=t", b"")
            if turn == 1:
                nsq.kill()
            if turn == 2:
                ask(nsq.http_address, "/drain", b"")
            assert turn != 3, "one that fails"
        """,
        "-Werror",
    )
    assert run.returncode == 1
    assert "1 failed, 4 passed" in run.stdout, run.stdout + run.stderr
    assert "log of gnsqd in" in run.stdout
    assert "TOPIC(t): " in run.stdout.partition("log of gnsqd in")[2]


def test_context_manager_leaves_nothing_behind() -> None:
    with testing.running("--broadcast-address=here", command=own_command()) as daemon:
        with urllib.request.urlopen(f"http://{daemon.http_address}/info") as answer:
            assert b'"broadcast_address":"here"' in answer.read()
        assert daemon.data_path.is_dir()
        with pytest.raises(RuntimeError):
            daemon.start()
    assert not daemon.data_path.parent.exists()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{daemon.http_address}/ping")


def test_asyncio_goes_on_while_a_daemon_starts_and_stops() -> None:
    async def serve() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        async with testing.running_async("--node-id=7", lookupd=True) as daemon:
            assert turns > 10
            for address in (daemon.http_address, daemon.lookupd_http_address):
                reader, writer = await asyncio.open_connection(*address.split(":"))
                writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
                assert (await reader.read()).endswith(b"OK")
                writer.close()
            turns = 0
        assert turns > 10
        counting.cancel()
        assert not daemon.data_path.parent.exists()

    asyncio.run(serve())
