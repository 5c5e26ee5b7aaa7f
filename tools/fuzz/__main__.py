"""`python -m fuzz`: random, cut and broken input for the native sockets and records. `make fuzz` runs it.

In a round three clients of a daemon in this process send anything, publish, and consume. A round is played with the
endpoints and records in Python, then with those in C, whose input is cut at other places and whose calls of the system
and of OpenSSL handle only a part, or are interrupted: the answers must be the same. Then it is played with failures
that end connections, damaged records, and sockets that are closed. Nothing may crash, hang, fail in a greenlet or stay.
A finding ends it with a traceback, behind the number of the round, for --first.
"""

import argparse
import ctypes
import gc
import importlib.util
import os
import random
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from zlib import crc32

from cryptography.hazmat.bindings._rust import _openssl
from gevent import Greenlet, get_hub, joinall, sleep

from fuzz.client import GOODBYE, FuzzClient, Script
from gnsqd.broker.environment import Environment
from gnsqd.broker.registry import Registry
from gnsqd.broker.rules import RuleBook
from gnsqd.log import Level, Logger
from gnsqd.net import connection, tls
from gnsqd.net.plain import Endpoint
from gnsqd.options import Options
from gnsqd.queues.data_path import DataPath
from gnsqd.queues.message import GuidFactory
from gnsqd.shared.errors import BrokerError
from gnsqd.storage.syncer import Syncer
from gnsqd.wire import identify, session
from gnsqd.wire.commands import Commands
from gnsqd.wire.tcp import TCPServer
from kit.certificates import issue
from kit.nsq_client import ERROR, mpub_body, sized
from model.bad_arguments import NO_ID, command

PATIENCE, ROUGH_PATIENCE = 50.0, 0.3  # seconds without progress
TOPIC, CHANNEL, WILD = b"t#ephemeral", b"c#ephemeral", b"w#ephemeral"
SIZES = (1, 5, 100, 3000, 20_000, 70_000, 150_000)  # of bodies
PIECES = ((1, 2, 7, 50), (1, 30, 16_408, 1 << 20), (100, 5000, 1 << 17))  # bytes sent or received at once
SMALL = 20_000  # bytes, of a script that may be sent one at a time
LAYERS: tuple[list[str], ...] = ([], [], ["deflate"], ["tls1.2"], ["tls1.3"], ["tls1.2", "deflate"], ["tls1.3"])
SHARES = ((0, 0), (0.02, 0.005), (0.3, 0.05))  # of calls that fail: as may be, and so that the connection ends
GROWTH = 30 << 20  # bytes, after the first rounds
SETTLED = 100  # rounds


class FuzzFinding(Exception):
    """Something that must not happen."""


def python_tls() -> Any:
    """Returns a second `gnsqd.net.tls`, with the records in Python."""
    spec: Any = importlib.util.find_spec("gnsqd.net.tls")
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"gnsqd.net.native": None}):
        spec.loader.exec_module(module)
    return module


def load_failing(path: str) -> Any:
    """Returns the library of `failing.c`, through which OpenSSL is called from now on."""
    library = ctypes.CDLL(path)
    library.fail.argtypes = ctypes.c_uint, ctypes.c_double, ctypes.c_double
    library.failing.argtypes, library.failing.restype = (ctypes.c_char_p, ctypes.c_void_p), ctypes.c_size_t
    ffi = tls._ffi

    def addressof(lib: object, name: str) -> object:
        return library.failing(name.encode(), int(ffi.cast("uintptr_t", ffi.addressof(lib, name))))

    sys.modules["gnsqd.net.native"].use_openssl(SimpleNamespace(cast=ffi.cast, addressof=addressof), _openssl.lib)
    return library


