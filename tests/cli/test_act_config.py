"""`gnsqadmin config`: what nodes run with, and what can be changed meanwhile."""

from typing import Any

import pytest

from cli.gnsqadmin import FakeNode, document, failure, http_answer, ok, rows, words
from cli.nodes import address, at
from gnsqd.options import OPTIONS
from kit.daemons import Instance
from kit.http_api import ask
from kit.traffic import DaemonFactory
from nsqadmin_cli.node_options import NODE_OPTIONS, parse, shown

LOOKUPDS = "nsqlookupd_tcp_addresses"


def options(*args: str) -> list[dict[str, Any]]:
    return [node["options"] for node in document("config", "get", *args)["nodes"]]


def of(nsqd: Instance, key: str) -> str:
    return ask(nsqd, f"GET /config/{key}")[1]


def test_get_shows_all_options_of_the_node(nsqd: Instance) -> None:
    [found] = options(*at(nsqd))
    assert {key: parse(key, of(nsqd, key)) for key in found} == found
    assert (found["mem_queue_size"], found["msg_timeout"], found["snappy"]) == (10000, 60_000_000_000, True)
    assert (found["auth_http_addresses"], found["data_path"]) == ([], str(nsqd.data_path))
    assert set(NODE_OPTIONS) - set(found) <= {option.cfg for option in OPTIONS if option.ours}


def test_get_shows_which_nodes_differ(nsqd_factory: DaemonFactory) -> None:
    a, b, c = nsqd_factory("--max-msg-size=5"), nsqd_factory(), nsqd_factory()
    assert words("config", "get", "max-msg-size", "sync_timeout", "log_level", *at(a, b, c))[2:] == [
        ["max_msg_size", "5", address(a)],
        ["1048576", f"{address(b)},", address(c)],
        ["sync_timeout", "2s", "3", "nodes"],
        ["log_level", "info", "3", "nodes"],
    ]
    get = ("config", "get", "max_msg_size", "sync_timeout")
    [first, *_] = document(*get, "--different", *at(a, b, c))["nodes"]
    assert first["options"] == {"max_msg_size": 5}
    table = [tuple(row.values()) for row in rows(*get, *at(a, b))]
    assert table[:2] == [("max_msg_size", address(a), "5"), ("max_msg_size", address(b), "1048576")]
    assert table[2:] == [("sync_timeout", address(one), "2000000000") for one in (a, b)]


def test_set_changes_all_nodes_and_shows_before_and_after(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    ok("config", "set", "log_level", "warn", *at(b))
    heading, _, *table = words("config", "set", "log-level", "DEBUG", *at(a, b))
    assert heading == ["node", "log_level", "before", "after"]
    assert table == [[address(a), "info", "debug"], [address(b), "warn", "debug"]]
    assert (of(a, "log_level"), of(b, "log_level")) == ("1", "1")
    new = ["127.0.0.1:1", "127.0.0.1:2"]
    change = {"address": address(a), "error": None, "before": [], "after": new}
    assert document("config", "set", LOOKUPDS, *new, *at(a)) == {"option": LOOKUPDS, "nodes": [change]}
    assert of(a, LOOKUPDS) == '["127.0.0.1:1","127.0.0.1:2"]'
    ok("config", "set", LOOKUPDS, "[]", *at(a))
    assert of(a, LOOKUPDS) == "[]"


def test_what_a_node_refuses_changes_nothing(nsqd: Instance) -> None:
    for option, value, reason in (
        ("log_level", "loud", "'loud' is not a value for log_level, expected debug, info, warn, error or fatal"),
        (LOOKUPDS, "[1]", f"'[1]' is not a value for {LOOKUPDS}"),
        ("max_msg_size", "5", f"max_msg_size cannot be changed while nsqd runs, only log_level and {LOOKUPDS} can"),
    ):
        before = of(nsqd, option)
        assert failure("config", "set", option, value, *at(nsqd)) == f"nsqd at {address(nsqd)}: {reason}"
        assert of(nsqd, option) == before


@pytest.mark.parametrize("lie", [b"[[\x1b[31m" * 20_000, b"[" * 900 + b"]" * 900, b"9" * 4000], ids=len)
def test_values_of_a_lying_node_are_harmless(lie: bytes) -> None:
    with FakeNode(http_answer(lie)) as node:
        get = ("config", "get", "msg_timeout", "log_level", "log_prefix", *at(node))
        out = ok(*get)
        assert "\x1b" not in out
        assert len(out) < 10_000
        document(*get)


def test_values_are_shown_as_people_write_them() -> None:
    for key, value, text in (
        ("msg_timeout", 60_000_000_000, "1m 0s"),
        ("output_buffer_timeout", 250_000_000, "250ms"),
        ("log_level", 5, "fatal"),
        ("log_level", 9, "9"),
        ("tls_required", 1, "tcp-https"),
        ("tls_min_version", 772, "tls1.3"),
        ("auth_http_addresses", [], "none"),
        ("e2e_processing_latency_percentiles", [0.99, 1], "0.99, 1"),
        (LOOKUPDS, None, "null"),
        ("statsd_address", "", "none"),
        ("snappy", True, "true"),
        ("drain_timeout", -5, "-5"),
    ):
        assert shown(key, value) == text
