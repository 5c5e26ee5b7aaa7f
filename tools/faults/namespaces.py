"""A network of a few hosts on one machine: a network namespace for each, joined by a bridge, and a name server.

All of it is in namespaces of this process, which needs no root where users may make them, and ends with it.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

NETWORK = "10.44.0"
GATEWAY = f"{NETWORK}.1"  # this process, and its name server
_INSIDE = "GNSQD_FAULTS_INSIDE"
_SERVFAIL, _NXDOMAIN = 2, 3
_A, _IN = 1, 1


def enter(module: str, arguments: Sequence[str]) -> None:
    """Runs the program again where it may make networks, unless it is there. Then this is the first process of a PID
    namespace: all others end with it."""
    if _INSIDE in os.environ:
        return
    kinds = ["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", ["unshare", *kinds, sys.executable, "-P", "-m", module, *arguments])


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def prepare(directory: Path) -> None:
    """Makes the bridge, and this process the name server of all."""
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` keeps what it makes
    for words in ("set lo up", "add br0 type bridge", "set br0 up"):
        _run("ip", "link", *words.split())
    _run("ip", "address", "add", f"{GATEWAY}/24", "dev", "br0")
    resolver = directory / "resolv.conf"
    resolver.write_text(f"nameserver {GATEWAY}\noptions timeout:1 attempts:1\n")
    _run("mount", "--bind", str(resolver), os.path.realpath("/etc/resolv.conf"))


class Host:
    """One host, `number` of the network, with its own loopback and ports."""

    def __init__(self, number: int) -> None:
        self.name = f"h{number}"
        self.address = f"{NETWORK}.{number}"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "link", "set", f"v{number}", "master", "br0", "up")
        for words in (f"address add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run("ip", "-n", self.name, *words.split())

    def command(self, argv: Sequence[str]) -> list[str]:
        """Returns the command that starts a program there."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *argv]


class NameServer:
    """Answers for the one name that there is, in a thread of its own: `addresses` may be changed at any time, and are
    None while it fails. Without an AAAA record."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self.addresses: Sequence[str] | None = addresses
        self.queries = 0
        self._question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((GATEWAY, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            self.queries += 1
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        """Answers in the form of RFC 1035; answers refer to the name in the question."""
        end = query.index(b"\0", 12) + 5
        question = query[12:end]
        name, (kind, _) = question[:-4], struct.unpack(">HH", question[-4:])
        addresses, code = self.addresses, 0
        if addresses is None:
            code = _SERVFAIL
        elif name.lower() != self._question:
            code = _NXDOMAIN
        known = addresses if addresses and not code and kind == _A else ()
        records = [b"\xc0\x0c" + struct.pack(">HHIH", _A, _IN, 0, 4) + socket.inet_aton(each) for each in known]
        head = query[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, len(records), 0, 0)
        return head + question + b"".join(records)
