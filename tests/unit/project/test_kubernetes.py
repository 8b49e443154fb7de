"""docs/deploy/kubernetes: what can be known of the manifests without a Kubernetes.

kubectl builds them, the schemas of Kubernetes judge them, the command line parses what they run,
and their parts refer to each other correctly. That pods start is not tested here.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import pytest
import yaml

from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.command import holdfast
from holdfast.gateway.auth.__main__ import _CONNECT_SECONDS
from holdfast.gateway.auth.nats_configuration import callout_configuration
from holdfast.persist.lifecycle import capacity
from holdfast.protocol.names import check_server
from holdfast.protocol.serving.supervision import ALIVE_SECONDS
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.access.key_folder import (
    ACCOUNT_FILE,
    AUTH_FILE,
    CALLOUT_FILE,
    REPORTS_FILE,
    SERVERS_FILE,
    SYSTEM_FILE,
    KeyFolder,
)
from tests.support.command_line import parsed, variables
from tests.support.documents import ROOT, fenced, read

FOLDER: Final = ROOT / "docs" / "deploy" / "kubernetes"
#: Those for clusters that ask for tokens.
TOKENS: Final = ("shared-disk-tokens", "bucket-tokens", "nats-tokens")
#: What is applied, each by itself.
TREES: Final = ("shared-disk", "bucket", "nats", *TOKENS, "export")
#: Those with parts of holdfast.
CLUSTERS: Final = tuple(tree for tree in TREES if not tree.startswith(("nats", "export")))
#: The oldest version whose schemas must accept the manifests.
KUBERNETES: Final = "1.32.0"
OF_BOTO3: Final = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"}
VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

each_tree = pytest.mark.parametrize("tree", TREES)
each_cluster = pytest.mark.parametrize("tree", CLUSTERS)

Object = dict[str, Any]


@cache
def built(tree: str) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which builds the manifests")
    with TemporaryDirectory() as folder:
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        Path(folder, "nats-tokens", "users.conf").write_text(users_with_tokens())
        command = ["kubectl", "kustomize", str(Path(folder, tree))]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@cache
def users_with_tokens() -> str:
    """Return what `holdfast nats-config` writes, for some keys."""
    with TemporaryDirectory() as folder:
        keys = KeyFolder(Path(folder, "keys"))
        keys.make()
        return callout_configuration(keys.public_keys(), DEFAULT_PREFIX)


@cache
def objects(tree: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(built(tree)) if each]


def named(tree: str, kind: str, name: str) -> Object:
    [found] = [
        each
        for each in objects(tree)
        if each["kind"] == kind and re.fullmatch(name, each["metadata"]["name"])
    ]
    return found


def workloads(tree: str) -> Iterator[Object]:
    for each in objects(tree):
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each


def pod(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def container(workload: Object) -> Object:
    [found] = pod(workload)["containers"]
    one: Object = found
    return one


def settings(tree: str) -> dict[str, str]:
    """Return the ConfigMap of the parts."""
    data: dict[str, str] = named(tree, "ConfigMap", "holdfast-.*")["data"]
    return data


def parts(tree: str) -> list[tuple[str, Object, dict[str, str]]]:
    """Return the name, the container and the environment of the coordinator and of persist."""
    found = []
    for workload in workloads(tree):
        name = workload["metadata"]["name"]
        if name == "auth":
            continue
        environment = settings(tree) | {"HOLDFAST_NATS": "nats://nats:4222"}
        if name == "persist":
            [variable] = container(workload)["env"]
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
            environment[variable["name"]] = "persist-0"
        found.append((name, container(workload), environment))
    return found


def commands_of(container: Object, environment: dict[str, str]) -> Iterator[list[str]]:
    """Yield each command line of holdfast in a container's probes and hooks."""
    texts = [container[probe]["exec"] for probe in ("readinessProbe", "livenessProbe")]
    texts += [hook["exec"] for hook in container.get("lifecycle", {}).values()]
    for text in texts:
        words = text["command"]
        if words[:2] == ["sh", "-c"]:
            [script] = words[2:]
            words = [
                re.sub(r"\$(\w+)", lambda match: environment[match[1]], word)
                for word in shlex.split(script)
            ]
        if "holdfast" in words:
            begin = words.index("holdfast") + 1
            end = words.index("||") if "||" in words else len(words)
            yield words[begin:end]


