"""Addresses of the daemon and of its clients: IPv4, IPv6, unix sockets (NSQD-COMPAT 1.4)."""

import json
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import DEADLINE, Address, Instance, eventually, free_port, is_readable, open_socket, run_to_end
from kit.http_api import head, read_all
from kit.lookupds import EMBEDDED, LookupdInside, RunningLookupd, own_lookupd_command
from kit.nsq_client import NSQClient
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory
from kit.upgraded_client import tls_client_context


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def link_local() -> tuple[str, str] | None:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        digits, _, _, scope, _, interface = line.split()
        if scope == "20":
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), interface
    return None


ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


def listening_on(nsqd: Instance, kind: str = "TCP") -> str:
    found = eventually(lambda: re.search(rf" INFO: {kind}: listening on (.*)", nsqd.log()))
    return found[1]


@contextmanager
def consumer(nsqd: Instance, address: Address, topic: str = "t") -> Iterator[tuple[NSQClient, dict[str, Any]]]:
    """Yields a client that has consumed its own message, and its statistics."""
    with NSQClient(address) as client:
        client.publish(topic, b"x")
        client.subscribe(topic, "c", 1)
        message = client.message()
        assert message.body == b"x"
        client.command(b"FIN " + message.id)
        (stats,) = nsqd.channel_stats(topic, "c")["clients"]
        yield client, stats


def info(nsqd: Instance) -> dict[str, Any]:
    return dict(json.loads(nsqd.http("GET", "/info")[2]))


def start_and_fail(command: list[str], directory: Path, *flags: str) -> str:
    """Returns the reason in the last line of a daemon that does not start."""
    flags = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={directory}", *flags)
    result = run_to_end(command, *flags)
    assert result.returncode == 1, result
    *before, last = result.stderr.splitlines()
    assert all(" INFO: " in line for line in before), result.stderr
    return last.partition(" FATAL: failed to instantiate nsqd - ")[2]


# What an address may be


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1:-1", "listen tcp: address -1: invalid port"),
        ("127.0.0.1:bogus", "listen tcp: lookup tcp/bogus: unknown port"),
        ("127.0.0.1:1_0", "listen tcp: lookup tcp/1_0: unknown port"),
        ("127.0.0.1:\u0661", "listen tcp: lookup tcp/\u0661: unknown port"),
        ("192.0.2.1:+0004150", "listen tcp 192.0.2.1:4150: bind: cannot assign requested address"),
        ("192.0.2.1:65535", "listen tcp 192.0.2.1:65535: bind: cannot assign requested address"),
        ("127.0.0.1:65536", "listen tcp: address 65536: invalid port"),
        ("127.1:0", "listen tcp: lookup 127.1: no such host"),
        ("*:0", "listen tcp: lookup *: no such host"),
        ("a..b:0", "listen tcp: lookup a..b: no such host"),
        ("999.1.1.1:1", "listen tcp: lookup 999.1.1.1: no such host"),
        ("/nonexistent/nsqd.sock", "listen unix /nonexistent/nsqd.sock: bind: no such file or directory"),
        ("localhost:{taken}", "listen tcp 127.0.0.1:{taken}: bind: address already in use"),
        (":{taken}", "listen tcp :{taken}: bind: address already in use"),
        ("0.0.0.0:{taken}", "listen tcp 0.0.0.0:{taken}: bind: address already in use"),
        ("[::ffff:127.0.0.1]:{taken}", "listen tcp 127.0.0.1:{taken}: bind: address already in use"),
        pytest.param("[::]:{taken}", "listen tcp 0.0.0.0:{taken}: bind: address already in use", marks=ipv6),
        pytest.param(
            "[2001:DB8:0::1]:1", "listen tcp [2001:db8::1]:1: bind: cannot assign requested address", marks=ipv6
        ),
        pytest.param("[fe80::1%nope]:1", "listen tcp [fe80::1%nope]:1: bind: invalid argument", marks=ipv6),
    ],
)
def test_address_that_cannot_be_listened_on(daemon_command: list[str], tmp_path: Path, address: str, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        address, text = address.format(taken=taken), text.format(taken=taken)
        for kind in ("tcp", "http"):
            found = start_and_fail(daemon_command, tmp_path, f"--{kind}-address={address}")
            assert found == f"listen ({address}) failed - {text}"


def test_address_of_https_that_cannot_be_listened_on(
    daemon_command: list[str], tls_flags: list[str], tmp_path: Path
) -> None:
    for address, text in (
        ("127.0.0.1:99999", "listen tcp: address 99999: invalid port"),
        ("/a/path", "listen tcp: address /a/path: missing port in address"),
        ("::1:4152", "listen tcp: address ::1:4152: too many colons in address"),
    ):
        found = start_and_fail(daemon_command, tmp_path, *tls_flags, f"--https-address={address}")
        assert found == f"listen ({address}) failed - {text}"


@pytest.mark.skipif(not Path("/etc/services").exists(), reason="no names of services here")
def test_port_may_have_the_name_of_a_service(daemon_command: list[str], tmp_path: Path) -> None:
    number = socket.getservbyname("https", "tcp")
    found = start_and_fail(daemon_command, tmp_path, "--tcp-address=192.0.2.1:HTTPS")
    reason = f"listen tcp 192.0.2.1:{number}: bind: cannot assign requested address"
    assert found == f"listen (192.0.2.1:HTTPS) failed - {reason}"


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:-0", "[::ffff:127.0.0.1]:0"])
def test_ways_to_say_ipv4(nsqd_factory: DaemonFactory, address: str) -> None:
    nsqd = nsqd_factory("--tcp-address=" + address, "--http-address=" + address.replace(":-0", ":0"))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", listening_on(nsqd)), listening_on(nsqd)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", listening_on(nsqd, "HTTP"))


