"""A server reads the registry of keys before it serves, and goes by the last that it could read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.persist.encryption import key_keeping
from holdfast.persist.encryption.key_book import KeyBook
from holdfast.persist.encryption.key_keeping import KeyKeeping
from holdfast.persist.jobs.reencrypting import ReencryptJobs
from holdfast.protocol.errors import NotFoundError, StorageError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError
from holdfast.shared_fs.encryption.data_keys import KeyRecord, WrappedKey
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import NO_KEYS, KeyRecords

MASTER = MasterKey(bytes(range(32)))
AWAY = BucketUnavailableError(tries=3, request="get", key="index", reason="no route")
DAMAGED = StoreDamagedError(store="index", reason="it is gone")


class Registry:
    """Answers one thing after the other, and the last one for ever."""

    def __init__(self, *answers: KeyRecords | StorageError) -> None:
        self._answers = list(answers)
        self.looks = 0

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords:
        self.looks += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, StorageError):
            raise answer
        return answer


def records(version: str, *ids: int) -> KeyRecords:
    keys = tuple(WrappedKey.new("acme", each, MASTER, 1) for each in ids)
    return KeyRecords(version, {"acme": (len(ids), KeyRecord("acme", keys))})


def keeping(registry: Registry) -> tuple[KeyKeeping, KeyBook]:
    async def here(function: Callable[[], Any]) -> Any:
        return function()

    class OpenStores:
        def stores(self) -> list[Any]:
            return []

    book = KeyBook({MASTER.id: MASTER})
    return KeyKeeping(registry, book, cast(Any, OpenStores()), cast(Any, here)), book


@pytest.mark.parametrize("error", [AWAY, DAMAGED])
async def test_a_server_whose_registry_is_away_or_damaged_at_its_start_does_not_serve(
    error: StorageError,
) -> None:
    found, book = keeping(Registry(error))
    with pytest.raises(type(error)):
        await found.begin()
    assert book.known is NO_KEYS


async def test_a_registry_that_is_away_later_leaves_the_keys_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_keeping, "KEY_LOOK_SECONDS", 0.001)
    registry = Registry(records("1", 1), AWAY, DAMAGED, AWAY, records("2", 1, 2))
    found, book = keeping(registry)
    await found.begin()
    assert book.has_keys("acme") and not book.has_keys("other")
    async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
        work = tasks.create_task(found.run())
        while registry.looks < 4:
            assert book.known.version == "1"
            await asyncio.sleep(0)
        while book.known.version != "2":
            await asyncio.sleep(0)
        work.cancel()


async def test_a_look_that_began_earlier_does_not_take_back_what_a_later_one_found() -> None:
    registry = Registry(records("1", 1), records("2", 1, 2))
    found, book = keeping(registry)
    answered = [asyncio.Event(), asyncio.Event()]

    async def slowly(function: Callable[[], Any]) -> Any:
        answer = function()
        await answered[registry.looks - 1].wait()
        return answer

    found._run_in_thread = cast(Any, slowly)
    async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
        tasks.create_task(found.begin())
        await asyncio.sleep(0)
        later = tasks.create_task(found.begin())
        await asyncio.sleep(0)
        answered[1].set()
        await asyncio.sleep(0)
        answered[0].set()
        await later
    assert book.known.version == "2"


async def test_a_store_is_encrypted_anew_with_the_key_that_the_registry_has_then() -> None:
    """And not with one that was replaced since the last look, perhaps because it has leaked."""
    found, book = keeping(Registry(records("1", 1), records("2", 1, 2)))
    await found.begin()

    class Closer:
        async def opened(self, store: StoreId) -> Any:
            assert book.known.version == "2"
            raise NotFoundError(what="stream", name=store.name)

    nothing: Any = None
    jobs = ReencryptJobs(cast(Any, Closer()), nothing, nothing, found.begin)
    with pytest.raises(NotFoundError):
        await jobs.reencrypt(StoreId("acme", StoreKind.STREAM, "notes"))