def validated(path: Path) -> subprocess.CompletedProcess[str]:
    if find_spec("kubernetes_validate") is None:
        pytest.skip("needs the package kubernetes-validate, of the extra dev")
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", KUBERNETES, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_schemas_of_kubernetes_accept_every_object(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("---\n".join(map(built, TREES)))
    result = validated(path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (result.stdout + result.stderr).count("passed") == sum(
        len(objects(tree)) for tree in TREES
    )


def test_the_export_runs_one_at_a_time_and_the_command_line_accepts_it() -> None:
    job = named("export", "CronJob", "export")["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    one = container(job["jobTemplate"])
    environment = named("export", "ConfigMap", "holdfast-export-.*")["data"]
    options = parsed(one["args"], environment)
    assert (options["bucket"], options["master"]) == ("s3://NAME/PREFIX", "local[2,4]")
    assert options["compact"] is True
    assert one["image"] == f"holdfast-spark:{VERSION}"
    writable = {mount["mountPath"] for mount in one["volumeMounts"]}
    assert {each["value"] for each in one["env"]} == writable == {"/scratch"}


def test_the_schemas_refuse_an_object_with_a_wrong_field(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    persist = yaml.safe_dump(named("bucket", "StatefulSet", "persist"))
    path.write_text(persist.replace("readinessProbe:", "readinesProbe:"))
    result = validated(path)
    assert result.returncode == 1
    assert "readinesProbe" in result.stdout + result.stderr


@each_cluster
def test_the_command_line_accepts_what_a_pod_runs(tree: str) -> None:
    for name, one, environment in parts(tree):
        options = parsed(one["args"], environment)
        assert options["data"] == Path("/data/holdfast")
        assert options["disk"] == ("local" if "bucket" in tree else "shared")
        if "bucket" in tree:
            assert str(options["bucket"]).startswith("s3://")
        if name == "persist":
            assert check_server(str(options["name"])) == "persist-0"
        with pytest.raises(click.UsageError):
            parsed([*one["args"], "--no-such-option"], environment)


@each_cluster
def test_the_command_line_accepts_every_probe_and_hook(tree: str) -> None:
    found = {}
    for name, one, environment in parts(tree):
        for command in commands_of(one, environment):
            # The shared options come before the command.
            begin = next(n for n, word in enumerate(command) if word in ("servers", "drain"))
            options = parsed([*command[begin:], *command[:begin]], environment)
            found[name, command[begin]] = options
            [seconds] = [
                float(command[n + 1]) for n, word in enumerate(command) if "timeout" in word
            ]
            assert seconds < one["readinessProbe"]["timeoutSeconds"] or "drain" in command
    assert found["persist", "servers"]["live"] == "persist-0"
    assert found["coordinator", "servers"]["live"] is None
    assert (("persist", "drain") in found) == ("shared-disk" in tree)
    if "shared-disk" in tree:
        assert found["persist", "drain"]["server"] == "persist-0"


@each_cluster
def test_a_pod_is_alive_while_it_touches_the_file_that_its_probe_looks_at(tree: str) -> None:
    for _, one, environment in parts(tree):
        alive = parsed(one["args"], environment)["alive_file"]
        [script] = one["livenessProbe"]["exec"]["command"][2:]
        assert f"find {alive} -mmin -1" in script
        assert ALIVE_SECONDS * 4 < 60


@pytest.mark.parametrize(("age_seconds", "exit_code"), [(0, 0), (300, 1), (None, 1)])
def test_the_probe_of_liveness_tells_a_stuck_server_from_one_that_turns(
    age_seconds: float | None, exit_code: int, tmp_path: Path
) -> None:
    _, one, _ = parts("bucket")[0]
    alive = tmp_path / "alive"
    if age_seconds is not None:
        subprocess.run(["touch", "-d", f"{age_seconds} seconds ago", alive], check=True, timeout=60)
    command = [
        word.replace("/run/holdfast/alive", str(alive))
        for word in one["livenessProbe"]["exec"]["command"]
    ]
    assert subprocess.run(command, timeout=60, check=False).returncode == exit_code


@each_cluster
def test_every_variable_exists(tree: str) -> None:
    secret = (FOLDER / "secret.env").read_text()
    offered = set(re.findall(r"^#?([A-Z_0-9]+)=", secret, re.MULTILINE))
    assert set(settings(tree)) | offered <= variables() | OF_BOTO3


@each_tree
def test_selectors_find_their_pods_and_volumes_are_declared(tree: str) -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads(tree)]
    for each in objects(tree):
        selector = each.get("spec", {}).get("selector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= own.items() for own in labels), each["metadata"]["name"]
    claims = {each["metadata"]["name"] for each in objects(tree) if "Claim" in each["kind"]}
    for workload in workloads(tree):
        spec = pod(workload)
        mounted = {each["name"] for each in container(workload)["volumeMounts"]}
        assert mounted == {each["name"] for each in spec["volumes"]}
        for constraint in spec["topologySpreadConstraints"]:
            own = workload["spec"]["template"]["metadata"]["labels"]
            assert constraint["labelSelector"]["matchLabels"].items() <= own.items()
        for volume in spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


@each_tree
def test_at_most_one_pod_of_a_kind_is_evicted_at_a_time(tree: str) -> None:
    budgets = [each["spec"] for each in objects(tree) if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == len(list(workloads(tree)))
    for budget in budgets:
        assert budget["maxUnavailable"] == 1
        # With AlwaysAllow a server that is not ready could leave while no coordinator answers.
        assert "unhealthyPodEvictionPolicy" not in budget


@each_tree
def test_pods_run_without_privileges_as_the_user_of_the_image(tree: str) -> None:
    for workload in workloads(tree):
        spec, own = pod(workload), container(workload)["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        if tree in CLUSTERS:
            user = spec["securityContext"]["runAsUser"]
            assert f"--uid {user} " in (ROOT / "Dockerfile").read_text()
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False


@each_cluster
def test_images_and_labels_carry_the_version_of_the_project(tree: str) -> None:
    for workload in workloads(tree):
        assert container(workload)["image"] == f"holdfast:{VERSION}"
        assert workload["metadata"]["labels"]["app.kubernetes.io/version"] == VERSION


def test_a_server_has_time_for_its_drain_and_then_for_its_end() -> None:
    persist = named("shared-disk", "StatefulSet", "persist")
    [script] = container(persist)["lifecycle"]["preStop"]["exec"]["command"][2:]
    drain_seconds = int(re.findall(r"^timeout (\d+) ", script)[0])
    assert pod(persist)["terminationGracePeriodSeconds"] >= drain_seconds + 30
    assert f"at most {drain_seconds} s" in read("deploy/kubernetes.md")


def test_a_standby_needs_a_lock_on_a_shared_disk() -> None:
    assert named("shared-disk", "Deployment", "coordinator")["spec"]["replicas"] == 2
    alone = named("bucket", "Deployment", "coordinator")["spec"]
    assert alone["replicas"] == 1
    assert alone["strategy"] == {"type": "Recreate"}


def test_the_memory_of_a_server_is_enough_for_the_open_stores_that_its_comment_names() -> None:
    limit = container(named("bucket", "StatefulSet", "persist"))["resources"]["limits"]["memory"]
    stores = capacity.fitting(
        20_000, descriptors=None, memory_bytes=int(limit.removesuffix("Gi")) * 2**30
    )
    [named_count] = re.findall(
        r"a quarter to open stores: ([\d,]+) of them", (FOLDER / "base/persist.yaml").read_text()
    )
    assert abs(stores - int(named_count.replace(",", ""))) < 100


@pytest.mark.parametrize(
    ("tree", "passwords"),
    [("nats", {"SERVERS_PASSWORD": "one", "DEFAULT_PASSWORD": "two"}), ("nats-tokens", {})],
)
def test_nats_server_accepts_its_configuration(
    tree: str, passwords: dict[str, str], tmp_path: Path
) -> None:
    files = named(tree, "ConfigMap", "nats-.*")["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert set(re.findall(r"password: \$(\w+)", files["users.conf"])) == set(passwords)
    [nats] = [container(each) for each in workloads(tree)]
    assert ("envFrom" in nats) == bool(passwords)
    result = subprocess.run(
        [str(find_nats_server()), "-t", "-c", str(tmp_path / "nats.conf")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=passwords,
    )
    assert result.returncode == 0, result.stderr


def test_nats_with_tokens_is_not_built_without_its_users() -> None:
    # With the users of ../nats it would ask for passwords; without any, for nothing.
    assert not (FOLDER / "nats-tokens" / "users.conf").exists()
    own = yaml.safe_load((FOLDER / "nats-tokens" / "kustomization.yaml").read_text())
    assert own["configMapGenerator"][0]["files"] == ["users.conf"]


@pytest.mark.parametrize("tree", TOKENS[:2])
def test_the_auth_service_finds_the_registry_and_has_only_the_keys_that_it_needs(
    tree: str,
) -> None:
    deployment = named(tree, "Deployment", "auth")
    one = container(deployment)
    arguments = [
        re.sub(r"\$\((\w+)\)", lambda found: settings(tree)[found[1]], word) for word in one["args"]
    ]
    group, name, *rest = arguments
    auth = holdfast.get_command(click.Context(holdfast), group)
    assert isinstance(auth, click.Group)
    options = auth.commands[name].make_context(name, rest).params
    if "bucket" in tree:
        assert options["bucket"] == settings(tree)["HOLDFAST_PERSIST_BUCKET"]
    else:
        assert options["data"] == Path(settings(tree)["HOLDFAST_PERSIST_DATA"])
    assert f"find {options['alive_file']} -mmin -1" in one["livenessProbe"]["exec"]["command"][2]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["minReadySeconds"] > _CONNECT_SECONDS
    [keys] = [each["secret"] for each in pod(deployment)["volumes"] if each["name"] == "keys"]
    assert {each["key"] for each in keys["items"]} == {
        *(ACCOUNT_FILE, AUTH_FILE, CALLOUT_FILE, REPORTS_FILE, SYSTEM_FILE)
    }
    [mounted] = [each for each in one["volumeMounts"] if each["name"] == "keys"]
    assert options["keys"] == Path(mounted["mountPath"])
    [login] = [each["secret"] for each in pod(deployment)["volumes"] if each["name"] == "login"]
    assert SERVERS_FILE not in {each["key"] for each in login["items"]}


@pytest.mark.parametrize("tree", TOKENS[:2])
def test_servers_log_in_and_probes_ask_with_files_that_the_page_puts_into_the_secret(
    tree: str,
) -> None:
    page = read("deploy/kubernetes.md")
    for variable in ("HOLDFAST_NATS_NKEY", "HOLDFAST_TOKEN_FILE"):
        file = Path(settings(tree)[variable])
        assert re.search(
            rf"create secret generic holdfast-login \S+(\s+--from-file=\S+)*"
            rf"\s+--from-file=(keys/)?{re.escape(file.name)}",
            page,
        )
        for _, one, _ in parts(tree):
            [login] = [each for each in one["volumeMounts"] if each["name"] == "login"]
            assert str(file.parent) == login["mountPath"]


VERBS = ("coord", "srv", "destroy", "fork")


def test_the_nats_of_the_manifests_permits_what_the_page_on_operations_says() -> None:
    own = (FOLDER / "nats" / "users.conf").read_text()
    [documented] = fenced(read("operations.md"), "nats")
    for configuration, tenant in ((own, "default"), (documented, "acme")):
        lines = re.findall(r"(publish|subscribe): (\[.*\])", configuration)
        permissions = [(verb, json.loads(found)) for verb, found in lines]
        assert permissions == [
            ("publish", ["hf.>", "_INBOX.>"]),
            (
                "subscribe",
                ["hf._.>", *(f"hf.*.{verb}.*" for verb in VERBS), "_INBOX.>"],
            ),
            ("publish", [f"hf.{tenant}.{verb}.*" for verb in VERBS]),
            ("subscribe", [f"hf.{tenant}.chg.>", f"_INBOX.{tenant}.>"]),
        ]


def test_the_nodes_of_nats_have_routes_to_each_other_and_leave_in_time() -> None:
    workload = named("nats", "StatefulSet", "nats")
    configuration = (FOLDER / "nats" / "nats.conf").read_text()
    service = workload["spec"]["serviceName"]
    assert re.findall(r'"nats://(\S+):6222"', configuration) == [
        f"nats-{number}.{service}" for number in range(workload["spec"]["replicas"])
    ]
    assert named("nats", "Service", service)["spec"]["publishNotReadyAddresses"] is True
    [lame_duck] = re.findall(r'lame_duck_duration: "(\d+)s"', configuration)
    assert pod(workload)["terminationGracePeriodSeconds"] > int(lame_duck)
    [pid_file] = re.findall(r'pid_file: "(.*)"', configuration)
    hook = container(workload)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["nats-server", f"-sl=ldm={pid_file}"]
    [compose] = re.findall(r"image: (nats:\S+)", (ROOT / "docker-compose.yml").read_text())
    assert container(workload)["image"] == compose


def test_the_page_names_every_folder_and_what_validated_them() -> None:
    page = read("deploy/kubernetes.md")
    for path in FOLDER.iterdir():
        assert f"kubernetes/{path.name}" in page, path.name
    assert f"Kubernetes {KUBERNETES.removesuffix('.0')}" in page
