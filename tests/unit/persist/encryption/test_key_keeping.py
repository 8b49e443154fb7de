"""A server reads the registry of keys before it serves, and goes by the last that it could read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.persist.encryption import key_keeping
from holdfast.persist.encryption.key_book import KeyBook
from holdfast.persist.encryption.key_keeping import KeyKeeping
from holdfast.protocol.errors import StorageError, StoreDamagedError
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
