"""Small stores that get large values, through real processes: the owner makes their files anew
while clients write, follow and read, and whatever is killed meanwhile, nothing is lost or seen
twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.client import Client, Message, Stream, connect
from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES, page_bytes_of
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from tests.support.cluster import Processes, running_processes
from tests.support.local_disks import LocalDisks
from tests.support.nats_server import running_nats_server
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0
TENANT = "acme"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_processes(tmp_path_factory.mktemp("cluster")) as processes:
        processes.start_persist("s1")
        yield processes


def pages_of(processes: Processes, name: str, kind: StoreKind = StoreKind.STREAM) -> list[int]:
    """Return the size of the pages of each file of a store."""
    return pages_on(processes.data, StoreId(TENANT, kind, name))


def pages_on(data: Path, store: StoreId) -> list[int]:
    layout = Layout(data)
    found = []
    for generation in layout.generations(Disk(), store):
        with suppress(FileNotFoundError), layout.store(store, generation).open("rb") as file:
            found.append(page_bytes_of(file.read(100)) or 0)
    return found


async def follow(stream: Stream, until_seq: int) -> list[Message]:
    found: list[Message] = []
    async for change in stream.subscribe(start_seq=1):
        assert change.kind.value != "reset", "revisions go on, so nobody begins anew"
        if change.message is not None:
            found.append(change.message)
            if found[-1].seq == until_seq:
                break
    return found


async def small_then_large(client: Client, name: str, count: int) -> list[bytes]:
    """Write a stream of which the file is there before its first large message."""
    stream = client.stream(name)
    chance = random.Random(name)
    values = [b"first", b"second"]
    for value in values:
        await stream.append(value)
    assert [message.value async for message in stream.get_all()] == values
    more = [chance.randbytes(128 * KIB) for _ in range(count)]
    gate = asyncio.Semaphore(8)

    async def append(value: bytes) -> None:
        async with gate:
            await stream.append(value)

    await asyncio.gather(*(append(value) for value in more))
    await stream.append(b"last")
    return values + more


async def test_followers_and_writers_go_on_while_a_file_is_made_anew(
    processes: Processes,
) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        connect(processes.nats.url, tenant=TENANT) as client,
    ):
        stream = client.stream("grows")
        following = asyncio.create_task(follow(stream, 67))
        values = await small_then_large(client, "grows", 64)
        seen = await following
        assert [message.seq for message in seen] == list(range(1, 68))
        assert sorted(message.value for message in seen) == sorted([*values, b"last"])
        found = [message.value async for message in stream.get_all()]
        assert found == [message.value for message in seen]
        await until(lambda: pages_of(processes, "grows") == [LARGE_PAGE_BYTES])


async def test_an_upload_into_an_old_store_and_what_is_written_beside_it_are_whole(
    processes: Processes, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(24 * MIB))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        connect(processes.nats.url, tenant=TENANT) as client,
    ):
        kv = client.kv("settings")
        await kv.set("theme", b"dark")
        assert [entry.key async for entry in kv.get_all()] == ["theme"]
        assert pages_of(processes, "settings", StoreKind.KV) in ([], [PAGE_BYTES])
        uploading = asyncio.create_task(kv.put_file("picture", source))
        written = 0
        while not uploading.done():
            await kv.set("counter", str(written + 1).encode())
            written += 1
        await uploading
        await kv.get_file("picture", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == source.read_bytes()
        counter = await kv.get("counter")
        assert counter is not None and counter.value == str(written).encode()
        await until(
            lambda: pages_of(processes, "settings", StoreKind.KV) == [LARGE_PAGE_BYTES]
        )


async def test_an_owner_that_is_killed_while_files_are_made_anew_loses_nothing(
    processes: Processes,
) -> None:
    chance = random.Random(7)
    server = processes.start_persist("s2")
    async with (
        asyncio.timeout(DEADLINE_SECONDS * 2),
        connect(processes.nats.url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS) as client,
    ):
        names = [f"killed.{number}" for number in range(12)]
        writing = asyncio.gather(*(small_then_large(client, name, 24) for name in names))
        while not writing.done():
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            if writing.done():
                break
            server.kill()
            server = processes.start_persist("s2")
        for name, values in zip(names, await writing, strict=True):
            found = [message.value async for message in client.stream(name).get_all()]
            assert sorted(found) == sorted([*values, b"last"])
            assert found[:2] == [b"first", b"second"] and found[-1] == b"last"


async def test_without_a_shared_file_system_the_file_is_replaced_and_outlives_its_disk(
    tmp_path: Path,
) -> None:
    with running_nats_server(tmp_path) as nats:
        processes = LocalDisks(tmp_path, nats)
        try:
            server = processes.start_server("s1")
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                connect(nats.url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS) as client,
            ):
                store = StoreId(TENANT, StoreKind.STREAM, "grows")
                values = await small_then_large(client, "grows", 64)
                await until(lambda: pages_on(processes.disk("s1"), store) == [LARGE_PAGE_BYTES])
                found = [message.value async for message in client.stream("grows").get_all()]
                assert sorted(found) == sorted([*values, b"last"])
                server.kill()
                processes.lose_disk("s1")
                processes.start_server("s1")
                again = [message.value async for message in client.stream("grows").get_all()]
                assert again == found
        finally:
            processes.end()
