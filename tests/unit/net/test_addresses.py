"""Addresses in Go's words."""

import socket

import pytest

from gnsqd.net.addresses import format_address, split_host_port


def test_host_and_port() -> None:
    parts = {
        "h:1": ("h", "1"), ":1": ("", "1"), "h:": ("h", ""), ":": ("", ""), "[::1]:1": ("::1", "1"),
        "[h]:1": ("h", "1"), "[]:1": ("", "1"), "h:-1": ("h", "-1"), "a/b:1": ("a/b", "1"),
    }  # fmt: skip
    assert {address: split_host_port(address) for address in parts} == parts


REFUSED = {
    "missing port in address": ["", "h", "[::1]", "[::1]x:1"],
    "missing ']' in address": ["[::1:1"],
    "too many colons in address": ["::1:1", "[::1]:1:2"],
    "unexpected '[' in address": ["a[b:1", "[a[b]:1", "a:[1"],
    "unexpected ']' in address": ["a]b:1", "a:1]", "[a]:1]"],
}


@pytest.mark.parametrize(("error", "addresses"), REFUSED.items(), ids=REFUSED)
def test_invalid_host_and_port(error: str, addresses: list[str]) -> None:
    for address in addresses:
        with pytest.raises(ValueError) as caught:
            split_host_port(address)
        assert str(caught.value) == error, address


SHOWN: list[tuple[object, str]] = [
    (("127.0.0.1", 4150), "127.0.0.1:4150"),
    (("::1", 4150, 0, 0), "[::1]:4150"),
    (("::", 4150, 0, 0), "[::]:4150"),
    (("::ffff:127.0.0.1", 4150, 0, 0), "127.0.0.1:4150"),
    (("::ffff:0:1", 4150, 0, 0), "[::ffff:0:1]:4150"),
    (("fe80::1", 4150, 0, 1), f"[fe80::1%{socket.if_indextoname(1)}]:4150"),
    (("fe80::1", 4150, 0, 99_999_999), "[fe80::1%99999999]:4150"),
    *(("/a/path", "/a/path"), ("", "@"), (b"\0name", "@name"), (b"\0", "@"), (b"\0\xff", "@\udcff"), (None, "@")),
]


def test_address_is_shown_as_by_go() -> None:
    assert [format_address(address) for address, _ in SHOWN] == [text for _, text in SHOWN]
