"""Registers topics and channels with every nsqlookupd, and asks them for the channels of a new topic (NSQD-COMPAT
section 6.1). Each has its own lookupLoop with a queue of commands, so that one that is slow, dead or faulty does not
delay the others.

A name is one peer, which dials the addresses of the name in turn, as nsqd does. If the name has several addresses of
one family, these are the peers instead. Addresses of both families are not: they may be those of one nsqlookupd.

The first command opens the connection, and so does the next one after it broke. A connection begins with IDENTIFY and a
REGISTER of everything, so commands that cannot be sent are dropped: the queue when connecting fails, and a queue that
is too long together with its connection. The real nsqlookupd keeps an ephemeral name until an UNREGISTER of it finds no
producer left. So a new connection also sends that for names that have gone, and the last one sends the queue and an
UNREGISTER of every ephemeral name.
"""

import re
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import gethostname
from time import monotonic
from typing import TYPE_CHECKING

from gevent import Greenlet, Timeout, joinall, killall, sleep

from gnsqd.broker.registry import Registry
from gnsqd.gotext import Struct, decode_object, dumps, quote
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.addresses import format_address, is_name, join_host_port, reason, split_host_port
from gnsqd.options import Options
from gnsqd.shared.errors import AnswerTooLarge, HTTPClientError, NSQError
from gnsqd.shared.names import is_ephemeral, is_valid_name
from gnsqd.shared.record import Record
from gnsqd.shared.version import NSQD_VERSION

if TYPE_CHECKING:
    from gnsqd.cluster.http_client import GoHTTPClient
    from gnsqd.net.dialing import Socket

MAX_CHANNELS_BODY = 5 * 1024 * 1024  # bytes
END_TIMEOUT = 1.0  # seconds in which all connections together send the rest
RESOLVE_INTERVAL = 60.0  # seconds until names are looked up again
RESOLVE_PAUSE = 1.0  # the same when a peer failed; many may fail, and often

# An answer with channels, which is parsed name by name: json would take seconds for the worst of MAX_CHANNELS_BODY.
# The patterns are compiled when the first such answer arrives.
_BEGIN = r'"channels"\s*:\s*\[\s*(?P<end>\])?'
_NAME = r'\s*"(?P<name>[^"\\]*)"\s*(?:,|(?P<end>\]))'

MAGIC_V1 = b"  V1"
PING_INTERVAL = 15.0  # seconds
MAX_EVENTS = 1000
CONNECT_TIMEOUT = 1.0  # seconds
IO_TIMEOUT = 1.0  # to send a command, and for its whole answer; also for all that is sent last

_SIZE = struct.Struct(">i")
_MAX_ANSWER = 16 * 1024  # bytes; it is a few words, or IDENTIFY's small JSON, and large JSON takes long to parse
_SHOWN = 200  # bytes of an answer that makes no sense
_INFO = Struct(
    "nsqd.peerInfo", {"tcp_port": "int", "http_port": "int", "version": "string", "broadcast_address": "string"}
)

Identity = Callable[[str], dict[str, object]]  # the fields of IDENTIFY, for a local IP address
Registrations = Callable[[], list[tuple[str, list[str]]]]  # topic names, each with the names of its channels


