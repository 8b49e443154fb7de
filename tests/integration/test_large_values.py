"""Values of any size, through real processes: streamed both ways, resumed, whole or not there at all."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from holdfast.cli.cluster import Cluster, ClusterOptions, running_cluster
from holdfast.client import (
    Client,
    ValueReplacedError,
    connect,
)
from holdfast.protocol.limits import MIB

DEADLINE_SECONDS = 60.0
LARGE_BYTES = 64 * MIB
#: What a client or a server may take beside what it takes anyway.
EXTRA_BYTES = 48 * MIB


class _Slow:
    """A source that stops after so many bytes until it is told to go on."""

    def __init__(self, value: bytes, stop_at: int) -> None:
        self.value = value
        self.stop_at = stop_at
        self.offset = 0
        self.reached = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.error: OSError | None = None

    def seekable(self) -> bool:
        return False

    def read(self, size_bytes: int) -> bytes:
        if self.offset >= self.stop_at:
            self.loop.call_soon_threadsafe(self.reached.set)
            if self.error is not None:
                raise self.error
        data = self.value[self.offset : self.offset + size_bytes]
        self.offset += len(data)
        return data

    @property
    def file(self) -> BinaryIO:
        return cast(BinaryIO, self)


def run_in_cluster(data: Path, body: Callable[[Cluster, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        options = ClusterOptions(data=data, server_count=2, port=0)
        async with (
            asyncio.timeout(DEADLINE_SECONDS * 3),
            running_cluster(options, lambda line: None) as cluster,
            connect(cluster.nats_url, tenant="acme", timeout_seconds=DEADLINE_SECONDS) as client,
        ):
            await body(cluster, client)

    asyncio.run(main())


def pid_of(cluster: Cluster, server: str) -> int:
    pid = next(part.pid for part in cluster.servers if part.name == server)
    assert pid is not None
    return pid


def file_of(path: Path, size_bytes: int, seed: int) -> str:
    """Write random bytes, piece by piece; return their sha256."""
    digest, source = hashlib.sha256(), random.Random(seed)
    with path.open("wb") as file:
        for start in range(0, size_bytes, MIB):
            piece = source.randbytes(min(MIB, size_bytes - start))
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def forget_peak(pid: int) -> int:
    """Let the peak of a process's memory begin anew, and return what it takes now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_bytes(pid)


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_a_large_file_goes_there_and_back_in_little_memory(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    sha256 = file_of(source, LARGE_BYTES + 12345, 1)

    async def body(cluster: Cluster, client: Client) -> None:
        stream = client.stream("films")
        await stream.append(b"small")
        owner = pid_of(cluster, (await stream.head()).server)
        before = {pid: forget_peak(pid) for pid in (owner, os.getpid())}
        ack = await stream.put_file(source, headers={"name": "film"})
        assert ack.seq == 2
        head = await stream.head()
        assert (head.count, head.bytes) > (2, LARGE_BYTES)
        message = await stream.get_file(2, target)
        assert message is not None
        assert (message.size_bytes, message.headers) == (LARGE_BYTES + 12345, {"name": "film"})
        assert sha256_of(target) == sha256
        for pid, taken in before.items():
            assert peak_bytes(pid) - taken < EXTRA_BYTES
        # Others go on, and a replaced one is gone.
        await stream.set(2, b"small too")
        assert [each.value async for each in stream.get_all()] == [b"small", b"small too"]
        assert (await stream.head()).bytes == len(b"smallsmall too")

    run_in_cluster(tmp_path / "data", body)


def test_large_values_are_whole_or_not_there_at_all(tmp_path: Path) -> None:
    values = [random.Random(seed).randbytes(3 * MIB + seed) for seed in range(4)]

    async def body(cluster: Cluster, client: Client) -> None:
        kv, stream = client.kv("pictures"), client.stream("films")
        seen = []

        async def follow() -> None:
            async for change in stream.subscribe():
                assert change.message is not None
                seen.append(change.message)
                if change.message.value == b"last":
                    return

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            # Plain calls, side by side.
            acks = await asyncio.gather(
                stream.append(values[0]), kv.set("a", values[1], expected_revision=0)
            )
            await stream.append(b"last")
        large = seen[0]
        assert (large.value, large.size_bytes) == (b"", len(values[0]))
        reader = await stream.get_reader(large)
        assert reader is not None
        assert await reader.read() == values[0]
        found = await stream.get(1)
        assert found is not None
        assert (found.value, found.revision) == (values[0], acks[0].revision)

        # Replaced while it is read: the reader hears of it, nothing is mixed.
        old = await kv.get_reader("a")
        assert old is not None
        begun = await old.read(1000)
        assert begun == values[1][:1000]
        await kv.set("a", values[2])
        with pytest.raises(ValueReplacedError):
            await old.read()
        entry = await kv.get("a")
        assert entry is not None
        assert entry.value == values[2]

        # Two writers of one key: one of them wins with all of its value.
        await asyncio.gather(kv.set("b", values[2]), kv.set("b", values[3]))
        entry = await kv.get("b")
        assert entry is not None
        assert entry.value in values[2:]

        # An upload that breaks off is not there, and goes on where it stopped with its id.
        source = _Slow(values[3], stop_at=2 * MIB)
        source.error = OSError("the cable was pulled")
        with pytest.raises(OSError, match="cable"):
            await kv.put_file("c", source.file, upload_id=b"0123456789abcdef")
        assert await kv.get("c") is None
        path = tmp_path / "source"
        path.write_bytes(values[3])
        ack = await kv.put_file("c", path, upload_id=b"0123456789abcdef")
        again = await kv.put_file("c", path, upload_id=b"0123456789abcdef")
        assert (again.revision, again.duplicate) == (ack.revision, True)
        entry = await kv.get("c")
        assert entry is not None
        assert entry.value == values[3]

    run_in_cluster(tmp_path / "data", body)


def test_an_upload_goes_on_when_its_owner_is_killed_in_the_middle(tmp_path: Path) -> None:
    value = random.Random(7).randbytes(6 * MIB)

    async def body(cluster: Cluster, client: Client) -> None:
        stream = client.stream("films")
        await stream.append(b"first")
        owner = (await stream.head()).server
        source = _Slow(value, stop_at=3 * MIB)
        uploading = asyncio.create_task(stream.put_file(source.file, durability="synced"))
        await asyncio.wait_for(source.reached.wait(), DEADLINE_SECONDS)
        os.kill(pid_of(cluster, owner), signal.SIGKILL)
        ack = await uploading
        assert ack.seq == 2
        found = await stream.get(2)
        assert found is not None
        assert found.value == value

        # And by another client, which knows of it only its id.
        upload_id = b"fedcba9876543210"
        owner = (await stream.head()).server
        broken = _Slow(value, stop_at=4 * MIB)
        broken.error = OSError("the application was killed")
        with pytest.raises(OSError, match="killed"):
            await stream.put_file(broken.file, upload_id=upload_id)
        await stream.append(b"synced, with all that came before")
        os.kill(pid_of(cluster, owner), signal.SIGKILL)
        path = tmp_path / "source"
        path.write_bytes(value)
        async with connect(
            cluster.nats_url, tenant="acme", timeout_seconds=DEADLINE_SECONDS
        ) as other:
            ack = await other.stream("films").put_file(path, upload_id=upload_id)
            assert ack.seq == 4
            written = await other.stream("films").get_file(4, tmp_path / "target")
        assert written is not None
        assert sha256_of(tmp_path / "target") == sha256_of(path)

    run_in_cluster(tmp_path / "data", body)