@ipv6
@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0", "[0:0::0]:0"])
def test_every_interface_has_both_families(nsqd_factory: DaemonFactory, address: str) -> None:
    nsqd = nsqd_factory(f"--tcp-address={address}", f"--http-address={address}")
    for kind in ("TCP", "HTTP"):
        assert re.fullmatch(r"\[::\]:\d+", listening_on(nsqd, kind))
    for host, shown in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")):
        nsqd.tcp_address = host, int(nsqd.tcp_address[1])
        nsqd.http_address = host, int(nsqd.http_address[1])
        with consumer(nsqd, nsqd.tcp_address) as (client, stats):
            remote_address = f"{shown}:{client.sock.getsockname()[1]}"
            assert (stats["remote_address"], stats["client_id"], stats["hostname"]) == (remote_address, host, host)
            assert f" INFO: TCP: new client({remote_address})\n" in nsqd.log()
        assert re.search(rf" GET /stats\S* \({re.escape(shown)}:\d+\) ", nsqd.log())
        eventually(lambda: nsqd.channel_stats("t", "c")["clients"] == [])


@ipv6
def test_one_address_of_ipv6(nsqd_factory: DaemonFactory) -> None:
    with socket.socket() as of_ipv4:  # bound, so that nobody else listens there
        of_ipv4.bind(("127.0.0.1", port := free_port()))
        nsqd = nsqd_factory(f"--tcp-address=[::1]:{port}", "--http-address=[::1]:0")
        nsqd.tcp_address = "::1", port
        assert listening_on(nsqd) == f"[::1]:{port}"
        assert (info(nsqd)["tcp_port"], info(nsqd)["http_port"]) == (port, nsqd.http_address[1])
        with pytest.raises(ConnectionRefusedError):
            open_socket(of_ipv4.getsockname(), DEADLINE)
    with consumer(nsqd, nsqd.tcp_address) as (client, stats):
        client_port = client.sock.getsockname()[1]
        assert stats["remote_address"] == f"[::1]:{client_port}"
        assert f"[V2 ::1:{client_port} " in nsqd.http("GET", "/stats")[2].decode()
        client.command(b"NONSENSE")
        eventually(lambda: f" ERROR: [[::1]:{client_port}] - E_INVALID invalid command NONSENSE\n" in nsqd.log())
    assert nsqd.terminate() == 0
    assert f" INFO: TCP: closing [::1]:{port}\n" in nsqd.log()


@pytest.mark.skipif(link_local() is None, reason="no interface with a link-local address here")
def test_link_local_address_is_shown_with_its_zone(nsqd_factory: DaemonFactory) -> None:
    found = link_local()
    assert found is not None
    host, zone = found
    nsqd = nsqd_factory(f"--tcp-address=[{host}%{zone}]:0")
    shown = listening_on(nsqd)
    assert re.fullmatch(rf"\[{host}%{zone}\]:\d+", shown)
    with consumer(nsqd, (f"{host}%{zone}", int(shown.rpartition(":")[2]))) as (client, stats):
        assert stats["remote_address"] == f"[{host}%{zone}]:{client.sock.getsockname()[1]}"
        assert stats["client_id"] == f"{host}%{zone}"


