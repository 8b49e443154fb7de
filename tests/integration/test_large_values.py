"""Values of any size, through real processes: streamed both ways, resumed, whole or not there at
all, and brought through every tier and from owner to owner in little memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from holdfast.client import Client, Durability, ValueReplacedError, connect
from holdfast.protocol.limits import MIB, WAL_CAP_BYTES
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.cluster import Process, Processes, running_processes
from tests.support.present import present
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0
TENANT = "acme"
#: More than a process may take for it.
LARGE_BYTES = 48 * MIB
#: More than an image that is made in memory.
TIERED_BYTES = 17 * MIB
#: What a client or a server may take beside what it takes anyway.
EXTRA_BYTES = 40 * MIB
#: Of an owner that restores, snapshots or takes over: some buffers of SQLite's and of the
#: compression.
OWNER_BYTES = 128 * MIB
SOON_COLD = (
    *("--idle-close-seconds", "0.2", "--snapshot-seconds", "0.2"),
    *("--cold-after-seconds", "0.5"),
)


class Scene:
    """A cluster of two servers with a bucket."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.bucket = f"file://{processes.directory / 'bucket'}"
        self.servers: dict[str, Process] = {}
        for name in ("s1", "s2"):
            self.start(name)

    @property
    def nats_url(self) -> str:
        return self.processes.nats.url

    def start(self, name: str, *options: str) -> None:
        options = ("--bucket", self.bucket, *options)
        self.servers[name] = self.processes.start_persist(name, *options)

    def kill(self, name: str) -> None:
        """End a server in the middle of whatever it does; its supervisor starts it again."""
        self.servers[name].kill()
        self.start(name)

    def pid(self, name: str) -> int:
        return self.servers[name].pid

    def other(self, name: str) -> str:
        return "s2" if name == "s1" else "s1"

    def holdfast(self, *arguments: str) -> None:
        program = [sys.executable, "-P", "-m", "holdfast.cli", "--nats", self.nats_url]
        result = subprocess.run(
            [*program, "--tenant", TENANT, *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running_processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield Scene(processes)


def run(scene: Scene, body: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS * 3),
            connect(scene.nats_url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS) as client,
        ):
            await body(client)

    asyncio.run(main())


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
def test_a_large_file_goes_there_and_back_in_little_memory(scene: Scene, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    sha256 = file_of(source, LARGE_BYTES + 12345, 1)

    async def body(client: Client) -> None:
        stream = client.stream("films")
        await stream.append(b"small")
        owner = scene.pid((await stream.head()).server)
        before = {pid: forget_peak(pid) for pid in (owner, os.getpid())}
        ack = await stream.put_file(source, headers={"name": "film"})
        assert ack.seq == 2
        head = await stream.head()
        assert (head.count, head.bytes) > (2, LARGE_BYTES)
        message = present(await stream.get_file(2, target))
        assert (message.size_bytes, message.headers) == (LARGE_BYTES + 12345, {"name": "film"})
        assert sha256_of(target) == sha256
        for pid, taken in before.items():
            assert peak_bytes(pid) - taken < EXTRA_BYTES
        # Others go on, and a replaced one is gone.
        await stream.set(2, b"small too")
        assert [each.value async for each in stream.get_all()] == [b"small", b"small too"]
        assert (await stream.head()).bytes == len(b"smallsmall too")

    run(scene, body)


def test_large_values_are_whole_or_not_there_at_all(scene: Scene, tmp_path: Path) -> None:
    values = [random.Random(seed).randbytes(3 * MIB + seed) for seed in range(4)]

    async def body(client: Client) -> None:
        kv, stream = client.kv("pictures"), client.stream("songs")
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
        reader = present(await stream.get_reader(large))
        assert await reader.read() == values[0]
        found = present(await stream.get(1))
        assert (found.value, found.revision) == (values[0], acks[0].revision)

        # Replaced while it is read: the reader hears of it, nothing is mixed.
        old = present(await kv.get_reader("a"))
        begun = await old.read(1000)
        assert begun == values[1][:1000]
        await kv.set("a", values[2])
        with pytest.raises(ValueReplacedError):
            await old.read()
        assert present(await kv.get("a")).value == values[2]

        # Two writers of one key: one of them wins with all of its value.
        await asyncio.gather(kv.set("b", values[2]), kv.set("b", values[3]))
        assert present(await kv.get("b")).value in values[2:]

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
        assert present(await kv.get("c")).value == values[3]

    run(scene, body)


def test_an_upload_goes_on_when_its_owner_is_killed_in_the_middle(
    scene: Scene, tmp_path: Path
) -> None:
    value = random.Random(7).randbytes(6 * MIB)

    async def body(client: Client) -> None:
        stream = client.stream("plays")
        await stream.append(b"first")
        owner = (await stream.head()).server
        source = _Slow(value, stop_at=3 * MIB)
        uploading = asyncio.create_task(stream.put_file(source.file, durability="synced"))
        await asyncio.wait_for(source.reached.wait(), DEADLINE_SECONDS)
        scene.kill(owner)
        ack = await uploading
        assert ack.seq == 2
        assert present(await stream.get(2)).value == value

        # And by another client, which knows of it only its id.
        upload_id = b"fedcba9876543210"
        owner = (await stream.head()).server
        broken = _Slow(value, stop_at=4 * MIB)
        broken.error = OSError("the application was killed")
        with pytest.raises(OSError, match="killed"):
            await stream.put_file(broken.file, upload_id=upload_id)
        await stream.append(b"synced, with all that came before")
        scene.kill(owner)
        path = tmp_path / "source"
        path.write_bytes(value)
        async with connect(
            scene.nats_url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS
        ) as other:
            ack = await other.stream("plays").put_file(path, upload_id=upload_id)
            assert ack.seq == 4
            written = await other.stream("plays").get_file(4, tmp_path / "target")
        assert written is not None
        assert sha256_of(tmp_path / "target") == sha256_of(path)

    run(scene, body)


def _has_read(file: BinaryIO, size_bytes: float) -> bool:
    return file.tell() > size_bytes


def test_an_upload_survives_kills_around_the_checkpoints_of_its_file(
    scene: Scene, tmp_path: Path
) -> None:
    """While it arrives faster than a pass comes, its file is checkpointed whenever the WAL is long.
    Each kill is soon after the WAL has become that."""
    path = tmp_path / "source"
    sha256 = file_of(path, 3 * WAL_CAP_BYTES, seed=11)

    async def body(client: Client) -> None:
        stream = client.stream("checkpoints")
        await stream.append(b"first")
        with path.open("rb") as file:
            uploading = asyncio.create_task(stream.put_file(file))
            for number, size_bytes in enumerate((1.05, 1.3, 2.1), start=2):
                reached = size_bytes * WAL_CAP_BYTES
                await until(partial(_has_read, file, reached), "it is on its way")
                owner = (await stream.head()).server
                scene.kill(owner)
                ack = await stream.append(b"beside it")
                assert ack.seq == number
            ack = await uploading
        assert ack.seq == 5
        written = await stream.get_file(5, tmp_path / "target")
        assert written is not None
        assert sha256_of(tmp_path / "target") == sha256
        messages = [message.seq async for message in stream.get_all(end_seq=4)]
        assert messages == [1, 2, 3, 4]

    run(scene, body)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_large_values_go_through_every_tier_and_to_every_owner_in_little_memory(
    scene: Scene, tmp_path: Path
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    digests = [file_of(path, TIERED_BYTES, seed) for seed, path in enumerate(paths)]

    async def same(client: Client, seq: int, digest: str) -> None:
        target = tmp_path / "target"
        assert await client.stream("tiered").get_file(seq, target) is not None
        assert await asyncio.to_thread(sha256_of, target) == digest

    async def body(client: Client) -> None:
        stream = client.stream("tiered")
        peaks: dict[str, int] = {}

        async def owner() -> str:
            return (await stream.head()).server

        def watch(name: str) -> None:
            peaks[name] = forget_peak(scene.pid(name))

        def assert_little(name: str) -> None:
            assert peak_bytes(scene.pid(name)) - peaks[name] < OWNER_BYTES

        # Acknowledged by the bucket, chunks and all: restored from there.
        await stream.append(b"first", durability="stored")
        first = await owner()
        watch(first)
        ack = await stream.put_file(paths[0], durability="stored")
        assert (ack.seq, ack.durability) == (2, Durability.STORED)
        await stream.set(2, b"overwritten")
        point = f"{ack.revision}"
        await asyncio.to_thread(
            scene.holdfast, "restore", "tiered", "--to-revision", point, "--yes"
        )
        await same(client, 2, digests[0])
        assert_little(first)

        # The log is full of chunks when its writer is lost.
        ack = await stream.put_file(paths[1], durability="synced")
        second = scene.other(first)
        watch(second)
        scene.servers[first].kill()
        await same(client, 3, digests[1])
        assert await owner() == second
        assert_little(second)

        # Handed over.
        scene.start(first)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while [each.state for each in await client.servers()].count("live") < 2:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(scene.holdfast, "drain", second)
        assert await owner() == first
        watch(first)
        await same(client, 2, digests[0])
        assert_little(first)

        # Left to the bucket, and brought back; as are the stores of the other tests, in memory.
        for server in scene.servers.values():
            await asyncio.to_thread(server.stop)
        scene.start("s1", *SOON_COLD)
        assert await owner() == "s1"
        folder = scene.processes.layout.store(StoreId(TENANT, StoreKind.STREAM, "tiered")).parent
        await until(lambda: not list(folder.glob("tiered.stream.*")), "its file is gone")
        await same(client, 3, digests[1])

    run(scene, body)
