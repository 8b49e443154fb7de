"""Transactions beside writers who are always faster: who only reads completes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.handles.transaction import KVTransaction, StreamTransaction
from holdfast.client.values.codec import RAW
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.protocol import frames
from holdfast.protocol.errors import TooLargeError, WrongRevisionError
from holdfast.protocol.limits import MAX_DELETE_COUNT

KEYS = ("a", "b", "c")
STORE = (2, "k")


class BusyOwner:
    """A stand-in for the link and an owner, of a kv or stream whose writers set everything between
    any two operations. Revision and value of everything are then the same number."""

    unwrap = staticmethod(Link.unwrap)
    operation_limit_bytes = 1 << 20

    def __init__(self, *, page_keys: int = 100) -> None:
        self.contended: dict[Any, Any] = {}
        self.operations: list[int] = []
        self.revision = 1
        self.page_keys = page_keys

    async def call(self, key: Any, packed: bytes, *_: Any) -> Any:
        number, *rest = frames.unpack(packed)
        self.operations.append(number)
        self.revision += 1
        return self.result(number, rest), 0, 2

    def row(self, key: Any) -> list[Any]:
        return [key, self.revision, 0, b"%d" % self.revision, None]

    def result(self, number: int, rest: list[Any]) -> Any:
        if number in (frames.GET_ENTRY, frames.GET_MESSAGE):
            return self.row(rest[0])
        if number in (frames.GET_KEYS, frames.GET_SEQS):
            page = [self.row(key) for key in rest[0][: self.page_keys]]
            return [page, len(page) if len(page) < len(rest[0]) else None]
        assert number == frames.BATCH
        for _, key, expected in rest[0]:
            raise WrongRevisionError(key=key, expected=expected, actual=self.revision)
        return []


def transaction(owner: Any) -> KVTransaction[bytes]:
    return KVTransaction(owner, STORE, Values(owner, "k", RAW), None, None)


async def read_all(owner: BusyOwner) -> list[bytes]:
    async with transaction(owner) as t:
        found = [await t.get(key) for key in KEYS]
        return [entry.value for entry in found if entry is not None]


async def test_a_transaction_that_only_reads_completes_beside_any_number_of_writers() -> None:
    owner = BusyOwner()
    with pytest.raises(WrongRevisionError):
        await read_all(owner)
    del owner.operations[:]
    found = await read_all(owner)
    assert len(found) == 3
    assert len(set(found)) == 1, "all of it was so at one time"
    assert owner.operations == [frames.GET_KEYS], "and nothing is asked for at the end"


async def test_one_read_and_one_read_of_many_need_no_second_look() -> None:
    owner = BusyOwner()
    async with transaction(owner) as t:
        await t.get("a")
        await t.get("a")
    assert owner.operations == [frames.GET_ENTRY]
    async with transaction(owner) as t:
        a, b, again = await t.get_many(["a", "b", "a"])
        assert a is not None
        assert b is not None
        assert (a, a.value) == (again, b.value)
        assert await t.get("b") == b
    assert owner.operations[1:] == [frames.GET_KEYS]
    stream: Any = owner
    messages = StreamTransaction(stream, (1, "s"), Values(stream, "s", RAW), None, None)
    async with messages as s:
        assert [each and each.seq for each in await s.get_many([3, 1])] == [3, 1]
    assert owner.operations[2:] == [frames.GET_SEQS]


async def test_what_came_in_several_answers_or_is_written_or_expected_is_checked_at_the_end() -> (
    None
):
    paged = transaction(BusyOwner(page_keys=2))
    await paged.get_many(KEYS)
    expecting, writing = transaction(BusyOwner()), transaction(BusyOwner())
    await expecting.get("a")
    expecting.expect("z", 0)
    await writing.get("a")
    writing.set("b", b"1")
    for t in (paged, expecting, writing):
        with pytest.raises(WrongRevisionError):
            await t.commit()
    with pytest.raises(TooLargeError):
        await transaction(BusyOwner()).get_many(["k"] * (MAX_DELETE_COUNT + 1))
