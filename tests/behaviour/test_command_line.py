"""Flags, config file, exit codes and signals: the same words and codes from gnsqd and the real nsqd."""

import fcntl
import functools
import os
import platform
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, Instance, eventually, open_socket, own_command, run_to_end
from kit.traffic import DaemonFactory

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]
Config = Callable[[str], str]

DATE = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"
FATAL = rf"\[nsqd\] {DATE}\.\d{{6}} FATAL: "


@pytest.fixture
def run(daemon_command: list[str], tmp_path: Path) -> Run:
    """Runs the daemon to its end, with `flags`, in an empty directory."""
    return lambda *flags: run_to_end(daemon_command, *flags, cwd=tmp_path)


@pytest.fixture
def run_started(daemon_command: list[str], tmp_path: Path) -> Run:
    """Does the same with an interpreter of its own, as users start it."""
    return lambda *flags: call(daemon_command, tmp_path, *flags)


def call(command: list[str], directory: Path, *flags: str) -> Result:
    return subprocess.run([*command, *flags], cwd=directory, capture_output=True, text=True, timeout=DEADLINE)


@pytest.fixture
def run_own(tmp_path: Path) -> Run:
    return lambda *flags: run_to_end(own_command(), *flags, cwd=tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Writes a config file and returns the flag that names it."""

    def write(text: str) -> str:
        path = tmp_path / "nsqd.cfg"
        path.write_text(text)
        return f"--config={path}"

    return write


@functools.cache
def usage(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "-h"], capture_output=True, text=True, timeout=DEADLINE).stderr


def refusal(result: Result) -> str:
    """Returns the text behind the last FATAL line of a daemon that did not start."""
    assert result.returncode == 1, result
    line = result.stderr.splitlines()[-1]
    match = re.fullmatch(FATAL + "(.*)", line)
    assert match, result.stderr
    return match[1]


# Help and version


FLAG = re.compile(r"^  -(\S+)", re.MULTILINE)


def test_usage_text_is_that_of_nsqd_and_then_our_own_flags(tmp_path: Path, peer_binary: Callable[[str], Path]) -> None:
    real, ours = (call(command, tmp_path, "--help") for command in ([str(peer_binary("nsqd"))], own_command()))
    theirs, _, alone = ours.stderr.partition("\nFlags of gnsqd alone:\n")
    assert re.sub(r" \[(no effect in )?gnsqd: [^]]*\]", "", theirs) == real.stderr
    assert (ours.returncode, ours.stdout) == (real.returncode, real.stdout) == (0, "")
    flags = FLAG.findall(alone)
    assert "sigterm" in flags
    assert flags == sorted(set(flags) - set(FLAG.findall(real.stderr)))
    assert "  -drain-timeout duration\n    \tmaximum duration of a drain" in alone


def test_help_is_usage_on_stderr_and_exit_0(run: Run) -> None:
    for flag in ("-h", "-help", "--help", "--help=x"):
        result = run("--mem-queue-size=5", flag, "--bogus")
        lines = result.stderr.splitlines()
        assert (result.returncode, result.stdout, lines[0]) == (0, "", "Usage of nsqd:")
        assert "  -mem-queue-size int" in lines
        assert "    \tnumber of messages to keep in memory (per topic/channel) (default 10000)" in lines


def test_version_is_one_line_on_stdout(run_started: Run) -> None:
    result = run_started("--version", "--node-id=5000", "--config=/nonexistent")
    assert (result.returncode, result.stderr) == (0, "")
    build = rf"go[\d.]+|gnsqd-\d+\.\d+\.\d+-py{re.escape(platform.python_version())}-(plain|compiled)"
    assert re.fullmatch(rf"nsqd v1\.3\.0 \(built w/({build})\)\n", result.stdout)


# Errors of the command line


INVALID_VALUES = [
    ("mem-queue-size", "abc", '"abc"', "parse error"),
    ("mem-queue-size", "", '""', "parse error"),
    ("mem-queue-size", "08", '"08"', "parse error"),
    ("mem-queue-size", "\udcff", r'"\xff"', "parse error"),
    ("mem-queue-size", "1\n2", r'"1\n2"', "parse error"),
    ("mem-queue-size", "99999999999999999999", '"99999999999999999999"', "value out of range"),
    ("msg-timeout", "60", '"60"', "parse error"),
    ("log-level", "trace", '"trace"', "invalid log level 'trace' (debug, info, warn, error, fatal)"),
    ("tls-min-version", "SSL3.0", '"SSL3.0"', 'unknown tlsVersionOption "ssl3.0"'),
]
BAD_FLAGS = [
    (["--bogus"], "flag provided but not defined: -bogus"),
    (["-bogus=1"], "flag provided but not defined: -bogus"),
    (["--version", "--bogus"], "flag provided but not defined: -bogus"),
    (["--mem-queue-size"], "flag needs an argument: -mem-queue-size"),
    *(
        ([f"-{name}", value], f"invalid value {shown} for flag -{name}: {why}")
        for name, value, shown, why in INVALID_VALUES
    ),
    (["--mem-queue-size="], 'invalid value "" for flag -mem-queue-size: parse error'),
    (["--version=yes"], 'invalid boolean value "yes" for -version: parse error'),
    (["--worker-id=5"], 'invalid boolean value "5" for -worker-id: parse error'),
    (
        ["--tls-required=Maybe"],
        'invalid boolean value "Maybe" for -tls-required: strconv.ParseBool: parsing "maybe": invalid syntax',
    ),
    *(([flag], f"bad flag syntax: {flag}") for flag in ("---x", "--=x", "-=x")),
]


@pytest.mark.parametrize(("flags", "line"), BAD_FLAGS)
def test_bad_flag_is_one_line_then_usage_and_exit_2(
    run: Run, daemon_command: list[str], flags: list[str], line: str
) -> None:
    result = run(*flags)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"{line}\n{usage(tuple(daemon_command))}"


def test_percentile_that_is_not_a_number_is_a_dated_line_and_exit_1(run: Run) -> None:
    for text, bad in (("abc", "abc"), ("", ""), ("1,x", "x")):
        result = run(f"--e2e-processing-latency-percentile={text}")
        assert (result.returncode, result.stdout) == (1, "")
        assert re.fullmatch(rf"{DATE} Could not parse: {bad}\n", result.stderr)


@pytest.mark.parametrize("end", ["word", "-", "--", "--worker-id 5"])
def test_flags_after_the_first_word_are_ignored(run: Run, end: str) -> None:
    result = run("--node-id=5000", *end.split(), "--node-id=5", "--bogus")
    assert refusal(result) == NODE_ID


# Checks at start

NSQD = "failed to instantiate nsqd - "
NODE_ID, LEVEL = f"{NSQD}--node-id must be [0,1024)", f"{NSQD}--max-deflate-level must be [1,9]"
PERCENTILE = f"{NSQD}invalid E2E processing latency percentile: "
NO_KEY = f"{NSQD}cannot require TLS client connections without TLS key and cert"
ROOTS = f"{NSQD}failed to build client TLS config - "
ABSENT = "open /nonexistent: no such file or directory"
PERCENTILES = "e2e_processing_latency_percentiles"

# Flags, config file, and what is said of them. A flag wins over a key, and a key over the default.
REFUSED: list[tuple[list[str], str, str]] = [
    (["--data-path=/nonexistent"], "", f"{NSQD}failed to lock data-path: {ABSENT}"),
    (["--max-deflate-level=0"], "", LEVEL),
    (["--max-deflate-level=10", "--node-id=-1"], "", LEVEL),
    (["--node-id=0x400"], "", NODE_ID),
    (["--e2e-processing-latency-percentile=.5,1.5,2.5"], "", f"{PERCENTILE}2.5"),
    (["--e2e-processing-latency-percentile=0"], "", f"{PERCENTILE}0"),
    (["--tls-required"], "", NO_KEY),
    (["--tls-required=tRUE"], "", NO_KEY),
    (["--tls-client-auth-policy=require"], "", NO_KEY),
    (["--tls-cert=/nonexistent"], "", f"{NSQD}failed to build TLS config - {ABSENT}"),
    (["--tls-root-ca-file=/nonexistent"], "", f"{ROOTS}{ABSENT}"),
    (["--tls-root-ca-file=/dev/null"], "", f"{ROOTS}failed to append certificate to pool"),
    (["--tls-root-ca-file=/"], "", f"{ROOTS}read /: is a directory"),
    ([], "max_deflate_level = 0", LEVEL),
    ([], 'max_deflate_level = "0"', LEVEL),
    (["--max-deflate-level=6"], "max_deflate_level = 0\nid = 1024", NODE_ID),
    (["--node-id=5"], "max_deflate_level = 0\nid = 1024", LEVEL),
    (["--max-deflate-level=6"], "max_deflate_level = 1.5\nid = 1024", NODE_ID),
    ([], "tls_required = true", NO_KEY),
    (["--node-id=1024"], "node_id = 5\nworker_id = 5\nbogus = 1\n[table]\nid = 5", NODE_ID),
    ([], f"{PERCENTILES} = [1.5, 2.5]", f"{PERCENTILE}1.5"),
    ([], f'{PERCENTILES} = "0.5, 2.5"', f"{PERCENTILE}2.5"),
    (["--e2e-processing-latency-percentile=1.5,2.5"], f"{PERCENTILES} = [0.5, 3.5]", f"{PERCENTILE}2.5"),
    # These keys are looked at even where a flag overrides them.
    (["--log-level=fatal"], 'log_level = "trace"', "failed parsing log_level trace"),
    ([], '\ufefflog_level = "trace"', "failed parsing log_level trace"),  # after a byte order mark
    ([], "log_level = 2", "failed parsing log_level 2"),
    (["--tls-required=false"], "tls_required = 2", "failed parsing tls_required 2"),
    ([], 'tls_required = "no"', "failed parsing tls_required no"),
    (["--tls-min-version=tls1.2"], 'tls_min_version = "bogus"', "failed parsing tls_min_version bogus"),
    ([], "tls_min_version = 1.2", "failed parsing tls_min_version 1.2"),
    ([], 'tls_min_version = ["tls1.2"]', "failed parsing tls_min_version [tls1.2]"),
]


@pytest.mark.parametrize(("flags", "content", "text"), REFUSED)
def test_value_refused_at_start_is_one_fatal_line_and_exit_1(
    run: Run, config: Config, flags: list[str], content: str, text: str
) -> None:
    result = run("--log-prefix=other ", "--log-level=fatal", config(content), *flags)
    assert refusal(result) == text
    if not re.search("_id|bogus", content):  # of which ours warns
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)


# One flag for each check, in the order of the checks.
CHECKS = [
    ("--data-path=/nonexistent", "failed to lock data-path: "),
    ("--max-deflate-level=0", "--max-deflate-level must be "),
    ("--node-id=-1", "--node-id must be "),
    ("--tls-cert=/nonexistent", "failed to build TLS config - "),
    ("--tls-required", "cannot require TLS "),
    ("--tls-root-ca-file=/nonexistent", "failed to build client TLS config - "),
    ("--e2e-processing-latency-percentile=2", "invalid E2E processing latency percentile: "),
    ("--tcp-address=127.0.0.1:99999", "listen (127.0.0.1:99999) failed - "),
    ("--http-address=127.0.0.1:99998", "listen (127.0.0.1:99998) failed - "),
]


@pytest.mark.parametrize("number", range(len(CHECKS)), ids=[flag for flag, _ in CHECKS])
def test_checks_come_in_order(run: Run, number: int) -> None:
    flags = [flag for flag, _ in reversed(CHECKS[number:])]
    if flags[-1] == "--tls-required":  # a certificate that cannot be loaded is found before it is missed
        flags = [flag for flag in flags if not flag.startswith("--tls-cert")]
    result = run("--tcp-address=127.0.0.1:0", *flags)
    assert refusal(result).startswith(f"failed to instantiate nsqd - {CHECKS[number][1]}")


def test_data_path_in_use_is_a_fatal_line(run_started: Run, tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run_started("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    finally:
        os.close(held)
    assert refusal(result) == (
        f"failed to instantiate nsqd - failed to lock data-path: cannot flock directory {tmp_path} - resource "
        "temporarily unavailable (possibly in use by another instance of nsqd)"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "failed to read metadata from {path} - read {path}: is a directory"),
        ("", "failed to parse metadata in {path} - unexpected end of JSON input"),
        ("[]", "failed to parse metadata in {path} - json: cannot unmarshal array into Go value of type nsqd.Metadata"),
    ],
)
def test_metadata_that_cannot_be_loaded_is_fatal(run: Run, tmp_path: Path, content: str | None, text: str) -> None:
    if content is None:
        (tmp_path / "nsqd.dat").mkdir()
    else:
        (tmp_path / "nsqd.dat").write_text(content)
    for flag, path in (("--data-path=", "nsqd.dat"), (f"--data-path={tmp_path}", f"{tmp_path}/nsqd.dat")):
        result = run("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", flag)
        assert refusal(result) == f"failed to load metadata - {text.format(path=path)}"


RULES_FORM = "<topic>:<channel>:rate=<n>:burst=<n>:ordered=true:idle_timeout=<duration>:idle_policy="
RULES_FORM += "pause|empty|delete|none"
NO_DEMO = "--demo has clients without TLS and AUTH: leave out"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        # With these the real daemon crashes or hangs later.
        (["--mem-queue-size=-1"], "--mem-queue-size must be >= 0"),
        (["--sync-timeout=0"], "--sync-timeout must be > 0"),
        (["--output-buffer-timeout=0"], "--output-buffer-timeout must be > 0"),
        (["--queue-scan-selection-count=-1"], "--queue-scan-selection-count must be >= 0"),
        (["--statsd-interval=1s", "--statsd-address=127.0.0.1:1"], "--statsd-interval must be > 1s"),
        (
            ["--e2e-processing-latency-window-time=1ns", "--e2e-processing-latency-percentile=1"],
            "--e2e-processing-latency-window-time must be > 1ns",
        ),
        # of gnsqd alone
        *(([f"--{name}=-1"], f"--{name} must be >= 0") for name in ("max-channel-depth", "max-topic-bytes")),
        (["--min-free-disk=-1"], "--min-free-disk must be >= 0"),
        (["--message-ttl=-1ns"], "--message-ttl must be >= 0"),
        (["--max-defer-time=-1s"], "--max-defer-time must be >= 0"),
        (["--overflow-policy=drop"], '--overflow-policy must be reject, drop-oldest or drop-idle, not "drop"'),
        (["--sigterm=Drain"], '--sigterm must be exit or drain, not "Drain"'),
        (["--durability=Disk"], '--durability must be none, process, disk or store, not "Disk"'),
        (["--max-attempts=-1"], "--max-attempts must be [0,65535]"),
        (["--max-attempts=65536"], "--max-attempts must be [0,65535]"),
        (["--auth-http-request-method=PUT"], "--auth-http-request-method must be post or get"),
        (["--http-auth-server"], "--http-auth-server needs --auth-http-address"),
        (["--enable-experiment=warp"], '--enable-experiment must be topology-aware-consumption, not "warp"'),
        (["--retention-bytes=1000000"], "--retention-bytes needs --durability"),
        (["--durability=process", "--retention-time=1h"], "--retention-time needs --retention-bytes"),
        (["--durability=process", "--retention-bytes=-1"], "--retention-bytes must be >= 0"),
        (["--durability=store"], "--durability=store needs --log-store"),
        (["--log-store=file:///tmp/x"], "--log-store needs --durability"),
        (
            ["--durability=disk", "--log-store=s3://b/p?secret=x"],
            "--log-store: s3://b/p?secret=x: secret is not endpoint or region; credentials and all else are set by the "
            "environment",
        ),
        (
            ["--durability=disk", "--log-store=http://b"],
            "--log-store: http://b: expected s3, gs, az, file://..., such as s3://BUCKET/PREFIX",
        ),
        (["--channel-rules=t:c"], f'--channel-rules must be {RULES_FORM}, not "t:c"'),
        (["--channel-rules=t:c:speed=1"], f'--channel-rules must be {RULES_FORM}, not "t:c:speed=1"'),
        (["--channel-rules=t:c:rate=fast"], '--channel-rules: invalid rate in "t:c:rate=fast"'),
        (["--channel-rules=t:c:burst=0"], '--channel-rules: invalid burst in "t:c:burst=0"'),
        (
            ["--channel-rules=t:*:idle_timeout=3"],
            '--channel-rules: invalid idle_timeout (expected: a duration such as 72h) in "t:*:idle_timeout=3"',
        ),
        (
            ["--channel-rules=t:c:idle_policy=x"],
            '--channel-rules: invalid idle_policy (expected: pause, empty, delete, none) in "t:c:idle_policy=x"',
        ),
        (["--demo"], "--demo needs --dev"),
        (["--demo", "--dev", "--data-path=/tmp"], "--demo has a temporary data path: leave out --data-path"),
        (["--demo", "--dev", "--tls-required=tcp-https"], f"{NO_DEMO} --tls-required"),
        (["--demo", "--dev", "--tls-client-auth-policy=require"], f"{NO_DEMO} --tls-client-auth-policy"),
        (["--demo", "--dev", "--auth-http-address=127.0.0.1:1"], f"{NO_DEMO} --auth-http-address"),
    ],
)
def test_value_gnsqd_cannot_run_with_is_one_fatal_line_and_exit_1(run_own: Run, flags: list[str], text: str) -> None:
    result = run_own("--log-level=fatal", *flags)
    assert refusal(result) == f"failed to instantiate nsqd - {text}"
    assert result.stderr.count("\n") == 1


def test_values_at_the_limits_are_taken(gnsqd_factory: DaemonFactory) -> None:
    gnsqd_factory(
        "--max-deflate-level=9", "--node-id=1023", "--mem-queue-size=0", "--statsd-interval=0",
        "--queue-scan-selection-count=0", "--e2e-processing-latency-percentile=1",
        "--e2e-processing-latency-window-time=2ns", "--max-attempts=65535",
    )  # fmt: skip


# Config file


def test_config_file_that_cannot_be_read_or_parsed_is_a_fatal_line(run: Run, config: Config, tmp_path: Path) -> None:
    absent, directory = run("--config=/nonexistent", "--log-prefix=other "), run(f"--config={tmp_path}")
    assert refusal(absent) == f"failed to load config file /nonexistent - {ABSENT}"
    assert refusal(directory) == f"failed to load config file {tmp_path} - read {tmp_path}: is a directory"
    for content in ("mem_queue_size = = 5", "a = 1\na = 2", "a = 9223372036854775808"):
        result = run(config(content))
        assert refusal(result).startswith(f"failed to load config file {tmp_path}/nsqd.cfg - toml: ")
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)


# Line of the config file, its value and the default, and what is wrong with it.
NOT_COERCED = [
    ("mem_queue_size = 1.5", "1.5 (10000) for field MemQueueSize", "invalid int64 value type float64"),
    ("mem_queue_size = true", "true (10000) for field MemQueueSize", "invalid int64 value type bool"),
    ('max_rdy_count = "x"', "x (2500) for field MaxRdyCount", 'strconv.ParseInt: parsing "x": invalid syntax'),
    ('max_rdy_count = "0x10"', "0x10 (2500) for field MaxRdyCount", 'strconv.ParseInt: parsing "0x10": invalid syntax'),
    ("id = []", "[] (ID) for field ID", "invalid int64 value type []interface {}"),
    ("msg_timeout = 1.5", "1.5 (1m0s) for field MsgTimeout", "invalid time.Duration value type float64"),
    ('msg_timeout = "60"', "60 (1m0s) for field MsgTimeout", 'time: missing unit in duration "60"'),
    ('msg_timeout = "1d"', "1d (1m0s) for field MsgTimeout", 'time: unknown unit "d" in duration "1d"'),
    ('deflate = "yes"', "yes (true) for field DeflateEnabled", 'strconv.ParseBool: parsing "yes": invalid syntax'),
    ("snappy = 1.0", "1 (true) for field SnappyEnabled", "invalid bool value type float64"),
    (
        "statsd_mem_stats = {}",
        "map[] (true) for field StatsdMemStats",
        "invalid bool value type map[string]interface {}",
    ),
    (
        f'{PERCENTILES} = "1.0,x"',
        "1.0,x ([]) for field E2EProcessingLatencyPercentiles",
        'strconv.ParseFloat: parsing "x": invalid syntax',
    ),
]


@pytest.mark.parametrize(("line", "value", "reason"), NOT_COERCED)
def test_config_value_that_cannot_be_coerced_is_a_dated_line_and_exit_1(
    run: Run, config: Config, line: str, value: str, reason: str
) -> None:
    result = run(config(line))
    assert (result.returncode, result.stdout) == (1, "")
    text = re.escape(f" ERROR: Resolve failed to coerce value {value} - {reason}\n").replace(r"\(ID\)", r"\(\d+\)")
    assert re.fullmatch(DATE + text, result.stderr)


CRASHING_LISTS = [
    (f"{PERCENTILES} = [1, 0.5]", "[1 0.5] - invalid float64 value type int64"),
    (f'{PERCENTILES} = ["0.5"]', "[0.5] - invalid float64 value type string"),
    ('nsqlookupd_tcp_addresses = ["a", 4160]', "[a 4160] - invalid string value type int64"),
    ("auth_http_addresses = [true]", "[true] - invalid string value type bool"),
    ("auth_http_addresses = 5", "5 - invalid []string value type int64"),
]


def test_list_that_crashes_nsqd_is_one_fatal_line_and_exit_1(run_own: Run, config: Config) -> None:
    for line, reason in CRASHING_LISTS:
        result = run_own(config(line))
        assert refusal(result) == f"failed parsing {line.split()[0]} {reason}"
        assert result.stderr.count("\n") == 1


WARNINGS = {
    "max-rdy-count = 5": "unknown key max-rdy-count is ignored; did you mean max_rdy_count?",
    "Mem_Queue_Sise = 5": "unknown key Mem_Queue_Sise is ignored; did you mean mem_queue_size?",
    "node_id = 5": "unknown key node_id is ignored; did you mean id?",
    "lookupd_tcp_address = []": "unknown key lookupd_tcp_address is ignored; did you mean nsqlookupd_tcp_addresses?",
    "bogus = 5": "unknown key bogus is ignored",
    "[nsqd]\nmem_queue_size = 5": "table [nsqd] is ignored, options belong above all tables",
}


def test_key_that_is_ignored_is_a_warning(run_own: Run, config: Config, tmp_path: Path) -> None:
    result = run_own(config("\n".join(["id = 1024", *WARNINGS])))
    assert refusal(result) == NODE_ID
    prefix = f"config file {tmp_path}/nsqd.cfg: "
    assert re.findall("WARNING: (.*)", result.stderr) == [prefix + warning for warning in WARNINGS.values()]


def test_values_of_the_config_file_take_effect(nsqd_factory: DaemonFactory, config: Config) -> None:
    daemon = nsqd_factory(
        config('log_prefix = "[mine] "\nlog_level = "warn"\ntls_min_version = ""\nid = 7'), "--log-level=info"
    )
    assert re.search(rf"^\[mine\] {DATE}\.\d{{6}} INFO: ID: 7$", daemon.log(), re.MULTILINE)


# How values may be written: flag or line of the config file, and what `/config/` shows of it.
FORMS = [
    ("id", "1023", "0", "1023", "0"),
    ("tls_required", "TCP-HTTPS", '"tcp-HTTPS"', "1", "1"),
    ("max_rdy_count", "0x1F", "7", "31", "7"),
    ("max_msg_size", "1_000", '"1000"', "1000", "1000"),
    ("max_body_size", "0o17", "0x10", "15", "16"),
    ("mem_queue_size", "+010", "1_0", "8", "10"),
    ("max_bytes_per_file", "-0b11", "-3", "-3", "-3"),
    ("sync_every", "9223372036854775807", "9223372036854775807", "9223372036854775807", "9223372036854775807"),
    ("msg_timeout", "1h2m3.5s", '"1h2m3.5s"', "3723500000000", "3723500000000"),
    ("max_msg_timeout", ".5h", "1500", "1800000000000", "1500000000"),
    ("max_req_timeout", "-1.5us", '"-1s"', "-1500", "-1000000000"),
    ("sync_timeout", "1µs1ns", '"1ms"', "1001", "1000000"),
    ("max_heartbeat_interval", "0", "0", "0", "0"),
    ("deflate", "F", '"F"', "false", "false"),
    ("snappy", "false", "false", "false", "false"),
    ("statsd_exclude_ephemeral", "T", '"1"', "true", "true"),
    ("broadcast_address", "a=b", "'a=b'", "a=b", "a=b"),
    ("statsd_address", "", '""', "", ""),
    ("tls_min_version", "TLS1.2", '"tls1.3"', "771", "772"),
    ("log_level", "Info", '"INFO"', "2", "2"),
    ("auth_http_addresses", "a,b", '"a, b"', '["a,b"]', '["a"," b"]'),
    ("e2e_processing_latency_percentiles", "0.5,1.0", "[0.5, 1.0]", "[1,0.5]", "[0.5,1]"),
]
FLAGS = {
    "id": "node-id",
    "auth_http_addresses": "auth-http-address",
    "e2e_processing_latency_percentiles": "e2e-processing-latency-percentile",
}

# Flags that come again, have their value behind them or none, and what comes of them.
AGAIN = [
    "-max-rdy-count", "5", "-max-rdy-count=0x10", "--log-prefix", "--version", "--statsd-prefix=", "--snappy=F",
    "--snappy", "--auth-http-address=a,b", "--auth-http-address=c", "--e2e-processing-latency-percentile=0.5,1.0",
    "--e2e-processing-latency-percentile=.99", "--tls-min-version=TLS1.2", "--tls-min-version=", "--tls-required",
    "--tls-required=False", "--statsd-mem-stats", "false", "--max-rdy-count=1",
]  # fmt: skip
SHOWN_AGAIN = {
    "max_rdy_count": "16", "log_prefix": "--version", "statsd_prefix": "", "snappy": "true",
    "auth_http_addresses": '["a,b","c"]', "e2e_processing_latency_percentiles": "[1,0.99,0.5]",
    "tls_min_version": "771", "tls_required": "0", "statsd_mem_stats": "true",
}  # fmt: skip


def test_values_may_be_written_as_for_nsqd(nsqd_factory: DaemonFactory, config: Config, tls_flags: list[str]) -> None:
    flags = [f"--{FLAGS.get(key, key.replace('_', '-'))}={text}" for key, text, *_ in FORMS]
    lines = "\n".join(f"{key} = {text}" for key, _, text, *_ in FORMS)
    unknown = "\nnode_id = 5\nworker_id = 5\nlookupd_tcp_address = 5\nversion = true\n[table]\nid = 5\n"
    for started, expected in (
        (flags, {row[0]: row[3] for row in FORMS}),
        ([config(lines + unknown)], {row[0]: row[4] for row in FORMS}),
        (AGAIN, SHOWN_AGAIN),
    ):
        daemon = nsqd_factory(*tls_flags, *started)
        assert {key: daemon.http("GET", f"/config/{key}")[2].decode() for key in expected} == expected


# Signals


def test_hangup_is_a_clean_exit_and_loses_nothing(gnsqd: Instance) -> None:
    # NSQD-COMPAT 0.1, item 17: the real daemon dies.
    assert gnsqd.http("POST", "/pub?topic=t", b"x")[0] == 200
    gnsqd.send_signal(signal.SIGHUP)
    assert gnsqd.wait() == 0
    assert gnsqd.log().rstrip().endswith("INFO: NSQ: bye")
    assert gnsqd.start().stats()["topics"][0]["depth"] == 1


def test_hangup_ignored_from_the_start_stays_ignored(daemon_command: list[str], tmp_path: Path) -> None:
    with Instance(["nohup", *daemon_command], tmp_path / "data") as daemon:
        daemon.send_signal(signal.SIGHUP)
        assert daemon.http("GET", "/ping")[0] == 200
        assert daemon.running


def test_user_signals_are_ignored(nsqd: Instance) -> None:
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        nsqd.send_signal(number)
    assert nsqd.http("GET", "/ping")[0] == 200
    assert nsqd.terminate() == 0


def test_quit_prints_what_everything_waits_for_and_exits_2(nsqd: Instance) -> None:
    nsqd.send_signal(signal.SIGQUIT)
    assert nsqd.wait() == 2
    assert "queueScanLoop" in nsqd.log()


def test_daemon_with_closed_standard_streams_serves(tmp_path: Path) -> None:
    address = str(tmp_path / "tcp.sock")
    flags = [f"--tcp-address={address}", "--http-address=", f"--data-path={tmp_path}"]

    def accepts() -> bool:
        try:
            open_socket(address, DEADLINE).close()
        except OSError:  # there is no socket yet, or one that does not listen yet
            return False
        return True

    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *own_command(), *flags]) as process:
        try:
            eventually(lambda: process.poll() is not None or accepts())
            with open_socket(address, DEADLINE) as client:
                client.sendall(b"  V2PUB t\n\x00\x00\x00\x01x")
                assert client.recv(100) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
            streams = [Path(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)]
            assert {str(stream.readlink()) for stream in streams if stream.is_symlink()} <= {"/dev/null"}
        finally:
            process.terminate()
        assert process.wait(DEADLINE) == 0
    assert (tmp_path / "nsqd.dat").read_text().startswith('{"topics":[{"name":"t"')


def test_soft_limit_of_descriptors_is_raised_to_the_hard_one(daemon_command: list[str], tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -Sn 64; ulimit -Hn 999; exec "$@"', "sh", *daemon_command]
    with Instance(limited, tmp_path / "data") as daemon:
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
        assert re.search(r"^Max open files\s+99[89]\s+999\s", limits, re.MULTILINE), limits
