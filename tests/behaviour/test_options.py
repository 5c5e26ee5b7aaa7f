"""Every option does what it says: a test for each, here or where its subject is tested; `PROOFS` names them."""

import itertools
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from gnsqd.options import OPTIONS
from kit.daemons import DEADLINE, Daemon, eventually
from kit.http_api import ask
from kit.nsq_client import ERROR, Client, Frame, sized, split_frames
from kit.traffic import DaemonFactory

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "contrib" / "nsqd.cfg.example"

LOGGED_AT = r"\[nsqd\] (\S+ \S+) "

# The test that fails when an option does nothing; no-ops have one too.
PROOFS = """
test_log_shows_what_is_severe_enough: log-level
test_json_lines_have_what_the_text_names: log-format
test_deprecated_flags_change_nothing: verbose worker-id
test_every_message_id_contains_the_node_id: node-id
test_there_is_no_http_without_an_address: http-address
test_nsqlookupd_that_hangs_is_given_up_in_time: http-client-connect-timeout http-client-request-timeout
test_data_is_in_the_data_path_or_else_in_the_working_directory: data-path
test_files_are_as_long_as_the_option_allows: max-bytes-per-file
test_queues_are_synced_by_number_and_by_time: sync-every sync-timeout
test_clients_may_ask_for_what_the_options_allow: max-heartbeat-interval max-output-buffer-size
test_clients_may_ask_for_what_the_options_allow: max-output-buffer-timeout min-output-buffer-timeout
test_messages_leave_with_the_daemons_own_flush_tick: output-buffer-timeout
test_server_is_asked_with_what_is_known_of_the_client: auth-http-address
test_server_can_be_asked_by_post: auth-http-request-method
test_full_channel_refuses_publishers_until_there_is_room: max-channel-depth
test_full_topic_refuses_publishers_until_there_is_room: max-topic-bytes
test_full_channel_drops_the_oldest: overflow-policy
test_messages_that_are_too_old_are_dropped: message-ttl
test_nobody_publishes_to_a_disk_that_is_nearly_full: min-free-disk
test_version_is_one_line_on_stdout: version
test_values_of_the_config_file_take_effect: config log-prefix
test_what_is_requeued_too_often_leaves_its_channel_alone: max-attempts
test_time_outs_are_on_time_among_many_channels: queue-scan-selection-count
test_time_out_is_the_clients_own_or_the_daemons: msg-timeout
test_touch_keeps_a_message_but_not_past_max_msg_timeout: max-msg-timeout
test_requeue_delay_is_cut_to_max_req_timeout: max-req-timeout
test_sigterm_drains_memory_and_disk: sigterm
test_what_is_left_at_the_deadline_is_named_and_kept: drain-timeout
test_latencies_of_a_channel: e2e-processing-latency-percentile
test_samples_are_gone_when_the_window_has_passed: e2e-processing-latency-window-time
test_dev_has_a_directory_of_its_own_and_removes_it: dev
test_demo_has_all_that_a_page_shows_and_ends_cleanly: demo
test_each_address_is_enough: embedded-lookupd-tcp-address embedded-lookupd-http-address
test_topic_that_is_looked_up_is_there: lookup-creates-topics
test_client_of_a_unix_socket_is_shown_by_its_own_name: tcp-address
test_each_endpoint_asks_for_its_role: http-auth-token-file
test_a_certificate_is_as_good_as_a_token: http-auth-common-name
test_auth_server_permits_publishing_and_reading: http-auth-server
test_pages_of_allowed_origins_may_read_responses: http-allow-origin
test_https_works_without_plain_http: https-address
test_client_needs_the_certificate_that_the_policy_asks_for: tls-client-auth-policy tls-root-ca-file
test_answer_has_the_options_and_what_was_asked_for: max-deflate-level
test_refused_command_is_answered_in_its_words_and_the_connection_closes: max-msg-size max-rdy-count
test_inner_sizes_of_an_mpub_may_not_exceed_max_body_size_together: max-body-size
test_consumers_beyond_max_channel_consumers_are_refused: max-channel-consumers
test_messages_come_again_from_every_kind_of_point: retention-bytes
test_messages_are_kept_for_the_time_given: retention-time
test_option_has_the_rules_until_they_are_changed: channel-rules
test_channel_is_emptied_again_and_again_but_not_while_it_is_empty: channel-idle-timeout channel-idle-policy
test_longest_time_is_that_of_nsqd_unless_set: max-defer-time
test_packets_are_those_of_nsqd: statsd-address statsd-mem-stats statsd-udp-packet-size
test_packets_are_spread_over_interval_but_its_last_second: statsd-interval
test_prefix_names_the_daemon: statsd-prefix
test_ephemeral_topics_and_channels_can_be_left_out: statsd-exclude-ephemeral
test_key_pair_that_is_refused_at_start: tls-cert tls-key
test_what_exceeds_memory_goes_to_disk_and_all_is_delivered: mem-queue-size
test_who_is_near_gets_messages_first: topology-region topology-zone enable-experiment
test_every_upgrade_with_every_policy_certificate_and_version: tls-required tls-min-version deflate snappy
test_everything_about_messages_survives_a_kill: durability
test_one_connection_too_many_is_closed: max-tcp-connections max-http-connections
test_topics_and_channels_have_an_end_where_that_is_asked_for: max-topics max-channels
test_magic_has_to_come_in_time: magic-timeout
test_idle_http_connections_are_closed_where_that_is_asked_for: http-idle-timeout
test_daemon_describes_itself: broadcast-address broadcast-tcp-port broadcast-http-port
test_what_is_created_is_registered_until_it_is_deleted: lookupd-tcp-address
test_workers_are_started_as_they_are_needed_up_to_the_maximum: queue-scan-worker-pool-max
test_clients_show_only_where_asked_for: metrics-clients
test_the_daemon_has_a_page_of_itself: admin-http-address
""".strip()


