"""nsqlookupd as a daemon: its servers, their start and their stop; `LookupdServers` also serve inside gnsqd."""

from collections.abc import Callable

from gevent import Greenlet, joinall

from gnsqd.log import Logger
from gnsqd.lookupd.api import EMBEDDED_ROUTES, LOOKUPD_ROUTES, LookupdAPI
from gnsqd.lookupd.protocol_v1 import LookupTCPServer
from gnsqd.lookupd.registration_db import RegistrationDB
from gnsqd.net.listener import Listener, close_servers
from gnsqd.observe.memory import MemoryStats
from gnsqd.options import LookupdOptions
from gnsqd.shared.errors import StartError
from gnsqd.shared.version import version_string
from gnsqd.supervisor import Daemon, Supervisor
from gnsqd.web.cross_origin import allow_origins
from gnsqd.web.debug import Debug
from gnsqd.web.routes import Router
from gnsqd.web.server import HTTPServer

ANY_PORT = ":0"  # in place of an empty address, as in the real nsqlookupd


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
        self.db = RegistrationDB(options.max_registrations)
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
            responder = allow_origins(options.http_allow_origins, router)(router)
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


class NSQLookupd(Daemon):
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
