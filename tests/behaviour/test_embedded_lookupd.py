"""nsqlookupd inside gnsqd, and --dev: what it has of this gnsqd and of others, and how askers find them."""

import json
import re
from pathlib import Path
from urllib.error import HTTPError

import pytest

from gnsqd.__main__ import main
from kit.daemons import Instance, NotStarted, eventually, free_port
from kit.http_api import read_all
from kit.lookupds import DEV, EMBEDDED, IDENTITY, LookupdInside, Registrant
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, publish, wait_for


def port(nsqd: Instance) -> int:
    assert isinstance(nsqd.tcp_address, tuple)
    return nsqd.tcp_address[1]


# Registrations


def test_this_daemon_is_registered_at_once_and_for_all_that_it_has(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    create(nsqd, "old", "c")
    nsqd.restart(*EMBEDDED)
    lookupd = LookupdInside(nsqd)
    assert lookupd.registered() == {"old:", "old:c"}
    with NSQClient(nsqd.tcp_address) as client:
        publish(nsqd, "t", b"x")
        assert lookupd.registered() == {"old:", "old:c", "t:"}
        client.subscribe("t", "d#ephemeral")
        assert lookupd.registered() == {"old:", "old:c", "t:", "t:d#ephemeral"}
        (row,) = lookupd.ask("/lookup?topic=t")["producers"]
        assert (row["tcp_port"], row["http_port"]) == (port(nsqd), nsqd.http_address[1])
        assert row["version"] == "1.3.0"
    eventually(lambda: lookupd.ask("/channels?topic=t")["channels"] == [])
    post(nsqd, "/channel/delete?topic=old&channel=c")
    post(nsqd, "/topic/delete?topic=t")
    assert lookupd.registered() == {"old:"}
    assert "unexpected UNREGISTER" not in nsqd.log()


def test_end_of_a_topic_leaves_the_channels_that_are_not_of_this_daemon(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED)
    lookupd = LookupdInside(nsqd)
    create(nsqd, "t", "c")
    lookupd.ask("/channel/create?topic=t&channel=d%23ephemeral", "POST")
    post(nsqd, "/topic/delete?topic=t")
    assert lookupd.ask("/channels?topic=t")["channels"] == ["c", "d#ephemeral"]


def test_other_nsqds_register_over_tcp(nsqd_factory: DaemonFactory, gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED)
    lookupd = LookupdInside(nsqd)
    other = nsqd_factory(lookupd.flag, "--broadcast-address=other")
    for daemon in (nsqd, other):
        create(daemon, "t")
    eventually(lambda: lookupd.found("t") == {port(nsqd), port(other)})
    other.terminate()
    eventually(lambda: lookupd.found("t") == {port(nsqd)})


def test_new_topic_begins_with_the_channels_that_are_registered(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED)
    with Registrant(LookupdInside(nsqd)) as other:
        other.register("t a", "t b#ephemeral", "t c")
        publish(nsqd, "t", b"x")
    for name in "ac":
        wait_for(nsqd, "t", name, depth=1)
    assert len(nsqd.stats("t")["topics"][0]["channels"]) == 2


@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_each_address_is_enough(gnsqd_factory: DaemonFactory, kind: str) -> None:
    lookupd = LookupdInside(gnsqd_factory(f"--embedded-lookupd-{kind}-address=127.0.0.1:0"))
    if kind == "http":
        assert len(lookupd.producers()) == 1
    else:
        with Registrant(lookupd) as nsqd:
            assert nsqd.identity["http_port"] == 0


def test_without_ports_this_daemon_is_not_registered(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nsqd = gnsqd_factory(f"--tcp-address={tmp_path}/socket", *EMBEDDED, "--lookup-creates-topics")
    lookupd = LookupdInside(nsqd)
    create(nsqd, "t")
    assert lookupd.ask("/topics") == {"topics": []}
    assert lookupd.found("t") == set()
    assert "ERROR: this nsqd is not registered" in nsqd.log()


def test_pprof_is_only_where_a_token_may_be_required(gnsqd_factory: DaemonFactory) -> None:
    lookupd = LookupdInside(gnsqd_factory(*EMBEDDED))
    for path in ("/debug/pprof", "/debug/pprof/cmdline"):
        with pytest.raises(HTTPError, match="404"):
            lookupd.ask(path)


def test_log_level_is_that_of_the_daemon(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED)
    lookupd = LookupdInside(nsqd)
    nsqd.http("PUT", "/config/log_level", b"error")
    lookupd.ask("/topics")
    assert "/topics" not in nsqd.log()
    nsqd.http("PUT", "/config/log_level", b"info")
    lookupd.ask("/topics")
    assert re.search(r"^\[nsqlookupd\] .* INFO: 200 GET /topics", nsqd.log(), re.MULTILINE)


# Names of this daemon


HOSTS = {"gnsqd": "gnsqd", "gnsqd:4161": "gnsqd", "127.0.0.1:4161": "127.0.0.1"}
HOSTS |= {"[::1]:4161": "::1", "[::1]": "::1", "a.b-c_d": "a.b-c_d"}


def test_askers_get_the_name_by_which_they_ask(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED)
    create(nsqd, "t")
    lookupd = LookupdInside(nsqd)
    with lookupd.connect("http") as sock:  # without a name it is the broadcast address
        sock.sendall(b"GET /nodes HTTP/1.0\r\n\r\n")
        (row,) = json.loads(read_all(sock).partition(b"\r\n\r\n")[2])["producers"]
    assert row["broadcast_address"] == row["hostname"]
    with Registrant(lookupd) as other:
        other.register("t")
        for host, name in HOSTS.items():
            assert lookupd.names(host) == [name, "b"]
            found = [row["broadcast_address"] for row in lookupd.ask("/lookup?topic=t", host=host)["producers"]]
            assert found == [name, "b"]


@pytest.mark.parametrize("how", ["flag", "config"])
def test_broadcast_address_is_for_everybody(gnsqd_factory: DaemonFactory, tmp_path: Path, how: str) -> None:
    (tmp_path / "nsqd.cfg").write_text('broadcast_address = "b"')
    given = {"flag": "--broadcast-address=b", "config": f"--config={tmp_path}/nsqd.cfg"}[how]
    nsqd = gnsqd_factory(*EMBEDDED, given)
    create(nsqd, "t")
    lookupd = LookupdInside(nsqd)
    assert lookupd.names("gnsqd:4161") == ["b"]
    assert lookupd.ask("/lookup?topic=t", host="gnsqd")["producers"][0]["broadcast_address"] == "b"


def test_tombstone_is_for_the_name_that_the_asker_has(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED, "--lookup-creates-topics")
    create(nsqd, "t")
    lookupd = LookupdInside(nsqd)
    path = f"/topic/tombstone?topic=t&node=gnsqd:{nsqd.http_address[1]}"
    lookupd.ask(path, "POST", "other")
    assert lookupd.found("t") == {port(nsqd)}
    lookupd.ask(path, "POST", "gnsqd")
    assert lookupd.found("t") == set()


# --lookup-creates-topics


def test_topic_that_is_looked_up_is_there(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED, "--lookup-creates-topics")
    lookupd = LookupdInside(nsqd)
    assert lookupd.found("t") == {port(nsqd)}
    assert nsqd.stats()["topics"][0]["topic_name"] == "t"
    lookupd.ask("/topic/delete?topic=t", "POST")
    assert lookupd.ask("/topics") == {"topics": []}
    assert lookupd.found("t") == {port(nsqd)}


def test_topics_are_not_created_unasked(gnsqd: Instance) -> None:
    for flags in (EMBEDDED, (*DEV, "--lookup-creates-topics=false")):
        gnsqd.restart(*flags)
        assert LookupdInside(gnsqd).found("t") == set()
        assert gnsqd.stats()["topics"] == []


def test_only_a_lookup_of_a_name_that_no_nsqd_has_creates_it(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED, "--lookup-creates-topics", "--max-topics=1")
    lookupd = LookupdInside(nsqd)
    with Registrant(lookupd) as other:
        other.register("theirs")
        assert lookupd.found("theirs") == {IDENTITY["tcp_port"]}
        assert lookupd.ask("/channels?topic=t") == {"channels": []}
        for name in ("*", "%24", "", "a" * 65):
            lookupd.found(name)
        assert nsqd.stats()["topics"] == []
        assert lookupd.found("first") == {port(nsqd)}
        assert lookupd.found("second") == set()
    assert "TOPIC(second): not created for a lookup - too many topics" in nsqd.log()


# --dev


def dev_line(nsqd: Instance) -> str:
    (line,) = eventually(lambda: re.findall(r"INFO: DEV: (.*)$", nsqd.log(), re.MULTILINE))
    return str(line)


def test_dev_has_a_directory_of_its_own_and_removes_it(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*DEV, "--data-path=")
    lookupd = LookupdInside(nsqd)
    assert lookupd.found("t") == {port(nsqd)}
    line = dev_line(nsqd)
    addresses = [f"127.0.0.1:{port(nsqd)} (TCP)", f"127.0.0.1:{nsqd.http_address[1]} (HTTP)"]
    addresses += [f"{lookupd.tcp_address} (TCP)", f"{lookupd.http_address} (HTTP)"]
    directory = Path(line.partition("; data: ")[2])
    assert all(address in line for address in addresses)
    assert (directory / "nsqd.dat").exists()
    assert nsqd.terminate() == 0
    assert not directory.exists()


def test_dev_keeps_data_in_the_given_data_path(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*DEV)
    create(nsqd, "t")
    assert dev_line(nsqd).endswith(f"; data: {nsqd.data_path}")
    nsqd.terminate()
    assert (nsqd.data_path / "nsqd.dat").exists()


def test_dev_without_a_place_for_its_directory_is_a_fatal_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("tempfile.TemporaryDirectory", fail)
    assert main(["--dev"]) == 1
    line = "FATAL: failed to instantiate nsqd - failed to create a temporary data path: no space"
    assert line in capfd.readouterr().err


def test_flags_and_config_file_override_what_dev_sets(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text(
        'dev = true\nadmin_http_address = ""\nlookup_creates_topics = false\n'
        f'embedded_lookupd_tcp_address = "127.0.0.1:{free_port()}"'
    )
    nsqd = gnsqd_factory(f"--config={config}", "--embedded-lookupd-http-address=127.0.0.1:0")
    assert LookupdInside(nsqd).found("t") == set()
    nsqd.restart(
        "--dev", *(f"--{name}-address=" for name in ("embedded-lookupd-tcp", "embedded-lookupd-http", "admin-http"))
    )
    assert "nsqlookupd" not in nsqd.log()
    assert "page" not in dev_line(nsqd)


def test_address_in_use_is_a_fatal_line_and_leaves_no_directory(
    gnsqd_factory: DaemonFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    other = gnsqd_factory(*EMBEDDED)
    taken = f"--embedded-lookupd-http-address={LookupdInside(other).http_address}"
    with pytest.raises(NotStarted, match=r"FATAL: failed to instantiate nsqd - listen \(127.* address already in use"):
        gnsqd_factory(*DEV, "--data-path=", taken)
    assert list((tmp_path / "tmp").iterdir()) == []
