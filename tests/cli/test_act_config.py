"""`gnsqadmin config`: what nodes run with, and what can be changed meanwhile."""

import csv
import io
import json
from typing import Any

import pytest

from cli.gnsqadmin import FakeNode, gnsqadmin, http_answer
from cli.nodes import address, at
from conftest import DaemonFactory
from gnsqd.options import OPTIONS
from kit.daemons import Daemon, free_port
from nsqadmin_cli.node_options import NODE_OPTIONS, parse, shown


def options(*args: str) -> list[dict[str, Any]]:
    """The options of each node."""
    result = gnsqadmin("config", "get", *args, "--json")
    assert (result.code, result.err) == (0, "")
    return [node["options"] for node in json.loads(result.out)["nodes"]]


def asked(nsqd: Daemon, key: str) -> str:
    status, _, body = nsqd.http("GET", f"/config/{key}")
    assert status == 200
    return body.decode()


def test_get_shows_all_options_as_the_node_tells_them(nsqd: Daemon) -> None:
    [found] = options(*at(nsqd))
    assert {key: parse(key, asked(nsqd, key)) for key in found} == found
    assert (found["mem_queue_size"], found["msg_timeout"], found["snappy"]) == (10000, 60_000_000_000, True)
    assert (found["auth_http_addresses"], found["data_path"]) == ([], str(nsqd.data_path))
    assert set(NODE_OPTIONS) - set(found) <= {option.cfg for option in OPTIONS if option.ours}


def test_get_shows_which_nodes_differ(nsqd_factory: DaemonFactory) -> None:
    a, b, c = nsqd_factory("--max-msg-size=5"), nsqd_factory(), nsqd_factory()
    code, out, err = gnsqadmin("config", "get", "max-msg-size", "sync_timeout", "log_level", *at(a, b, c))
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()][2:] == [
        ["max_msg_size", "5", address(a)],
        ["1048576", f"{address(b)},", address(c)],
        ["sync_timeout", "2s", "3", "nodes"],
        ["log_level", "info", "3", "nodes"],
    ]
    [first, *_] = options("max_msg_size", "sync_timeout", "--different", *at(a, b, c))
    assert first == {"max_msg_size": 5}
    table = gnsqadmin("config", "get", "max_msg_size", "sync_timeout", "-o", "csv", *at(a, b)).out
    assert list(csv.reader(io.StringIO(table))) == [
        ["option", "node", "value"],
        ["max_msg_size", address(a), "5"],
        ["max_msg_size", address(b), "1048576"],
        ["sync_timeout", address(a), "2000000000"],
        ["sync_timeout", address(b), "2000000000"],
    ]


def test_an_unknown_option_is_not_found(nsqd: Daemon) -> None:
    result = gnsqadmin("config", "get", "log_level", "max_mesage_size", *at(nsqd))
    assert result == (4, "", "Error: no node has the option max_mesage_size; did you mean max_msg_size?\n")
    result = gnsqadmin("config", "set", "log_levle", "info", *at(nsqd))
    assert result == (4, "", "Error: no node has the option log_levle; did you mean log_level?\n")


def test_set_changes_all_nodes_and_shows_before_and_after(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    assert gnsqadmin("config", "set", "log_level", "warn", *at(b)).code == 0
    code, out, err = gnsqadmin("config", "set", "log-level", "DEBUG", *at(a, b))
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["node", "log_level", "before", "after"],
        ["─" * len(out.splitlines()[1])],
        [address(a), "info", "debug"],
        [address(b), "warn", "debug"],
    ]
    assert (asked(a, "log_level"), asked(b, "log_level")) == ("1", "1")
    result = gnsqadmin("config", "set", "nsqlookupd_tcp_addresses", "127.0.0.1:1", "127.0.0.1:2", *at(a), "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {
        "option": "nsqlookupd_tcp_addresses",
        "nodes": [
            {"address": address(a), "error": None, "before": [], "after": ["127.0.0.1:1", "127.0.0.1:2"]},
        ],
    }
    assert json.loads(asked(a, "nsqlookupd_tcp_addresses")) == ["127.0.0.1:1", "127.0.0.1:2"]
    assert gnsqadmin("config", "set", "nsqlookupd_tcp_addresses", "[]", *at(a)).code == 0
    assert json.loads(asked(a, "nsqlookupd_tcp_addresses")) == []


