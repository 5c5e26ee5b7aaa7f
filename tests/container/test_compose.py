"""The compose files, and a manifest for Kubernetes: their flags, names and paths lead to what they mean."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from container.containerfile import DIRECTORY, ROOT, health_check, services
from gnsqd.configuration import parse_flags
from gnsqd.gotext import parse_duration
from gnsqd.options import DEV, Options

FILES = ("compose.yaml", "compose.dev.yaml")
SERVICES = services()
SECOND = 1_000_000_000


def blocks(page: str) -> list[Any]:
    """Returns the YAML that a page has."""
    text = (ROOT / "contrib" / "docs" / page).read_text("utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)]


EXAMPLES = [block["services"] for block in blocks("containers.md")]


def ports(service: dict[str, Any]) -> set[str]:
    """Returns the ports that it listens on and that are published, under their own numbers and for this host alone."""
    published = [port.split(":") for port in service["ports"]]
    assert all((host, outside) == ("127.0.0.1", inside) for host, outside, inside in published)
    return {inside for _, _, inside in published}


@pytest.mark.parametrize("file", FILES)
def test_docker_compose_takes_it(file: str) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    command = [docker, "compose", "-f", str(DIRECTORY / file), "config", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("file", FILES)
def test_our_image_is_built_and_checked_and_every_file_is_there(file: str) -> None:
    for service in services(file).values():
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            assert "/" not in source or (DIRECTORY / source).is_file(), source
        if service["image"] == "gnsqd":
            context = (DIRECTORY / service["build"]["context"]).resolve()
            assert context / service["build"]["dockerfile"] == DIRECTORY / "Containerfile"
            assert service["healthcheck"]["test"] == ["CMD", *health_check()]


def test_the_daemon_has_time_to_drain_and_writes_nothing_but_its_data() -> None:
    program, *flags = SERVICES["gnsqd"]["command"]
    service, options = SERVICES["gnsqd"], parse_flags(flags)[0]
    assert program == "gnsqd"
    assert service["volumes"] == [f"data:{options['data_path']}"]
    assert options["broadcast_address"] == "gnsqd", "the name that the others know it by"
    assert options["sigterm"] == "drain"
    assert parse_duration(service["stop_grace_period"]) >= options["drain_timeout"] + 15 * SECOND
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_addresses_name_services_and_the_ports_they_listen_on() -> None:
    prometheus, grafana = (
        yaml.safe_load((DIRECTORY / file).read_text("utf-8")) for file in ("prometheus.yml", "grafana/datasource.yml")
    )
    words = [word.partition("=")[2] for service in SERVICES.values() for word in service.get("command", [])]
    addresses = [word for word in words if re.fullmatch(r"\w+:\d+", word)]
    addresses += prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    addresses.append(grafana["datasources"][0]["url"].removeprefix("http://"))
    assert len(addresses) == 4
    for host, _, port in (address.partition(":") for address in addresses):
        assert port in ports(SERVICES[host]) | ({"4160"} if host == "nsqlookupd" else set()), host


def test_files_that_configurations_name_are_mounted() -> None:
    mounted = {name: [volume.split(":")[1] for volume in SERVICES[name].get("volumes", [])] for name in SERVICES}
    (rules,) = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text("utf-8"))["rule_files"]
    assert f"/etc/prometheus/{rules}" in mounted["prometheus"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounted["grafana"]
    (provider,) = yaml.safe_load((DIRECTORY / "grafana/dashboards.yml").read_text("utf-8"))["providers"]
    assert provider["options"]["path"] == str(Path(home).parent)


def test_everything_that_dev_mode_listens_on_is_published_and_examples_of_it_are_reachable() -> None:
    (service,) = services("compose.dev.yaml").values()
    options = Options()
    addresses = [options.tcp_address, options.http_address, *(value for value in DEV.values() if ":" in str(value))]
    assert ports(service) == {address.rpartition(":")[2] for address in addresses}
    ours = [each for example in EXAMPLES for each in example.values() if each.get("image") == "gnsqd"]
    assert len(ours) == 2
    for each in ours:
        assert each["command"] == service["command"][: 3 if "4171:4171" in each["ports"] else 2]  # the page
        assert {port.partition(":")[0] for port in each["ports"]} <= ports(service)


def test_pod_that_restores_itself_has_what_its_flags_name() -> None:
    (manifest,) = blocks("log-store.md")
    template = manifest["spec"]["template"]
    (container,), (volume,) = template["spec"]["containers"], template["spec"]["volumes"]
    program, *flags = container["command"]
    options = parse_flags(flags)[0]
    assert (program, options["durability"]) == ("gnsqd", "store")
    assert re.findall(r"\$\((\w+)\)", options["log_store"]) == [each["name"] for each in reversed(container["env"])]
    assert options["broadcast_address"] == f"$({container['env'][0]['name']}).{manifest['spec']['serviceName']}"
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": options["data_path"]}]
    assert manifest["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/healthz", "/healthz", "/readyz"]
    assert {str(probe["port"]) for probe in probes} == {Options().http_address.rpartition(":")[2]}
    assert template["spec"]["terminationGracePeriodSeconds"] >= 15


@pytest.mark.peer
def test_programs_of_nsq_know_their_flags(peer_binary: Callable[[str], Path]) -> None:
    commands = [SERVICES[name]["command"] for name in ("nsqlookupd", "nsqadmin")]
    for program, *flags in commands:
        usage = subprocess.run([peer_binary(program.strip("/")), "--help"], capture_output=True, text=True).stderr
        known = set(re.findall(r"^  -([\w-]+)", usage, re.MULTILINE))
        assert {flag.lstrip("-").partition("=")[0] for flag in flags} <= known