def scripts(chance: random.Random) -> list[Script]:
    """Returns those of the client that sends anything, the publisher, and the consumer."""
    most, sizes = chance.choice(((60, SIZES[:3]), (60, SIZES[:4]), (30, SIZES[:4]), (12, SIZES)))
    subscribes = chance.random() < 0.5
    wild = [b"SUB %b %b\n" % (WILD, CHANNEL), b"RDY 5\n"] * subscribes
    for _ in range(chance.randrange(1, most)):
        body = chance.randbytes(chance.choice(sizes))
        pub, dpub = (b"%b\n%b" % (line, sized(body)) for line in (b"PUB " + WILD, b"DPUB %b 9" % WILD))
        bad = command(chance, WILD.decode(), CHANNEL.decode(), subscribes, False)
        flipped = bytearray(pub)
        flipped[chance.randrange(min(len(pub), 30))] ^= 1 << chance.randrange(8)
        usual = [pub, pub, dpub, b"NOP\n", b"MPUB %b\n%b" % (WILD, sized(mpub_body(body, b"x")))]
        usual += [b"FIN " + NO_ID + b"\n", b"RDY 5\n"] * subscribes
        wild.append(chance.choice((bad.line + b"\n" + bad.body, bytes(flipped), body, GOODBYE, *usual * 20)))
    wild[-1] = wild[-1][: chance.choice((-1, 5, 1000, None))]
    bodies = [b"%d " % number + bytes(chance.choice(sizes)) for number in range(chance.randrange(1, most))]
    singles = chance.randrange(len(bodies))
    publishes = [b"PUB %b\n%b" % (TOPIC, sized(body)) for body in bodies[:singles]]
    publishes.append(b"MPUB %b\n%b" % (TOPIC, sized(mpub_body(*bodies[singles:]))))
    consume = [b"SUB %b %b\n" % (TOPIC, CHANNEL), b"RDY %d\n" % chance.choice((1, 3, 50))]
    deliveries = sum(1 if crc32(body) % 4 else 2 for body in bodies)
    magic = b"  V2" if chance.random() < 0.95 else chance.randbytes(4)
    return [
        Script(magic, chance.choice(LAYERS), wild),
        Script(b"  V2", chance.choice(LAYERS), [*publishes, GOODBYE]),
        Script(b"  V2", chance.choice(LAYERS), consume, deliveries),
    ]


class FuzzWorld:
    """Everything that lives as long as the process."""

    def __init__(self, directory: Path) -> None:
        self._library = load_failing(os.environ["GNSQD_FAILING"])
        cert, key = issue("server").write(directory / "server")
        limits: Any = {"max_msg_size": 400_000, "max_rdy_count": 50, "magic_timeout": 0}
        self._options = Options(tls_cert=cert, tls_key=key, data_path=str(directory), **limits)
        self._lanes = [
            (endpoint, partial(module.TLSLayer, module.build_context(self._options)))
            for endpoint, module in ((Endpoint, python_tls()), (connection._new_endpoint, tls))
        ]
        session.TLS_HANDSHAKE_SECONDS = 600.0  # the machine may be busy
        self.injected = ctypes.c_uint.in_dll(self._library, "injected")
        self._log = Logger("", Level.FATAL, StringIO())
        self._greenlets: list[Greenlet[..., None]] = []
        stores = DataPath(self._options, self._log, Syncer(), lambda error: None)
        self._environment = Environment(
            options=self._options,
            log=self._log,
            ids=GuidFactory(0),
            open_store=stores.open_store,
            notify=lambda thing, persist: None,
            channels_to_precreate=lambda topic_name: [],
            spawn=self._spawn,
            rules=RuleBook(),
        )
        self._errors: list[str] = []
        get_hub().handle_error = lambda context, kind, error, trace: self._errors.append(f"{context}: {error!r}")

    def _spawn(self, name: str, body: Callable[[], None]) -> "Greenlet[..., None]":
        self._greenlets.append(Greenlet.spawn(body))
        return self._greenlets[-1]

    def play(self, scripts: list[Script], seed: str, is_native: bool, is_rough: bool) -> list[FuzzClient]:
        """Returns the clients, which have ended; raises FuzzFinding."""
        chance = random.Random(seed)
        endpoint, new_tls = self._lanes[is_native]
        connection._new_endpoint = endpoint
        self._greenlets.clear()
        registry = Registry()
        registry.attach(self._environment)
        listener: Any = SimpleNamespace(port=-1)
        log = Logger("", Level.FATAL, StringIO())  # the commands follow its level as long as it lives
        commands = Commands(registry, self._options, log, new_tls)
        server = TCPServer(listener, commands, self._options, self._log, self._spawn)
        harmless, fatal = chance.choice(SHARES)
        self._library.fail(chance.getrandbits(32), harmless * is_native, fatal * is_rough)
        is_failing = (ctypes.c_bool * 65536).in_dll(self._library, "is_failing")
        has_small_buffers = chance.random() < 0.5
        fits = sum(len(data) for script in scripts for data in script.commands) < SMALL
        clients = []
        for number, script in enumerate(scripts):
            pair = ours, theirs = socket.socketpair()
            for sock in pair if has_small_buffers else ():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2304)
            pieces = chance.choice(PIECES[not fits :] if is_native else PIECES[2:])
            clients.append(FuzzClient(theirs, script, chance, pieces))
            is_failing[ours.fileno()] = is_native
            server._spawn_client(ours, f"127.0.0.1:{number}")
        self._drive(clients, server, chance, is_rough)
        self._end(registry, server)
        return clients

    def _drive(self, clients: list[FuzzClient], server: TCPServer, chance: random.Random, is_rough: bool) -> None:
        disturbance, heartbeats = chance.choice((0, 0.01, 0.1)) * is_rough, chance.randrange(20)
        while running := [client for client in clients if not client.ended]:
            for client in running:
                client.step()
                if monotonic() > client.active_at + (ROUGH_PATIENCE if is_rough else PATIENCE):
                    if not is_rough:
                        raise FuzzFinding(f"no progress for {client.script}")
                    client.end()
            served = list(server.clients.values())
            if heartbeats and served and chance.random() < 0.02:
                heartbeats -= 1
                chance.choice(served)._on_heartbeat()
            if chance.random() < disturbance and not client.ended:
                match chance.randrange(12):
                    case 0:
                        client.end()
                    case 1 | 2 as how:
                        with suppress(OSError):  # the other end was faster
                            client.sock.shutdown((socket.SHUT_RD, socket.SHUT_WR)[how - 1])
                    case 3 if served:
                        chance.choice(served).close()
                    case _ if client.tls:  # elsewhere damage changes the commands
                        client.damage()
            sleep(0)

    def _end(self, registry: Registry, server: TCPServer) -> None:
        """Raises FuzzFinding unless all that belongs to the clients ends."""
        deadline = monotonic() + PATIENCE
        while server.clients and monotonic() < deadline:
            sleep(0.0005)
        for name in list(registry.topics):
            with suppress(BrokerError):  # its last client has left
                registry.delete_existing_topic(name)
        joinall(self._greenlets, PATIENCE)
        wrong = [(each, each.exception) for each in self._greenlets if not each.dead or each.exception]
        if wrong or self._errors:
            raise FuzzFinding(f"{wrong} {self._errors}")


