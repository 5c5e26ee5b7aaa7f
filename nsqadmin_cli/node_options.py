"""The options in nsqd's /config: how their values are read from JSON and shown."""

import enum
import json
import re

from nsqadmin_cli import units
from nsqadmin_cli.text import printable


class Kind(enum.Enum):
    """The type of an option's value. All except TEXT are sent as JSON."""

    TEXT = enum.auto()
    NUMBER = enum.auto()
    SWITCH = enum.auto()  # true or false
    LIST = enum.auto()
    DURATION = enum.auto()  # ns
    LOG_LEVEL = enum.auto()  # 1..5
    TLS_REQUIRED = enum.auto()  # 0..2
    TLS_VERSION = enum.auto()  # as in TLS itself


# By their keys, in the order of nsqd's usage. Those of gnsqd alone come last.
NODE_OPTIONS = {
    "log_level": Kind.LOG_LEVEL,
    "log_prefix": Kind.TEXT,
    "id": Kind.NUMBER,
    "tcp_address": Kind.TEXT,
    "http_address": Kind.TEXT,
    "https_address": Kind.TEXT,
    "broadcast_address": Kind.TEXT,
    "broadcast_tcp_port": Kind.NUMBER,
    "broadcast_http_port": Kind.NUMBER,
    "nsqlookupd_tcp_addresses": Kind.LIST,
    "auth_http_addresses": Kind.LIST,
    "http_client_connect_timeout": Kind.DURATION,
    "http_client_request_timeout": Kind.DURATION,
    "data_path": Kind.TEXT,
    "mem_queue_size": Kind.NUMBER,
    "max_bytes_per_file": Kind.NUMBER,
    "sync_every": Kind.NUMBER,
    "sync_timeout": Kind.DURATION,
    "queue_scan_selection_count": Kind.NUMBER,
    "queue_scan_worker_pool_max": Kind.NUMBER,
    "msg_timeout": Kind.DURATION,
    "max_msg_timeout": Kind.DURATION,
    "max_msg_size": Kind.NUMBER,
    "max_body_size": Kind.NUMBER,
    "max_req_timeout": Kind.DURATION,
    "max_heartbeat_interval": Kind.DURATION,
    "max_rdy_count": Kind.NUMBER,
    "max_output_buffer_size": Kind.NUMBER,
    "max_output_buffer_timeout": Kind.DURATION,
    "min_output_buffer_timeout": Kind.DURATION,
    "output_buffer_timeout": Kind.DURATION,
    "max_channel_consumers": Kind.NUMBER,
    "statsd_address": Kind.TEXT,
    "statsd_prefix": Kind.TEXT,
    "statsd_interval": Kind.DURATION,
    "statsd_mem_stats": Kind.SWITCH,
    "statsd_udp_packet_size": Kind.NUMBER,
    "statsd_exclude_ephemeral": Kind.SWITCH,
    "e2e_processing_latency_window_time": Kind.DURATION,
    "e2e_processing_latency_percentiles": Kind.LIST,
    "tls_cert": Kind.TEXT,
    "tls_key": Kind.TEXT,
    "tls_client_auth_policy": Kind.TEXT,
    "tls_root_ca_file": Kind.TEXT,
    "tls_required": Kind.TLS_REQUIRED,
    "tls_min_version": Kind.TLS_VERSION,
    "deflate": Kind.SWITCH,
    "max_deflate_level": Kind.NUMBER,
    "snappy": Kind.SWITCH,
    "metrics_clients": Kind.SWITCH,
    "metrics_exclude_ephemeral": Kind.SWITCH,
    "metrics_compat": Kind.SWITCH,
    "sigterm": Kind.TEXT,
    "drain_timeout": Kind.DURATION,
    "http_auth_token_files": Kind.LIST,
    "http_auth_common_names": Kind.LIST,
    "max_tcp_connections": Kind.NUMBER,
    "max_http_connections": Kind.NUMBER,
    "max_topics": Kind.NUMBER,
    "max_channels": Kind.NUMBER,
    "magic_timeout": Kind.DURATION,
    "http_idle_timeout": Kind.DURATION,
    "durability": Kind.TEXT,
    "max_channel_depth": Kind.NUMBER,
    "max_topic_bytes": Kind.NUMBER,
    "overflow_policy": Kind.TEXT,
    "message_ttl": Kind.DURATION,
    "min_free_disk": Kind.NUMBER,
    "max_attempts": Kind.NUMBER,
}

CHANGEABLE = ("log_level", "nsqlookupd_tcp_addresses")  # while it runs

_NAMES: dict[Kind, dict[object, str]] = {
    Kind.LOG_LEVEL: {1: "debug", 2: "info", 3: "warn", 4: "error", 5: "fatal"},
    Kind.TLS_REQUIRED: {0: "no", 1: "tcp-https", 2: "yes"},
    Kind.TLS_VERSION: {769: "tls1.0", 770: "tls1.1", 771: "tls1.2", 772: "tls1.3"},
}


def key_of(name: str) -> str:
    """The key of an option, which may be given like its flag; ValueError if the name is invalid."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise ValueError(f"{printable(repr(name), 100)} is not a valid option name.")
    return name.replace("-", "_")


def parse(key: str, text: str) -> object:
    """The value in a node's answer: parsed JSON for options known not to be text, else the text itself."""
    if NODE_OPTIONS.get(key, Kind.TEXT) is Kind.TEXT:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # A node may send anything, but the value of an option is not nested.
    parts = value if isinstance(value, list) else [value]
    return text if any(isinstance(part, list | dict) for part in parts) else value


def shown(key: str, value: object) -> str:
    """A parsed value as readable text."""
    kind = NODE_OPTIONS.get(key, Kind.TEXT)
    if kind is Kind.DURATION and type(value) is int and 0 <= value < 2**63:
        return units.latency(value / 1e9)
    if kind in _NAMES and type(value) is int:
        return _NAMES[kind].get(value, str(value))
    if kind is Kind.LIST and isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return value or "none"
    return json.dumps(value)
