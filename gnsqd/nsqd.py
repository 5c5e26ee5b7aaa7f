"""The daemon: builds the parts, gives each the callables it needs of the others, and orders start and exit.

Start (NSQD-COMPAT 1.4): lock the data path, check the options, bind the sockets, load nsqd.dat, write it if it changed,
then begin to accept. Exit (section 3): close the listeners and the clients, write nsqd.dat, flush every queue to disk,
unlock. Every long-lived greenlet is spawned here, by name; if one dies of a defect, the daemon exits (`supervisor`).
"""

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gevent.event import Event

from gnsqd.broker import rules as broker_rules
from gnsqd.broker.bounds import Bounds, bounds_loop
from gnsqd.broker.channel import Channel
from gnsqd.broker.dead_letters import DeadLetters
from gnsqd.broker.drain import Drain
from gnsqd.broker.environment import Environment
from gnsqd.broker.idle import IdleChannels
from gnsqd.broker.queue_scan import QueueScan
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.cluster.lookup import Lookup
from gnsqd.health import DiskHealth, ServiceManager
from gnsqd.log import Logger
from gnsqd.net.addresses import join_host_port
from gnsqd.net.connection import HAS_NATIVE_SOCKETS
from gnsqd.net.listener import Listener, Server, close_servers
from gnsqd.net.stream import TLS
from gnsqd.observe.memory import MemoryStats
from gnsqd.options import TLS_REQUIRED, LookupdOptions, Options, early_checks, expand_prefix, late_checks, refuse
from gnsqd.queues.data_path import DataPath
from gnsqd.queues.message import GuidFactory
from gnsqd.shared.errors import BrokerError, StartError, StorageError
from gnsqd.shared.names import check_limit
from gnsqd.shared.version import VERSION, lane, version_string
from gnsqd.storage import metadata
from gnsqd.storage.directory import DirLock, DiskFigures, FreeDisk, find_unserved
from gnsqd.storage.syncer import Syncer
from gnsqd.supervisor import DaemonProcess
from gnsqd.web.debug import Debug
from gnsqd.web.handlers import BrokerAPI, DaemonAPI
from gnsqd.web.publishing import Publishing
from gnsqd.web.ranges import Ranges
from gnsqd.web.routes import Router, TLSRequired
from gnsqd.web.server import HTTPServer, allow_origins
from gnsqd.wire.commands import Commands
from gnsqd.wire.tcp import TCPServer

if TYPE_CHECKING:
    from gnsqd.cluster.auth import Auth
    from gnsqd.demo import Demo
    from gnsqd.lookupd.nsqlookupd import EmbeddedLookupd
    from gnsqd.net.certificates import Certificates
    from gnsqd.observe.statsd import Statsd
    from gnsqd.queues.journal.shipping import Shipper
    from nsqadmin_cli.web.process import PageProcess


MAX_NAMES = 10  # of topics and channels in a line of the log


