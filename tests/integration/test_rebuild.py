"""Everything but the bucket is lost: `holdfast rebuild`, and every `stored` write is there
again."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import connect
from holdfast.protocol.messages import Durability
from tests.support.cluster import DEADLINE_SECONDS, Processes, running_processes
from tests.support.present import present

TENANT = "acme"


def rebuild(bucket: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-P", "-m", "holdfast.cli", "--json", "rebuild", "--yes"),
            *("--bucket", bucket, "--data", str(data)),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("local", [False, True], ids=["shared", "local"])
def test_with_the_bucket_alone_a_cluster_comes_back_with_every_stored_write(
    tmp_path: Path, local: bool
) -> None:
    bucket = f"file://{tmp_path / 'bucket'}"
    options = ["--bucket", bucket, *(["--disk", "local"] if local else [])]

    def start(processes: Processes, name: str) -> Any:
        data = tmp_path / f"disk-{name}" if local else None
        return processes.start_persist(name, *options, data=data)

    def client(processes: Processes) -> Any:
        return connect(processes.nats.url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS)

    async def before(processes: Processes) -> None:
        async with client(processes) as hf:

            async def append_to(name: str) -> None:
                # Each ack takes as long as an object of the log is gathered and put.
                for number in range(6):
                    value = f"{name}{number}".encode()
                    ack = await hf.stream(name).append(value, durability="stored")
                    assert ack.durability is Durability.STORED

            async def set_theme() -> None:
                await hf.kv("settings").set("theme", b"dark", durability="stored")
                await hf.kv("settings").set("theme", b"light", durability="stored")

            await asyncio.gather(*map(append_to, ("a", "b", "c")), set_theme())

    async def after(processes: Processes) -> None:
        async with client(processes) as hf:
            for name in ("a", "b", "c"):
                found = [message.value.decode() async for message in hf.stream(name).get_all()]
                assert found == [f"{name}{number}" for number in range(6)]
            ack = await hf.stream("a").append(b"more", durability="stored")
            assert ack.seq == 7
            assert present(await hf.kv("settings").get("theme")).value == b"light"
            names = [info.name async for info in hf.stores()]
            assert names == ["a", "b", "c", "settings"]

    with running_processes(tmp_path) as processes:
        processes.coordinator.stop()
        shutil.rmtree(processes.data, ignore_errors=True)
        processes.coordinator = processes.start("coordinator", "coordinator", *options)
        servers = [start(processes, "s1"), start(processes, "s2")]
        asyncio.run(before(processes))
        for process in [*servers, processes.coordinator]:
            process.kill()
        shutil.rmtree(processes.data)
        for disk in tmp_path.glob("disk-*"):
            shutil.rmtree(disk)
        result = rebuild(bucket, processes.data)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["stores"] == 4
        assert report["problems"] == report["damaged_logs"] == []
        again = rebuild(bucket, processes.data)
        assert json.loads(again.stderr.splitlines()[-1])["error"] == "invalid_argument"
        processes.coordinator = processes.start("coordinator", "coordinator", *options)
        start(processes, "s3")
        asyncio.run(after(processes))
