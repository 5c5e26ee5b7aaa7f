"""The text form of /stats, which is the real daemon's to the byte (NSQD-COMPAT 5.3), from the same rows as the JSON."""

import time
from collections.abc import Iterator

from gnsqd.gotext import format_duration
from gnsqd.observe.stats import Row, StatsRows
from gnsqd.options import SECOND
from gnsqd.shared.version import version_string

_TOPIC = "[%(topic_name)-15s] depth: %(depth)-5d be-depth: %(backend_depth)-5d msgs: %(message_count)-8d"
_CHANNEL = (
    "[%(channel_name)-25s] depth: %(depth)-5d be-depth: %(backend_depth)-5d inflt: %(in_flight_count)-4d"
    " def: %(deferred_count)-4d re-q: %(requeue_count)-5d timeout: %(timeout_count)-5d msgs: %(message_count)-8d"
)
_CONSUMER = (
    "state: %(state)d inflt: %(in_flight_count)-4d rdy: %(ready_count)-4d fin: %(finish_count)-8d"
    " re-q: %(requeue_count)-8d msgs: %(message_count)-8d"
)


def stats_page(stats: StatsRows, memory: Row | None, health: str, start_time: int, uptime: int) -> Iterator[str]:
    """Yields line by line; `start_time` in unix seconds, `uptime` in ns."""
    yield from (version_string(), f"start_time {_rfc3339(start_time)}", f"uptime {format_duration(uptime)}")
    yield from ("", f"Health: {health}")
    if memory is not None:
        yield from ("", "Memory:")
        yield from (f"   {name:<25}\t{value}" for name, value in memory.items())
    yield from ("", "Topics:" if stats.topics else "Topics: None")
    for number, topic in enumerate(stats.topics or []):
        if number:
            yield ""
        yield f"{_paused(topic)}{_TOPIC % topic} e2e%: {_latency(topic)}"
        for channel in topic["channels"]:
            yield f"   {_paused(channel)}{_CHANNEL % channel} e2e%: {_latency(channel)}"
            for client in channel["clients"] or []:
                yield f"        {_client(client)}"
    yield from ("", "Producers:" if stats.producers else "Producers: None")
    for client in stats.producers or []:
        yield f"   {_client(client)}"


def _paused(row: Row) -> str:
    return "*P " if row["paused"] else "   "


def _rfc3339(seconds: int) -> str:
    local = time.localtime(seconds)
    zone = time.strftime("%z", local)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + (f"{zone[:3]}:{zone[3:]}" if local.tm_gmtoff else "Z")


def _latency(row: Row) -> str:
    return ", ".join(_nanoseconds(one["value"]) for one in row["e2e_processing_latency"]["percentiles"] or [])


def _nanoseconds(value: float) -> str:
    for size, unit in ((SECOND, "s"), (1_000_000, "ms"), (1_000, "us")):
        if value > size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}ns"


def _client(client: Row) -> str:
    port = client["remote_address"].rpartition(":")[2] if ":" in client["remote_address"] else ""
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    if "pub_counts" in client:
        counts = client["pub_counts"]
        total = sum(entry["count"] for entry in counts)
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
        doing = f"msgs: {total:<8} topics: {topics}"
    else:
        doing = _CONSUMER % client
    connected = max(int(time.time() - client["connect_ts"]), 0) * SECOND
    return f"[{client['version']} {name:<21}] {doing} connected: {format_duration(connected)}"
