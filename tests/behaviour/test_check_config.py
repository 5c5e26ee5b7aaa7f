"""`check-config FILE` lists the problems of a config file, with the texts of a start, and starts nothing."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from kit.certificates import issue
from kit.daemons import free_port, own_command, run_to_end
from kit.lookupds import own_lookupd_command

Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Checks a file with this text; nothing else may be in its directory afterwards."""

    def run(text: str, command: list[str] | None = None) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "x.cfg").write_text(text)
        before = sorted(tmp_path.iterdir())
        result = run_to_end(command or own_command(), "check-config", "x.cfg", cwd=tmp_path)
        assert sorted(tmp_path.iterdir()) == before
        return result

    return run


def problems(result: "subprocess.CompletedProcess[str]") -> list[str]:
    assert (result.returncode, result.stderr) == (1, ""), result
    assert all(line.startswith("x.cfg: ") for line in result.stdout.splitlines()), result.stdout
    return [line.removeprefix("x.cfg: ") for line in result.stdout.splitlines()]


def free_addresses(*names: str) -> str:
    return "".join(f'{name}_address = "127.0.0.1:{free_port()}"\n' for name in names)


FREE = ("tcp", "http", "https")

WRONG = """
mem_queue_siz = 5
max_msg_size = "abc"
sync_timeout = true
log_level = "trace"
log_format = "xml"
durability = "maybe"
max_deflate_level = 20
mem_queue_size = -1
retention_time = "5s"
auth_http_request_method = "put"
tls_cert = "/nonexistent/cert"
tls_key = "/nonexistent/key"
tls_root_ca_file = "/nonexistent/roots"
channel_rules = ["a", "t:c:rate=x"]
http_auth_token_files = ["bad", "full:/nonexistent/tokens"]
http_auth_common_names = ["read:a", "full:b"]
http_allow_origins = ["*", "https://x/"]

[tcp]
address = "x"
"""
EXPECTED = {
    "unknown key mem_queue_siz is ignored; did you mean mem_queue_size?",
    "table [tcp] is ignored, options belong above all tables",
    "ERROR: Resolve failed to coerce value abc (1048576) for field MaxMsgSize - strconv.ParseInt: parsing "
    '"abc": invalid syntax',
    "ERROR: Resolve failed to coerce value true (2s) for field SyncTimeout - invalid time.Duration value type bool",
    "failed parsing log_level trace",
    '--log-format must be text or json, not "xml"',
    '--durability must be none, process, disk or store, not "maybe"',
    "--max-deflate-level must be [1,9]",
    "--mem-queue-size must be >= 0",
    "--retention-time needs --retention-bytes",
    "--auth-http-request-method must be post or get",
    "failed to build TLS config - open /nonexistent/cert: no such file or directory",
    "failed to build client TLS config - open /nonexistent/roots: no such file or directory",
    "--channel-rules must be <topic>:<channel>:rate=<n>:burst=<n>:ordered=true:idle_timeout=<duration>:"
    'idle_policy=pause|empty|delete|none, not "a"',
    '--channel-rules: invalid rate in "t:c:rate=x"',
    '--http-auth-token-file must begin with read: or full:, not "bad"',
    "failed to read HTTP tokens - /nonexistent/tokens: no such file or directory",
    "--http-auth-common-name needs --tls-client-auth-policy=require-verify",
    "--http-allow-origin must be * or an origin as browsers send it, such as https://ops.example.com or "
    'http://localhost:3000, not "https://x/"',
}


def test_each_problem_is_a_line_and_comes_once(check: Check) -> None:
    lines = problems(check(free_addresses(*FREE) + WRONG))
    assert set(lines) == EXPECTED
    assert len(lines) == len(EXPECTED)


def test_file_that_is_read_twice_is_one_problem(check: Check, identities: dict[str, tuple[str, str]]) -> None:
    text = free_addresses(*FREE) + 'tls_cert = "{}"\ntls_key = "{}"\n'.format(*identities["server"])
    assert check(text).stdout == "x.cfg: OK\n"
    assert problems(check(text + 'tls_root_ca_file = "/nonexistent"\n')) == [
        "failed to build TLS config - open /nonexistent: no such file or directory"
    ]


def test_expired_certificate_is_a_problem(check: Check, tmp_path: Path) -> None:
    chain, root = issue("chain", authority=True, expired=True), issue("root", authority=True, days=0.5)
    (cert, key), (roots, _) = issue("server", chain).write(tmp_path / "server", chain), root.write(tmp_path / "root")
    text = f'{free_addresses(*FREE)}tls_cert = "{cert}"\ntls_key = "{key}"\ntls_root_ca_file = "{roots}"\n'
    assert problems(check(text)) == [f"a certificate in {cert} expired at {chain.end:%Y-%m-%dT%H:%M:%SZ}"]
    root.write(tmp_path / "server")
    assert check(text).stdout == "x.cfg: OK\n"