class NSQD(DaemonProcess):
    """The nsqd of a process."""

    def __init__(self, options: Options, log: Logger) -> None:
        super().__init__(log)
        self._options = options
        self._spawn = self._supervisor.spawn
        self._lock = DirLock(options.data_path)
        self._syncer = Syncer()
        self._metadata_path = os.path.join(options.data_path, metadata.FILE_NAME)
        self._registry = Registry()
        self._registry.disk_figures = DiskFigures(options.data_path, self._syncer)
        self._rule_book = broker_rules.RuleBook()
        self._metadata_file = metadata.MetadataFile(
            self._metadata_path, self._registry.metadata, self._syncer, log, options.durability in ("disk", "store")
        )
        self._drain = Drain(self._registry, options.drain_timeout, log, self._spawn, partial(self.request_exit, 0))
        self._free_disk = FreeDisk(options.data_path, options.min_free_disk, log) if options.min_free_disk else None
        self._bounds_exit = Event()
        self._dead_letters = DeadLetters(self._registry, log, self._spawn)
        self._idle = IdleChannels(self._registry, options, self._metadata_file, log, self._spawn)
        self._terminating = False
        self._health = DiskHealth(self._registry, options.max_msg_size, self._metadata_path, self._syncer, log)
        self._memory = MemoryStats()
        self._debug = Debug(self._registry.held, self._memory, self._supervisor.crashes)
        self._ranges = Ranges(self._registry, log)
        self._queue_scan = QueueScan(options.queue_scan_worker_pool_max, log, self._spawn)
        self._lookup = Lookup(self._registry, options, log, self._spawn)
        self._embedded: EmbeddedLookupd | None = None
        self._admin: PageProcess | None = None
        self._auth: Auth | None = None
        self._certificates: Certificates | None = None
        self._statsd: Statsd | None = None
        self._demo: Demo | None = None
        self._shipper: Shipper | None = None
        self._service_manager = ServiceManager(self._registry, self._drain, log)

    # Start

    def start(self) -> None:
        options, log = self._options, self._log
        self._supervisor.watch()
        self._debug.start()
        self._lock.acquire()
        refuse(early_checks(options))
        new_tls: Callable[[], TLS] | None = None
        if options.tls_cert or options.tls_key or options.tls_root_ca_file or options.tls_required:
            from gnsqd.net.certificates import Certificates  # takes a sixth of a start's time, and 10 MB

            self._certificates = Certificates(options, log)
            new_tls = None if self._certificates.loaded.context is None else self._certificates.new_layer
        refuse(late_checks(options))
        self._rule_book.configured = broker_rules.parse_option(options.channel_rules)
        log.info(version_string())
        log.info("ID: %d", options.node_id)
        log.info("gnsqd v%s (%s%s)", VERSION, lane(), ", native sockets" if HAS_NATIVE_SOCKETS else "")
        if options.log_store:
            self._attach_store()
        try:
            self._data_path = DataPath(options, log, self._syncer, self._health.note, self._check_exit, self._shipper)
            environment = Environment(
                options=options,
                log=log,
                ids=GuidFactory(options.node_id),
                open_store=self._data_path.open_store,
                notify=self._notify,
                channels_to_precreate=self._channels_to_precreate,
                spawn=self._spawn,
                free_disk=self._free_disk,
                note_dead=self._dead_letters.note,
                wake_at=self._queue_scan.wake_at,
                watch_idle=self._idle.watch,
                rules=self._rule_book,
            )
            self._registry.attach(environment)
            self._listen(new_tls is not None)
            self._build_servers(new_tls)
            self._load_metadata()
        except StorageError as error:
            raise StartError(str(error), prefix="failed to load metadata") from error
        self._start_loops()
        self._service_manager.ready()
        if options.dev:
            own = [f"{listener.address} ({kind})" for kind, listener in self._listeners.items()]
            registry = "" if self._embedded is None else f"; nsqlookupd: {' and '.join(self._embedded.addresses)}"
            page = "" if self._admin is None else f"; page: {self._admin.url}"
            log.info("DEV: nsqd: %s%s%s; data: %s", " and ".join(own), registry, page, options.data_path or ".")
        if options.demo:
            from gnsqd.demo import Demo  # few have it

            self._demo = Demo(self._listeners["TCP"].address, self._registry, log, self._spawn)
            self._demo.start()

    def _attach_store(self) -> None:
        from gnsqd.queues.journal.shipping import Shipper  # few have it

        options = self._options
        try:
            self._shipper = shipper = Shipper(options, self._log, partial(self.request_exit, 1))
            self._metadata_file.on_written = shipper.note_metadata
            self._registry.store_figures = shipper.figures
            self._health.is_store_away = lambda: shipper.is_away
            shipper.attach()
        except StorageError as error:
            if self._shipper is None or options.durability == "store":
                raise StartError(f"--log-store: {error}") from error
            self._log.warn("STORE: %s; nothing follows there until it answers", error)

    def _listen(self, has_tls: bool) -> None:
        options = self._options
        self._listeners = {"TCP": Listener(options.tcp_address)}
        if options.http_address:
            self._listeners["HTTP"] = http = Listener(options.http_address)
            self._listeners["TCP"].other, http.other = http, self._listeners["TCP"]
        if has_tls and options.https_address:
            self._listeners["HTTPS"] = Listener(options.https_address, tcp_only=True)
        # /config shows what is registered with nsqlookupd, and the expanded prefix
        options.broadcast_tcp_port = options.broadcast_tcp_port or max(self._port("TCP"), 0)
        options.broadcast_http_port = options.broadcast_http_port or max(self._port("HTTP"), 0)
        node = join_host_port(options.broadcast_address, options.broadcast_http_port)
        options.statsd_prefix = expand_prefix(options.statsd_prefix, node)

    def _port(self, kind: str) -> int:
        return self._listeners[kind].port if kind in self._listeners else 0

    def _build_servers(self, new_tls: Callable[[], TLS] | None) -> None:
        options, log, spawn_for_client = self._options, self._log, self._supervisor.spawn_for_client
        certificates = self._certificates
        if options.embedded_lookupd_tcp_address or options.embedded_lookupd_http_address:
            from gnsqd.lookupd.nsqlookupd import EmbeddedLookupd  # most daemons have none

            lookupd_log = log.derive(LookupdOptions().log_prefix)
            self._embedded = EmbeddedLookupd(options, lookupd_log, self._supervisor, self._new_topic)
        if options.admin_http_address:
            from nsqadmin_cli.web.process import PageProcess  # few have it

            # of nsqlookupd in this process, if this nsqd is registered there, else of this nsqd alone
            lookupd = "" if self._embedded is None else self._embedded.registered_at
            http_address = self._listeners["HTTP"].address if "HTTP" in self._listeners else ""
            name = options.broadcast_address if options.broadcast_address_given else ""
            page = (options.admin_http_address, http_address, (name, options.broadcast_http_port), lookupd)
            self._admin = PageProcess(*page, options.http_auth_token_files, log)
        if options.auth_http_addresses:
            from gnsqd.cluster.auth import MAX_ANSWER_SIZE, Auth  # imported late, as they load slowly
            from gnsqd.cluster.http_client import GoHTTPClient

            timeouts = (options.http_client_connect_timeout, options.http_client_request_timeout)
            http_client = GoHTTPClient(*timeouts, MAX_ANSWER_SIZE, tls_min_version=options.tls_min_version)
            if certificates is not None:
                http_client.use_roots(certificates.loaded.roots_der)
                certificates.note_roots = http_client.use_roots
            self._auth = Auth(options.auth_http_addresses, http_client, options.auth_http_request_method)
        authenticate = None if self._auth is None else self._auth.query
        commands = Commands(self._registry, options, log, new_tls, authenticate)
        self._tcp_server = TCPServer(self._listeners["TCP"], commands, options, log, spawn_for_client)
        parts = (self._registry, self._drain, self._debug, self._tcp_server, self._lookup)
        expiries = dict if certificates is None else lambda: certificates.loaded.expiries()
        daemon_api = DaemonAPI(options, *parts, self._port("HTTP"), self._exit_requested.is_set, log, expiries)
        publishing = Publishing(options, self._registry, log)
        endpoints = (publishing, daemon_api, self._debug, self._ranges)
        api = BrokerAPI(options, self._registry, self._metadata_file, *endpoints)
        router = Router(api, options, log)
        guard = None
        if options.http_auth_token_files or options.http_auth_common_names or options.http_auth_server:
            from gnsqd.web.http_auth import build_guard  # loads OpenSSL

            guard = build_guard(options, router, log, authenticate)
        allow = allow_origins(options.http_allow_origins, router.methods)
        self._http_servers: list[HTTPServer] = []
        limits = (options.http_idle_timeout, options.max_http_connections)
        if listener := self._listeners.get("HTTP"):
            is_refused = options.tls_required == TLS_REQUIRED
            responder = allow(TLSRequired(self._port("HTTPS")) if is_refused else guard or router)
            self._http_servers.append(HTTPServer(listener, responder, *limits, log, spawn_for_client))
        if listener := self._listeners.get("HTTPS"):
            for_peer = None if guard is None else lambda name: allow(guard.for_peer(name))
            server = HTTPServer(listener, allow(guard or router), *limits, log, spawn_for_client, new_tls, for_peer)
            self._http_servers.append(server)

    def _start_loops(self) -> None:
        self._memory.start()
        self._spawn("tcpServer", self._tcp_server.serve)
        for server in self._http_servers:
            self._spawn("httpServer", server.serve)
        if self._certificates is not None:
            self._spawn("certificateLoop", partial(self._certificates.certificate_loop, self._exit_requested))
        if self._embedded is not None:
            self._embedded.start()
        if self._admin is not None:
            self._spawn("adminServer", self._admin.serve)
        self._queue_scan.start()
        self._spawn("syncLoop", self._syncer.syncLoop)
        self._spawn("journalLoop", self._data_path.journals.journal_loop)
        self._spawn("compactionLoop", self._data_path.journals.compaction_loop)
        if self._shipper is not None:
            self._shipper.start(self._spawn)
        self._spawn("persistLoop", self._metadata_file.persist_loop)
        self._spawn("healthLoop", self._health.loop)
        if self._options.bounded:
            self._spawn("boundsLoop", lambda: bounds_loop(self._bounds, self._free_disk, self._bounds_exit))
        if self._options.max_attempts:
            self._dead_letters.start()
        self._lookup.connect()
        if self._options.statsd_address:
            from gnsqd.observe.statsd import Statsd  # loads slowly

            self._statsd = Statsd(self._registry, self._options, self._memory, self._log, self._spawn)
            self._statsd.start()
        self._spawn("reportLoop", self._service_manager.report_loop)

    def _new_topic(self, name: str) -> Topic | None:
        """Returns the topic that a consumer looks for, None if it cannot be created now. May yield."""
        try:
            if not self._registry.draining:
                check_limit(name, self._registry.topics, self._options.max_topics, "topics")
                return self._registry.get_topic(name)
        except (BrokerError, StorageError) as error:
            self._log.warn("TOPIC(%s): not created for a lookup - %s", name, error)
        return None

    def _channels_to_precreate(self, topic: str) -> list[str]:
        """Returns the channels that any nsqlookupd lists. Yields."""
        embedded = [] if self._embedded is None else self._embedded.db.channel_names(topic)
        return sorted({*embedded, *self._lookup.channels_to_precreate(topic)})

    def _check_exit(self) -> None:
        if self._registry.loading and self._exit_requested.is_set():
            text = "asked to exit while messages move from disk queues to journals"
            raise StartError(f"{text}; the next start goes on with the rest", prefix="failed to load metadata")

    def _bounds(self) -> list[Bounds]:
        topics = self._registry.topics.values()
        return [topic.bounds for topic in topics if topic.bounds is not None and not topic.exiting]

    # nsqd.dat

    def _load_metadata(self) -> None:
        is_missing = not os.path.exists(self._metadata_path)
        if is_missing and (names := metadata.find_older(self._options.data_path)):
            text = "NSQ: there is no %s, and metadata of an nsqd before v1.0 is not read: %s; to have its topics and "
            text += "channels, stop this nsqd and rename that file, of the same format, to %s"
            self._log.warn(text, self._metadata_path, ", ".join(names), metadata.FILE_NAME)
        try:
            listed = metadata.load(self._metadata_path)
        except StorageError as error:
            if isinstance(error.__cause__, ValueError):
                text = "NSQ: %s is damaged; `gnsqadmin data repair --replace %s` restores topics and channels from the "
                text += "names of the other files"
                self._log.warn(text, self._metadata_path, self._quoted_data_path)
            raise
        topics = self._data_path.end_journals(listed)
        path = os.path.join(self._options.data_path, metadata.RULES_NAME)
        self._rule_book.kept = broker_rules.decode(metadata.load_rules(path))
        self._registry.load(topics, self._data_path.journals.topics)
        self._rule_book.kept = {}
        if names := find_unserved(self._data_path.context.data_files):
            shown = ", ".join(names[:MAX_NAMES])
            shown += f" and {len(names) - MAX_NAMES} others" if len(names) > MAX_NAMES else ""
            reason = f"{self._metadata_path} {'is missing' if is_missing else 'does not list them'}"
            text = "NSQ: messages of %s are not served, as %s; to serve them, stop this nsqd and run `gnsqadmin data "
            text += "repair --adopt-orphans --replace %s`"
            self._log.warn(text, shown, reason, self._quoted_data_path)
        try:
            self._metadata_file.write()
        except StorageError as error:
            if not self._registry.topics:
                raise StartError(str(error), prefix="failed to persist metadata") from error
            # consumers have to drain a full disk; persist_loop tries again
            self._log.error("failed to persist metadata - %s", error)

    @property
    def _quoted_data_path(self) -> str:
        from shlex import quote  # few need it

        return quote(self._options.data_path or ".")

    def _notify(self, changed: Topic | Channel, persist: bool) -> None:
        topic, channel = (changed.topic_name, changed.name) if isinstance(changed, Channel) else (changed.name, "")
        if persist:
            self._metadata_file.note_change(topic)
        self._lookup.notify(topic, channel, changed.exiting)
        if self._embedded is not None:
            self._embedded.notify(topic, channel, changed.exiting)

    # Exit

    def terminate(self) -> None:
        """Exits, or drains before that. A second SIGTERM always exits."""
        if self._options.sigterm == "exit" or (self._terminating and self._registry.draining):
            self.request_exit(0)
        elif not self._exit_requested.is_set():
            self._terminating = True
            self._drain.start()

    def exit(self) -> int:
        """Flushes everything to disk. What fails by a defect does not keep the rest from being done."""
        auth, embedded, admin = self._auth, self._embedded, self._admin
        servers: list[Server] = [self._tcp_server, *self._http_servers]
        servers += [] if embedded is None else embedded.servers.values()
        for step in (
            self._health.stop,
            self._service_manager.stopping,
            self._demo and self._demo.stop,
            auth and auth.stop,
            # a client may connect again as soon as it is closed, and must be refused
            *(listener.close for listener in self._listeners.values()),
            embedded and embedded.stop_accepting,
            admin and admin.stop,
            self._debug.stop,
            self._ranges.stop,
            self._shipper and self._shipper.hurry,
            partial(close_servers, servers),
            admin and admin.join,
            self._drain.stop,
            self._bounds_exit.set,
            self._idle.stop,
            self._dead_letters.stop,
            self._lookup.stop,
            self._metadata_file.close,  # before the topics go one by one
            self._close_topics,
            self._lookup.join,
            partial(self._log.info, "NSQ: stopping subsystems"),
            self._queue_scan.stop,
            self._statsd and self._statsd.stop,
            self._data_path.journals.stop,
            self._shipper and self._shipper.stop,
            self._syncer.stop,
            self._lock.release,
        ):
            if step is not None:
                self._supervisor.run("exit", step)
        self._log.info("NSQ: bye")
        return self._exit_code

    def _close_topics(self) -> None:
        self._log.info("NSQ: closing topics")
        left = self._registry.close()
        if left.lost:
            self._log.error("NSQ: %d messages could not be written to disk and are lost", left.lost)
        if left.unsynced:
            text = "NSQ: %d queues could not be synced to disk and may lose messages or repeat them"
            self._log.error(text, left.unsynced)
        if left.lost or left.unsynced:
            self._exit_code = self._exit_code or 1
        if left.journaled:
            text = "NSQ: %d messages are in journals, which only gnsqd reads; `gnsqadmin data convert %s` moves them "
            text += "to disk queues, for any nsqd"
            self._log.info(text, left.journaled, self._quoted_data_path)
