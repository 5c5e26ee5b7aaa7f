"""Addresses in Go's words."""

import socket

import pytest

from gnsqd.net.addresses import format_address, split_host_port


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("h:1", "h", "1"),
        (":1", "", "1"),
        ("h:", "h", ""),
        (":", "", ""),
        ("[::1]:1", "::1", "1"),
        ("[h]:1", "h", "1"),
        ("[]:1", "", "1"),
        ("h:-1", "h", "-1"),
        ("a/b:1", "a/b", "1"),
    ],
)
def test_host_and_port(address: str, host: str, port: str) -> None:
    assert split_host_port(address) == (host, port)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("", "missing port in address"),
        ("h", "missing port in address"),
        ("[::1]", "missing port in address"),
        ("[::1]x:1", "missing port in address"),
        ("[::1:1", "missing ']' in address"),
        ("::1:1", "too many colons in address"),
        ("[::1]:1:2", "too many colons in address"),
        ("a[b:1", "unexpected '[' in address"),
        ("[a[b]:1", "unexpected '[' in address"),
        ("a:[1", "unexpected '[' in address"),
        ("a]b:1", "unexpected ']' in address"),
        ("a:1]", "unexpected ']' in address"),
        ("[a]:1]", "unexpected ']' in address"),
    ],
)
def test_what_is_no_host_and_port(address: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}$".replace("[", r"\[")):
        split_host_port(address)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("127.0.0.1", 4150), "127.0.0.1:4150"),
        (("::1", 4150, 0, 0), "[::1]:4150"),
        (("::", 4150, 0, 0), "[::]:4150"),
        (("::ffff:127.0.0.1", 4150, 0, 0), "127.0.0.1:4150"),
        (("::ffff:0:1", 4150, 0, 0), "[::ffff:0:1]:4150"),
        (("fe80::1", 4150, 0, 1), f"[fe80::1%{socket.if_indextoname(1)}]:4150"),
        (("fe80::1", 4150, 0, 99_999_999), "[fe80::1%99999999]:4150"),
        ("/a/path", "/a/path"),
        ("", "@"),
        (b"\0name", "@name"),
        (b"\0", "@"),
        (b"\0\xff", "@\udcff"),
        (None, "@"),
    ],
)
def test_address_is_shown_as_by_go(address: object, text: str) -> None:
    assert format_address(address) == text