def test_every_option_has_a_test() -> None:
    rows = [row.partition(": ") for row in PROOFS.splitlines()]
    proofs = {flag: test for test, _, flags in rows for flag in flags.split()}
    options = {option.flag: option.name for option in OPTIONS if option.flag}
    assert sorted(proofs) == sorted(options)
    texts = [path.read_text("utf-8").replace(PROOFS, "") for path in TESTS.rglob("test_*.py")]
    for flag, test in proofs.items():
        names = re.compile(rf"\b({flag}|{options[flag]}|{flag.removeprefix('tls-')})\b")
        files = [text for text in texts if f"\ndef {test}(" in text]
        assert any(map(names.search, files)), f"{flag}: {test}"


# Logging, names and places


def test_log_shows_what_is_severe_enough(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    def log(level: str) -> str:
        sockets = [f"--{kind}-address={tmp_path}/{level}-{kind}" for kind in ("tcp", "http")]  # no port to wait for
        nsqd = nsqd_factory(*sockets, f"--log-level={level}")
        with Client(nsqd.tcp_address) as client:
            client.command(b"NOP\nBOGUS")
            client.recv_until_closed()
        nsqd.terminate()
        return nsqd.log()

    shown = {
        level: set(re.findall(r" (DEBUG|INFO|WARNING|ERROR): ", log(level))) for level in ("Debug", "info", "error")
    }
    assert shown == {"Debug": {"DEBUG", "INFO", "ERROR"}, "info": {"INFO", "ERROR"}, "error": {"ERROR"}}
    assert log("FATAL") == ""


def shown_options(nsqd: Daemon) -> dict[str, str]:
    keys = [option.cfg for option in OPTIONS if option.cfg and not option.ours]
    # nsqd calls a list that the config file left empty null
    shown = {key: ask(nsqd, f"GET /config/{key}")[1].replace("null", "[]") for key in keys}
    own = {"tcp_address", "http_address", "broadcast_tcp_port", "broadcast_http_port", "data_path", "statsd_prefix"}
    return {key: value for key, value in shown.items() if key not in own}


def test_deprecated_flags_change_nothing(nsqd_factory: DaemonFactory) -> None:
    with_them, without = nsqd_factory("--verbose", "--worker-id=true"), nsqd_factory()
    assert shown_options(with_them) == shown_options(without)
    with Client(with_them.tcp_address) as client:
        client.publish("t", b"x")
    assert " DEBUG: " not in with_them.log()


def test_example_config_file_changes_nothing(nsqd_factory: DaemonFactory) -> None:
    assert shown_options(nsqd_factory(f"--config={EXAMPLE}")) == shown_options(nsqd_factory())


def test_every_message_id_contains_the_node_id(nsqd_factory: DaemonFactory) -> None:
    with Client(nsqd_factory("--node-id=677").tcp_address) as client:
        client.subscribe("t", "c", rdy=10)
        client.send(b"PUB t\n\x00\x00\x00\x01x" * 10)
        frames = [client.frame() for _ in range(20)]
    ids = [int(frame.data[10:26], 16) for frame in frames if len(frame.data) > 26]
    assert [id >> 12 & 1023 for id in ids] == [677] * 10


def test_there_is_no_http_without_an_address(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--http-address=")
    with Client(nsqd.tcp_address) as client:
        client.publish("t", b"x")
    nsqd.terminate()
    assert "TCP: listening on " in nsqd.log()
    assert "HTTP: " not in nsqd.log()


def test_data_is_in_the_data_path_or_else_in_the_working_directory(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for flag, directory in (("--data-path=", None), (f"--data-path={elsewhere}", elsewhere)):
        nsqd = nsqd_factory(flag)  # in a working directory of its own
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"x")
        nsqd.terminate()
        names = {path.name for path in (directory or nsqd.data_path).iterdir()}
        assert names >= {"nsqd.dat", "t.diskqueue.000000.dat", "t.diskqueue.meta.dat"}


# Disk


def data_files(nsqd: Daemon, topic: str) -> list[int]:
    """The sizes of a queue's files."""
    return [path.stat().st_size for path in sorted(nsqd.data_path.glob(f"{topic}.diskqueue.0*.dat"))]


@pytest.mark.parametrize(("limit", "sizes"), [(180, [180, 120]), (179, [120, 120, 60]), (-1, [60] * 5)])
def test_files_are_as_long_as_the_option_allows(nsqd_factory: DaemonFactory, limit: int, sizes: list[int]) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", f"--max-bytes-per-file={limit}")
    with Client(nsqd.tcp_address) as client:
        for _ in range(5):
            client.publish("t", b"x" * 30)  # with 30 bytes before it on disk
    assert data_files(nsqd, "t") == sizes


def synced_depth(nsqd: Daemon, topic: str) -> int:
    """The depth in the meta file, which is written when the queue is synced."""
    try:
        return int((nsqd.data_path / f"{topic}.diskqueue.meta.dat").read_text().split()[0])
    except FileNotFoundError:
        return 0


def test_queues_are_synced_by_number_and_by_time(nsqd_factory: DaemonFactory) -> None:
    by_number = nsqd_factory("--mem-queue-size=1", "--sync-every=10", "--sync-timeout=1h")
    by_time = nsqd_factory("--mem-queue-size=1", "--sync-every=1000000", "--sync-timeout=100ms")
    for nsqd in (by_number, by_time):
        with Client(nsqd.tcp_address) as client:
            for topic, count in (("few", 4), ("many", 26)):  # one of them in memory
                for _ in range(count):
                    client.publish(topic, b"x")
    eventually(lambda: synced_depth(by_number, "many") >= 10)
    eventually(lambda: (synced_depth(by_time, "few"), synced_depth(by_time, "many")) == (3, 25))
    with Client(by_number.tcp_address) as clock:  # longer than the default of --sync-timeout
        clock.subscribe("clock", "c", rdy=1)
        clock.command(b"DPUB clock 3000", b"x")
        assert clock.response() == b"OK"
        clock.message()
    assert synced_depth(by_number, "few") == 0


# Clients


def test_clients_may_ask_for_what_the_options_allow(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(
        "--max-heartbeat-interval=5m", "--max-output-buffer-size=524288", "--max-output-buffer-timeout=1s",
        "--min-output-buffer-timeout=100ms", "--max-msg-timeout=30s",
    )  # fmt: skip
    for field, value, other, name in (
        ("heartbeat_interval", 300_000, 300_001, "heartbeat interval"),
        ("output_buffer_size", 524_288, 524_289, "output buffer size"),
        ("output_buffer_timeout", 1000, 1001, "output buffer timeout"),
        ("output_buffer_timeout", 100, 99, "output buffer timeout"),
        ("msg_timeout", 30_000, 30_001, "msg timeout"),
    ):
        with Client(nsqd.tcp_address) as client:
            assert client.identify(**{field: value}).data == b"OK"
            client.command(b"IDENTIFY", json.dumps({field: other}).encode())
            text = f"E_BAD_BODY IDENTIFY {name} ({other}) is invalid".encode()
            assert split_frames(client.recv_until_closed()) == [Frame(ERROR, text)]


def test_messages_leave_with_the_daemons_own_flush_tick(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--output-buffer-timeout=1s")
    with Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as publisher:
        began = time.monotonic()
        assert client.identify().data == b"OK"
        client.subscribe("t", "c", rdy=10)
        eventually(lambda: nsqd.channel_stats("t", "c")["clients"][0]["ready_count"] == 10)
        publisher.publish("t", b"buffered")
        assert client.message().body == b"buffered"
        assert time.monotonic() - began > 0.9


# nsqlookupd


@contextmanager
def lookupd(http_port: int) -> Iterator[str]:
    """The address of one that answers every command, and gives `http_port` for where to ask for channels."""

    class Conversation(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.read(4)
            while line := self.rfile.readline():
                answer = b"OK"
                if line == b"IDENTIFY\n":
                    self.rfile.read(*struct.unpack(">i", self.rfile.read(4)))
                    info = {"broadcast_address": "127.0.0.1", "http_port": http_port, "tcp_port": 1}
                    answer = json.dumps(info | {"version": "1.3.0"}).encode()
                self.wfile.write(sized(answer))

    with ThreadingTCPServer(("127.0.0.1", 0), Conversation) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(DEADLINE)


@pytest.mark.parametrize(
    ("what", "flags", "seconds"),
    [
        ("request", ["--http-client-request-timeout=1s", "--http-client-connect-timeout=20s"], (0.9, 4.5)),
        ("connect", ["--http-client-request-timeout=20s", "--http-client-connect-timeout=1s"], (0.9, 15.0)),
    ],
)
def test_nsqlookupd_that_hangs_is_given_up_in_time(
    nsqd_factory: DaemonFactory, what: str, flags: list[str], seconds: tuple[float, float]
) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0 if what == "connect" else 5))
        if what == "connect":  # the kernel takes no more connections when some wait
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(silent.getsockname())
        address = stack.enter_context(lookupd(silent.getsockname()[1]))
        nsqd = nsqd_factory(f"--lookupd-tcp-address={address}", *flags)
        names = itertools.count()

        def gave_up() -> float | None:
            """After how many seconds, for the first topic of which the nsqlookupd was asked, once its log has that."""
            if "querying nsqlookupd" not in nsqd.log():
                assert ask(nsqd, f"POST /topic/create?topic=t{next(names)}")[0] == 200
            if (failed := re.search(rf"{LOGGED_AT}WARNING: failed to query .* topic (t\d+) - ", nsqd.log())) is None:
                return None
            asked = re.search(rf"{LOGGED_AT}INFO: CI: querying nsqlookupd .*\?topic={failed[2]}$", nsqd.log(), re.M)
            assert asked is not None
            began, ended = (datetime.strptime(line[1], "%Y/%m/%d %H:%M:%S.%f") for line in (asked, failed))
            return (ended - began).total_seconds()

        least, most = seconds
        assert least < eventually(gave_up) < most


# Values that mean nothing


def test_numbers_below_zero_do_no_harm(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--sync-every=-1", "--mem-queue-size=0", "--max-bytes-per-file=-1", "--max-rdy-count=-1")
    with Client(nsqd.tcp_address) as client:
        for _ in range(20):
            client.publish("t", b"x")
    nsqd.restart("--mem-queue-size=0", "--sync-every=-1")
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=20)
        assert [client.message().body for _ in range(20)] == [b"x"] * 20
    assert nsqd.terminate() == 0


def test_no_message_is_small_enough_for_a_size_below_zero(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=-1")
    with Client(nsqd.tcp_address) as client:
        client.command(b"PUB t", b"x")
        assert split_frames(client.recv_until_closed()) == [Frame(ERROR, b"E_BAD_MESSAGE PUB message too big 1 > -1")]
    assert nsqd.http("GET", "/ping")[0] == 200
    assert nsqd.terminate() == 0