def test_file_without_end_is_a_problem(check: Check, tmp_path: Path) -> None:
    text = 'tls_cert = "/dev/zero"\ntls_root_ca_file = "/dev/zero"\nhttp_auth_token_files = ["full:/dev/zero"]\n'
    assert problems(check(free_addresses(*FREE) + text)) == [
        "failed to build TLS config - read /dev/zero: more than 16777216 bytes",
        "failed to read HTTP tokens - /dev/zero: more than 65536 bytes",
    ]
    result = run_to_end(own_command(), "check-config", "/dev/zero", cwd=tmp_path)
    error = "read /dev/zero: more than 16777216 bytes"
    assert (result.returncode, result.stdout, result.stderr) == (1, f"/dev/zero: {error}\n", "")
    result = run_to_end(own_command(), "--config=/dev/zero", cwd=tmp_path)
    assert result.stderr.endswith(f" FATAL: failed to load config file /dev/zero - {error}\n")
    assert (result.returncode, result.stdout) == (1, "")


def test_file_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(free_addresses(*FREE) + "mem_queue_siz = 5\n",))
    writer.start()
    result = run_to_end(own_command(), "check-config", str(pipe), cwd=tmp_path)
    writer.join()
    assert result.stdout == f"{pipe}: unknown key mem_queue_siz is ignored; did you mean mem_queue_size?\n"


def test_many_unknown_keys_are_reported_in_little_time(check: Check) -> None:
    # To find the nearest key takes a millisecond: this is done for the first hundred.
    lines = problems(check(free_addresses(*FREE) + "".join(f"mem_queue_siz{n} = 1\n" for n in range(20_000))))
    hints = [line.partition("; ")[2] for line in lines]
    assert hints == ["did you mean mem_queue_size?"] * 100 + [""] * 19_900


def test_file_without_problems_is_ok(check: Check) -> None:
    result = check(free_addresses(*FREE) + 'mem_queue_size = 5\ndata_path = "nowhere"\n')
    assert (result.returncode, result.stdout, result.stderr) == (0, "x.cfg: OK\n", "")


def test_addresses_that_are_taken_are_named(check: Check, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "taken"))
        listener.listen()
        address, free = f"127.0.0.1:{taken.getsockname()[1]}", free_port()
        lines = problems(check(f'tcp_address = "./taken"\nhttp_address = "{address}"\n'))
        assert lines == [
            "tcp_address: listen (./taken) failed - listen unix ./taken: bind: address already in use",
            f"http_address: listen ({address}) failed - listen tcp {address}: bind: address already in use",
        ]
        both = f'tcp_address = "./free"\nhttp_address = "127.0.0.1:{free}"\nadmin_http_address = "127.0.0.1:{free}"\n'
        (line,) = problems(check(both))
        assert line.startswith(f"admin_http_address: listen (127.0.0.1:{free}) failed - ")


def test_socket_that_a_start_would_replace_stays(check: Check, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "left"))
    before = (tmp_path / "left").stat()
    result = check(f'tcp_address = "./left"\n{free_addresses("http")}')
    assert result.stdout == "x.cfg: OK\n"
    assert (tmp_path / "left").stat() == before


def test_problem_is_one_line_whatever_the_file_has(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = problems(check("x"))
    assert line.startswith("toml: ")
    assert problems(check(free_addresses(*FREE) + '"a\\nb" = 1')) == ["unknown key a\\nb is ignored"]
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    assert problems(check(free_addresses(*FREE) + '"\u00e9" = 1')) == ["unknown key \\xe9 is ignored"]


def test_nsqlookupd_has_it_too(check: Check) -> None:
    command = own_lookupd_command()
    assert check(free_addresses("tcp", "http"), command).stdout == "x.cfg: OK\n"
    wrong = 'tcp_address = "./path"\nhttp_addres = "x"\nhttp_address = 5\nhttp_allow_origins = ["https://x.y/"]'
    lines = problems(check(wrong, command))
    assert lines == [
        "unknown key http_addres is ignored; did you mean http_address?",
        "ERROR: Resolve failed to coerce value 5 (0.0.0.0:4161) for field HTTPAddress - "
        "invalid string value type int64",
        "--http-allow-origin must be * or an origin as browsers send it, such as https://ops.example.com or "
        'http://localhost:3000, not "https://x.y/"',
        "tcp_address: listen (./path) failed - listen tcp: address ./path: missing port in address",
    ]


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--config=a"]], ids=str)
def test_command_line_needs_one_file(arguments: list[str], tmp_path: Path) -> None:
    result = run_to_end(own_command(), "check-config", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "usage: gnsqd check-config FILE\n")