class Lookup:
    """Owns the peers, in the order of the addresses. Nothing happens before `connect`."""

    def __init__(self, registry: Registry, options: Options, log: Logger, spawn: Spawn) -> None:
        self._registry = registry
        self._options = options
        self._log = log
        self._spawn = spawn
        self._http: GoHTTPClient | None = None
        self._peers: dict[str, LookupPeer] = {}
        self._addresses: dict[str, list[str]] = {}  # of each name that has several
        self._resolver: Greenlet[..., None] | None = None
        self._resolver_doorbell = Doorbell()
        self._queries: set[Greenlet[..., None]] = set()
        self._ending: list[Greenlet[..., None]] = []

    def stop(self) -> None:
        """Ends the connections; pending queries for channels return without them. Yields."""
        self._log.info("LOOKUP: closing")
        self._ending = [peer.loop for peer in self._peers.values()]
        for peer in self._peers.values():
            peer.end()
        self._peers.clear()
        killall([*self._queries, *([] if self._resolver is None else [self._resolver])])

    def join(self) -> None:
        """Returns after `stop` when the connections have sent the rest, or after END_TIMEOUT. Yields."""
        joinall(self._ending, END_TIMEOUT)
        killall(self._ending)

    def connect(self) -> None:
        """Connects to the nsqlookupds of the options, and disconnects from others. Never yields: names are looked up
        later."""
        options = self._options
        addresses = options.nsqlookupd_tcp_addresses or []
        if addresses and self._http is None:
            from gnsqd.cluster.http_client import GoHTTPClient  # imported late, as it loads slowly

            timeouts = options.http_client_connect_timeout, options.http_client_request_timeout
            self._http = GoHTTPClient(*timeouts, MAX_CHANNELS_BODY)
        self._update_peers()
        if self._resolver is not None:
            self._resolver_doorbell.ring()
        elif any(map(is_name, addresses)):
            self._resolver = self._spawn("resolveLoop", self._resolve_loop)

    def _update_peers(self) -> None:
        options = self._options
        given = options.nsqlookupd_tcp_addresses or []
        addresses = [address for each in given for address in self._addresses.get(each, [each])]
        for address in [address for address in self._peers if address not in addresses]:
            self._log.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).end()
        for address in addresses:
            if address not in self._peers:
                self._log.info("LOOKUP(%s): adding peer", address)
                functions = self._identity, self._registrations, self._resolver_doorbell.ring
                peer = LookupPeer(address, *functions, options.max_body_size, self._log)
                peer.loop = self._spawn(f"lookupLoop:{address}", peer.lookupLoop)
                self._peers[address] = peer

    def _resolve_loop(self) -> None:
        while True:
            names = list(filter(is_name, self._options.nsqlookupd_tcp_addresses or []))
            self._addresses = {name: self._addresses[name] for name in names if name in self._addresses}
            for name in names:
                self._resolve(name)
            sleep(RESOLVE_PAUSE)
            self._resolver_doorbell.wait(RESOLVE_INTERVAL)

    def _resolve(self, name: str) -> None:
        """Looks a name up, and connects to its addresses if it has several. If that fails, the peers stay. Yields."""
        from gnsqd.net.dialing import look_up  # late, as most have no nsqlookupd

        families: dict[int, set[str]] = {}
        try:
            for family, _, _, _, address in look_up(*split_host_port(name), CONNECT_TIMEOUT):
                families.setdefault(family, set()).add(format_address(address))
        except (OSError, ValueError) as error:
            if name in self._addresses:  # otherwise its peer logs the same
                self._log.warn("LOOKUP(%s): keeping its addresses - %s", name, reason(error))
            return
        addresses = max(map(sorted, families.values()), key=len)
        if len(addresses) > 1 or addresses[0] in self._peers:  # the only one left stays connected
            self._addresses[name] = addresses
        else:
            self._addresses.pop(name, None)
        self._update_peers()

    def connected(self) -> dict[str, bool]:
        """Returns, for each nsqlookupd by address, True if it is connected and has all registrations."""
        return {address: peer.connected for address, peer in self._peers.items()}

    def _identity(self, local_host: str) -> dict[str, object]:
        options = self._options
        if options.broadcast_address_auto:
            options.broadcast_address = local_host  # /info shows it too
        topology = {"topology_region": options.topology_region, "topology_zone": options.topology_zone}
        return {
            "broadcast_address": options.broadcast_address,
            "hostname": gethostname(),
            "http_port": options.broadcast_http_port,
            "tcp_port": options.broadcast_tcp_port,
            **(topology if options.has_topology else {}),
            "version": NSQD_VERSION,
        }

    def _registrations(self) -> list[tuple[str, list[str]]]:
        return [
            (topic.name, [channel.name for channel in topic.channels.values() if not channel.exiting])
            for topic in self._registry.topics.values()
            if not topic.exiting
        ]

    def notify(self, topic: str, channel: str, exiting: bool) -> None:
        """Reports that a topic or, with its name, a channel was created or deleted. Never yields."""
        kind, names = ("channel", f"{topic} {channel}") if channel else ("topic", topic)
        for peer in self._peers.values():
            peer.queue_command(kind, f"{'UNREGISTER' if exiting else 'REGISTER'} {names}")

    def channels_to_precreate(self, topic_name: str) -> list[str]:
        """Returns the channels of this topic that nsqlookupds list, sorted. Yields until all have answered or failed.
        Peers that do not answer at the moment are asked only if there are no others."""
        known = [peer for peer in self._peers.values() if peer.info.broadcast_address]
        infos = [peer.info for peer in known if peer.connected] or [peer.info for peer in known]
        if not infos:
            if self._peers:
                self._log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic_name)
            return []
        names: set[str] = set()
        errors: list[str] = []
        queries = []
        for info in infos:
            address = join_host_port(info.broadcast_address, info.http_port)
            queries.append(self._spawn(f"query:{address}", partial(self._query, address, topic_name, names, errors)))
        self._queries.update(queries)  # which `stop` ends
        joinall(queries)
        self._queries.difference_update(queries)
        if errors:
            prefix = "failed to query any nsqlookupd: " if len(errors) == len(infos) else ""
            text = "failed to query nsqlookupd for channels to pre-create for topic %s - %s%s"
            self._log.warn(text, topic_name, prefix, "; ".join(errors))
        return sorted(names)

    def _query(self, address: str, topic_name: str, names: set[str], errors: list[str]) -> None:
        """Adds the channels that an nsqlookupd lists to `names`, or a text to `errors`. Yields."""
        assert self._http is not None
        target = f"/channels?topic={topic_name.replace('#', '%23')}"  # names have no other special characters
        self._log.info("CI: querying nsqlookupd http://%s%s", address, target)
        try:
            names.update(self._parse_channels(self._http.request(f"http://{address}{target}")))
        except (HTTPClientError, ValueError) as error:
            errors.append(str(error))
            if isinstance(error.__cause__, AnswerTooLarge):
                text = "TOPIC(%s): nsqlookupd http://%s lists more than %d bytes of channels, so none of them is "
                text += "created in advance: each misses the messages before its first consumer connects here"
                self._log.error(text, topic_name, address, MAX_CHANNELS_BODY)

    def _parse_channels(self, body: bytes) -> list[str]:
        """Returns the valid names, as they become file names; raises ValueError if there is no list. Yields."""
        text, turns = body.decode("utf-8", "replace"), Turns()
        names: list[str] = []
        match = re.search(_BEGIN, text)
        while match is not None and match["end"] is None:
            match = re.compile(_NAME).match(text, match.end())
            if match is not None:
                names.append(match["name"])
            turns.give()
        if match is None:
            raise ValueError("no list of channels")
        valid = [name for name in turns.over(names) if is_valid_name(name)]
        if len(valid) < len(names):
            self._log.warn("skipping creation of %d invalid channels", len(names) - len(valid))
        return valid


