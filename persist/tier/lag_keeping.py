"""Keeps what the bucket lacks of a server's stores within a bound: `behind.py` decides.

A few times within the bound it looks at the open stores, which takes a microsecond for each, asks
for the snapshots that are due, and says in a mark how far behind the bucket is (`lag_marks.py`).
Nothing is counted while stores are written to. Invariants:

- A store that was opened is compared with its manifest before this server vouches for it: its last
  owner may have died before it made a snapshot, or handed it over.
- A mark is only put after a look at all open stores, with what that look found.
- When an incarnation has ended, whose mark is still there, the server that has claimed this work
  looks for the files that it left behind. The open ones get an owner, which compares them; the
  closed ones are snapshotted as they are. The mark is removed once all are in the marks of the
  living.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from holdfast.persist.bucket_log.budget_keeping import BudgetKeeping
from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.tier.behind import BehindStores
from holdfast.persist.tier.claims import Claimed, ClaimLostError, Claims
from holdfast.persist.tier.left_behind import LeftBehind
from holdfast.persist.tier.snapshotter import Snapshotter
from holdfast.protocol.errors import (
    FencedError,
    StorageError,
    UnavailableError,
    UnknownOperationError,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.work.cold_work import CATCH_UP
from holdfast.shared_fs.snapshots.lag_marks import (
    LagMark,
    list_marks,
    put_mark,
    read_mark,
    released_mark,
    remove_mark,
)
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion

logger = logging.getLogger("holdfast.persist")

#: Looks within the bound, and the longest pause between two.
_LOOKS: Final = 8
_LONGEST_PAUSE_SECONDS: Final = 30.0
#: A mark is put at every second look, or, if it would say the same, at every fourth.
_MARK_LOOKS: Final = 2
_SAME_MARK_LOOKS: Final = 4
#: Stores that one turn of the loop looks at: some tenths of a millisecond.
_SLICE: Final = 512
#: How many stores are compared with their manifests together.
_COMPARED: Final = 4096
#: Of how many stores it is remembered what the bucket has of them.
_MAX_KNOWN: Final = 65_536


class _Seen(NamedTuple):
    """A store as it was seen: its revision, its size and the time of its last change."""

    store: StoreId
    revision: int
    size_bytes: int
    time: int


class LagKeeping:
    """The lag of one incarnation's stores."""

    def __init__(
        self,
        life: Incarnation,
        phase: LifePhase,
        snapshotter: Snapshotter,
        open_stores: OpenStores,
        claims: Claims,
        left_behind: LeftBehind,
        stored: StoredWriter,
        budget: BudgetKeeping | None,
    ) -> None:
        """`stored` knows which stores have changes in the log of the bucket that their snapshots
        lack. `budget` stretches the bound."""
        self._life = life
        self._phase = phase
        self._snapshotter = snapshotter
        self._open_stores = open_stores
        self._claims = claims
        self._left_behind = left_behind
        self._is_in_log = stored.has_in_log
        self._budget = budget
        self._behind = BehindStores(snapshotter.policy.max_lag_seconds)
        #: Up to which revision the bucket has a store, for those that are or were open.
        self._known: dict[StoreId, int] = {}
        #: Stores that were closed before they were compared.
        self._uncompared: dict[StoreId, _Seen] = {}
        self._looked = life.clock_ms()
        self._look_count = 0
        self._mark: LagMark | None = None
        self._mark_version: str | None = None
        self._failing = Trouble(logger, "lag.look_failed")
        self._mishaps = Mishaps(logger)
        self._is_stretched = False
        self._one_look = asyncio.Lock()
        self._has_ended = False
        open_stores.on_closed(self._closed)
        snapshotter.on_published(self._published)
        snapshotter.on_nothing(self._behind.forget)

    @property
    def behind_count(self) -> int:
        """How many stores have changes that the bucket lacks."""
        return len(self._behind)

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest of these changes, or a little more; 0 if there is none."""
        oldest = self._behind.oldest
        return 0.0 if oldest is None else max(0, self._life.clock_ms() - oldest) / 1000

    @property
    def bound_seconds(self) -> float:
        """How long a change may wait now: `--max-lag`, or longer if a budget, or the size of the
        stores, stretches it."""
        return self._behind.bound_seconds

    @property
    def _pause_seconds(self) -> float:
        return min(_LONGEST_PAUSE_SECONDS, self._snapshotter.policy.max_lag_seconds / _LOOKS)

    async def run(self) -> None:
        """Look at the stores until cancelled. FencedError ends the incarnation."""
        while True:
            await self._try(self.look)
            await asyncio.sleep(self._pause_seconds)

    async def finish(self) -> None:
        """Say what is left behind, at a clean end: nothing of this incarnation is open any more.
        If it is nothing, leave no mark."""
        async with self._one_look:
            self._has_ended = True
            await self._try(self._finish)

    async def look(self) -> None:
        """Look at all open stores, ask for snapshots, put a mark. Raises StorageError,
        UnavailableError."""
        async with self._one_look:
            if not self._has_ended:
                await self._look()

    async def _look(self) -> None:
        before, self._looked = self._looked, self._life.clock_ms()
        now = self._looked
        await self._note_all(before)
        if self._budget is not None:
            self._behind.stretch = self._budget.lag_stretch
        self._say_stretched()
        if self._phase.opens_nothing:
            await self._leave_to_others(now)
        due = self._behind.due(now)
        if due:
            self._snapshotter.request(due)
        if self._look_count % _MARK_LOOKS == 0:
            await self._take_care_of_ended(now)
            await self._put_mark(now)
        self._look_count += 1

    async def _note_all(self, before: int) -> None:
        unknown = await self._note_open(before)
        for start in range(0, len(unknown), _COMPARED):
            await self._compare(unknown[start : start + _COMPARED])

    async def _note_open(self, before: int) -> list[_Seen]:
        """Note the open stores that have changed. Return the stores that were not compared yet."""
        unknown, self._uncompared = list(self._uncompared.values()), {}
        for number, store in enumerate(self._open_stores.stores()):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            revision = store.durable_revision
            known = self._known.get(store.id)
            if revision == known or store.state is OpenState.CLOSED:
                continue
            if revision == 0:
                self._known[store.id] = 0
            elif store.file is not None and store.file.in_memory:
                # It was read from the bucket, and is not written to.
                self._known[store.id] = revision
            elif self._is_in_log(store.id):
                self._behind.forget(store.id)
            elif known is None:
                unknown.append(_seen(store))
            else:
                self._behind.note(store.id, before, revision, store.bytes)
        return unknown

    async def _compare(self, stores: Sequence[_Seen]) -> None:
        """Note which of these stores the bucket lacks changes of. Raises StorageError."""
        try:
            newest = await self._snapshotter.publisher.newest([seen.store for seen in stores])
        except StorageError:
            self._uncompared.update((seen.store, seen) for seen in stores)
            raise
        for seen in stores:
            version = newest.get(seen.store)
            self._remember(seen.store, 0 if version is None else version.revision)
            if version is None or version.revision < seen.revision:
                since = seen.time if version is None else version.taken
                self._behind.note(seen.store, since, seen.revision, seen.size_bytes, urgent=True)

    def _remember(self, store: StoreId, revision: int) -> None:
        self._known[store] = revision
        if len(self._known) > _MAX_KNOWN + self._open_stores.open_count:
            for each in list(self._known)[: _MAX_KNOWN // 2]:
                if self._open_stores.find(each) is None:
                    del self._known[each]

    def _closed(self, store: Store) -> None:
        """Note that a store was closed, or handed over."""
        known = self._known.get(store.id)
        if store.durable_revision in (0, known) or self._is_in_log(store.id):
            return
        if known is None and store.last_tick == 0:
            self._uncompared[store.id] = _seen(store)
        else:
            self._behind.note(store.id, self._looked, store.durable_revision, store.bytes)

    def _published(self, store: StoreId, version: SnapshotVersion) -> None:
        opened = self._open_stores.find(store)
        revision = opened.durable_revision if opened is not None else 0
        self._remember(store, max(version.revision, self._known.get(store, 0)))
        # The last change may be of an owner with another clock.
        time = min(version.time, version.taken)
        self._behind.published(store, version.revision, time, revision)

    def _say_stretched(self) -> None:
        wanted, bound = self._snapshotter.policy.max_lag_seconds, self.bound_seconds
        server = self._life.server
        if bound > wanted and not self._is_stretched:
            logger.info("lag.stretched server=%s bound_seconds=%.0f", server, bound)
        elif bound <= wanted and self._is_stretched:
            logger.info("lag.within server=%s", server)
        self._is_stretched = bound > wanted

    # Marks
    def _mark_of(self, now: int) -> LagMark:
        oldest = self._behind.oldest
        return LagMark(
            self._life.server,
            self._life.id,
            now,
            now + int(self._pause_seconds * 1000) * _SAME_MARK_LOOKS,
            len(self._behind),
            now if oldest is None else min(now, oldest),
            int(self.bound_seconds * 1000),
        )

    async def _put_mark(self, now: int) -> None:
        mark, last = self._mark_of(now), self._mark
        if (
            last is not None
            and mark.behind == last.behind == 0
            and self._look_count % _SAME_MARK_LOOKS
        ):
            return
        put = partial(put_mark, self._snapshotter.bucket, mark, self._mark_version)
        self._mark_version = await self._life.run_in_thread(put)
        self._mark = mark

    async def _leave_to_others(self, now: int) -> None:
        """Put a mark for the stores that were released before the bucket had all of them: this
        server may not open their files any more."""
        left = [each for each in self._behind if self._open_stores.find(each) is None]
        if not left:
            return
        mark = released_mark(self._mark_of(now), len(left))
        await self._life.run_in_thread(partial(put_mark, self._snapshotter.bucket, mark, None))
        for store in left:
            self._behind.forget(store)

    async def _finish(self) -> None:
        mark = self._mark_of(self._life.clock_ms())
        bucket = self._snapshotter.bucket
        if mark.behind:
            await self._life.run_in_thread(partial(put_mark, bucket, mark, self._mark_version))
        elif self._mark is not None:
            await self._life.run_in_thread(
                partial(remove_mark, bucket, mark.server, mark.incarnation)
            )

    async def _take_care_of_ended(self, now: int) -> None:
        """Look for what ended incarnations have left behind, if this one has claimed that."""
        with self._claims.doing(CATCH_UP) as mine:
            for claim in mine.values():
                await self._catch_up(now, claim)

    async def _catch_up(self, now: int, claim: Claimed) -> None:
        ended: list[tuple[str, str]] = await self._life.run_in_thread(self._ended)
        if not ended:
            return
        closed = await self._left_behind.find(claim)
        # What it opened is behind from here on, as far as this server owns it.
        await self._note_all(now)
        bucket = self._snapshotter.bucket
        for server, incarnation in ended:
            mark = await self._life.run_in_thread(partial(read_mark, bucket, server, incarnation))
            since = now if mark is None else mark.complete_until
            for store in closed:
                self._behind.note(store, since, 0, 0, urgent=True)
        await self._put_mark(now)
        claim.check()
        for server, incarnation in ended:
            await self._life.run_in_thread(partial(remove_mark, bucket, server, incarnation))
        logger.info(
            "lag.caught_up server=%s incarnations=%d stores=%d",
            self._life.server,
            len(ended),
            len(closed),
        )

    def _ended(self) -> list[tuple[str, str]]:
        """Return the incarnations that have ended, whose logs were reaped and whose marks are still
        there. Blocking."""
        disk, layout = self._life.disk, self._life.layout
        return [
            (server, incarnation)
            for server, incarnation in list_marks(self._snapshotter.bucket)
            if not disk.exists(layout.incarnation(server, incarnation))
        ]

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except FencedError:
            raise
        except (StorageError, UnavailableError, UnknownOperationError, ClaimLostError) as error:
            # The next look does what this one could not; until then the mark grows old.
            self._failing.note("server=%s reason=%s", self._life.server, error)
        except Exception as error:  # noqa: BLE001 (a bug in one look ends no server)
            self._mishaps.note("lag.look_failed", self._life.server, error)
        else:
            self._failing.over()


def _seen(store: Store) -> _Seen:
    return _Seen(store.id, store.durable_revision, store.bytes, store.time)
