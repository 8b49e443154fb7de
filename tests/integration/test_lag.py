"""Changes reach the bucket within a bound, with real processes: while a store is open, and after
its server was killed. Nothing else would snapshot these stores within the hour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.lag_marks import list_marks, read_marks
from tests.integration.test_tiers import World, append, served
from tests.support.cluster import connected_peer, running_processes
from tests.support.waiting import until

SELDOM: Final = ("--snapshot-seconds", "3600")
OPEN: Final = (*SELDOM, "--idle-close-seconds", "3600")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_processes(tmp_path) as processes:
        yield World(processes, tmp_path / "bucket")


async def test_an_open_store_that_changes_little_is_in_the_bucket_all_the_same(
    world: World,
) -> None:
    async with served(world, *OPEN, "--max-lag", "0.8") as (peer, server):
        for counter in range(1, 4):
            await append(peer, "notes", counter, b"a line")
            await world.snapshotted("notes", counter)
        bucket = open_bucket(world.url)
        await until(
            lambda: [mark.behind for mark in read_marks(bucket)] == [0], "its mark says so"
        )
        assert server.stop() == 0
        assert list_marks(bucket) == []


async def test_what_a_killed_server_had_reaches_the_bucket_though_nobody_opens_it(
    world: World,
) -> None:
    late = ("--max-lag", "3600", *SELDOM)
    async with served(world, *late, "--idle-close-seconds", "0.3") as (peer, first):
        await append(peer, "closed", 1, b"before")
        await append(peer, "open", 1, b"before")
        bucket = open_bucket(world.url)
        counter = 1

        async def closed() -> None:
            nonlocal counter
            counter += 1
            await append(peer, "open", counter, b"goes on")

        store = world.processes.data / "stores"
        while any(path.name.startswith("closed.") for path in store.rglob("*-wal")):
            await closed()
        await closed()
        assert world.newest("closed") is None
        await until(lambda: bool(list_marks(bucket)), "its mark is there")
        first.kill()
    second = world.start("s2", *OPEN, "--max-lag", "1")
    async with connected_peer(world.processes):
        await world.snapshotted("closed", 1)
        await world.snapshotted("open", counter)
        await until(
            lambda: [server for server, _ in list_marks(bucket)] == ["s2"],
            "nothing is left behind",
        )
    assert second.stop() == 0
