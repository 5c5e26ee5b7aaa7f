"""Saved contexts, variables and options: which of them counts, and what a bad file gives."""

import json
import os
from pathlib import Path

import pytest

from cli.gnsqadmin import Result, gnsqadmin
from cli.nodes import address
from conftest import DaemonFactory
from daemons import free_port


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The variables of a user without a file of contexts."""
    return {"GNSQADMIN_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path / "home")}


def asked(result: Result) -> list[str]:
    """Which nodes were asked, by the document of `nodes`."""
    return [node["address"] for node in json.loads(result.out)["nodes"]]


def nodes(*args: str, **variables: str) -> list[str]:
    return asked(gnsqadmin("nodes", "--json", "--timeout=5", *args, **variables))


def test_the_nearer_word_counts(home: dict[str, str]) -> None:
    a, b, c, d = (f"127.0.0.1:{free_port()}" for _ in range(4))
    for name, node in (("one", a), ("two", b)):
        assert gnsqadmin("context", "set", name, f"--nsqd-http-address={node}", **home).code == 0
    assert nodes(**home) == [a]  # the first that was saved is the current one
    assert gnsqadmin("context", "use", "two", **home).code == 0
    assert nodes(**home) == [b]
    assert nodes(**home, GNSQADMIN_CONTEXT="one") == [a]
    assert nodes("--context=two", **home, GNSQADMIN_CONTEXT="one") == [b]
    assert nodes(**home, GNSQADMIN_NSQD_HTTP_ADDRESS=f"{c} {d}") == [c, d]
    assert nodes("--context=one", **home, GNSQADMIN_NSQD_HTTP_ADDRESS=c) == [a]
    assert nodes(f"--nsqd-http-address={d}", "--context=one", **home, GNSQADMIN_NSQD_HTTP_ADDRESS=c) == [d]
    assert gnsqadmin("context", "use", "--none", **home).code == 0
    assert nodes(**home) == ["127.0.0.1:4151"]


def test_an_address_of_one_kind_replaces_those_of_both(nsqd_factory: DaemonFactory, home: dict[str, str]) -> None:
    node = nsqd_factory()
    lookupd = f"127.0.0.1:{free_port()}"
    assert gnsqadmin("context", "set", "x", f"--lookupd-http-address={lookupd}", **home).code == 0
    assert "nsqlookupd" in gnsqadmin("nodes", **home).err
    result = gnsqadmin("nodes", "--json", f"--nsqd-http-address={address(node)}", **home)
    assert (result.code, result.err, asked(result)) == (0, "", [address(node)])


def test_contexts_are_listed_changed_copied_and_removed(home: dict[str, str], tmp_path: Path) -> None:
    def contexts() -> dict[str, object]:
        found = json.loads(gnsqadmin("context", "list", "--json", **home).out)
        assert found["file"] == str(tmp_path / "config" / "gnsqadmin" / "config.toml")
        return {context.pop("name"): context for context in found["contexts"]}

    assert contexts() == {}
    assert gnsqadmin("context", "list", **home).out.startswith("No contexts in ")
    gnsqadmin("context", "set", "prod", "--nsqd-http-address=a:1", "--nsqd-http-address=https://b:2", **home)
    gnsqadmin("context", "set", "prod", "--timeout=1500ms", "--tls-insecure", **home, GNSQADMIN_TLS_CA="ca.pem")
    gnsqadmin("context", "set", "copy", "--context=prod", "--tls-ca=ca.pem", **home)
    prod = {"nsqd_http_address": ["a:1", "https://b:2"], "timeout": 1.5, "tls_insecure": True}
    copy = prod | {"tls_ca": os.path.abspath("ca.pem")}
    assert contexts() == {"copy": {"current": False} | copy, "prod": {"current": True} | prod}
    lines = [line.split() for line in gnsqadmin("context", "list", **home).out.splitlines()]
    options = ["--nsqd-http-address", "a:1", "--nsqd-http-address", "https://b:2", "--timeout", "1.5", "--tls-insecure"]
    assert ["prod", "yes", *options] in lines
    assert gnsqadmin("context", "remove", "prod", **home).code == 0
    assert contexts() == {"copy": {"current": False} | copy}


def test_a_context_that_is_not_there_is_named_with_those_that_are(home: dict[str, str]) -> None:
    gnsqadmin("context", "set", "prod", "--timeout=1", **home)
    for command in (["stats", "--context=x"], ["context", "use", "x"], ["context", "remove", "x"]):
        code, out, err = gnsqadmin(*command, **home)
        assert (code, out, err.count("\n")) == (4, "", 1)
        assert err.startswith("Error: there is no context 'x' in ")
        assert err.endswith("; there: prod\n")


@pytest.mark.parametrize(
    "text, complaint",
    [
        (b"x", "is no TOML"),
        (b"\xff", "is no TOML"),
        (b"colour = 1", "unknown key 'colour'"),
        (b"current = 1", '"current" is a text'),
        (b"[contexts]\nx = 1", "context x is no table"),
        (b"[contexts.x]\ncolour = 1", "context x: unknown key 'colour'"),
        (b"[contexts.x]\ntimeout = 'x'", "context x: timeout is a number of seconds"),
        (b"[contexts.x]\ntimeout = true", "context x: timeout is a number of seconds"),
        (b"[contexts.x]\ntimeout = nan", "context x: timeout is more than 0 and at most 3600 seconds"),
        (b"[contexts.x]\nnsqd_http_address = 'a:1'", "context x: nsqd_http_address is a list of texts"),
        (b"[contexts.x]\ntls_ca = 1", "context x: tls_ca is a text"),
        (b"[contexts.'\\u001b']\nx = 1", "unknown key"),
    ],
)
def test_a_bad_file_is_one_line_of_error(tmp_path: Path, text: bytes, complaint: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text)
    code, out, err = gnsqadmin("stats", GNSQADMIN_CONFIG=str(file))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"Error: {file}")
    assert complaint in err


def test_a_bad_address_in_a_context_names_the_context(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("current = 'x'\n[contexts.x]\nnsqd_http_address = ['nonsense']\n")
    code, out, err = gnsqadmin("stats", GNSQADMIN_CONFIG=str(file))
    assert (code, out) == (1, "")
    assert err.startswith("Error: context x: 'nonsense': expected host:port")


def test_a_file_that_cannot_be_read_or_written_is_one_line_of_error(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    code, out, err = gnsqadmin("stats", GNSQADMIN_CONFIG=str(tmp_path / "directory"))
    assert (code, out, err) == (1, "", f"Error: cannot read {tmp_path / 'directory'}: is a directory\n")
    (tmp_path / "file").write_text("")
    inside = str(tmp_path / "file" / "config.toml")
    code, out, err = gnsqadmin("context", "set", "x", "--timeout=1", GNSQADMIN_CONFIG=inside)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: cannot ")


@pytest.mark.parametrize("name", ["a b", "", "x" * 65, "é"])
def test_a_bad_name_of_a_context_is_a_usage_error(home: dict[str, str], name: str) -> None:
    assert gnsqadmin("context", "set", name, "--timeout=1", **home).code == 2


def test_texts_of_a_context_come_back_as_they_were(home: dict[str, str]) -> None:
    strange = '/tmp/"quoted" \\ \x7f \t é.pem'
    gnsqadmin("context", "set", "x", f"--tls-ca={strange}", **home)
    [context] = json.loads(gnsqadmin("context", "list", "--json", **home).out)["contexts"]
    assert context["tls_ca"] == strange
