"""Publishes snapshots in the shards of the manifests, several shards at once.

A shard costs one get and one put, however much is published in it, and stores are spread over all
shards. So the cost is in the shards, and publishing many snapshots together is cheap. `manifest.py`
defines what a published version means; this module does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pack import Packed
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, Published, SnapshotVersion

_Result = TypeVar("_Result")

#: How many shards each publishing reads or puts at once.
PARALLEL_SHARDS: Final = 8


class Publisher:
    """Publishes the snapshots of one incarnation."""

    def __init__(
        self,
        manifests: Callable[[], Manifests],
        *,
        keep: KeepPolicy,
        run_in_thread: RunInThread,
        clock_ms: Callable[[], int],
    ) -> None:
        """`manifests` may block, and is called in the thread."""
        self._manifests = manifests
        self._keep = keep
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms

    async def publish(self, versions: Packed) -> dict[StoreId, Published]:
        """Publish at most one version of each store, and return the outcome for each.

        If it raises BucketError, some may be published; publishing them again does no harm.
        """
        by_shard: dict[int, Packed] = {}
        for store, version in versions:
            by_shard.setdefault(shard_of(store), []).append((store, version))
        outcomes: dict[StoreId, Published] = {}

        def publish(some: Packed) -> dict[StoreId, Published]:
            return self._manifests().publish(some, self._keep, self._clock_ms())

        for found in await self._in_parallel(
            [partial(publish, by_shard[number]) for number in sorted(by_shard)]
        ):
            outcomes.update(found)
        return outcomes

    async def newest(self, stores: Iterable[StoreId]) -> dict[StoreId, SnapshotVersion]:
        """Return the newest version of each store that has one. Raises BucketError."""
        by_shard: dict[int, list[StoreId]] = {}
        for store in stores:
            by_shard.setdefault(shard_of(store), []).append(store)

        def look(number: int, wanted: list[StoreId]) -> dict[StoreId, SnapshotVersion]:
            shard = self._manifests().read(number)
            found = {}
            for store in wanted:
                entry = shard.get(store)
                if entry is not None and entry.newest is not None:
                    found[store] = entry.newest
            return found

        versions: dict[StoreId, SnapshotVersion] = {}
        for found in await self._in_parallel(
            [partial(look, number, by_shard[number]) for number in sorted(by_shard)]
        ):
            versions.update(found)
        return versions

    async def _in_parallel(
        self, calls: Sequence[Callable[[], dict[StoreId, _Result]]]
    ) -> list[dict[StoreId, _Result]]:
        """Run blocking calls, a few at once. When it returns or raises, all calls have ended."""
        slots = asyncio.Semaphore(PARALLEL_SHARDS)

        async def one(call: Callable[[], dict[StoreId, _Result]]) -> dict[StoreId, _Result]:
            async with slots:
                result: dict[StoreId, _Result] = await self._run_in_thread(call)
                return result

        done = await asyncio.gather(*map(one, calls), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in done if not isinstance(outcome, BaseException)]
