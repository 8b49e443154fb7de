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
from collections.abc import Collection
from typing import Final

from holdfast.client import Change, Client, Subscription
from holdfast.protocol.errors import HoldfastError, UnavailableError
from tests.support.checking.history import Store
from tests.torture.recording import Recorder, name_of
from tests.torture.workload import KVS, MARKER_ID, STREAMS, is_stream

_SESSION_SECONDS: Final = (3.0, 20.0)
_RETRY_SECONDS: Final = 0.2
_WHOLE_RATIO: Final = 0.7


class Follower:
    """One process's subscriptions of all stores."""

    def __init__(
        self,
        name: str,
        seed: int,
        client: Client,
        recorder: Recorder,
        *,
        restless: bool,
        expected_errors: Collection[str] = (),
    ) -> None:
        self._name = name
        self._client = client
        self._recorder = recorder
        self._rng = random.Random(seed)
        self._restless = restless
        self._expected_errors = expected_errors
        self._number = itertools.count(1)
        self._waiting = set(STREAMS + KVS)
        #: Stores whose session hears only what comes after it has begun, and has not begun.
        self._beginning: set[Store] = set()
        #: `beginning` or `waiting` may be shorter.
        self.news = asyncio.Event()

    async def run(self, finish: asyncio.Event, end: asyncio.Event) -> None:
        """Follow until `end`."""
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(self._follow(store, finish)) for store in STREAMS + KVS]
            await end.wait()
            for task in following:
                task.cancel()

    @property
    def waiting(self) -> list[str]:
        """The stores whose marker was not heard yet."""
        return sorted(name for _, name in self._waiting)

    @property
    def beginning(self) -> list[str]:
        """The stores of which something might be missed. After `finish` none is added, and once
        there is none, whatever is written from then on will be heard."""
        return sorted(name for _, name in self._beginning)

    async def _follow(self, store: Store, finish: asyncio.Event) -> None:
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
            except HoldfastError as error:
                # A subscription begins only where a read works.
                if not isinstance(error, UnavailableError) and (
                    error.code not in self._expected_errors
                ):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                self._note_begun(store)

    def _note_begun(self, store: Store) -> None:
        self._beginning.discard(store)
        self.news.set()

    async def _session(self, store: Store, whole: bool, limit: asyncio.Timeout) -> None:
        id = f"{self._name}-{next(self._number)}"
        async with self._subscribe(store, whole) as subscription:
            self._note_begun(store)
            self._recorder.write(
                "follow",
                time.monotonic(),
                id,
                store=store,
                start_seq=1 if whole and is_stream(store) else None,
                live_after=subscription._feed.track._until.revision,
            )
            async for change in subscription:
                if self._record(id, store, change).startswith(MARKER_ID):
                    # Nothing is written after this: stay and hear that nothing comes.
                    limit.reschedule(None)
                    self._recorder.write("caught_up", time.monotonic(), id)
                    self._waiting.discard(store)
                    self.news.set()

    def _record(self, id: str, store: Store, change: Change) -> bytes:
        """Note a change; return the name of its value."""
        row = change.message or change.entry
        key = change.message.seq if change.message else change.entry and change.entry.key
        name = b"" if row is None else name_of(row)
        self._recorder.write(
            "change",
            time.monotonic(),
            id,
            kind=change.kind,
            revision=change.revision,
            keys=(key,) if row is not None else (*change.seqs, *change.keys),
            value=name.decode(),
            end=(is_stream(store) and change.end_seq) or None,
        )
        return name

    def _subscribe(self, store: Store, whole: bool) -> Subscription:
        if is_stream(store):
            return self._client.stream(store[1]).subscribe(start_seq=1 if whole else None)
        return self._client.kv(store[1]).watch()
