"""The endpoints of the daemon itself: its health, its drain, its addresses and its statistics."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from gevent import get_hub

from gnsqd.broker.drain import Drain
from gnsqd.broker.registry import Registry
from gnsqd.cluster.lookup import Lookup
from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.shared.record import Record
from gnsqd.shared.version import NSQD_VERSION
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import Request
from gnsqd.web.routes import BOOLS, Content, HTTPError, read_parameters
from gnsqd.wire.tcp import TCPServer

if TYPE_CHECKING:
    from gnsqd.observe.prometheus import Metrics


class Status(Record):
    """The endpoints about one daemon. `http_port` is -1 on a unix socket; `exiting()` is True if its exit has begun."""

    _options: Options
    _registry: Registry
    _drain: Drain
    _debug: Debug
    _tcp_server: TCPServer
    _lookup: Lookup
    _http_port: int
    _exiting: Callable[[], bool]
    _log: Logger

    def __post_init__(self) -> None:
        self._metrics: Metrics | None = None
        self._started = time.monotonic_ns()

    def ping(self, request: Request) -> str:
        if not self._registry.healthy:
            raise HTTPError(500, self._registry.health)
        return self._registry.health

    def healthz(self, request: Request) -> str:
        return "OK"

    def readyz(self, request: Request) -> str:
        if self._exiting():
            raise HTTPError(503, "NOK - exiting")
        if self._registry.draining:
            raise HTTPError(503, "NOK - draining")
        if not self._registry.healthy:
            raise HTTPError(503, self._registry.health)
        return "OK"

    def drain(self, request: Request) -> dict[str, object]:
        return self._drain.state()

    def start_drain(self, request: Request) -> dict[str, object]:
        return self._switch_drain(self._drain.start)

    def cancel_drain(self, request: Request) -> dict[str, object]:
        return self._switch_drain(self._drain.cancel)

    def _switch_drain(self, switch: Callable[[], None]) -> dict[str, object]:
        if self._exiting():
            raise HTTPError(503, "EXITING")
        switch()
        return self._drain.state()

    def info(self, request: Request) -> dict[str, object]:
        options = self._options
        topology = {"topology_zone": options.topology_zone, "topology_region": options.topology_region}
        return {
            "version": NSQD_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self._http_port,
            "tcp_port": self._tcp_server.port,
            "start_time": self._registry.start_time,
            "max_heartbeat_interval": options.max_heartbeat_interval,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout,
            "max_deflate_level": options.max_deflate_level,
            **(topology if options.has_topology else {}),
        }

    def stats(self, request: Request) -> str | dict[str, object]:
        from gnsqd.observe.stats import snapshot  # these load slowly, and not every daemon is asked
        from gnsqd.web.stats_page import stats_page

        registry, parameters = self._registry, read_parameters(request)
        names = (parameters.get("topic", ""), parameters.get("channel", ""))
        include_clients = BOOLS.get(parameters.get("include_clients", ""), True)
        own = ("include_finished", "include_ages", "include_process")  # which nsqd does not have
        finished, ages, process = (BOOLS.get(parameters.get(name, ""), False) for name in own)
        stats = snapshot(registry, self._tcp_server.producers, *names, include_clients, finished, ages)
        memory = self._debug.memory.row() if BOOLS.get(parameters.get("include_mem", ""), True) else None
        if parameters.get("format") != "json":
            uptime = time.monotonic_ns() - self._started
            lines = stats_page(stats, memory, registry.health, registry.start_time, uptime)
            return "".join(f"{line}\n" for line in Turns().over(lines))
        return {
            "version": NSQD_VERSION,
            "health": registry.health,
            "start_time": registry.start_time,
            "topics": stats.topics,
            **({} if memory is None else {"memory": memory}),
            "producers": stats.producers,
            **({"process": self._process()} if process else {}),
        }

    def _process(self) -> dict[str, float]:
        """Returns the figures of this process, and of the disk of its data, unless that cannot be queried."""
        figures = {
            "cpu_seconds": time.process_time(),
            "memory_bytes": self._debug.memory.resident(),
            "connection_count": len(self._tcp_server.clients),
        }
        with suppress(OSError):
            disk = os.statvfs(self._options.data_path or ".")
            figures |= {"disk_bytes": disk.f_blocks * disk.f_frsize, "free_disk_bytes": disk.f_bavail * disk.f_frsize}
        return figures

    def metrics(self, request: Request) -> Content:
        if self._metrics is None:
            # At the first scrape, as it takes a third of a start's time; in a thread, so that the hub goes on.
            prometheus = get_hub().threadpool.apply(import_module, ("gnsqd.observe.prometheus",))
            if self._metrics is None:  # or another scrape was first
                self._metrics = prometheus.Metrics(
                    registry=self._registry,
                    options=self._options,
                    memory=self._debug.memory,
                    clients=self._tcp_server.clients.values,
                    greenlets=self._debug.greenlet_count,
                    crashes=self._debug.crashes,
                    lookupds=self._lookup.connected,
                    log=self._log,
                )
        return Content(*self._metrics.render(request.headers.get(b"accept", b"").decode("latin-1")))
