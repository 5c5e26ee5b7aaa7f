"""nsqlookupd inside a gnsqd, which registers in its database directly, and at once.

Unless gnsqd was given a broadcast address, answers about it contain the host by which the asker has reached nsqlookupd:
the Host header of the request. So a container and its host, which know gnsqd by different names, both find it. Other
nsqds are shown as they describe themselves.

It requires no token, so it does not have /debug/pprof, which would show what gnsqd's own server may require one for.
"""

from collections.abc import Callable
from socket import gethostname

from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import Topic
from gnsqd.log import Logger
from gnsqd.lookupd.nsqlookupd import LookupdServers
from gnsqd.lookupd.registration_db import PeerInfo, Registrant
from gnsqd.options import LookupdOptions, Options
from gnsqd.shared.version import NSQD_VERSION
from gnsqd.supervisor import Supervisor

_ALWAYS = 1 << 63  # later than any time of the clock


class EmbeddedLookupd(LookupdServers):
    """Also owns the registration of this gnsqd. `new_topic(name)` returns a topic, created if need be; it is called for
    topics that are looked up, with --lookup-creates-topics. The broadcast ports in `options` must be known before."""

    def __init__(
        self,
        options: Options,
        log: Logger,
        supervisor: Supervisor,
        new_topic: Callable[[str], Topic | None],
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
        self._registrant: Registrant | None = None
        self.registered_at = ""  # the HTTP address where this gnsqd is listed
        if options.broadcast_tcp_port and options.broadcast_http_port:
            self.db.own = _own_peer(options)
            self._registrant = Registrant(self.db, self.db.own, log)
            self.registered_at = self.http_address
        else:
            log.error("this nsqd is not registered: it has no TCP port or no HTTP port, and no broadcast port instead")

    def notify(self, thing: Topic | Channel) -> None:
        """Reports that a topic or channel was created or deleted. Never yields."""
        if self._registrant is None:
            return
        if isinstance(thing, Channel):
            change = self._registrant.unregister if thing.exiting else self._registrant.register
            change(thing.topic_name, thing.name)
        elif not thing.exiting:
            self._registrant.register(thing.name, "")
        else:
            for channel in thing.channels:  # which will report themselves too late
                self._registrant.unregister(thing.name, channel)
            self._registrant.unregister_topic(thing.name)

    def _provide(self, name: str) -> None:
        topic = None if self._registrant is None else self._new_topic(name)
        if self._registrant is not None and topic is not None and not topic.exiting:
            for channel in ("", *topic.channels):  # which may have been deleted here, and not in the broker
                self._registrant.register(name, channel)


def _own_peer(options: Options) -> PeerInfo:
    """Returns this gnsqd, which never times out."""
    peer = PeerInfo(
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
    peer.heard = _ALWAYS
    return peer