def play_round(world: FuzzWorld, seed: str) -> None:
    """Raises FuzzFinding if the lanes differ or something stays."""
    planned = scripts(random.Random(seed))
    files = len(os.listdir("/proc/self/fd"))
    *ordered, consumer = world.play(planned, f"{seed} python", False, False)
    *found, same_consumer = world.play(planned, f"{seed} native", True, False)
    *rough, _ = world.play(planned, f"{seed} rough", True, True)
    for here, there, broken in zip(ordered, found, rough, strict=True):
        if here.frames != there.frames:
            raise FuzzFinding(f"{here.frames} in Python, {there.frames} in C")
        # The last one may be an error, if the stream ended inside a command.
        frames = broken.frames[:-1] if broken.frames[-1:] and broken.frames[-1][0] == ERROR else broken.frames
        if frames != here.frames[: len(frames)]:
            raise FuzzFinding(f"{frames} does not begin {here.frames}")
    # What is answered to a consumer depends on which messages come first.
    ours, theirs = (Counter(each.frames) + Counter(each.deliveries) for each in (consumer, same_consumer))
    if ours != theirs:
        raise FuzzFinding(f"consumed {ours} in Python, {theirs} in C")
    if len(os.listdir("/proc/self/fd")) != files:
        raise FuzzFinding("descriptors are left open")


def occupied() -> tuple[int, int]:
    """Returns the number of objects of gnsqd's classes, and the bytes that are allocated."""
    identify._parse_once.cache_clear()  # it keeps one object for each body
    gc.collect()
    allocated = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    allocated.restype = ctypes.c_size_t
    return sum(str(type(each).__module__).startswith("gnsqd.") for each in gc.get_objects()), allocated()


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    flags = parser.parse_args()
    end, number, most = monotonic() + flags.seconds, flags.first, (sys.maxsize, sys.maxsize)
    with tempfile.TemporaryDirectory(prefix="gnsqd-fuzz-") as directory:
        world = FuzzWorld(Path(directory))
        while monotonic() < end:
            sys.stdout.write(f"round {number} of seed {flags.seed}, {world.injected.value} calls have failed\r")
            sys.stdout.flush()
            play_round(world, f"{flags.seed} {number}")
            number += 1
            if (number - flags.first) % SETTLED == 0:
                objects, allocated = occupied()
                if objects > most[0] or allocated > most[1]:
                    raise FuzzFinding(f"{objects} objects and {allocated} bytes, more than {most}")
                most = min(most, (objects, allocated + GROWTH))
    sys.stdout.write("\nno finding\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
