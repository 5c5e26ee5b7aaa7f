"""The compose file: what a linter would say, and whether the names and paths in it lead to what they mean.

Keys are those of the Compose specification (https://github.com/compose-spec/compose-spec/blob/main/05-services.md).
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from container.compose import command_of, file_in, load, mounts, services
from container.containerfile import DIRECTORY, ROOT, read
from gnsqd.configuration import parse_flags
from gnsqd.gotext import parse_duration
from gnsqd.options import Options

COMPOSE = load(DIRECTORY / "compose.yaml")
SERVICES = services()
KEYS = {"build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "ports", "read_only"}
KEYS |= {"restart", "security_opt", "stop_grace_period", "tmpfs", "volumes"}

SECOND = 1_000_000_000


def ports(service: str) -> list[str]:
    """The ports that it listens on, as far as they are published."""
    return [port.rpartition(":")[2] for port in SERVICES[service]["ports"]]


def test_its_keys_are_those_of_the_specification() -> None:
    assert set(COMPOSE) <= {"name", "services", "volumes", "networks", "configs", "secrets"}
    for service in SERVICES.values():
        assert set(service) <= KEYS
        assert set(service.get("build", {})) <= {"context", "dockerfile", "args", "target"}
        assert service["restart"] in {"no", "always", "on-failure", "unless-stopped"}
        for value in service.get("environment", {}).values():
            assert isinstance(value, str), "compose takes no bare booleans"


def test_docker_compose_takes_it() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    command = [docker, "compose", "-f", str(DIRECTORY / "compose.yaml"), "config", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_image_but_ours_has_a_version() -> None:
    for name, service in SERVICES.items():
        if name == "gnsqd":
            context = (DIRECTORY / service["build"]["context"]).resolve()
            assert context == ROOT
            assert context / service["build"]["dockerfile"] == DIRECTORY / "Containerfile"
        else:
            assert re.fullmatch(r"docker\.io/[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), service["image"]


def test_nothing_is_open_to_the_network() -> None:
    for service in SERVICES.values():
        for port in service["ports"]:
            host, outside, inside = port.split(":")
            assert (host, outside) == ("127.0.0.1", inside)
    published = [port for name in SERVICES for port in ports(name)]
    assert len(published) == len(set(published))


def test_every_volume_is_declared_and_every_file_is_there() -> None:
    named = set()
    for service in SERVICES:
        for source, target in mounts(service):
            assert target.startswith("/")
            if "/" in source:
                assert (DIRECTORY / source).is_file(), source
            else:
                named.add(source)
    assert named == set(COMPOSE["volumes"])


# gnsqd


def test_the_daemons_flags_are_flags_of_ours_and_leave_it_time_to_drain() -> None:
    program, *flags = command_of("gnsqd")
    options = parse_flags(flags)
    assert program == "gnsqd"
    assert ("data", options["data_path"]) in list(mounts("gnsqd"))
    assert options["data_path"] == read()[1][-1].last("VOLUME")
    assert options["broadcast_address"] == "gnsqd", "the name that the others know it by"
    assert options["sigterm"] == "drain"
    grace = parse_duration(SERVICES["gnsqd"]["stop_grace_period"])
    assert grace >= options["drain_timeout"] + 15 * SECOND


def test_the_daemon_can_write_nothing_but_its_data() -> None:
    service = SERVICES["gnsqd"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [target for _, target in mounts("gnsqd")] == ["/data"]


# What stands around it


def test_addresses_name_services_and_the_ports_they_listen_on() -> None:
    defaults = Options()
    assert ports("gnsqd") == [address.rpartition(":")[2] for address in (defaults.tcp_address, defaults.http_address)]
    # nsqlookupd's TCP port is for gnsqd alone.
    listening = {name: {*ports(name), *(["4160"] if name == "nsqlookupd" else [])} for name in SERVICES}
    scraped = load(DIRECTORY / "prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    (source,) = load(DIRECTORY / "grafana" / "datasource.yml")["datasources"]
    words = [word.partition("=")[2] for name in SERVICES for word in SERVICES[name].get("command", [])]
    addresses = [word for word in words if re.fullmatch(r"\w+:\d+", word)] + scraped
    addresses.append(source["url"].removeprefix("http://"))
    assert len(addresses) == 4
    assert scraped == [f"gnsqd:{ports('gnsqd')[1]}"]
    for address in addresses:
        host, port = address.split(":")
        assert port in listening[host], address


@pytest.mark.peer
@pytest.mark.parametrize("service", ["nsqlookupd", "nsqadmin"])
def test_programs_of_nsq_know_their_flags(service: str, peer_binary: Callable[[str], Path]) -> None:
    program, *flags = command_of(service)
    usage = subprocess.run([peer_binary(program.strip("/")), "--help"], capture_output=True, text=True)
    known = set(re.findall(r"^  -([\w-]+)", usage.stderr, re.MULTILINE))
    assert known
    assert {flag.lstrip("-").partition("=")[0] for flag in flags} <= known
    listening = re.findall(r'http-address string\n.*\(default "0\.0\.0\.0:(\d+)"\)', usage.stderr)
    assert ports(service) == listening[-1:]


def test_prometheus_has_the_alert_rules_and_the_job_they_expect() -> None:
    ours = load(file_in("prometheus", "/etc/prometheus/prometheus.yml"))
    example = load(ROOT / "contrib" / "prometheus" / "gnsqd.yml")
    (rules,) = ours.pop("rule_files")
    assert file_in("prometheus", f"/etc/prometheus/{rules}") == ROOT / "contrib" / "grafana" / "gnsqd-alerts.yml"
    del example["rule_files"]
    for config in (ours, example):
        for job in config["scrape_configs"]:
            del job["static_configs"]
    assert ours == example


def test_grafana_has_the_dashboard_and_where_its_data_comes_from() -> None:
    environment = SERVICES["grafana"]["environment"]
    home = environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert file_in("grafana", home) == ROOT / "contrib" / "grafana" / "gnsqd-dashboard.json"
    (provider,) = load(file_in("grafana", "/etc/grafana/provisioning/dashboards/gnsqd.yml"))["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", str(Path(home).parent))
    provisioning = load(file_in("grafana", "/etc/grafana/provisioning/datasources/gnsqd.yml"))
    (source,) = provisioning["datasources"]
    assert (provisioning["apiVersion"], source["type"], source["isDefault"]) == (1, "prometheus", True)
    # The dashboard's variable asks for a source of this type.
    variables = load(file_in("grafana", home))["templating"]["list"]
    assert source["type"] in [variable["query"] for variable in variables if variable["type"] == "datasource"]
