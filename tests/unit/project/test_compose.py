"""docker-compose.yml: what can be known of it without a Docker engine.

The Compose specification's own schema accepts it, its commands parse with the real command line,
and its parts refer to each other correctly. That the images start is not tested here.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from holdfast.cli.command import holdfast
from tests.support.nats_server import nats_server_binary

ROOT = Path(__file__).parents[3]
COMPOSE_FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PERSIST_SERVERS = {"p1", "p2", "p3"}

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


def _validate(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a file against the Compose specification's schema that check-jsonschema brings
    along."""
    command = [sys.executable, "-m", "check_jsonschema"]
    command += ["--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_compose_specification_accepts_the_file() -> None:
    result = _validate(COMPOSE_FILE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_validator_refuses_a_file_with_a_wrong_field(tmp_path: Path) -> None:
    content = copy.deepcopy(COMPOSE)
    content["services"]["nats"]["restrat"] = "unless-stopped"
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(yaml.safe_dump(content))
    result = _validate(broken)
    assert result.returncode == 1
    assert "restrat" in result.stdout + result.stderr


def test_a_cluster_is_nats_a_coordinator_three_persist_servers_a_gateway_and_a_bucket() -> None:
    assert set(SERVICES) == {"nats", "coordinator", "gateway", "bucket"} | PERSIST_SERVERS
    assert SERVICES["gateway"]["profiles"] == ["jetstream"], "it starts only when it is asked for"


@each_service
def test_every_service_is_started_again_after_a_failure(service: dict[str, Any]) -> None:
    assert service["restart"] == "unless-stopped"


@each_service
def test_every_image_has_a_pinned_tag(service: dict[str, Any]) -> None:
    _, _, tag = service["image"].partition(":")
    assert tag[:1].isdigit() and "." in tag


def test_the_image_of_the_parts_carries_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in {"coordinator", "gateway"} | PERSIST_SERVERS:
        assert SERVICES[name]["image"] == f"holdfast:{version}"


def test_the_bucket_listens_where_the_comments_and_the_document_say() -> None:
    for path in (COMPOSE_FILE, ROOT / "docs" / "operations.md"):
        assert "s3://NAME?endpoint=http://bucket:8333" in " ".join(path.read_text().split())
    [port] = SERVICES["bucket"]["ports"]
    assert port.endswith(":8333")


def test_nats_runs_without_jetstream() -> None:
    command = SERVICES["nats"]["command"]
    assert not {"-js", "--js", "--jetstream", "-sd", "--store_dir"} & set(command)
    assert "jetstream" not in COMPOSE["configs"]["nats"]["content"]


def test_nats_server_accepts_its_configuration_and_the_gateway_finds_its_listener(
    tmp_path: Path,
) -> None:
    [mounted] = SERVICES["nats"]["configs"]
    assert _option(SERVICES["nats"]["command"], "--config") == mounted["target"]
    content = COMPOSE["configs"][mounted["source"]]["content"]
    file = tmp_path / "nats.conf"
    file.write_text(content)
    subprocess.run([nats_server_binary(), "-t", "-c", str(file)], check=True, timeout=60)
    url = _option(SERVICES["gateway"]["command"], "--leafnodes")
    assert f'listen: "0.0.0.0:{url.rpartition(":")[2]}"' in content


def test_each_persist_server_has_a_name_of_its_own_and_all_share_one_data_directory() -> None:
    data = _option(SERVICES["coordinator"]["command"], "--data")
    for name in PERSIST_SERVERS:
        command = SERVICES[name]["command"]
        assert _option(command, "--name") == name
        assert _option(command, "--data") == data
        assert SERVICES[name]["volumes"] == SERVICES["coordinator"]["volumes"] == [f"shared:{data}"]


@each_service
def test_a_dependency_on_health_is_on_a_service_that_has_a_health_check(
    service: dict[str, Any],
) -> None:
    for needed, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[needed]


def test_every_named_volume_is_declared() -> None:
    used = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {volume.split(":")[0] for volume in used} == set(COMPOSE["volumes"])


@each_service
def test_no_port_is_published_beyond_the_loopback_interface(service: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("service_name", ["coordinator", "gateway", "p1", "p2", "p3"])
def test_the_command_line_accepts_every_command_and_health_check(service_name: str) -> None:
    service = SERVICES[service_name]
    lines = [service["command"]]
    if "healthcheck" in service:
        shell_form, program, *arguments = service["healthcheck"]["test"]
        assert (shell_form, program) == ("CMD", "holdfast")
        lines.append(arguments)
    for name, *arguments in lines:
        parent = click.Context(holdfast, info_name="holdfast")
        command = holdfast.get_command(parent, name)
        assert command is not None, name
        context = command.make_context(name, list(arguments), parent=parent)
        assert not context.args, f"left over: {context.args}"
