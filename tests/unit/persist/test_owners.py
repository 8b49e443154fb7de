"""Stores that are taken over together: what cannot be holds up nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.bucket_only.bucket_reaper import BucketReaper
from holdfast.persist.peers.owners import Owners
from holdfast.persist.tier import left_behind
from holdfast.persist.tier.cooling import Resting
from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NoServerError,
    StoreDamagedError,
    UnavailableError,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from tests.support.write_path_parts import a_life, at_once

DAMAGED = StoreDamagedError(store="s3", reason="a page is torn")


def named(number: int) -> StoreId:
    return StoreId("acme", StoreKind.STREAM, f"s{number}")


class ScriptedOwners(Owners):
    """Two owners; some stores cannot be opened."""

    def __init__(self, failing: Mapping[int, HoldfastError]) -> None:
        super().__init__(MemoryNetwork().connect("s9"), Subjects(), asks_for_tokens=False)
        self._failing = {named(number): error for number, error in failing.items()}
        self.refused: dict[StoreId, HoldfastError] = {}
        self.asked_count = 0
        self.opened: set[StoreId] = set()
        self.silent: set[str] = set()
        self.snapshots: list[StoreId] = []

    async def take_over(self, stores: Sequence[StoreId]) -> dict[str, list[StoreId]]:
        owned: dict[str, list[StoreId]] = {}
        for store in stores:
            self.asked_count += 1
            if store in self._failing:
                raise self._failing[store]
            self.opened.add(store)
            owned.setdefault("s1" if int(store.name[1:]) % 2 else "s2", []).append(store)
        return owned

    async def request_snapshots(self, owned: Mapping[str, Sequence[StoreId]]) -> None:
        for owner, stores in owned.items():
            if owner in self.silent:
                raise UnavailableError(reason=f"{owner} does not answer")
            self.snapshots += stores

    async def each(self, count: int) -> set[StoreId]:
        stores = [named(number) for number in range(count)]
        found = await self.take_over_each(stores, self.refused.__setitem__)
        return {store for mine in found.values() for store in mine}


async def test_a_store_that_cannot_be_opened_holds_up_no_other() -> None:
    owners = ScriptedOwners({3: DAMAGED, 70: BusyError(what="a job")})
    assert await owners.each(100) == {named(n) for n in range(100)} - {named(3), named(70)}
    assert owners.refused == {named(3): DAMAGED, named(70): owners.refused[named(70)]}
    assert type(owners.refused[named(70)]) is BusyError


async def test_if_nobody_answers_the_rest_is_not_asked_for() -> None:
    silence = NoRespondersError(subject="hf.acme.srv.s1")
    owners = ScriptedOwners(dict.fromkeys(range(32, 64), silence))
    assert await owners.each(1000) == {named(number) for number in range(32)}
    assert owners.asked_count < 100
    assert owners.refused == {named(number): silence for number in range(32, 1000)}


@pytest.mark.parametrize("count", [1, 32])
async def test_what_answers_that_it_is_not_available_holds_up_no_other(count: int) -> None:
    """A key that is away, for instance, as the only stores of a batch."""
    owners = ScriptedOwners(dict.fromkeys(range(32, 32 + count), NoServerError()))
    total = 32 + count if count == 1 else 100
    asked = set(map(named, range(total)))
    assert await owners.each(total) == asked - set(map(named, range(32, 32 + count)))


async def test_damaged_stores_alone_are_an_answer() -> None:
    owners = ScriptedOwners(dict.fromkeys(range(32), DAMAGED))
    assert await owners.each(64) == {named(number) for number in range(32, 64)}
    assert len(owners.refused) == 32


class DeadLogs:
    """Logs in the bucket that some stores need."""

    def __init__(self, needing: Sequence[StoreId]) -> None:
        self.half_fenced: list[Any] = []
        self._needing = list(needing)

    def refresh(self) -> None: ...

    def remove_needless(self, needed: object) -> list[StoreId]:
        return self._needing


@pytest.mark.parametrize("error", [DAMAGED, NoServerError()])
async def test_all_others_that_were_left_open_are_opened_before_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: HoldfastError
) -> None:
    """It is told all the same: else somebody would say that exports lack nothing of them."""
    stores = [named(number) for number in range(200)]
    slices = [[Resting(store, 1, is_closed=False) for store in stores], []]
    monkeypatch.setattr(left_behind, "take_slice", lambda files, now: slices.pop(0))
    asked: list[StoreId] = []

    class Tending:
        async def tended_by(self, group: list[StoreId], claim: object) -> list[Any]:
            asked.extend(group)
            return [SimpleNamespace(store=store) for store in group]

    class Publisher:
        async def newest(self, wanted: list[StoreId]) -> dict[StoreId, Any]:
            return {}

    owners = ScriptedOwners({3: error})
    opened = owners.opened
    life: Any = a_life(open_layout(tmp_path, Disk()), server="s9")
    publisher: Any = Publisher()
    tending: Any = Tending()
    claim: Any = SimpleNamespace(check=lambda: None)
    left = left_behind.LeftBehind(life, publisher, tending, owners, at_once)
    with pytest.raises(type(error)):
        await left.find(claim)
    assert asked == stores
    assert opened == set(stores) - {named(3)}


async def test_the_reaper_has_all_others_snapshot_beside_a_damaged_store(tmp_path: Path) -> None:
    """Else the logs in the bucket, which are bounded, grow behind it."""
    owners = ScriptedOwners({3: DAMAGED})
    stores = [named(number) for number in range(10)]
    dead_logs: Any = DeadLogs(stores)
    life = a_life(open_layout(tmp_path, Disk()), server="s9")
    claims: Any = None
    reaper = BucketReaper(
        Bucket(MemoryBackend()), life, owners, claims, lambda server, incarnation: False, dead_logs
    )
    await reaper.run_pass()
    assert set(owners.snapshots) == set(stores) - {named(3)}
    owners.snapshots.clear()
    owners.silent.add("s1")
    with pytest.raises(UnavailableError, match="s1 does not answer"):
        await reaper.run_pass()
    assert set(owners.snapshots) == {store for store in stores if int(store.name[1:]) % 2 == 0}
