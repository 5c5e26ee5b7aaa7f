"""The command line itself: addresses, help and version. Wrong usage of all commands is in test_every_command."""

import pytest

from cli.gnsqadmin import misuse, ok
from gnsqd.shared.version import VERSION
from nsqadmin_cli.http_client import Address


@pytest.mark.parametrize(
    "text, host, port, shown",
    [
        ("127.0.0.1:4151", "127.0.0.1", 4151, "127.0.0.1:4151"),
        ("nsqd-1.example.com:1", "nsqd-1.example.com", 1, "nsqd-1.example.com:1"),
        ("my_host:65535", "my_host", 65535, "my_host:65535"),
        ("http://localhost:4151", "localhost", 4151, "localhost:4151"),
        ("HTTP://localhost:4151/", "localhost", 4151, "localhost:4151"),
        ("[::1]:4151", "::1", 4151, "[::1]:4151"),
        ("http://[2001:DB8:0::1]:4151", "2001:db8::1", 4151, "[2001:db8::1]:4151"),
        ("https://localhost:4152", "localhost", 4152, "https://localhost:4152"),
        ("HTTPS://[::1]:4152/", "::1", 4152, "https://[::1]:4152"),
        ("unix:/run/nsqd.sock", "", 0, "unix:/run/nsqd.sock"),
        ("unix:///run/nsqd.sock", "", 0, "unix:/run/nsqd.sock"),
        ("/run/nsqd.sock", "", 0, "unix:/run/nsqd.sock"),
        ("[fe80::1%eth0]:4151", "fe80::1%eth0", 4151, "[fe80::1%eth0]:4151"),
        ("bücher.example:4151", "xn--bcher-kva.example", 4151, "xn--bcher-kva.example:4151"),
    ],
)
def test_addresses_are_taken_in_their_usual_forms(text: str, host: str, port: int, shown: str) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":4151", "localhost:", "localhost:x", "localhost:0", "localhost:65536", "localhost:-1",
     "localhost:４１５１", "::1:4151", "[::1]", "[::g]:4151", "[127.0.0.1]:4151", "unix:nsqd.sock", "unix:",
     "http://localhost:4151/stats", "http://user@localhost:4151", "ftp://localhost:4151", "a b:4151", "a..b:4151",
     f"/{'x' * 107}", f"{'x' * 64}:4151", "a\r\nb:4151", "a\x01b:4151", "\udcff:4151", "localhost:4151/"],
)  # fmt: skip
def test_a_bad_address_is_a_usage_error(text: str) -> None:
    assert misuse("stats", f"--nsqd-http-address={text}").startswith("Invalid value for '--nsqd-http-address': ")


def test_version_is_ours() -> None:
    assert ok("--version") == f"gnsqadmin {VERSION}\n"


def test_short_and_long_option_for_help() -> None:
    assert "Exit codes" in ok("-h")
    assert ok("stats", "-h") == ok("stats", "--help")
