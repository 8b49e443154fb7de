"""Blocks of snapshots in the memory of servers, for the others of their zone."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.persist.block_cache import block_memory, near_reads
from holdfast.persist.block_cache.block_memory import BlockMemory
from holdfast.persist.block_cache.blocks import Ask, asks_of
from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.peers.zone_helpers import ranked
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import (
    CACHE_BLOCK_BYTES,
    CACHE_IDLE_SECONDS,
    CACHE_MAX_AGE_SECONDS,
    CACHE_PIECE_BYTES,
    MAX_NEAR_SNAPSHOT_BYTES,
    MIB,
)
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots.snapshot import Near, compress, fetch, put, take_image
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.near import near_of
from tests.support.write_path_parts import a_life

KEY = "packs/acme/0000000000001-x"


# What is asked of whom


@given(st.integers(0, 3 * CACHE_PIECE_BYTES), st.integers(1, 3 * CACHE_PIECE_BYTES))
def test_a_part_of_an_object_is_asked_for_once_and_block_by_block(start: int, length: int) -> None:
    at = start
    for piece in asks_of(KEY, start, length):
        assert {ask.piece for ask in piece} == {piece[0].piece}
        assert piece[0].ahead == sum(ask.length for ask in piece)
        for ask in piece:
            assert ask.start == at
            assert Ask.from_wire(ask._asdict()) == ask
            at += ask.length
    assert at == start + length


def test_a_server_that_ends_changes_the_choice_for_its_own_pieces_alone() -> None:
    servers = [f"s{number}" for number in range(5)]
    before = {piece: ranked(KEY, piece, servers)[0] for piece in range(500)}
    assert all(60 < sum(each == server for each in before.values()) < 140 for server in servers)
    after = {piece: ranked(KEY, piece, servers[1:])[0] for piece in range(500)}
    assert all(after[piece] == server for piece, server in before.items() if server != "s0")
    assert ranked(KEY, 7, reversed(servers))[0] == before[7]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "log/s1/i1/0"},
        {"key": "manifests/00"},
        {"key": "places/acme/1/manifests/00"},
        {"key": "snapshots/a\nb"},
        {"key": b"snapshots/x"},
        {"start": -1},
        {"start": "0"},
        {"start": True},
        {"start": 1 << 80},
        {"length": 0},
        {"length": CACHE_BLOCK_BYTES + 1, "ahead": CACHE_PIECE_BYTES},
        {"start": CACHE_BLOCK_BYTES - 1, "length": 2},
        {"ahead": 9},
        {"ahead": CACHE_PIECE_BYTES + 1},
        {"start": CACHE_PIECE_BYTES - 10, "ahead": 11},
        {"ahead": None},
    ],
)
def test_an_ask_for_anything_but_a_part_of_a_block_is_refused(wrong: dict[str, Any]) -> None:
    good = {"key": KEY, "start": 0, "length": 10, "ahead": 10}
    assert Ask.from_wire(good) == Ask(**good)
    with pytest.raises(MalformedFrameError):
        Ask.from_wire(good | wrong)


# What is kept


class MemoryModel(RuleBasedStateMachine):
    """Blocks are kept, found, dropped and forgotten; the model keeps all that was ever kept."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = BlockMemory(5 * CACHE_BLOCK_BYTES)
        self.kept: dict[tuple[str, int], tuple[bytes, float, float]] = {}
        self.now = 0.0

    @rule(
        key=st.sampled_from("ab"),
        first=st.integers(0, 4),
        size=st.integers(1, 3),
        seed=st.binary(min_size=1, max_size=2),
    )
    def keep(self, key: str, first: int, size: int, seed: bytes) -> None:
        body = (seed * size * CACHE_BLOCK_BYTES)[: size * CACHE_BLOCK_BYTES - len(seed)]
        self.memory.keep(key, first, body, self.now)
        for number in range(size):
            part = body[number * CACHE_BLOCK_BYTES : (number + 1) * CACHE_BLOCK_BYTES]
            self.kept[key, first + number] = part, self.now, self.now

    @rule(key=st.sampled_from("ab"), number=st.integers(0, 6))
    def find(self, key: str, number: int) -> None:
        found = self.memory.find(key, number, self.now)
        if found is None:
            return
        body, made_at, used_at = self.kept[key, number]
        assert found == body
        assert self.now - made_at < CACHE_MAX_AGE_SECONDS
        assert self.now - used_at < CACHE_IDLE_SECONDS
        self.kept[key, number] = body, made_at, self.now

    @rule(key=st.sampled_from("ab"))
    def drop(self, key: str) -> None:
        self.memory.drop(key)
        assert all(self.memory.find(key, number, self.now) is None for number in range(8))

    @rule(seconds=st.sampled_from([1.0, CACHE_IDLE_SECONDS / 2, CACHE_IDLE_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.memory.expire(self.now)

    @invariant()
    def holds(self) -> None:
        self.memory.validate()


MemoryModel.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestMemory = MemoryModel.TestCase


def test_the_block_that_was_not_used_for_the_longest_time_goes_first() -> None:
    memory = BlockMemory(3 * CACHE_BLOCK_BYTES)
    for number in range(2):
        memory.keep("a", number, bytes(CACHE_BLOCK_BYTES), float(number))
    assert memory.find("a", 0, 2.0) is not None
    memory.keep("a", 2, bytes(CACHE_BLOCK_BYTES), 3.0)
    assert [memory.find("a", number, 4.0) is None for number in range(3)] == [False, True, False]


def test_an_idle_cache_is_empty() -> None:
    memory = BlockMemory(block_memory._ENTRY_BYTES * 10 + CACHE_BLOCK_BYTES)
    memory.keep("a", 0, b"x", 0.0)
    memory.expire(CACHE_IDLE_SECONDS)
    assert (len(memory), memory.size_bytes) == (0, 0)


# Servers


class Zone:
    """A bucket with one snapshot, and caches on a bus."""

    def __init__(self, root: Path, *caches: str) -> None:
        self.root = root
        self.network = MemoryNetwork()
        self.backend = MemoryBackend()
        self.bucket = Bucket(self.backend)
        self.store = StoreId("acme", 1, "notes")
        self.running: dict[str, asyncio.Task[None]] = {}
        self.servers = {name: self._server(name) for name in caches}
        life = a_life(Layout(root), server="owner", bus=self.network.connect("owner"))
        self.near = near_of(life, *caches)
        self.statistics = life.statistics
        self.version = self._snapshot()

    def _server(self, name: str) -> BlockServer:
        life = a_life(Layout(self.root), server=name, bus=self.network.connect(name))
        bucket = Bucket(self.backend, usage=self.bucket.usage)
        return BlockServer(bucket, life, self._in_thread, 8 * CACHE_BLOCK_BYTES)

    async def _in_thread(self, function: Any) -> Any:
        await asyncio.sleep(0.01)
        return function()

    def _snapshot(self) -> SnapshotVersion:
        file = StoreFile.create(self.root / "notes.stream.1.db", self.store, time=1)
        snapshot = compress(take_image(file, self.root / "draft"), taken=1)
        file.close()
        return put(self.bucket, snapshot, "n")

    async def start(self) -> None:
        for name, server in self.servers.items():
            self.running[name] = asyncio.create_task(server.run())
        await asyncio.sleep(0.01)

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self.running):
            self.running[name].cancel()
            await asyncio.gather(self.running.pop(name), return_exceptions=True)

    def gets(self) -> int:
        return self.bucket.usage.total().get_count

    def sources(self) -> dict[str, float]:
        return {
            sample.labels[0][1]: float(sample.value)  # type: ignore[arg-type]
            for sample in self.statistics.samples()
            if sample.name == metrics.COLD_READS.name
        }

    def fetch(self, near: Near | None) -> bytes:
        content = fetch(self.bucket, self.store, self.version, self.root / "d", near=near).content
        assert isinstance(content, bytes)
        return content


async def test_fifty_readers_at_once_and_later_ones_cost_one_request_to_the_bucket(
    tmp_path: Path,
) -> None:
    zone = Zone(tmp_path, "c1", "c2", "c3")
    await zone.start()
    before = zone.gets()
    found = await asyncio.gather(*(zone.near.read(zone.version) for _ in range(50)))
    bodies = {near.body for near in found if near is not None}
    assert len(bodies) == 1 and len(found) == 50
    assert zone.gets() == before + 1
    near = await zone.near.read(zone.version)
    zone.fetch(near)
    assert zone.gets() == before + 1
    assert zone.sources() == {"cache": 51}
    await zone.stop()


async def test_without_a_cache_or_with_a_dead_one_the_bucket_is_read_at_once(
    tmp_path: Path,
) -> None:
    zone = Zone(tmp_path, "c1")
    assert await near_of(a_life(Layout(tmp_path))).read(zone.version) is None
    # Nobody listens.
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    assert await zone.near.read(zone.version) is None
    assert loop.time() - began_at < near_reads._ASK_SECONDS
    zone.fetch(None)
    assert zone.sources() == {"bucket": 1}


async def test_a_cache_that_hangs_delays_one_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_reads, "_ASK_SECONDS", 0.05)
    zone = Zone(tmp_path, "c1")
    asked: list[object] = []
    bus = zone.network.connect("hung")
    await bus.subscribe("hf._.blk.c1", asked.append)
    assert [await zone.near.read(zone.version) for _ in range(5)] == [None] * 5
    assert len(asked) == 1


@pytest.mark.parametrize("harm", ["flipped", "short", "long", "other", "empty"])
async def test_wrong_bytes_of_a_cache_are_noticed_and_the_bucket_is_read(
    tmp_path: Path, harm: str
) -> None:
    zone = Zone(tmp_path, "c1")
    await zone.start()
    near = await zone.near.read(zone.version)
    assert near is not None
    right = zone.fetch(None)
    body = {
        "flipped": near.body[:-9] + bytes([near.body[-9] ^ 1]) + near.body[-8:],
        "short": near.body[:-1],
        "long": near.body + near.body,
        "other": zlib.compress(b"other"),
        "empty": b"",
    }[harm]
    wrong = Near(body)
    before = zone.gets()
    if harm == "long":
        # What follows the frame is never read.
        assert zone.fetch(wrong) == right
        return
    assert zone.fetch(wrong) == right
    assert wrong.wrong
    assert zone.gets() > before
    [server] = zone.servers.values()
    assert len(server._memory) == 1
    await zone.near.used(zone.version, wrong)
    for _ in itertools.repeat(None, 20):
        await asyncio.sleep(0)
    assert len(server._memory) == 0
    assert zone.sources()["wrong"] == 1
    await zone.stop()


async def test_wrong_bytes_that_expand_without_end_take_little_memory(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "c1")
    right = zone.fetch(None)
    packing = zstandard.ZstdCompressor().compressobj()
    body = b"".join(packing.compress(bytes(MIB)) for _ in range(128)) + packing.flush()
    wrong = Near(body)
    tracemalloc.start()
    try:
        assert zone.fetch(wrong) == right
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert wrong.wrong
    assert most_bytes < 16 * MIB


async def test_a_large_snapshot_is_read_from_the_bucket(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "c1")
    large = zone.version
    large = SnapshotVersion(
        **{
            name: getattr(large, name)
            for name in SnapshotVersion.__dataclass_fields__
            if name != "length"
        },
        length=MAX_NEAR_SNAPSHOT_BYTES + 1,
    )
    assert await zone.near.read(large) is None


async def test_a_missing_object_is_a_refusal_and_leaves_nothing(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "c1")
    await zone.start()
    zone.bucket.delete(zone.version.key)
    assert await zone.near.read(zone.version) is None
    [server] = zone.servers.values()
    assert (len(server._memory), server._fetches) == (0, {})
    await zone.stop()
