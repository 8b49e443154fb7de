"""Exceptions that nobody expected: each is the answer to the one request that met it, took nothing
with it, and ended nothing."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import operations, reads
from holdfast.persist.store.store import Store
from holdfast.persist.write_path import releasing
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_ARCHIVE
from holdfast.protocol.names import StoreKind
from holdfast.protocol.serving.mishaps import Mishaps
from tests.support.pipeline_world import World, running

APPEND, TRIM, HEAD = [frames.APPEND, b"v"], [frames.TRIM, 1], [frames.HEAD]


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return running(tmp_path)


def counters(store: Store) -> tuple[Any, ...]:
    store.validate()
    sizes = [store.contents.message_bytes(seq) for seq in range(1, 9)]
    return store.revision, store.last_seq, store.count, store.bytes, sizes


@pytest.mark.parametrize(
    "bug", [RuntimeError("bug"), RecursionError(), OverflowError(), KeyError("x"), MemoryError()],
    ids=lambda bug: type(bug).__name__,
)  # fmt: skip
async def test_an_operation_that_raises_halfway_is_taken_back_and_answered_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    def halfway(store: Store, operation: list[Any]) -> list[Any]:
        store.trim(1, 1, 1)
        raise bug

    monkeypatch.setitem(operations._HANDLERS[StoreKind.STREAM], frames.TRIM, halfway)
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


async def test_a_bug_where_no_operation_is_to_blame_refuses_what_the_tick_did_to_its_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.stores
    await world.ask(world.arrival(one, APPEND))
    before = counters(one)
    plain = Store.append_messages

    def halfway(store: Store, values: list[bytes]) -> frames.Run:
        run = plain(store, values)
        if store is one:
            raise RuntimeError("bug")
        return run

    monkeypatch.setattr(Store, "append_messages", halfway)
    answers = await world.ask(
        world.arrival(one, APPEND), world.arrival(two, APPEND), world.arrival(one, APPEND, APPEND)
    )
    assert [answers[0][0], answers[2][0]] == ["internal_error"] * 2
    assert answers[1] == frames.Run(1, 1, 1)
    assert counters(one) == before
    monkeypatch.undo()
    assert await world.ask(world.arrival(one, APPEND, APPEND)) == [frames.Run(2, 2, 2)]


async def test_changes_that_cannot_be_packed_are_refused_for_their_store_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpackable(store: Store, operation: list[Any]) -> list[Any]:
        store.archive(1, "t")
        store.changes[-1] = [CHANGE_ARCHIVE, 1 << 70, "t"]
        return [0, store.revision]

    monkeypatch.setitem(operations._HANDLERS[StoreKind.STREAM], frames.TRIM, unpackable)
    one, two = world.stores
    answers = await world.ask(
        world.arrival(one, APPEND), world.arrival(one, TRIM), world.arrival(two, APPEND)
    )
    assert [answers[0][0], answers[1][0]] == ["internal_error"] * 2
    assert answers[2] == frames.Run(1, 1, 1)
    assert counters(one) == (0, 0, 0, 0, [None] * 8)


async def test_a_read_that_raises_is_answered_and_the_server_reads_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.stores[0]
    await world.ask(world.arrival(one, APPEND))
    with monkeypatch.context() as patched:
        # Both in one slice, however long it takes to log the first.
        patched.setattr(releasing, "READ_SLICE_SECONDS", 60.0)
        patched.setattr(reads, "_head", lambda store, server: 1 / 0)
        [[[code, _], row]] = await world.ask(world.arrival(one, HEAD, [frames.GET_MESSAGE, 1]))
        assert (code, row[0]) == ("internal_error", 1)
        # What cannot even be packed.
        patched.setattr(reads, "_head", lambda store, server: [1 << 70])
        [(code, _)] = await world.ask(world.arrival(one, HEAD))
        assert code == "internal_error"
    [[head]] = await world.ask(world.arrival(one, HEAD))
    assert head[0] == 1


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
