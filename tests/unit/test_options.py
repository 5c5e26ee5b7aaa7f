"""The option table, and what flags and config file make of it."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from documentation.writers import load_writer
from gnsqd import options
from gnsqd.configuration import BadValue, FlagError, combine, load_file, parse_flags, resolve
from gnsqd.errors import StartError
from gnsqd.log import Level
from gnsqd.options import (
    LOOKUPD_OPTIONS,
    OPTIONS,
    Kind,
    LookupdOptions,
    Options,
    validate,
    validate_after_tls,
)

SECOND = 1_000_000_000

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"


def test_keywords_override_defaults_and_unknown_ones_are_refused() -> None:
    assert Options().mem_queue_size == 10_000
    assert Options(mem_queue_size=5).mem_queue_size == 5
    with pytest.raises(TypeError):
        Options(mem_queue_sise=5)  # type: ignore[call-arg]


def test_list_values_are_not_shared() -> None:
    Options().nsqlookupd_tcp_addresses.append("127.0.0.1:4160")
    assert Options().nsqlookupd_tcp_addresses == []


def test_node_id_comes_from_the_host_name() -> None:
    assert options._default_node_id("vm") == 617


def test_rows_without_a_flag_hold_the_fixed_values() -> None:
    fixed = {option.name: getattr(Options(), option.name) for option in OPTIONS if not option.flag}
    assert fixed == {
        "client_timeout": 60 * SECOND,
        "broadcast_address_given": False,
    }
    assert not any(option.cfg for option in OPTIONS if not option.flag)


def test_config_keys_follow_the_flags_but_for_a_few() -> None:
    unlike = {
        option.flag: option.cfg for option in OPTIONS if option.flag and option.cfg != option.flag.replace("-", "_")
    }
    assert unlike == {
        "version": "",
        "config": "",
        "verbose": "",
        "worker-id": "",
        "node-id": "id",
        "lookupd-tcp-address": "nsqlookupd_tcp_addresses",
        "auth-http-address": "auth_http_addresses",
        "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles",
        "http-auth-token-file": "http_auth_token_files",
        "http-auth-common-name": "http_auth_common_names",
    }


def test_only_log_level_and_lookupd_addresses_reload() -> None:
    assert {option.cfg for option in OPTIONS if option.reload} == {"log_level", "nsqlookupd_tcp_addresses"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["-mem-queue-size", "5", "--max-rdy-count=7"], {"mem_queue_size": 5, "max_rdy_count": 7}),
        (["-mem-queue-size=5", "-mem-queue-size=0x10"], {"mem_queue_size": 16}),
        (["--log-prefix="], {"log_prefix": ""}),
        (["--log-prefix", "--version"], {"log_prefix": "--version"}),
        (["--log-prefix=a=b"], {"log_prefix": "a=b"}),
        (["--msg-timeout=1h30m"], {"msg_timeout": 5400 * SECOND}),
        (["--deflate=F", "--snappy"], {"deflate": False, "snappy": True}),
        (["--worker-id", "5", "--mem-queue-size=1"], {"worker_id": True}),
        (["--deflate", "false", "--snappy=false"], {"deflate": True}),
        (["--", "--mem-queue-size=1"], {}),
        (["-", "--mem-queue-size=1"], {}),
        (["--lookupd-tcp-address=a,b", "--lookupd-tcp-address=c"], {"nsqlookupd_tcp_addresses": ["a,b", "c"]}),
        (
            ["--e2e-processing-latency-percentile=0.5,1.0", "--e2e-processing-latency-percentile=.99"],
            {"e2e_processing_latency_percentiles": [1.0, 0.99, 0.5]},
        ),
        (["--log-level=WaRn"], {"log_level": Level.WARN}),
        (["--tls-required"], {"tls_required": 2}),
        (["--tls-required=TCP-HTTPS"], {"tls_required": 1}),
        (["--tls-required=tRUE"], {"tls_required": 2}),
        (["--tls-required=False"], {"tls_required": 0}),
        (["--tls-min-version=TLS1.2", "--tls-min-version="], {"tls_min_version": 771}),
    ],
)
def test_flags(arguments: list[str], expected: dict[str, Any]) -> None:
    assert parse_flags(arguments) == expected


def test_flag_name_in_an_error_may_be_any_bytes() -> None:
    with pytest.raises(FlagError, match=r'^invalid value "\\xff" for flag -mem-queue-size: parse error$'):
        parse_flags(["--mem-queue-size=\udcff"])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_rdy_count": 7, "id": 5}, {"max_rdy_count": 7, "node_id": 5}),
        ({"max_rdy_count": "7"}, {"max_rdy_count": 7}),
        (
            {"msg_timeout": "1m5s", "max_msg_timeout": 1500},
            {"msg_timeout": 65 * SECOND, "max_msg_timeout": 1.5 * SECOND},
        ),
        ({"deflate": False, "snappy": "F"}, {"deflate": False, "snappy": False}),
        ({"auth_http_addresses": ["a", "b"]}, {"auth_http_addresses": ["a", "b"]}),
        ({"auth_http_addresses": "a, b"}, {"auth_http_addresses": ["a", " b"]}),
        ({"e2e_processing_latency_percentiles": [0.5, 1.0]}, {"e2e_processing_latency_percentiles": [0.5, 1.0]}),
        ({"e2e_processing_latency_percentiles": "1.0, .5"}, {"e2e_processing_latency_percentiles": [1.0, 0.5]}),
        ({"log_level": "WARN"}, {"log_level": Level.WARN}),
        ({"tls_required": True}, {"tls_required": 2}),
        ({"tls_required": 0}, {"tls_required": 0}),
        ({"tls_required": "tcp-HTTPS"}, {"tls_required": 1}),
        ({"tls_min_version": "tls1.3"}, {"tls_min_version": 772}),
        ({"tls_min_version": ""}, {"tls_min_version": 769}),
        ({"node_id": 5, "lookupd_tcp_address": "a", "worker_id": 5, "version": True, "queue_scan_interval": 1}, {}),
    ],
)
def test_config_values(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert resolve({}, config) == Options(**expected)


def test_config_integers_for_bools_mean_what_they_say() -> None:
    resolved = resolve({}, {"deflate": 0, "statsd_exclude_ephemeral": 1})
    assert (resolved.deflate, resolved.statsd_exclude_ephemeral) == (False, True)
    with pytest.raises(
        BadValue, match='value 2 .* field SnappyEnabled - strconv.ParseBool: parsing "2": invalid syntax$'
    ):
        resolve({}, {"snappy": 2})


def test_flags_win_over_config_keys_and_replace_lists() -> None:
    flags = parse_flags(["--max-rdy-count=1", "--auth-http-address=c"])
    resolved = resolve(flags, {"max_rdy_count": 2, "auth_http_addresses": ["a", "b"], "sync_every": 9})
    assert (resolved.max_rdy_count, resolved.auth_http_addresses, resolved.sync_every) == (1, ["c"], 9)


def test_values_that_would_be_misprinted_are_refused() -> None:
    with pytest.raises(BadValue, match=r"value 5 \(\) for field DataPath - invalid string value type int64$"):
        resolve({}, {"data_path": 5})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"e2e_processing_latency_percentiles": [1, 0.5]},
            "failed parsing e2e_processing_latency_percentiles [1 0.5] - invalid float64 value type int64",
        ),
        (
            {"nsqlookupd_tcp_addresses": ["a", 4160]},
            "failed parsing nsqlookupd_tcp_addresses [a 4160] - invalid string value type int64",
        ),
        ({"auth_http_addresses": 5}, "failed parsing auth_http_addresses 5 - invalid []string value type int64"),
    ],
)
def test_lists_of_wrong_elements_are_refused(config: dict[str, Any], line: str) -> None:
    with pytest.raises(StartError) as caught:
        resolve({}, config)
    assert caught.value.line == line


def test_integers_outside_int64_are_refused() -> None:
    with pytest.raises(BadValue, match="value out of range$"):
        resolve({}, {"max_rdy_count": 2**63})
    with pytest.raises(BadValue, match="invalid duration"):
        resolve({}, {"msg_timeout": 2**62})


# The names of the real daemon's option fields, which its messages about bad values contain, in the order in which it
# looks at the values.
FIELDS = """
ID LogLevel LogPrefix TCPAddress HTTPAddress HTTPSAddress BroadcastAddress BroadcastTCPPort BroadcastHTTPPort
NSQLookupdTCPAddresses AuthHTTPAddresses HTTPClientConnectTimeout HTTPClientRequestTimeout DataPath MemQueueSize
MaxBytesPerFile SyncEvery SyncTimeout QueueScanSelectionCount QueueScanWorkerPoolMax MsgTimeout MaxMsgTimeout
MaxMsgSize MaxBodySize MaxReqTimeout MaxHeartbeatInterval MaxRdyCount MaxOutputBufferSize MaxOutputBufferTimeout
MinOutputBufferTimeout OutputBufferTimeout MaxChannelConsumers StatsdAddress StatsdPrefix StatsdInterval StatsdMemStats
StatsdUDPPacketSize StatsdExcludeEphemeral E2EProcessingLatencyWindowTime E2EProcessingLatencyPercentiles TLSCert
TLSKey TLSClientAuthPolicy TLSRootCAFile TLSRequired TLSMinVersion DeflateEnabled MaxDeflateLevel SnappyEnabled
"""


def test_fields_have_the_names_and_the_order_of_nsqd() -> None:
    fields = [option.field for option in OPTIONS if option.cfg and not option.ours]
    names = {"LogLevel", "LogPrefix", "ID"}  # the first two have no wrong value that nsqd would find
    assert [field for field in fields if field not in names] == [name for name in FIELDS.split() if name not in names]
    assert set(fields) == set(FIELDS.split())


def test_config_file_that_is_no_utf_8_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_bytes(b'log_prefix = "\xff"')
    with pytest.raises(StartError) as caught:
        load_file(str(path))
    assert caught.value.line.startswith(f"failed to load config file {path} - toml: ")
    assert "\n" not in caught.value.line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a = 9223372036854775808", "9223372036854775808 is out of range for int64"),
        ("[[a]]\nb = [[1], {c = -9223372036854775809}]", "-9223372036854775809 is out of range for int64"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
    ids=["long", "inside", "deep"],
)
def test_config_file_that_is_beyond_all_bounds_is_one_line(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(content)
    with pytest.raises(StartError) as caught:
        load_file(str(path))
    assert caught.value.line == f"failed to load config file {path} - toml: {reason}"


def test_config_file_may_hold_the_longest_integers(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text("a = [9223372036854775807, -9223372036854775808]")
    assert load_file(str(path)) == {"a": [2**63 - 1, -(2**63)]}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_deflate_level": 0}, "--max-deflate-level must be [1,9]"),
        ({"max_deflate_level": 10}, "--max-deflate-level must be [1,9]"),
        ({"node_id": -1}, "--node-id must be [0,1024)"),
        ({"node_id": 1024}, "--node-id must be [0,1024)"),
        ({"e2e_processing_latency_percentiles": [0.5, 1.5]}, "invalid E2E processing latency percentile: 1.5"),
        ({"e2e_processing_latency_percentiles": [0.0]}, "invalid E2E processing latency percentile: 0"),
        (
            {"e2e_processing_latency_percentiles": [1.0], "e2e_processing_latency_window_time": 1},
            "--e2e-processing-latency-window-time must be > 1ns",
        ),
        ({"mem_queue_size": -1}, "--mem-queue-size must be >= 0"),
        ({"max_channel_depth": -1}, "--max-channel-depth must be >= 0"),
        ({"max_topic_bytes": -1}, "--max-topic-bytes must be >= 0"),
        ({"message_ttl": -1}, "--message-ttl must be >= 0"),
        ({"min_free_disk": -1}, "--min-free-disk must be >= 0"),
        ({"overflow_policy": "drop"}, '--overflow-policy must be reject or drop-oldest, not "drop"'),
        ({"sync_timeout": 0}, "--sync-timeout must be > 0"),
        ({"output_buffer_timeout": 0}, "--output-buffer-timeout must be > 0"),
        ({"queue_scan_selection_count": -1}, "--queue-scan-selection-count must be >= 0"),
        ({"statsd_address": "127.0.0.1:8125", "statsd_interval": SECOND}, "--statsd-interval must be > 1s"),
    ],
)
def test_what_the_daemon_cannot_run_with_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(StartError) as caught:
        check(Options(**values))
    assert caught.value.line == f"failed to instantiate nsqd - {text}"


def check(checked: Options) -> None:
    validate(checked)
    validate_after_tls(checked)


def test_the_limits_are_accepted() -> None:
    check(Options(max_deflate_level=9, node_id=1023, mem_queue_size=0, e2e_processing_latency_percentiles=[1.0]))
    check(Options(statsd_interval=0, queue_scan_selection_count=0, e2e_processing_latency_window_time=0))
    check(Options(e2e_processing_latency_percentiles=[1.0], e2e_processing_latency_window_time=2))


def test_auth_policy_turns_tls_required_on() -> None:
    for policy, before, after in (("", 0, 0), ("require", 0, 2), ("anything", 0, 2), ("require", 1, 1)):
        checked = Options(tls_client_auth_policy=policy, tls_required=before)
        validate(checked)
        assert checked.tls_required == after


def test_every_row_has_help_and_a_default_of_its_kind() -> None:
    kinds = {
        Kind.INT: int,
        Kind.DURATION: int,
        Kind.BOOL: bool,
        Kind.STRING: str,
        Kind.STRINGS: list,
        Kind.FLOATS: list,
    }
    for option in OPTIONS:
        assert bool(option.help) == bool(option.flag), option.name
        assert type(option.default) is kinds.get(option.kind, type(option.default)), option.name


# What is made from the table


@pytest.fixture
def writer() -> ModuleType:
    """The script that writes them."""
    return load_writer("write_options")


DAEMONS = ("nsqd", "nsqlookupd")


@pytest.mark.parametrize("daemon", DAEMONS)
def test_example_config_file_is_what_the_table_gives(writer: ModuleType, daemon: str) -> None:
    assert writer.example(daemon).read_text() == writer.config_example(daemon), "run `make options`"


@pytest.mark.parametrize("daemon", DAEMONS)
def test_page_of_options_is_what_the_table_gives(writer: ModuleType, daemon: str) -> None:
    options, path = writer.DAEMONS[daemon]
    text = path.read_text()
    assert text == writer.page(daemon, text), "run `make options`"
    shown = re.findall(r"^\| `--(\S+)` \| ", text, re.MULTILINE)
    assert sorted(shown) == sorted(option.flag for option in options if option.flag)


def test_example_config_file_of_nsqlookupd_holds_every_key_with_its_default() -> None:
    config = load_file(str(CONTRIB / "nsqlookupd.cfg.example"))
    assert set(config) == {option.cfg for option in LOOKUPD_OPTIONS if option.cfg} - {"broadcast_address"}
    assert LookupdOptions(**combine({}, config, LOOKUPD_OPTIONS)) == LookupdOptions()


def test_keys_of_nsqd_mean_nothing_to_nsqlookupd() -> None:
    config = {"tls_required": "bogus", "mem_queue_size": "x", "tcp_address": "a"}
    assert combine({}, config, LOOKUPD_OPTIONS) == {"tcp_address": "a"}


def test_example_config_file_holds_every_key_with_its_default() -> None:
    config = load_file(str(CONTRIB / "nsqd.cfg.example"))
    keys = {option.cfg for option in OPTIONS if option.cfg}
    assert set(config) == keys - {"id", "broadcast_address"}  # these depend on the host
    assert resolve({}, config) == Options()


def test_values_left_out_of_the_example_are_shown_in_it(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", (CONTRIB / "nsqd.cfg.example").read_text(), flags=re.MULTILINE))
    shown = resolve({}, load_file(str(path)))
    assert shown == Options(node_id=1, broadcast_address="nsqd-1.example.com", broadcast_address_given=True)


def test_dev_sets_what_nothing_else_does() -> None:
    plain, dev = resolve({}, {}), resolve({"dev": True}, {"embedded_lookupd_http_address": "a:1"})
    assert (plain.embedded_lookupd_tcp_address, plain.lookup_creates_topics) == ("", False)
    assert (dev.embedded_lookupd_tcp_address, dev.lookup_creates_topics) == ("0.0.0.0:4160", True)
    assert dev.embedded_lookupd_http_address == "a:1"
    assert resolve({"lookup_creates_topics": False}, {"dev": True}).lookup_creates_topics is False
