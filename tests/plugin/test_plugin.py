"""The pytest plugin and the context manager, as a project uses them that has tests with NSQ.

The project's tests run in a pytest of their own, where nothing of this suite's conftest is around.
"""

import asyncio
import importlib.metadata
import os
import re
import ssl
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from gnsqd import fixture_files, testing
from gnsqd.configuration import load_file
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
        # Where the package is installed, pytest finds the plugin by itself. Sessions that share a directory warn when
        # both remove what an earlier one has left there.
        path = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(tmp_path)}
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
    assert "queues and log of gnsqd" in run.stdout
    assert "TCP: listening on 127.0.0.1:" in run.stdout
    assert "test_never: " in run.stdout
    assert run.stdout.count("--node-id must be [0,1024)") == 1
    assert "AssertionError: not reached" not in run.stdout


STUCK = """
    import time, urllib.request
    import pytest
    from gnsqd.testing import running

    @pytest.fixture
    def mine():
        with running() as daemon:
            urllib.request.urlopen(f"http://{daemon.http_address}/pub?topic=t", data=b"a message").close()
            yield daemon

    @pytest.mark.timeout(0.2, func_only=True)
    def test_hangs(mine):
        time.sleep(100)
"""


@pytest.mark.parametrize("flags", [("-pxdist", "-n1"), ("--timeout-method=thread",)], ids=["signal", "thread"])
def test_a_test_that_takes_too_long_shows_queues_and_log(project: Project, flags: tuple[str, ...]) -> None:
    pytest.importorskip("pytest_timeout")
    run = project(STUCK, "-ppytest_timeout", *flags)
    assert run.returncode == 1, run.stdout + run.stderr
    assert ("Failed: Timeout (>0.2s)" in run.stdout) == ("-n1" in flags)
    queues, _, log = run.stdout.partition("<gnsqd: TCP 127.0.0.1:")[2].partition("[nsqd]")
    assert queues.endswith(
        ", running>\nt: 1 queued, no channel\n    Start a consumer, which creates its channel; or create a channel.\n\n"
    ), run.stdout + run.stderr
    assert "TOPIC(t): created" in log


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
    marker = "gnsqd_flags is for a daemon of one test"
    unknown, strings = "gnsqd: flag provided but not defined: -", "each flag of gnsqd is a string of its own, such as "
    for line in (
        f"test_typo: {unknown}mem-queue-siz; did you mean --mem-queue-size?",
        f"test_space: {unknown}mem-queue-size 0; did you mean --mem-queue-size=0?",
        f"""test_list: {strings}"--mem-queue-size=0", not ['--mem-queue-size=0']""",
        "test_dashes: gnsqd ignores 'mem-queue-size=0': a flag begins with --",
        "test_keyword: gnsqd_flags has no argument 'mem_queue_size'",
        f"test_session: {marker}; nsq_session has its flags from the fixture nsq_session_flags",
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
    assert "queues and log of gnsqd" in run.stdout
    assert "TOPIC(t): " in run.stdout.partition("queues and log of gnsqd")[2]


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


# A project that configures its nsqd

CONFIG = """\
data_path = "/data"
nsqlookupd_tcp_addresses = ["nsqlookupd:4160"]
log_level = "warn"
max_msg_size = 50
msg_timeout = "7s"
tls_cert = "/certs/server.pem"
tls_required = true
tls_client_auth_policy = "require-verify"
"""


def test_fixture_of_a_project_has_the_settings_of_its_nsqd(project: Project, tmp_path: Path) -> None:
    (tmp_path / "nsqd.cfg").write_text(CONFIG)
    run = project(
        """
        import json, ssl, urllib.error, urllib.request
        import pytest
        from gnsqd.pytest_plugin import nsq_fixture

        FULL, READ, PUBLISH = 16 * "f", 16 * "r", 16 * "p"

        nsq = nsq_fixture(
            "--max-msg-size=100", config="nsqd.cfg", topics=["events", "orders/billing", "orders/a#ephemeral"],
            lookupd=True, tls=True, tokens={"full": FULL, "read": READ, "publish:orders.*": PUBLISH}, scope="session",
        )
        own = nsq_fixture("--max-msg-size=100", "--msg-timeout=7s", topics=["events"])
        module = nsq_fixture(topics=["events"], scope="module")

        def ask(nsq, path, token, data=None):
            address, context = f"http://{nsq.http_address}", None
            if nsq.ca_file:
                address = "https://localhost:" + nsq.https_address.partition(":")[2]
                context = ssl.create_default_context(cafile=nsq.ca_file)
                context.verify_flags |= ssl.VERIFY_X509_STRICT
                context.load_cert_chain(nsq.client_cert_file, nsq.client_key_file)
            request = urllib.request.Request(address + path, data, {"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(request, context=context) as answer:
                    return answer.read()
            except urllib.error.HTTPError as error:
                return error.code

        def topics(nsq):
            rows = json.loads(ask(nsq, "/stats?format=json", READ))["topics"]
            channels = {row["topic_name"]: [channel["channel_name"] for channel in row["channels"]] for row in rows}
            return {row["topic_name"]: (row["depth"], row["paused"], channels[row["topic_name"]]) for row in rows}

        @pytest.mark.parametrize("turn", range(3))
        def test_every_test_begins_with_the_initial_topics(nsq, turn):
            assert topics(nsq) == {"events": (0, False, []), "orders": (0, False, ["a#ephemeral", "billing"])}
            nsq.wait_until_empty("orders", "billing")
            assert nsq.stats()["health"] == "OK"
            assert "unknown" not in nsq.queues()
            url = f"http://{nsq.lookupd_http_address}/lookup?topic=orders"
            with urllib.request.urlopen(url) as answer:
                (producer,) = json.load(answer)["producers"]
            assert nsq.tcp_address == f"{producer['broadcast_address']}:{producer['tcp_port']}"
            assert ask(nsq, "/config/max_msg_size", READ) == b"100"
            assert ask(nsq, "/config/msg_timeout", READ) == b"7000000000"
            assert ask(nsq, "/config/nsqlookupd_tcp_addresses", READ) == b"[]"
            for token, answer in {FULL: b"OK", READ: 403, PUBLISH: b"OK", "": 401}.items():
                assert ask(nsq, "/pub?topic=orders.eu", token, b"an order") == answer
            assert ask(nsq, "/pub?topic=orders", PUBLISH, b"an order") == 403
            assert ask(nsq, "/pub?topic=orders", FULL, b"an order") == b"OK"
            assert ask(nsq, "/topic/pause?topic=events", FULL, b"") == b""
            if turn == 0:
                nsq.kill()

        @pytest.mark.gnsqd_flags("--max-msg-size=5")
        def test_marker_adds_flags(own):
            assert ask(own, "/config/max_msg_size", "") == b"5"
            assert ask(own, "/config/msg_timeout", "") == b"7000000000"
            assert topics(own) == {"events": (0, False, [])}
            assert own.https_address == own.ca_file == ""

        @pytest.mark.parametrize("turn", range(2))
        def test_tests_of_a_module_share_a_daemon(module, turn):
            assert topics(module) == {"events": (0, False, [])}
            assert ask(module, "/pub?topic=events", "", b"an event") == b"OK"
        """,
        "-Werror",
        "--rootdir=..",
    )
    assert "6 passed" in run.stdout, run.stdout + run.stderr


def test_settings_that_gnsqd_would_refuse_or_ignore_are_a_line_of_error(project: Project, tmp_path: Path) -> None:
    bad_key, bad_value = tmp_path / "key.cfg", tmp_path / "value.cfg"
    bad_key.write_text("max_msg_sise = 100\n")
    bad_value.write_text('log_level = "loud"\n')
    settings = {
        "topics='events'": 'topics is a list, such as ["events", "orders/billing"], not \'events\'',
        "topics=['orders:billing']": "invalid topic 'orders:billing': TOPIC or TOPIC/CHANNEL, each 1 to 64 of ",
        "topics=['orders/']": "invalid topic 'orders/': TOPIC or TOPIC/CHANNEL, each 1 to 64 of ",
        "topic=['events']": "unknown setting 'topic'; there are config, topics, lookupd, tls, tokens",
        "tokens={'admin': 16 * 't'}": "unknown role 'admin' of a token: the roles are full, read, and read:TOPIC, ",
        "tokens={'read:': 16 * 't'}": "unknown role 'read:' of a token: the roles are full, read, and read:TOPIC, ",
        "tokens={'full': 'secret'}": "invalid token of 'full': 16 or more of A-Z a-z 0-9 . _ ~ + / -",
        "config='none.cfg'": f"config file {tmp_path}/project/none.cfg: open {tmp_path}/project/none.cfg: no such file",
        f"config={str(bad_key)!r}": f"config file {bad_key}: unknown key max_msg_sise is ignored; did you mean ",
        f"config={str(bad_value)!r}": f"config file {bad_value}: failed parsing log_level loud",
        "'--max-topics=1', topics=['a', 'b']": 'POST /topic/create?topic=b: 503 {"message":"TOO_MANY_TOPICS"}',
    }
    lines = ["import pytest", "from gnsqd.pytest_plugin import nsq_fixture", "shared = nsq_fixture(scope='session')"]
    for number, call in enumerate(settings):
        lines += [f"fixture{number} = nsq_fixture({call})", f"def test_{number}(fixture{number}): pass"]
    lines += ["@pytest.mark.gnsqd_flags('--max-msg-size=5')", "def test_marker(shared): pass"]
    run = project("\n".join(lines))
    for number, text in enumerate(settings.values()):
        assert f"\ntest_{number}: gnsqd: {text}" in run.stdout, run.stdout
    assert (
        "\ntest_marker: gnsqd_flags is for a daemon of one test; shared has its flags from nsq_fixture\n" in run.stdout
    )
    assert "testing.py" not in run.stdout
    assert f"{len(settings) + 1} errors" in run.stdout


def test_config_file_of_a_daemon_has_all_but_the_places_of_a_deployment(tmp_path: Path) -> None:
    example = (Path(__file__).parents[2] / "contrib" / "nsqd.cfg.example").read_text("utf-8")
    source = tmp_path / "project.cfg"
    text = re.sub(r"^# (\w+ = )", r"\1", example, flags=re.MULTILINE)
    source.write_text(text.replace('"[nsqd] "', "'\\ \"\u00e9\" \U0001f600 '"), "utf-8")
    copy = fixture_files.copy_config(str(source), tmp_path).removeprefix("--config=")
    given, copied = load_file(str(source)), load_file(copy)
    assert '"' in given["log_prefix"]
    assert given.items() >= copied.items()
    assert " ".join(sorted(given.keys() - copied.keys())) == (
        "admin_http_address broadcast_address broadcast_http_port broadcast_tcp_port data_path "
        "embedded_lookupd_http_address embedded_lookupd_tcp_address http_address https_address log_store "
        "nsqlookupd_tcp_addresses statsd_address tcp_address"
    )


@pytest.mark.peer
def test_certificates_and_topics_are_good_for_both_daemons(daemon_command: list[str], tmp_path: Path) -> None:
    policy = ("--tls-required=true", "--tls-client-auth-policy=require-verify")
    with testing.running(*policy, command=daemon_command, tls=True, topics=["orders/billing"]) as daemon:
        context = ssl.create_default_context(cafile=daemon.ca_file)
        context.load_cert_chain(daemon.client_cert_file, daemon.client_key_file)
        with urllib.request.urlopen(f"https://{daemon.https_address}/stats?topic=orders", context=context) as answer:
            assert b"[billing  " in answer.read()
