"""The compose files: what a linter would say, and whether the names and paths in them lead to what they mean.

Keys are those of the Compose specification (https://github.com/compose-spec/compose-spec/blob/main/05-services.md).
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from container.compose import command_of, file_in, load, mounts, services
from container.containerfile import DIRECTORY, ROOT, health_check, read
from gnsqd.configuration import parse_flags
from gnsqd.gotext import parse_duration
from gnsqd.options import DEV, Options

SERVICES = services()
KEYS = {"build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "ports", "read_only"}
KEYS |= {"restart", "security_opt", "stop_grace_period", "tmpfs", "volumes"}

HEALTH_KEYS = {"test", "interval", "timeout", "start_period", "retries"}

SECOND = 1_000_000_000


def published(service: dict[str, Any]) -> list[str]:
    """The ports that it listens on, as far as they are published."""
    return [port.rpartition(":")[2] for port in service["ports"]]


def ports(service: str) -> list[str]:
    return published(SERVICES[service])


def help_of(program: Path) -> str:
    """Of a program of the real NSQ."""
    return subprocess.run([program, "--help"], capture_output=True, text=True).stderr


def flags_in(usage: str) -> set[str]:
    return set(re.findall(r"^  -([\w-]+)", usage, re.MULTILINE))


@pytest.fixture(params=["compose.yaml", "compose.dev.yaml"])
def file(request: pytest.FixtureRequest) -> Path:
    return DIRECTORY / str(request.param)


def test_it_has_the_keys_of_the_specification_fixed_versions_and_our_health_check(file: Path) -> None:
    compose = load(file)
    assert set(compose) <= {"name", "services", "volumes", "networks", "configs", "secrets"}
    for service in compose["services"].values():
        assert set(service) <= KEYS
        assert set(service.get("build", {})) <= {"context", "dockerfile", "args", "target"}
        assert set(service.get("healthcheck", {})) <= HEALTH_KEYS
        assert service["restart"] in {"no", "always", "on-failure", "unless-stopped"}
        for value in service.get("environment", {}).values():
            assert isinstance(value, str), "compose takes no bare booleans"
        if service["image"] == "gnsqd":
            context = (DIRECTORY / service["build"]["context"]).resolve()
            assert context == ROOT
            assert context / service["build"]["dockerfile"] == DIRECTORY / "Containerfile"
            assert service["healthcheck"]["test"] == ["CMD", *health_check()]
            assert parse_duration(service["healthcheck"]["start_period"]) == 60 * SECOND
        else:
            assert re.fullmatch(r"docker\.io/[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), service["image"]


def test_docker_compose_takes_it(file: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    command = [docker, "compose", "-f", str(file), "config", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_nothing_is_open_to_the_network_and_every_volume_and_file_is_there(file: Path) -> None:
    compose = load(file)
    named, numbers = set(), []
    for service in compose["services"].values():
        for port in service["ports"]:
            host, outside, inside = port.split(":")
            assert (host, outside) == ("127.0.0.1", inside)
        numbers += published(service)
        for source, target in mounts(service):
            assert target.startswith("/")
            if "/" in source:
                assert (DIRECTORY / source).is_file(), source
            else:
                named.add(source)
    assert len(numbers) == len(set(numbers))
    assert named == set(compose.get("volumes", ()))


# Development


def test_everything_that_dev_mode_listens_on_is_published_under_its_own_number() -> None:
    (service,) = services("compose.dev.yaml").values()
    assert service["command"] == ["gnsqd", "--dev", "--admin-http-address=0.0.0.0:4171"]  # else it is for loopback
    options = Options()
    addresses = [options.tcp_address, options.http_address, *(value for value in DEV.values() if ":" in str(value))]
    assert sorted(published(service)) == sorted(address.rpartition(":")[2] for address in addresses)


PAGE = (ROOT / "contrib" / "docs" / "containers.md").read_text("utf-8")
EXAMPLES = [yaml.safe_load(block)["services"] for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)]


def test_examples_of_dev_mode_are_of_our_image_and_reachable_under_their_own_numbers() -> None:
    (expected,) = services("compose.dev.yaml").values()
    ours = [service for example in EXAMPLES for service in example.values() if service.get("image") == "gnsqd"]
    assert len(ours) == 2
    for service in ours:
        assert service["command"] == expected["command"][: 3 if "4171:4171" in service["ports"] else 2]  # the page
        assert service.get("healthcheck", expected["healthcheck"])["test"] == expected["healthcheck"]["test"]
        assert {port.partition(":")[0] for port in service["ports"]} <= set(published(expected))
        assert all(outside == inside for outside, _, inside in (port.partition(":") for port in service["ports"]))


# gnsqd


def test_the_daemon_has_flags_of_ours_has_time_to_drain_and_writes_nothing_but_its_data() -> None:
    program, *flags = command_of("gnsqd")
    service, options = SERVICES["gnsqd"], parse_flags(flags)[0]
    assert program == "gnsqd"
    assert list(mounts(service)) == [("data", options["data_path"])]
    assert options["data_path"] == read()[1][-1].last("VOLUME")
    assert options["broadcast_address"] == "gnsqd", "the name that the others know it by"
    assert options["sigterm"] == "drain"
    assert parse_duration(service["stop_grace_period"]) >= options["drain_timeout"] + 15 * SECOND
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]


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
    usage = help_of(peer_binary(program.strip("/")))
    assert {flag.lstrip("-").partition("=")[0] for flag in flags} <= flags_in(usage)
    listening = re.findall(r'http-address string\n.*\(default "0\.0\.0\.0:(\d+)"\)', usage)
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
