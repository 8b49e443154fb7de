"""A real radosgw for tests: Ceph's S3 before one monitor, one manager and one disk, on loopback.

    with running_radosgw() as server:
        ... server.url, server.credentials ...
        server.restart()      # after a kill -9, on the same port

    python -m tests.support.radosgw pytest tests/integration/test_bucket_contract.py

runs a command with a radosgw in its environment: `HOLDFAST_TEST_S3` is the URL of an empty bucket,
and boto3 finds the credentials.

It needs the programs ceph, ceph-mon, ceph-mgr, ceph-osd, radosgw and radosgw-admin (Debian:
ceph-common, ceph-mon, ceph-mgr, ceph-osd, radosgw) and 20 seconds to start. All of its files lie in
one folder, and all its processes end with the context.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import boto3
import pytest

from holdfast.cli.cluster.ports import free_port

BUCKET: Final = "holdfast-test"
REGION: Final = "us-east-1"
_PROGRAMS: Final = ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin")
_STEP_SECONDS: Final = 60.0
#: radosgw makes its pools before it listens.
_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 10.0
_KEY: Final = "holdfast-test-key"
_SECRET: Final = "holdfast-test-secret"

_CONFIGURATION: Final = """\
[global]
fsid = {cluster}
mon_host = v1:127.0.0.1:{port}
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr2 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = /dev/null
mon_data = {folder}/mon
mgr_data = {folder}/mgr
osd_data = {folder}/osd
run_dir = {folder}
log_file = {folder}/$name.log
admin_socket = {folder}/$name.$pid.asok
mon_allow_pool_size_one = true
mon_data_avail_crit = 1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
bluestore_block_size = {disk_bytes}
"""
#: The file of the disk is sparse.
_DISK_BYTES: Final = 8 << 30


@dataclass(frozen=True, slots=True)
class RadosGateway:
    """One that runs. `url` is an empty bucket's."""

    url: str
    version: str
    credentials: dict[str, str]
    _cluster: _Cluster

    def restart(self) -> None:
        """Kill it in the midst of what it does, and return when it answers again."""
        self._cluster.restart_gateway()


def missing_programs() -> list[str]:
    """Return which of the programs that it needs are not installed."""
    return [program for program in _PROGRAMS if shutil.which(program) is None]


@contextmanager
def running_radosgw() -> Iterator[RadosGateway]:
    """Run a radosgw in a folder of its own. Skips the test without its programs."""
    if missing := missing_programs():
        pytest.skip(f"needs {', '.join(missing)}: Debian's ceph-mon ceph-mgr ceph-osd radosgw")
    with ExitStack() as processes:
        # Not in a test's folder, whose name is too long for that of a socket.
        folder = processes.enter_context(tempfile.TemporaryDirectory(prefix="radosgw-"))
        cluster = _Cluster(Path(folder), processes)
        cluster.start()
        endpoint = cluster.start_gateway()
        credentials = {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        url = f"s3://{BUCKET}?endpoint={endpoint}&region={REGION}"
        yield RadosGateway(url, cluster.version(), credentials, cluster)


class _Cluster:
    """The daemons below radosgw, each in the foreground, and the commands that set them up."""

    def __init__(self, folder: Path, processes: ExitStack) -> None:
        self._folder = folder
        self._processes = processes
        self._id = str(uuid.uuid4())
        self._address = f"127.0.0.1:{free_port()}"
        self._gateway: subprocess.Popen[bytes] | None = None

    def version(self) -> str:
        found = re.search(r"version (\S+)", self._run("radosgw", "--version"))
        assert found is not None
        return found[1]

    def start(self) -> None:
        for name in ("mon", "mgr", "osd"):
            (self._folder / name).mkdir(parents=True)
        port = free_port()
        configuration = _CONFIGURATION.format(
            cluster=self._id, port=port, folder=self._folder, disk_bytes=_DISK_BYTES
        )
        (self._folder / "ceph.conf").write_text(configuration)
        address = f"[v1:127.0.0.1:{port}]"
        monitors = str(self._folder / "monitors")
        self._run("monmaptool", "--create", "--fsid", self._id, "--addv", "a", address, monitors)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors)
        self._start("ceph-mon", "-f", "-i", "a")
        self._start("ceph-mgr", "-f", "-i", "x")
        # A disk that comes with another id than the monitor knows is never let in, without a word.
        disk = str(uuid.uuid4())
        self._run("ceph", "osd", "new", disk)
        self._run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", disk)
        storing = self._start("ceph-osd", "-f", "-i", "0")
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=h", "root=default")
        give_up_at = time.monotonic() + _START_SECONDS
        while "1 up" not in (said := self._run("ceph", "osd", "stat")):
            if time.monotonic() > give_up_at:
                raise AssertionError(f"the disk did not come up: {said}\n{self._logs()}")
            if storing.poll() is not None:
                # On a busy machine it may ask before it knows the cluster: "wrong fsid".
                storing = self._start("ceph-osd", "-f", "-i", "0")
            time.sleep(0.1)

    def start_gateway(self) -> str:
        """Start radosgw with one user, and return its address once it answers."""
        self._run(
            *("radosgw-admin", "user", "create", "--uid", "holdfast", "--display-name", "holdfast"),
            *("--access-key", _KEY, "--secret-key", _SECRET),
            seconds=_START_SECONDS,
        )
        self._run_gateway()
        return f"http://{self._address}"

    def restart_gateway(self) -> None:
        assert self._gateway is not None
        _end(self._gateway)
        self._run_gateway()

    def _run_gateway(self) -> None:
        self._gateway = self._start(
            *("radosgw", "-f", "-n", "client.rgw"),
            f"--rgw_frontends=beast endpoint={self._address}",
        )
        give_up_at = time.monotonic() + _START_SECONDS
        while not _answers(f"http://{self._address}/"):
            if self._gateway.poll() is not None or time.monotonic() > give_up_at:
                raise AssertionError(f"radosgw did not start:\n{self._logs()}")
            time.sleep(0.1)

    def _run(self, *command: str, seconds: float = _STEP_SECONDS) -> str:
        ended = subprocess.run(
            command,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if ended.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {ended.stderr[-2000:]}\n{self._logs()}")
        return ended.stdout

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{command[0]}.out").open("wb") as output:
            process = subprocess.Popen(
                command, env=self._environment(), stdout=output, stderr=output
            )
        self._processes.callback(_end, process)
        return process

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CEPH_CONF": str(self._folder / "ceph.conf")}

    def _logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1000:]}"
            for path in sorted(self._folder.glob("*.out"))
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing that it holds is needed again, so it need not close its files."""
    process.kill()
    process.wait(_END_SECONDS)


def _answers(url: str) -> bool:
    try:
        urlopen(url, timeout=1.0).close()
    except OSError:
        return False
    return True


def main() -> int:
    """Run the command of the arguments with a radosgw in its environment; without one, probe it."""
    command = sys.argv[1:]
    if not command or missing_programs():
        print(__doc__ if not command else f"missing: {missing_programs()}", file=sys.stderr)
        return 2
    with running_radosgw() as server:
        print(f"radosgw {server.version}: {server.url}", file=sys.stderr, flush=True)
        environment = {**os.environ, **server.credentials, "HOLDFAST_TEST_S3": server.url}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
