"""The option table, what is made from it, and files and values that are bad in ways of their own. What flags and keys
mean is in behaviour/test_command_line.py."""

import re
from pathlib import Path
from typing import Any

import pytest

from gnsqd import options
from gnsqd.configuration import BadValue, combine, load_file, resolve
from gnsqd.options import LOOKUPD_OPTIONS, OPTIONS, Option, Options
from gnsqd.shared.errors import StartError

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"


def test_list_values_are_not_shared() -> None:
    Options().nsqlookupd_tcp_addresses.append("127.0.0.1:4160")
    assert Options().nsqlookupd_tcp_addresses == []


def test_node_id_comes_from_the_host_name() -> None:
    assert options._default_node_id("vm") == 617


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


BAD_FILES = [
    (b'log_prefix = "\xff"', "'utf-8' codec can't decode byte 0xff in position 14: invalid start byte"),
    (b"a = 9223372036854775808", "9223372036854775808 is out of range for int64"),
    (b"[[a]]\nb = [[1], {c = -9223372036854775809}]", "-9223372036854775809 is out of range for int64"),
    (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
]


def test_config_file_that_cannot_be_parsed_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    for content, reason in BAD_FILES:
        path.write_bytes(content)
        with pytest.raises(StartError) as caught:
            load_file(str(path))
        assert caught.value.line == f"failed to load config file {path} - toml: {reason}"


def test_config_integers_for_bools_mean_what_they_say() -> None:
    resolved = resolve({}, {"deflate": 0, "statsd_exclude_ephemeral": 1})
    assert (resolved.deflate, resolved.statsd_exclude_ephemeral) == (False, True)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"snappy": 2}, 'value 2 (true) for field SnappyEnabled - strconv.ParseBool: parsing "2": invalid syntax'),
        ({"data_path": 5}, "value 5 () for field DataPath - invalid string value type int64"),
        ({"msg_timeout": 2**62}, f'value {2**62} (1m0s) for field MsgTimeout - time: invalid duration "{2**62}ms"'),
    ],
)
def test_config_value_that_would_be_misprinted_is_refused(config: dict[str, Any], error: str) -> None:
    with pytest.raises(BadValue) as caught:
        resolve({}, config)
    assert str(caught.value) == f"ERROR: Resolve failed to coerce {error}"


# What is made from the table


DAEMONS = (("nsqd", OPTIONS, "options.md"), ("nsqlookupd", LOOKUPD_OPTIONS, "lookupd.md"))


@pytest.mark.parametrize("daemon, options, page", DAEMONS)
def test_page_shows_every_option(daemon: str, options: tuple[Option, ...], page: str) -> None:
    shown = re.findall(r"^\| `--(\S+)` \| ", (CONTRIB / "docs" / page).read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(option.flag for option in options if option.flag)


@pytest.mark.parametrize("daemon, options, page", DAEMONS)
def test_example_config_file_holds_every_key_with_its_default(
    daemon: str, options: tuple[Option, ...], page: str
) -> None:
    config = load_file(str(CONTRIB / f"{daemon}.cfg.example"))
    assert set(config) == {option.cfg for option in options} - {"", "id", "broadcast_address"}  # the host decides these
    assert combine({}, config, options) == {option.name: option.default for option in options if option.cfg in config}


def test_keys_of_nsqd_mean_nothing_to_nsqlookupd() -> None:
    config = {"tls_required": "bogus", "mem_queue_size": "x", "tcp_address": "a"}
    assert combine({}, config, LOOKUPD_OPTIONS) == {"tcp_address": "a"}


def test_values_left_out_of_the_example_are_shown_in_it(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", (CONTRIB / "nsqd.cfg.example").read_text(), flags=re.MULTILINE))
    shown = resolve({}, load_file(str(path)))
    assert vars(shown) == vars(Options(node_id=1, broadcast_address="nsqd-1.example.com", broadcast_address_given=True))
