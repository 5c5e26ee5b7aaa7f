"""Protocol V1, which nsqds use to register: PING, IDENTIFY, REGISTER and UNREGISTER (NSQD-COMPAT 6.2).

A command is a line of words, after IDENTIFY with an int32 size and that many bytes of JSON. Every error ends the
connection, after it was sent as a reply.
"""

import socket
from contextlib import suppress

from gnsqd.gotext import Struct, decode_object, dumps
from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.lookupd.client_v1 import ClientV1, CommandRefused, Registrant, StreamEnded
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB
from gnsqd.shared.names import TooMany, is_valid_name
from gnsqd.shared.version import NSQD_VERSION

MAGIC_V1 = b"  V1"
MAX_BODY = 16384  # bytes of IDENTIFY's JSON

_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))  # Go's
_PEER_INFO = Struct(
    "nsqlookupd.PeerInfo",
    {
        "remote_address": "string",
        "hostname": "string",
        "broadcast_address": "string",
        "tcp_port": "int",
        "http_port": "int",
        "version": "string",
    },
)
# Unknown to v1.3.0, which therefore accepts any type.
_TOPOLOGY = [Struct(_PEER_INFO.name, {name: "string"}) for name in ("topology_zone", "topology_region")]
_REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")


class LookupProtocolV1:
    """Serves clients that have sent the magic. `ports` are those of TCP and HTTP."""

    def __init__(self, db: RegistrationDB, broadcast_address: str, ports: tuple[int, int], log: Logger) -> None:
        self._db = db
        self._broadcast_address = broadcast_address
        self._ports = ports
        self._log = log

    def IOLoop(self, client: ClientV1) -> None:
        """Executes commands until the client is gone or in error; raises OSError, StreamEnded or CommandRefused."""
        registrant: Registrant | None = None
        turns = Turns()
        try:
            while True:
                line = client.read_line().decode("utf-8", "surrogateescape").strip(_SPACES)
                command, *parameters = line.split(" ")
                match command:
                    case "PING":
                        if registrant is not None:
                            registrant.ping()
                        client.reply(b"OK")
                    case "IDENTIFY":
                        if registrant is not None:
                            raise CommandRefused("E_INVALID", "cannot IDENTIFY again")
                        registrant = self._identify(client)
                        client.reply(self._describe())
                    case "REGISTER" | "UNREGISTER":
                        self._change(registrant, command, parameters)
                        client.reply(b"OK")
                    case _:
                        raise CommandRefused("E_INVALID", f"invalid command {command}")
                turns.give()
        except CommandRefused as error:
            self._log.error("[%s] - %s%s", client, error, "" if error.cause is None else f" - {error.cause}")
            client.reply(str(error).encode("utf-8", "surrogateescape"))
            client.flush()
            raise
        finally:
            self._log.info("PROTOCOL(V1): [%s] exiting ioloop", client)
            if registrant is not None:
                registrant.disconnect()

    def _identify(self, client: ClientV1) -> Registrant:
        code = "E_BAD_BODY"
        try:
            size = client.read_size()
        except (StreamEnded, OSError) as error:
            raise CommandRefused(code, "IDENTIFY failed to read body size", error) from error
        if not 0 <= size <= MAX_BODY:
            cause = ValueError(f"size {size} is not in [0,{MAX_BODY}]")
            raise CommandRefused(code, "IDENTIFY failed to read body", cause)
        try:
            body = client.read(size)
        except (StreamEnded, OSError) as error:
            raise CommandRefused(code, "IDENTIFY failed to read body", error) from error
        try:
            fields = decode_object(body, _PEER_INFO)
        except ValueError as error:
            raise CommandRefused(code, "IDENTIFY failed to decode JSON body", error) from error
        if not all(fields.get(name) for name in _REQUIRED):
            raise CommandRefused(code, "IDENTIFY missing fields")
        fields.pop("remote_address", None)
        for struct in _TOPOLOGY:
            with suppress(ValueError):
                fields |= decode_object(body, struct)
        peer = PeerInfo(str(client), **fields)
        self._log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            client,
            peer.broadcast_address,
            peer.tcp_port,
            peer.http_port,
            peer.version,
        )
        return Registrant(self._db, peer, self._log)

    def _describe(self) -> bytes:
        tcp_port, http_port = self._ports
        description = {
            "broadcast_address": self._broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": http_port,
            "tcp_port": tcp_port,
            "version": NSQD_VERSION,
        }
        return dumps(description).encode()

    def _change(self, registrant: Registrant | None, command: str, parameters: list[str]) -> None:
        if registrant is None:
            raise CommandRefused("E_INVALID", "client must IDENTIFY")
        if not parameters:
            raise CommandRefused("E_INVALID", f"{command} insufficient number of params")
        topic, channel = parameters[0], "".join(parameters[1:2])
        if not is_valid_name(topic):
            raise CommandRefused("E_BAD_TOPIC", f"{command} topic name '{topic}' is not valid")
        if channel and not is_valid_name(channel):
            raise CommandRefused("E_BAD_CHANNEL", f"{command} channel name '{channel}' is not valid")
        if command == "UNREGISTER":
            registrant.unregister(topic, channel)
            return
        try:
            registrant.register(topic, channel)
        except TooMany as error:
            raise CommandRefused("E_REGISTER_FAILED", f"REGISTER failed {error.reason}") from error
