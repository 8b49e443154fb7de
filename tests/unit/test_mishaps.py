"""Exceptions that nobody expected: each is the answer to the one request that met it, took nothing with it, and
ended nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist import operations, reads
from holdfast.persist.ownership import Arrival, Ownership
from holdfast.persist.pipeline import Pipeline
from holdfast.persist.store import Store
from holdfast.protocol import frames
from holdfast.protocol.bus import BusMessage
from holdfast.protocol.bus_memory import MemoryNetwork
from holdfast.protocol.mishaps import Mishaps
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.commit_log import CommitLog
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.fence import FenceGate, create_fence
from holdfast.shared_fs.layout import Layout, open_layout
from holdfast.shared_fs.store_file import StoreFile

APPEND, TRIM, HEAD = [frames.APPEND, b"v"], [frames.TRIM, 1], [frames.HEAD]


class World:
    """A pipeline on real files, two streams, and what is answered."""

    def __init__(self, layout: Layout) -> None:
        disk = Disk()
        network = MemoryNetwork()
        disk.make_directory(layout.incarnation("a", "1"))
        create_fence(disk, layout.fence("a", "1"))
        self.log = CommitLog(disk, layout.log("a", "1"))
        self.ownership = Ownership()
        self.peer = network.connect("peer")
        self.pipeline = Pipeline(
            server="a",
            log=self.log,
            gate=FenceGate(disk, layout.fence("a", "1"), "a", "1"),
            bus=network.connect("server"),
            subjects=Subjects(),
            ownership=self.ownership,
            run_in_thread=self._run_at_once,
            clock_ms=lambda: 1000,
            want_stores=lambda: None,
            apply_much=lambda store: pytest.fail(f"{store.id} removes little"),
        )
        self.stores = [self._open(layout, name) for name in ("a", "b")]
        self.answers: dict[str, list[Any]] = {}
        self._arrived = asyncio.Event()
        self._counters: dict[StoreId, int] = {}

    def _open(self, layout: Layout, name: str) -> Store:
        id_ = StoreId("acme", StoreKind.STREAM, name)
        path = layout.store(id_, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        store = Store(id_, 1, None, lambda: StoreFile.create(path, id_, time=1))
        self.ownership.opened(store)
        return store

    async def _run_at_once(self, function: Callable[[], Any]) -> Any:
        return function()

    def _on_reply(self, message: BusMessage) -> None:
        self.answers[message.subject] = frames.decode(message.payload)
        self._arrived.set()

    def arrival(self, store: Store, *wanted: list[Any], writer: bytes = b"w") -> Arrival:
        counter = 0
        if wanted[0][0] < frames.FIRST_READ:
            counter = self._counters[store.id] = self._counters.get(store.id, 0) + 1
            writer += b"%d" % counter
        group = frames.Group(store.id.kind, store.id.name, int(counter > 0), 0, 0, list(wanted))
        number = len(self.answers)
        return Arrival(f"reply.{store.id.name}.{counter}.{number}", 0, writer, store.id, group, 9)

    async def ask(self, *arrivals: Arrival) -> list[Any]:
        """Submit groups together; return for each its results, or `(code, fields)` of its refusal."""
        self.pipeline.submit(list(arrivals))
        while not all(each.reply in self.answers for each in arrivals):
            self._arrived.clear()
            await self._arrived.wait()
        found: list[Any] = []
        for each in arrivals:
            [[_, status, *rest]] = self.answers[each.reply]
            found.append(tuple(rest) if status else frames.decode_outcome(rest[0]).results)
        return found


def run(tmp_path: Path, body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(open_layout(tmp_path, Disk()))
        await world.peer.subscribe("reply.>", world._on_reply)
        running = asyncio.create_task(world.pipeline.run())
        try:
            async with asyncio.timeout(20):
                await body(world)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait([running])
            for store in world.stores:
                if store.file is not None:
                    store.file.abandon()
            world.log.close()

    asyncio.run(main())


def counters(store: Store) -> tuple[Any, ...]:
    store.validate()
    sizes = [store.message_bytes(seq) for seq in range(1, 9)]
    return store.revision, store.last_seq, store.count, store.bytes, sizes


@pytest.mark.parametrize(
    "bug", [RuntimeError("bug"), RecursionError(), OverflowError(), KeyError("x"), MemoryError()],
    ids=lambda bug: type(bug).__name__,
)  # fmt: skip
def test_an_operation_that_raises_halfway_is_taken_back_and_answered_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    def halfway(store: Store, operation: list[Any]) -> list[Any]:
        store.trim(1, 1, 1)
        raise bug

    monkeypatch.setitem(operations._HANDLERS[StoreKind.STREAM], frames.TRIM, halfway)

    async def body(world: World) -> None:
        one, two = world.stores
        answers = await world.ask(
            world.arrival(one, APPEND),
            world.arrival(one, APPEND, TRIM, APPEND),
            world.arrival(two, APPEND),
            world.arrival(one, APPEND),
        )
        assert answers[0] == frames.Run(1, 1, 1)
        refused = ["internal_error", {"what": "operation 4", "reason": type(bug).__name__}]
        assert answers[1] == [[2, 2], refused, [3, 3]]
        assert answers[2:] == [frames.Run(1, 1, 1), frames.Run(4, 4, 1)]
        assert counters(one) == (4, 4, 4, 4, [1] * 4 + [None] * 4)

    run(tmp_path, body)


def test_a_bug_where_no_operation_is_to_blame_refuses_what_the_tick_did_to_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        one, two = world.stores
        await world.ask(world.arrival(one, APPEND))
        before = counters(one)
        plain = one.append_messages

        def halfway(values: list[bytes]) -> frames.Run:
            plain(values)
            raise RuntimeError("bug")

        one.append_messages = halfway  # type: ignore[method-assign]
        answers = await world.ask(
            world.arrival(one, APPEND), world.arrival(two, APPEND), world.arrival(one, APPEND, APPEND)
        )
        assert [answers[0][0], answers[2][0]] == ["internal_error"] * 2
        assert answers[1] == frames.Run(1, 1, 1)
        assert counters(one) == before
        one.append_messages = plain  # type: ignore[method-assign]
        assert await world.ask(world.arrival(one, APPEND, APPEND)) == [frames.Run(2, 2, 2)]

    run(tmp_path, body)


def test_changes_that_cannot_be_packed_are_refused_for_their_store_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpackable(store: Store, operation: list[Any]) -> list[Any]:
        store.archive(1, "t")
        store.changes[-1] = [frames.CHANGE_ARCHIVE, 1 << 70, "t"]
        return [0, store.revision]

    monkeypatch.setitem(operations._HANDLERS[StoreKind.STREAM], frames.TRIM, unpackable)

    async def body(world: World) -> None:
        one, two = world.stores
        answers = await world.ask(
            world.arrival(one, APPEND), world.arrival(one, TRIM), world.arrival(two, APPEND)
        )
        assert [answers[0][0], answers[1][0]] == ["internal_error"] * 2
        assert answers[2] == frames.Run(1, 1, 1)
        assert counters(one) == (0, 0, 0, 0, [None] * 8)

    run(tmp_path, body)


def test_a_read_that_raises_is_answered_and_the_server_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        one = world.stores[0]
        await world.ask(world.arrival(one, APPEND))
        with monkeypatch.context() as patched:
            patched.setattr(reads, "_head", lambda store, server: 1 / 0)
            [[[code, _], row]] = await world.ask(world.arrival(one, HEAD, [frames.GET_MESSAGE, 1]))
            assert (code, row[0]) == ("internal_error", 1)
            # What cannot even be packed.
            patched.setattr(reads, "_head", lambda store, server: [1 << 70])
            [(code, _)] = await world.ask(world.arrival(one, HEAD))
            assert code == "internal_error"
        [[head]] = await world.ask(world.arrival(one, HEAD))
        assert head[0] == 1

    run(tmp_path, body)


def test_of_one_place_in_the_code_fewer_and_fewer_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mishaps = Mishaps(logging.getLogger("holdfast.test"))
    for number in range(100):
        try:
            raise RuntimeError(f"bug {number}")
        except RuntimeError as error:
            mishaps.note("operation.failed", "x" * 9999, error)
    assert [record.getMessage().rpartition("=")[2] for record in caplog.records] == [
        "1", "2", "4", "8", "16", "32", "64",
    ]  # fmt: skip
    assert all(len(record.getMessage()) < 300 for record in caplog.records)
    assert caplog.records[0].exc_info is not None