class LookupdError(NSQError):
    """A command failed, which is "" if connecting failed; `ended` is True if the peer closed the connection."""

    def __init__(self, command: str, text: str, ended: bool = False) -> None:
        super().__init__(text)
        self.command = command
        self.ended = ended


class LookupdInfo(Record):
    """An nsqlookupd's description of itself."""

    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    broadcast_address: str = ""

    def __str__(self) -> str:
        """Returns the text that the real daemon logs."""
        ports = f"TCPPort:{self.tcp_port} HTTPPort:{self.http_port}"
        return f"{{{ports} Version:{self.version} BroadcastAddress:{self.broadcast_address}}}"


class LookupPeer:
    """Owns the connection to the nsqlookupd at `address`; one greenlet at a time may use it. `identity` and
    `registrations` return what to send, `note_failure` is called when a command failed; none of them yields. `loop` is
    the greenlet of lookupLoop."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        registrations: Registrations,
        note_failure: Callable[[], None],
        max_body_size: int,
        log: Logger,
    ) -> None:
        self.address = address
        self.info = LookupdInfo()  # kept when the connection breaks
        self.loop: Greenlet[..., None]
        self.connected = False  # and all that there was when the connection was made is registered
        self._identity = identity
        self._registrations = registrations
        self._note_failure = note_failure
        self._max_answer = min(max_body_size, _MAX_ANSWER)
        self._log = log
        self._socket: Socket | None = None
        self._events: deque[tuple[str, str]] = deque()
        self._doorbell = Doorbell()
        self._overrun = False
        self._is_ending = False
        self._ephemeral: set[str] = set()  # `topic`s and `topic channel`s that were registered, and not unregistered

    def queue_command(self, kind: str, command: str) -> None:
        """Queues a command about a topic or a channel, by `kind`. Never yields."""
        if len(self._events) < MAX_EVENTS:
            self._events.append((kind, command))
        else:
            self._events.clear()
            self._overrun = True
        self._doorbell.ring()

    def end(self) -> None:
        """Lets lookupLoop return: at once without a connection, otherwise after it has sent the rest. Never yields."""
        self._is_ending = True
        self._doorbell.ring()
        if self._socket is None:
            self.loop.kill(block=False)

    def lookupLoop(self) -> None:
        """Registers everything, then what changes, and sends PING, until `end`."""
        try:
            ping_at = monotonic() + PING_INTERVAL
            self._attempt()
            while not self._is_ending:
                wait = ping_at - monotonic()
                if self._overrun:
                    self._log.warn("LOOKUPD(%s): too far behind, registering everything again", self.address)
                    self._overrun = False
                    self.close()
                    self._attempt()
                elif wait <= 0:
                    self._log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                    ping_at = monotonic() + PING_INTERVAL
                    self._attempt("PING")
                elif self._events:
                    kind, command = self._events.popleft()
                    self._log.info("LOOKUPD(%s): %s %s", self.address, kind, command)
                    self._attempt(command)
                else:
                    self._doorbell.wait(wait)
            if self.connected:
                self._take_leave()
        finally:
            self.close()

    def _take_leave(self) -> None:
        """Sends the queue, and UNREGISTER of all ephemeral names, at once and within IO_TIMEOUT. Yields."""
        for _, command in self._events:
            self._note(command)
        names = sorted(self._ephemeral, reverse=True)  # a channel before its topic
        self._events += [("channel" if " " in name else "topic", f"UNREGISTER {name}") for name in names]
        for kind, command in self._events:
            self._log.info("LOOKUPD(%s): %s %s", self.address, kind, command)
        assert self._socket is not None
        with suppress(OSError, EOFError, ValueError), Timeout(IO_TIMEOUT, TimeoutError()):
            self._socket.sendall("".join(f"{command}\n" for _, command in self._events).encode())
            for _ in self._events:
                self._receive_answer()

    def _attempt(self, command: str = "") -> None:
        connected = self.connected
        try:
            self.command(command)
        except LookupdError as error:
            self._log.error("LOOKUPD(%s): %s - %s", self.address, error.command or command or "connect", error)
            self._note_failure()
            if not connected:
                self._events.clear()
            elif error.ended:  # it was restarted, perhaps, and the next PING would be long in coming
                self._attempt()

    def command(self, command: str) -> None:
        """Connects and registers, unless that is done. Then sends the command, unless it is empty, and waits for its
        answer, which may be an error. Raises LookupdError. Yields."""
        if not self.connected:
            self._connect()
        if command:
            self._exchange(command)

    def _connect(self) -> None:
        from gnsqd.net.dialing import dial_address  # late, as most have no nsqlookupd

        self._log.info("LOOKUP connecting to %s", self.address)
        try:
            self._socket = dial_address(self.address, CONNECT_TIMEOUT)
            local_host = self._socket.getsockname()[0].removeprefix("::ffff:")
        except OSError as error:
            self.close()
            raise LookupdError("", str(error)) from error
        identity = dumps(dict(sorted(self._identity(local_host).items()))).encode()
        answer = self._exchange("IDENTIFY", _SIZE.pack(len(identity)) + identity, MAGIC_V1)
        try:
            info = LookupdInfo(**decode_object(answer, _INFO))
            if not str(info).isprintable():
                raise ValueError("control characters")  # would make up lines in the log
        except ValueError as error:
            self.close()
            raise LookupdError("parsing response", quote(answer[:_SHOWN])) from error
        self.info = info
        self._log.info("LOOKUPD(%s): peer info %s", self.address, info)
        if not info.broadcast_address:
            self._log.error("LOOKUPD(%s): no broadcast address", self.address)
        registrations = self._registrations()
        names = [f"{topic} {channel}".rstrip() for topic, channels in registrations for channel in channels or [""]]
        gone = self._ephemeral.difference(names, [topic for topic, _ in registrations])
        for command in [*(f"REGISTER {name}" for name in names), *(f"UNREGISTER {name}" for name in gone)]:
            if self._is_ending:
                break
            self._log.info("LOOKUPD(%s): %s", self.address, command)
            self._exchange(command)
        self.connected = True

    def _exchange(self, command: str, body: bytes = b"", magic: bytes = b"") -> bytes:
        assert self._socket is not None
        if command.startswith("REGISTER"):
            self._note(command)
        try:
            with Timeout(IO_TIMEOUT, TimeoutError()):
                self._socket.sendall(b"%b%b\n%b" % (magic, command.encode(), body))
            with Timeout(IO_TIMEOUT, TimeoutError()):
                answer = self._receive_answer()
            self._note(command)
            return answer
        except (OSError, EOFError, ValueError) as error:
            self.close()
            text = reason(error) if isinstance(error, OSError) else str(error)
            raise LookupdError(command, text, isinstance(error, (EOFError, ConnectionError))) from error

    def _receive_answer(self) -> bytes:
        """Raises OSError, EOFError, or ValueError if it is too long. Yields."""
        assert self._socket is not None
        (size,) = _SIZE.unpack(_receive(self._socket, _SIZE.size))
        if not 0 <= size <= self._max_answer:
            raise ValueError(f"response body size ({size}) is greater than limit ({self._max_answer})")
        return _receive(self._socket, size)

    def _note(self, command: str) -> None:
        """Keeps track of the ephemeral names at nsqlookupd, where a channel registers its topic too."""
        verb, _, name = command.partition(" ")
        if verb == "REGISTER":
            self._ephemeral.update(filter(is_ephemeral, (name, name.partition(" ")[0])))
        elif verb == "UNREGISTER":
            self._ephemeral.discard(name)

    def close(self) -> None:
        """Closes the connection, if there is one."""
        self.connected = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _receive(sock: "Socket", size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        received = sock.recv(size - len(data))
        if not received:
            raise EOFError("EOF")
        data += received
    return bytes(data)
