"""Servers with the role `archive`, as real processes: they read for an owner that has not the role,
die in the middle of it, lie, and nothing is lost, doubled or wrong."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client, connect
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import Description
from tests.integration.test_archive import Rows, World, export_all, rows_of
from tests.support.cluster import DEADLINE_SECONDS, TENANT, running_processes
from tests.support.process import Process
from tests.support.waiting import eventually, until

_COUNT = 300


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_processes(tmp_path) as processes:
        yield World(processes, tmp_path, monkeypatch)


class Readers:
    """The servers that read the archive."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self._monkeypatch = monkeypatch

    def start(self, name: str, *, die_at: int = 0, lies: bool = False) -> Process:
        self._monkeypatch.setenv("DIE_AT", str(die_at))
        self._monkeypatch.setenv("LIES", "1" if lies else "")
        return self._world.processes.start_persist(
            name,
            *("--bucket", self._world.url, "--roles", "archive"),
            module="tests.support.odd_archive_server",
        )


async def told(client: Client, metric: Description, label: str = "") -> dict[str, float]:
    """What servers count, with one value of the label."""
    return {
        part.name: float(sample.value)  # type: ignore[arg-type]
        for part in await client.statistics()
        for sample in part.samples
        if sample.name == metric.name and (not label or sample.labels[0][1] == label)
    }


async def live(client: Client, *names: str) -> bool:
    found = {each.server for each in await client.servers() if each.state == "live"}
    return found == set(names)


async def test_readers_of_the_archive_die_in_the_middle_and_lie_and_the_history_is_read_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(world, monkeypatch)
    owner = world.start("s1", 0, "--roles", "persist,tier")
    first = readers.start("r0")
    async with (
        asyncio.timeout(DEADLINE_SECONDS * 3),
        connect(world.processes.nats.url, tenant=TENANT) as client,
    ):
        stream = client.stream("notes")
        await eventually(lambda: live(client, "s1", "r0"), "both serve")
        infos = {each.server: each for each in await client.servers()}
        assert list(infos["r0"].roles) == ["archive"]
        expected: Rows = {}
        for start in range(1, _COUNT + 1, 50):
            values = [random.Random(seq).randbytes(10_000) for seq in range(start, start + 50)]
            await stream.append_many(values)
            expected |= {seq: (value, {}) for seq, value in enumerate(values, start)}
        await stream.configure(archive_after_seconds=0.05)
        await export_all(world, "s1", stream, monkeypatch)
        await until(lambda: world.archived_count() == _COUNT, "all are archived")

        async def read_back() -> bool:
            return (await told(client, metrics.ARCHIVE_SERVED)).get("r0", 0) >= _COUNT

        await eventually(read_back, "the reader has read all of it back before it left the file")
        assert await rows_of(stream) == expected
        first.terminate()
        await asyncio.to_thread(first.wait)

        # Each dies in its third read, one after the other, and the owner reads the rest itself.
        dying = [readers.start(name, die_at=3) for name in ("r1", "r2")]
        await eventually(lambda: live(client, "s1", "r1", "r2"), "the next ones serve")
        while any(reader.running for reader in dying):
            assert await rows_of(stream) == expected
        for reader in dying:
            assert await asyncio.to_thread(reader.wait) == -signal.SIGKILL

        # One that lies is found out; what is deleted while it is asked is not answered.
        readers.start("r3", lies=True)
        await eventually(lambda: live(client, "s1", "r3"), "the lying one serves")
        await stream.delete([2, 150])
        await stream.set(7, b"set again")
        for seq in (2, 150):
            del expected[seq]
        expected[7] = b"set again", {}

        async def found_out() -> bool:
            assert await rows_of(stream) == expected
            return "archive.wrong server=r3" in owner.log_file.read_text()

        await eventually(found_out, "the lie is told in the log")

        async def counted() -> bool:
            fallbacks = await told(client, metrics.ARCHIVE_READS, "fallback")
            return bool(fallbacks.get("s1")) and bool(
                (await told(client, metrics.ARCHIVE_WRONG)).get("s1")
            )

        await eventually(counted, "both are counted")
        assert owner.running
