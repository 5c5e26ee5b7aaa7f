"""Addresses in all their forms; behaviour/test_addresses.py asks the real daemon for the same words."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

import gnsqd.net.listener
from gnsqd.log import Level, Logger
from gnsqd.net.connection import Connection
from gnsqd.net.listener import Listener, close_servers
from gnsqd.shared.errors import StartError


@contextmanager
def listening(address: str) -> Iterator[Listener]:
    found = Listener(address)
    try:
        yield found
    finally:
        found.close()


def test_every_interface_is_that_of_ipv4_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    for host in ("", "0.0.0.0", "[::]"):
        with listening(f"{host}:0") as found:
            assert found.address == f"0.0.0.0:{found.port}"


def test_missing_support_of_ipv6_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(family: int, kind: int) -> socket.socket:
        assert family == socket.AF_INET6
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))  # as on a kernel without it

    monkeypatch.setattr(socket, "socket", refuse)
    error = r"^listen \(\[::1\]:0\) failed - listen tcp \[::1\]:0: socket: address family not supported by protocol$"
    with pytest.raises(StartError, match=error):
        Listener("[::1]:0")


def test_first_address_of_ipv4_is_taken_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: int, type: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
        assert host == "both.example"
        addresses = [("::1", port, 0, 0), ("127.0.0.1", port), ("127.0.0.2", port)]
        families = [socket.AF_INET6, socket.AF_INET, socket.AF_INET]
        return [(family, type, 6, "", address) for family, address in zip(families, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with listening("both.example:0") as found:
        assert found.address == f"127.0.0.1:{found.port}"


def test_text_that_can_be_no_address_is_refused() -> None:
    refusal = r"^listen \(.*\) failed - listen tcp: lookup .*: (no such host|unknown port)$"
    for address in ("a\0b:1", "127.0.0.1:\udcff", "\udcff:1", "é" * 70 + ":1"):
        with pytest.raises(StartError, match=refusal):
            Listener(address)
    for zone in ("nope", "99999999999", "x" * 100, "a\0b"):
        with pytest.raises(StartError, match=r"^listen \(.*\) failed - listen tcp "):
            Listener(f"[fe80::1%{zone}]:0")


def test_host_or_port_alone_is_not_the_path_of_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real daemon makes a socket of that name in its working directory.
    monkeypatch.chdir(tmp_path)
    for address in ("LOCALHOST", "::1", "[::1]", "fe80::1%lo", "[fe80::1%lo]", "0.0.0.0", "4150"):
        reason = f"address {address}: missing port in address (a unix socket of this name would be ./{address})"
        with pytest.raises(StartError) as caught:
            Listener(address)
        assert str(caught.value) == f"listen ({address}) failed - listen tcp: {reason}"
    for name in ("nsqd", "nsqd.sock", "host.example", "127.0.0.1.sock", "./127.0.0.1", "./4150"):
        with listening(name) as found:
            assert (found.port, found.address) == (-1, name)


def test_file_of_a_unix_socket_that_somebody_removed_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listening(str(path)):
        path.unlink()
    assert not path.exists()


def test_client_that_is_gone_before_it_is_accepted_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # macOS neither reads nor sets options of its socket: EINVAL.

    def refuse(*args: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    accepted: list[Connection] = []
    with listening("127.0.0.1:0") as found, socket.create_connection(("127.0.0.1", found.port)):
        monkeypatch.setattr(socket.socket, "setsockopt", refuse)
        monkeypatch.setattr(socket.socket, "getsockname", refuse)

        def handle(sock: socket.socket, address: str) -> "gevent.Greenlet[..., None]":
            accepted.append(Connection(sock, address))
            found.close()
            return gevent.spawn(lambda: None)

        log = Logger("", Level.FATAL)
        with gevent.Timeout(30):
            gevent.spawn(found.serve, "TCP", log, handle, 0).get()
    accepted[0].close()


@pytest.mark.parametrize("keep_idle", [True, False])
def test_clients_have_gos_options_where_keep_idle_is_inherited_and_where_not(
    monkeypatch: pytest.MonkeyPatch, keep_idle: bool
) -> None:
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    ]
    accepted: list[socket.socket] = []
    with listening("127.0.0.1:0") as found:
        if not keep_idle:  # as on macOS: the name is another one, and a listener's value is its own
            found._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 7200)
            monkeypatch.delattr(socket, "TCP_KEEPIDLE")

        def handle(sock: socket.socket, address: str) -> "gevent.Greenlet[..., None]":
            accepted.append(sock)
            found.close()
            return gevent.spawn(lambda: None)

        with socket.create_connection(("127.0.0.1", found.port)), gevent.Timeout(30):
            gevent.spawn(found.serve, "TCP", Logger("", Level.FATAL), handle, 0).get()
    with accepted[0] as sock:
        assert [sock.getsockopt(level, name) for level, name, _ in options] == [value for *_, value in options]


def test_an_inherited_socket_is_left_to_its_owner_and_given_up_where_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        inherited = Listener(os.dup(owner.fileno()))
        serving = gevent.spawn(inherited.serve, "", Logger("", Level.FATAL), lambda *_: None, 0)
        gevent.sleep(0)
        inherited.close()
        with gevent.Timeout(30):
            serving.get()
        socket.create_connection(owner.getsockname(), 30).close()
        inherited = Listener(os.dup(owner.fileno()))
    inherited.close()
    with listening(inherited.address):
        pass


class NotingServer:
    """Notes how it is shut down."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.shutdowns: list[bool] = []

    def shutdown(self, at_once: bool) -> None:
        self.shutdowns.append(at_once)


def test_servers_are_closed_whatever_their_clients_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLOSE_SECONDS", "CUT_SECONDS"):
        monkeypatch.setattr(gnsqd.net.listener, name, 0.02)
    with listening("127.0.0.1:0") as one, listening("127.0.0.1:0") as other:
        servers = [NotingServer(one), NotingServer(other)]
        endless = gevent.spawn(Event().wait)
        other.greenlets.add(endless)
        close_servers(servers)
        assert [server.shutdowns for server in servers] == [[False, True]] * 2
        assert not endless.ready()
        endless.kill()