def test_what_a_node_refuses_is_said_and_changes_nothing(nsqd: Daemon) -> None:
    for option, value, reason in (
        ("log_level", "loud", "'loud' is not a value for log_level, expected debug, info, warn, error or fatal"),
        ("nsqlookupd_tcp_addresses", "[1]", "'[1]' is not a value for nsqlookupd_tcp_addresses"),
        (
            "max_msg_size",
            "5",
            "max_msg_size cannot be changed while nsqd runs, only log_level and nsqlookupd_tcp_addresses can",
        ),
    ):
        before = asked(nsqd, option)
        result = gnsqadmin("config", "set", option, value, *at(nsqd))
        assert result == (1, "", f"Error: nsqd at {address(nsqd)}: {reason}\n")
        assert asked(nsqd, option) == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["log_level", "info", "warn"], "log_level takes one value."),
        (["nsqlookupd_tcp_addresses", "a:1", "b"], "'b' is not a host:port of an nsqlookupd."),
        (["nsqlookupd_tcp_addresses", "unix:/x"], "'unix:/x' is not a host:port of an nsqlookupd."),
        (["../stats", "1"], "Invalid value for 'OPTION': '../stats' is not a valid option name."),
        (["\x1b[2J", "1"], r"Invalid value for 'OPTION': '\x1b[2J' is not a valid option name."),
        (["log_level"], "Missing argument 'VALUE...'."),
    ],
)
def test_values_that_make_no_sense_are_usage_errors(words: list[str], complaint: str) -> None:
    code, out, err = gnsqadmin("config", "set", *words)
    assert (code, out, err.splitlines()[-1]) == (2, "", f"Error: {complaint}")


def test_a_node_that_is_down_does_not_keep_the_others_from_being_changed(nsqd: Daemon) -> None:
    down = f"127.0.0.1:{free_port()}"
    code, out, err = gnsqadmin("config", "set", "log_level", "error", *at(nsqd), f"--nsqd-http-address={down}")
    assert (code, err) == (1, f"Error: nsqd at {down}: connection refused\n")
    assert out.splitlines()[-1].split() == [down, "failed:", "connection", "refused"]
    assert asked(nsqd, "log_level") == "4"
    assert gnsqadmin("config", "get", "log_level", f"--nsqd-http-address={down}") == (1, "", err)


def test_values_of_a_lying_node_are_harmless() -> None:
    for lie in (b"[[\x1b[31m" * 20_000, b"[" * 900 + b"]" * 900, b"9" * 4000):
        answer = http_answer(lie)
        with FakeNode(answer) as node:
            words = ("config", "get", "msg_timeout", "log_level", "log_prefix", f"--nsqd-http-address={node.address}")
            code, out, err = gnsqadmin(*words)
            assert (code, err) == (0, "")
            assert "\x1b" not in out
            assert len(out) < 10_000
            assert gnsqadmin(*words, "--json").err == ""


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("msg_timeout", 60_000_000_000, "1m 0s"),
        ("output_buffer_timeout", 250_000_000, "250ms"),
        ("log_level", 5, "fatal"),
        ("log_level", 9, "9"),
        ("tls_required", 1, "tcp-https"),
        ("tls_min_version", 772, "tls1.3"),
        ("auth_http_addresses", [], "none"),
        ("e2e_processing_latency_percentiles", [0.99, 1], "0.99, 1"),
        ("nsqlookupd_tcp_addresses", None, "null"),
        ("statsd_address", "", "none"),
        ("snappy", True, "true"),
        ("drain_timeout", -5, "-5"),
    ],
)
def test_values_are_shown_as_people_write_them(key: str, value: object, text: str) -> None:
    assert shown(key, value) == text
