"""A follower: subscribes to every store with the real client, and records all that it is told.

A steady one follows each store from the start to the end. A restless one ends its subscriptions
after a while and begins anew: with the whole history or state, or only with what comes from then
on.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import Final

from holdfast.client import Change, Client, Subscription
from holdfast.protocol.errors import UnavailableError
from torture.history import Recorder, Seen, SeenKind, name_of
from torture.workload import KVS, MARKER_ID, STREAMS, is_stream, name_in_cluster

_SESSION_SECONDS: Final = (3.0, 20.0)
_RETRY_SECONDS: Final = 0.2
_WHOLE_RATIO: Final = 0.7


class Follower:
    """One process's subscriptions of all stores."""

    def __init__(
        self, name: str, seed: int, client: Client, recorder: Recorder, *, restless: bool
    ) -> None:
        self._name = name
        self._client = client
        self._recorder = recorder
        self._rng = random.Random(seed)
        self._restless = restless
        self._number = itertools.count(1)
        self._waiting = set(STREAMS + KVS)
        #: Stores whose session hears only what comes after it has begun, and has not begun.
        self._beginning: set[str] = set()
        self._begun = asyncio.Event()
        #: After `finish`: whatever is written from now on will be heard.
        self.settled = asyncio.Event()
        #: Every store's marker was heard.
        self.caught_up = asyncio.Event()

    async def run(self, finish: asyncio.Event, end: asyncio.Event) -> None:
        """Follow until `end`; see `settled` and `caught_up`."""
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(self._follow(store, finish)) for store in STREAMS + KVS]
            await finish.wait()
            tasks.create_task(self._settle())
            await end.wait()
            for task in following:
                task.cancel()

    @property
    def waiting(self) -> list[str]:
        """The stores whose marker was not heard yet."""
        return sorted(self._waiting)

    async def _settle(self) -> None:
        """After `finish`: wait until whatever is written from now on will be heard."""
        while self._beginning:
            self._begun.clear()
            await self._begun.wait()
        self.settled.set()

    async def _follow(self, store: str, finish: asyncio.Event) -> None:
        first = True
        while True:
            whole = first or finish.is_set() or self._rng.random() < _WHOLE_RATIO
            first = False
            seconds = self._rng.uniform(*_SESSION_SECONDS) if self._restless else None
            if not whole:
                self._beginning.add(store)
            try:
                async with asyncio.timeout(seconds) as limit:
                    await self._session(store, whole, limit)
            except TimeoutError:
                continue
            except UnavailableError:
                # A subscription begins only where a read works.
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                self._note_begun(store)

    def _note_begun(self, store: str) -> None:
        self._beginning.discard(store)
        self._begun.set()

    async def _session(self, store: str, whole: bool, limit: asyncio.Timeout) -> None:
        id = f"{self._name}-{next(self._number)}"
        async with self._subscribe(store, whole) as subscription:
            self._note_begun(store)
            whole = whole or not is_stream(store)
            self._recorder.write(
                "follow",
                time.monotonic(),
                id,
                store=store,
                whole=whole,
                live_after=await self._revision(store),
            )
            async for change in subscription:
                seen = _seen(store, change)
                self._recorder.write(
                    "change",
                    time.monotonic(),
                    id,
                    kind=seen.kind,
                    revision=seen.revision,
                    targets=seen.targets,
                    value=seen.value,
                    end_seq=seen.end_seq,
                )
                if seen.value.startswith(MARKER_ID):
                    # Nothing is written after this: stay and hear that nothing comes.
                    limit.reschedule(None)
                    self._recorder.write("caught_up", time.monotonic(), id)
                    self._waiting.discard(store)
                    if not self._waiting:
                        self.caught_up.set()

    async def _revision(self, store: str) -> int:
        name = name_in_cluster(store)
        handle = self._client.stream(name) if is_stream(store) else self._client.kv(name)
        return (await handle.head()).revision

    def _subscribe(self, store: str, whole: bool) -> Subscription:
        name = name_in_cluster(store)
        if is_stream(store):
            return self._client.stream(name).subscribe(start_seq=1 if whole else None)
        return self._client.kv(name).watch()


def _seen(store: str, change: Change) -> Seen:
    kind = SeenKind(change.kind.value)
    if change.message is not None:
        message = change.message
        return Seen(kind, change.revision, (message.seq,), name_of(message.value))
    if change.entry is not None:
        entry = change.entry
        return Seen(kind, change.revision, (entry.key,), name_of(entry.value))
    if kind is SeenKind.TRIM:
        end_seq = change.end_seq if is_stream(store) else None
        return Seen(kind, change.revision, end_seq=end_seq)
    return Seen(kind, change.revision, (*change.seqs, *change.keys))