@ipv6
def test_https_on_ipv6(nsqd_factory: DaemonFactory, tls_flags: list[str]) -> None:
    nsqd = nsqd_factory(*tls_flags, "--https-address=[::1]:0")
    address = listening_on(nsqd, "HTTPS")
    assert re.fullmatch(r"\[::1\]:\d+", address)
    context = tls_client_context()
    with open_socket(("::1", int(address.rpartition(":")[2])), DEADLINE) as plain:
        port = plain.getsockname()[1]
        with context.wrap_socket(plain) as sock:
            sock.sendall(head("GET /ping?six", "Connection: close"))
            assert read_all(sock).endswith(b"\r\n\r\nOK")
    eventually(lambda: f" INFO: 200 GET /ping?six ([::1]:{port}) " in nsqd.log())


@ipv6
@pytest.mark.peer
def test_nsqlookupd_on_ipv6_learns_of_an_ipv6_address_and_reports_its_channels(
    nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    flags = ["--broadcast-address=::1", "--tcp-address=[::1]:0", "--http-address=[::1]:0"]
    log = tmp_path / "nsqlookupd.log"
    with PeerProgram(peer_binary("nsqlookupd"), log, *flags, kinds=("TCP", "HTTP")) as lookupd:
        lookupd.ask("POST", "/channel/create?topic=t&channel=known")
        nsqd = nsqd_factory(
            f"--lookupd-tcp-address={lookupd.address['TCP']}", "--broadcast-address=::1", "--broadcast-tcp-port=7"
        )
        (producer,) = eventually(lambda: lookupd.ask("GET", "/nodes")[1]["producers"])
        assert re.fullmatch(r"\[::1\]:\d+", producer["remote_address"])
        found = producer["broadcast_address"], producer["tcp_port"], producer["http_port"]
        assert found == ("::1", 7, nsqd.http_address[1])
        assert info(nsqd)["broadcast_address"] == "::1"
        assert info(nsqd)["tcp_port"] == nsqd.tcp_address[1]
        nsqd.http("POST", "/topic/create?topic=t")
        assert list(nsqd.channel_stats("t", "known"))


# The local address of the connection to nsqlookupd


@ipv6
def test_nsqlookupd_gets_the_address_by_which_nsqd_reaches_it(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    (tmp_path / "nsqd.cfg").write_text('broadcast_address = "auto"')
    nsqd = gnsqd_factory(f"--config={tmp_path}/nsqd.cfg", "--tcp-address=:0")
    assert info(nsqd)["broadcast_address"] == socket.gethostname()
    elsewhere = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # Linux goes there from 127.0.0.1
    for host, address in ((elsewhere, "127.0.0.1"), ("[::1]", "::1")):
        with RunningLookupd(own_lookupd_command(), tmp_path / address, host=host) as lookupd:
            nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([lookupd.tcp_address]))
            (producer,) = eventually(lookupd.producers)
            assert (producer["broadcast_address"], producer["hostname"]) == (address, socket.gethostname())
            assert info(nsqd)["broadcast_address"] == address
            with consumer(nsqd, (producer["broadcast_address"], producer["tcp_port"])):
                pass


def test_nsqlookupd_in_the_process_returns_the_host_of_the_request(gnsqd_factory: DaemonFactory) -> None:
    lookupd = LookupdInside(gnsqd_factory(*EMBEDDED, "--broadcast-address=auto"))
    assert lookupd.names("here:4161") == ["here"]


# Unix sockets


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_socket_files_have_the_mode_that_the_umask_leaves_and_go_at_exit(
    nsqd_factory: DaemonFactory, tmp_path: Path, mask: int
) -> None:
    paths = [tmp_path / "tcp.sock", tmp_path / "http.sock"]
    with umask(mask):
        nsqd = nsqd_factory(f"--tcp-address={paths[0]}", f"--http-address={paths[1]}")
    for path, kind in zip(paths, ("TCP", "HTTP"), strict=True):
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o777 & ~mask
        assert listening_on(nsqd, kind) == str(path)
    with NSQClient(str(paths[0])) as client:
        client.publish("t", b"x")
    assert nsqd.terminate() == 0
    assert not [path for path in paths if path.exists()]
    assert f" INFO: TCP: closing {paths[0]}\n" in nsqd.log()


@pytest.mark.parametrize("address", ["nsqd.sock", "@{unique}", ""], ids=["relative", "abstract", "chosen"])
def test_name_is_relative_to_the_working_directory_or_abstract(
    nsqd_factory: DaemonFactory, tmp_path: Path, address: str
) -> None:
    # Without a name the kernel chooses one in the abstract namespace.
    address = address.format(unique=f"nsqd-{os.getpid()}")
    data_path = tmp_path / "data"  # it runs there
    data_path.mkdir()
    (data_path / f"@nsqd-{os.getpid()}").write_text("a file")
    nsqd = nsqd_factory(f"--tcp-address={address}", data_path=data_path)
    name = listening_on(nsqd)
    assert name == address if address else re.fullmatch("@[0-9a-f]{5}", name)
    assert info(nsqd)["tcp_port"] == -1
    with consumer(nsqd, f"\0{name[1:]}" if name.startswith("@") else str(data_path / name)) as (_, stats):
        assert stats["remote_address"] == "@"
    assert nsqd.terminate() == 0
    assert not (data_path / "nsqd.sock").exists()
    assert (data_path / f"@nsqd-{os.getpid()}").read_text() == "a file"


def test_longest_path(nsqd_factory: DaemonFactory, daemon_command: list[str], tmp_path: Path) -> None:
    path = f"{tmp_path}/".ljust(107, "s")
    assert len(path) == 107
    nsqd_factory(f"--tcp-address={path}").terminate()
    found = start_and_fail(daemon_command, tmp_path, f"--tcp-address={path}s")
    assert found == f"listen ({path}s) failed - listen unix {path}s: bind: invalid argument"


def test_path_that_is_taken_stays(nsqd_factory: DaemonFactory, daemon_command: list[str], tmp_path: Path) -> None:
    file, bound, link, running = (tmp_path / name for name in ("file", "bound", "link", "running"))
    file.write_text("no socket")
    link.symlink_to(bound)
    nsqd = nsqd_factory(f"--tcp-address={running}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(bound))
        for path in (file, bound, link, running):
            found = start_and_fail(daemon_command, tmp_path, f"--tcp-address={path}")
            assert found == f"listen ({path}) failed - listen unix {path}: bind: address already in use"
    assert file.read_text() == "no socket"
    with consumer(nsqd, str(running)):
        pass


def test_socket_of_a_killed_daemon_is_replaced(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    # The real daemon does not start before somebody has removed it.
    nsqd = gnsqd_factory(f"--tcp-address={tmp_path}/t.sock", f"--http-address={tmp_path}/h.sock")
    nsqd.kill()
    with consumer(nsqd.start(), nsqd.tcp_address):
        pass


def named_client(address: Address, name: str) -> NSQClient:
    """Connects from a unix socket that has this name, if it is not empty."""
    client = NSQClient(address, magic=b"")
    client.sock.close()
    client.sock = socket.socket(socket.AF_UNIX)
    client.sock.settimeout(DEADLINE)
    if name:
        client.sock.bind(name)
    client.sock.connect(str(address))
    client.send(b"  V2")
    return client


@pytest.mark.parametrize(
    ("name", "shown"),
    [("{path}/a.sock", "{path}/a.sock"), ("\0a-{unique}", "@a-{unique}"), ("", "@")],
    ids=["file", "abstract", "unnamed"],
)
def test_client_of_a_unix_socket_is_shown_by_its_own_name(
    nsqd_factory: DaemonFactory, tmp_path: Path, name: str, shown: str
) -> None:
    nsqd = nsqd_factory(f"--tcp-address={tmp_path}/t.sock", f"--http-address={tmp_path}/h.sock")
    assert (info(nsqd)["tcp_port"], info(nsqd)["http_port"]) == (-1, -1)
    unique = f"{os.getpid()}-{nsqd.pid}"
    name, shown = name.format(path=tmp_path, unique=unique), shown.format(path=tmp_path, unique=unique)
    with named_client(nsqd.tcp_address, name) as client:
        client.subscribe("t", "c")
        (stats,) = nsqd.channel_stats("t", "c")["clients"]
        assert (stats["remote_address"], stats["client_id"], stats["hostname"]) == (shown, "", "")
        client.command(b"NONSENSE")
        assert client.error() == b"E_INVALID invalid command NONSENSE"
    assert f" INFO: TCP: new client({shown})\n" in nsqd.log()
    assert " INFO: 200 GET /info (@) " in nsqd.log()
    assert f" ERROR: [{shown}] - E_INVALID invalid command NONSENSE\n" in nsqd.log()


def test_error_of_a_unix_socket_names_both_ends(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    path = f"{tmp_path}/t.sock"
    nsqd = nsqd_factory(f"--tcp-address={path}")
    with NSQClient(path) as client:
        client.command(b"NOP\nIDENTIFY", b"{}")
        assert is_readable(client.sock, DEADLINE)  # what is left unread makes a reset of the end
    error = f"client(@) - failed to read command - read unix {path}->@: read: connection reset by peer"
    eventually(lambda: f" ERROR: {error}\n" in nsqd.log())
