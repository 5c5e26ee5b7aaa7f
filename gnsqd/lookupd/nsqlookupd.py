"""nsqlookupd as a daemon, and inside a gnsqd, which registers in its database directly, and at once.

Unless gnsqd was given a broadcast address, answers about it contain the host by which the asker has reached nsqlookupd:
the Host header of the request. So a container and its host, which know gnsqd by different names, both find it. Other
nsqds are shown as they describe themselves.

Inside gnsqd it requires no token, so it does not have /debug/pprof, which would show what gnsqd's own server may
require one for.
"""

from collections.abc import Callable
from socket import gethostname
from typing import TYPE_CHECKING

from gevent import Greenlet, joinall

from gnsqd.log import Logger
from gnsqd.lookupd.api import EMBEDDED_ROUTES, LOOKUPD_ROUTES, LookupdAPI
from gnsqd.lookupd.protocol_v1 import LookupTCPServer
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB
from gnsqd.net.listener import Listener, close_servers
from gnsqd.observe.memory import MemoryStats
from gnsqd.options import LookupdOptions, Options
from gnsqd.shared.errors import StartError
from gnsqd.shared.version import NSQD_VERSION, version_string
from gnsqd.supervisor import DaemonProcess, Supervisor
from gnsqd.web.debug import Debug
from gnsqd.web.routes import Router
from gnsqd.web.server import HTTPServer, allow_origins

if TYPE_CHECKING:
    from gnsqd.broker.topic import Topic

ANY_PORT = ":0"  # in place of an empty address, as in the real nsqlookupd
_ALWAYS = 1 << 63  # later than any time of the clock


class LookupdServers:
    """Owns the database, and the servers of TCP and HTTP; an empty address leaves its server out. Listens when it is
    made; raises StartError. `debug` and `provide` as in LookupdAPI."""

    def __init__(
        self,
        options: LookupdOptions,
        log: Logger,
        supervisor: Supervisor,
        debug: Debug | None,
        provide: Callable[[str], None] | None = None,
    ) -> None:
        self.db = RegistrationDB(options.max_registrations, log)
        self._spawn = supervisor.spawn
        self._greenlets: list[Greenlet[..., None]] = []
        addresses = {"TCP": options.tcp_address, "HTTP": options.http_address}
        listeners = {kind: Listener(address, tcp_only=True) for kind, address in addresses.items() if address}
        self.addresses = [f"{listener.address} ({kind})" for kind, listener in listeners.items()]
        tcp, http = listeners.get("TCP"), listeners.get("HTTP")
        self.http_address = "" if http is None else http.address
        self.servers: dict[str, LookupTCPServer | HTTPServer] = {}
        common = (options, log, supervisor.spawn_for_client)
        if tcp is not None and http is not None:
            tcp.other, http.other = http, tcp
        if tcp is not None:
            server = LookupTCPServer(tcp, 0 if http is None else http.port, self.db, *common)
            self.servers["lookupdTCPServer"] = server
        if http is not None:
            routes = EMBEDDED_ROUTES if debug is None else LOOKUPD_ROUTES
            router = Router(LookupdAPI(options, self.db, log, debug, provide), options, log, routes)
            limits = (options.http_idle_timeout, options.max_http_connections)
            responder = allow_origins(options.http_allow_origins, router.methods)(router)
            self.servers["lookupdHTTPServer"] = HTTPServer(http, responder, *limits, *common[1:])

    def start(self) -> None:
        """Begins to accept clients. Never yields."""
        self._greenlets = [self._spawn(name, server.serve) for name, server in self.servers.items()]

    def stop_accepting(self) -> None:
        """Refuses new clients. Never yields."""
        for server in self.servers.values():
            server.listener.close()

    def close(self) -> None:
        """Stops accepting, and ends all connections. Yields."""
        self.stop_accepting()
        close_servers(self.servers.values())
        joinall(self._greenlets)


class NSQLookupd(DaemonProcess):
    """The nsqlookupd of a process."""

    def __init__(self, options: LookupdOptions, log: Logger) -> None:
        super().__init__(log)
        self._options = options
        options.tcp_address = options.tcp_address or ANY_PORT
        options.http_address = options.http_address or ANY_PORT
        self._memory = MemoryStats()
        self._debug = Debug(self._held, self._memory, self._supervisor.crashes)

    def _held(self) -> dict[str, int]:
        db = self._servers.db
        return {"clients": len(db.clients), "topics": len(db.topics), "registrations": db.count}

    def start(self) -> None:
        self._supervisor.watch()
        self._debug.start()
        self._log.info(version_string("nsqlookupd"))
        try:
            self._servers = LookupdServers(self._options, self._log, self._supervisor, self._debug)
        except StartError as error:
            raise StartError(str(error), prefix="failed to instantiate nsqlookupd") from error
        self._memory.start()
        self._servers.start()

    def exit(self) -> int:
        self._debug.stop()
        self._supervisor.run("exit", self._servers.close)
        return self._exit_code


class EmbeddedLookupd(LookupdServers):
    """Also owns the registration of this gnsqd. `new_topic(name)` returns a topic, created if need be; it is called for
    topics that are looked up, with --lookup-creates-topics. The broadcast ports in `options` must be known before."""

    def __init__(
        self, options: Options, log: Logger, supervisor: Supervisor, new_topic: "Callable[[str], Topic | None]"
    ) -> None:
        self._new_topic = new_topic
        lookupd_options = LookupdOptions(
            tcp_address=options.embedded_lookupd_tcp_address,
            http_address=options.embedded_lookupd_http_address,
            broadcast_address=options.broadcast_address,
            max_tcp_connections=options.max_tcp_connections,
            max_http_connections=options.max_http_connections,
            magic_timeout=options.magic_timeout,
            http_idle_timeout=options.http_idle_timeout,
            http_allow_origins=options.http_allow_origins,
        )
        provide = self._provide if options.lookup_creates_topics else None
        super().__init__(lookupd_options, log, supervisor, None, provide)
        self.registered_at = ""  # the HTTP address where this gnsqd is listed
        if options.broadcast_tcp_port and options.broadcast_http_port:
            self.db.own = own = PeerInfo(
                f"127.0.0.1:{options.broadcast_tcp_port}",
                hostname=gethostname(),
                broadcast_address=options.broadcast_address,
                tcp_port=options.broadcast_tcp_port,
                http_port=options.broadcast_http_port,
                version=NSQD_VERSION,
                topology_zone=options.topology_zone if options.has_topology else None,
                topology_region=options.topology_region if options.has_topology else None,
                follows_host=not options.broadcast_address_given,
            )
            own.heard = _ALWAYS  # it never times out
            self.db.connect(own)
            self.registered_at = self.http_address
        else:
            log.error("this nsqd is not registered: it has no TCP port or no HTTP port, and no broadcast port instead")

    def notify(self, topic: str, channel: str, exiting: bool) -> None:
        """Reports that a topic or, with its name, a channel was created or deleted. Never yields."""
        own = self.db.own
        if own is None:
            return
        if not exiting:
            self.db.register(own, topic, channel)
        elif channel:
            self.db.unregister(own, topic, channel)
        else:
            registered = [name for name in self.db.channel_names(topic) if (topic, name) in own.channels]
            for name in registered:  # which will report themselves too late
                self.db.unregister(own, topic, name)
            self.db.unregister_topic(own, topic)

    def _provide(self, name: str) -> None:
        own = self.db.own
        topic = None if own is None else self._new_topic(name)
        if own is not None and topic is not None and not topic.exiting:
            for channel in ("", *topic.channels):  # which may have been deleted here, and not in the broker
                self.db.register(own, name, channel)
