"""Faults of the machine, on real processes: no false ack, reads go on, and service returns by
itself."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import pytest

from holdfast.client import StorageFailedError
from tests.support.cluster_in_loop import cluster_with_client, pid_of

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits of a running process are set with prlimit"
)


def log_sizes(data: Path) -> int:
    """Return what the largest segment holds, without the zeros behind it."""
    logs = data.glob("data/servers/*/*/log/*.log")
    return max(len(path.read_bytes().rstrip(b"\0")) for path in logs)


async def test_a_full_disk_refuses_writes_serves_reads_and_heals(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (cluster, client):
        stream = client.stream("notes")
        acked = [(await stream.append(b"x" * 1000)).seq for _ in range(20)]
        pid = pid_of(cluster, (await stream.head()).server)
        limit = log_sizes(tmp_path) + 5000
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        refused = 0
        for _ in range(30):
            try:
                acked.append((await stream.append(b"y" * 1000)).seq)
            except StorageFailedError:
                refused += 1
        assert refused > 0, "the disk was full"
        assert len([message async for message in stream.get_all()]) == len(acked)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        for _ in range(10):
            acked.append((await stream.append(b"z")).seq)
        assert acked == list(range(1, len(acked) + 1)), "a refused write took no number"
        stored = [message.seq async for message in stream.get_all()]
        assert stored == acked
        assert (await stream.head()).server == "s1"
        assert pid == pid_of(cluster, "s1"), "the server never had to go"


async def test_without_descriptors_nothing_is_acked_falsely_and_service_returns(
    tmp_path: Path,
) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (cluster, client):
        stream = client.stream("notes")
        await stream.append(b"1")
        pid = pid_of(cluster, "s1")
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        before = resource.prlimit(
            pid, resource.RLIMIT_NOFILE, (used, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1])
        )
        waiting = [asyncio.create_task(stream.append(b"2"))]
        waiting += [
            asyncio.create_task(client.stream(f"more.{number}").append(b"1")) for number in range(5)
        ]
        await asyncio.sleep(0.3)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                assert isinstance(answer, StorageFailedError), answer
        seqs = [message.value async for message in stream.get_all()]
        assert seqs == [b"1", b"2"][: len(seqs)]
        assert (len(seqs) == 2) >= (not isinstance(answers[0], BaseException))
        for number in range(5):
            assert (await client.stream(f"more.{number}").append(b"last")).seq in (1, 2)
