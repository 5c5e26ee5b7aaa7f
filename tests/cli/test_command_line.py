"""The command line itself: addresses, mistakes, help and version."""

import pytest

from cli.gnsqadmin import gnsqadmin
from gnsqd.version import VERSION
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
    code, out, err = gnsqadmin("stats", f"--nsqd-http-address={text}")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: gnsqadmin stats")
    assert "Error: Invalid value for '--nsqd-http-address': " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "3601", "soon", ""])
def test_a_bad_timeout_is_a_usage_error(seconds: str) -> None:
    code, out, err = gnsqadmin("stats", f"--timeout={seconds}")
    assert (code, out) == (2, "")
    assert "Error: Invalid value for '--timeout'" in err


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        ("stat", "No such command 'stat'; did you mean stats?"),
        ("channel delet t c", "No such command 'delet'; did you mean delete?"),
        ("xyz", "No such command 'xyz'."),
        ("\x1b[31m", r"No such command '\\x1b[31m'."),
    ],
)
def test_the_nearest_command_is_suggested(words: str, ending: str) -> None:
    code, out, err = gnsqadmin(*words.split(" "))
    assert (code, out, err.splitlines()[-1]) == (2, "", f"Error: {ending}")


@pytest.mark.parametrize("arguments", [["nonsense"], ["stats", "--nonsense"], ["stats", "extra"]])
def test_unknown_words_are_usage_errors(arguments: list[str]) -> None:
    code, out, err = gnsqadmin(*arguments)
    assert (code, out) == (2, "")
    assert "Error: " in err


def test_version_is_ours() -> None:
    assert gnsqadmin("--version") == (0, f"gnsqadmin {VERSION}\n", "")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_commands_options_and_exit_codes(flag: str) -> None:
    code, out, err = gnsqadmin(flag)
    assert (code, err) == (0, "")
    assert "stats" in out
    assert "Exit codes" in out
    code, out, err = gnsqadmin("stats", flag)
    assert (code, err) == (0, "")
    assert all(option in out for option in ("--nsqd-http-address", "--timeout", "--topic", "--channel", "--json"))
    assert "127.0.0.1:4151" in out
