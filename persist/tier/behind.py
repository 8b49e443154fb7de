"""Which stores are behind: they have changes that the bucket lacks. Pure.

    a change is seen ──▶ behind ──▶ due ──▶ asked for ──▶ published: caught up, or less behind

An export reads the bucket alone, so a change reaches it only once a snapshot has it. The bound says
how long that may take. A store is due at half of the bound; the other half is for the snapshot.
Stores that are nearly due come along, because a pass costs little more for each further store.

Tiny snapshots share objects and requests. Each larger one takes requests, processor time and
traffic of its own, so their pace is limited for a whole server, and their bound grows with what
waits: it is kept as long as it can be, and told (`bound_seconds`). A budget stretches both bounds.

An idle store is not behind, so it costs nothing. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.names import StoreId

#: A store is due after this share of the bound, and comes along with others after that share.
_DUE_SHARE: Final = 0.5
_ALONG_SHARE: Final = 0.125
#: Smaller stores make tiny snapshots, which share objects: zstd halves what most stores hold.
_TINY_BYTES: Final = 128 * KIB
#: How many larger snapshots a server makes in a second because of their age, and of how many bytes:
#: at most $50 of puts a month, and a seventh of a core.
_LARGE_PER_SECOND: Final = 4.0
_LARGE_BYTES_PER_SECOND: Final = 8 * MIB
#: What was asked for and never published is asked for again after this share of the bound.
_ASK_AGAIN_SHARE: Final = 0.5


@dataclass(slots=True)
class _Behind:
    #: The first change that the bucket lacks is not older than this.
    since: int
    #: The last revision that was seen, and the size of the store.
    revision: int
    size_bytes: int
    asked: int | None = None
    urgent: bool = False

    @property
    def is_large(self) -> bool:
        return self.size_bytes > _TINY_BYTES


class BehindStores:
    """The stores of one incarnation that are behind."""

    def __init__(self, bound_seconds: float) -> None:
        self._bound_ms = bound_seconds * 1000
        self._stores: dict[StoreId, _Behind] = {}
        self._large_count = 0
        self._large_bytes = 0
        #: How many times longer the bound is than what was asked for: a budget sets it.
        self.stretch = 1.0

    def __len__(self) -> int:
        return len(self._stores)

    def __contains__(self, store: StoreId) -> bool:
        return store in self._stores

    def __iter__(self) -> Iterator[StoreId]:
        return iter(list(self._stores))

    @property
    def oldest(self) -> int | None:
        """The time of the oldest change that the bucket lacks, or earlier; None if it has all."""
        return min((one.since for one in self._stores.values()), default=None)

    @property
    def bound_seconds(self) -> float:
        """The longest bound of any store now."""
        return max(self._bound(is_large=False), self._bound(is_large=True)) / 1000

    def note(
        self, store: StoreId, since: int, revision: int, size_bytes: int, *, urgent: bool = False
    ) -> None:
        """Note that a store has changes up to `revision` that the bucket lacks, the first of them
        at `since` or later. An `urgent` one is due at once: nobody knows how long it was behind."""
        known = self._stores.get(store)
        if known is not None:
            self._count(known, -1)
            known.revision = max(known.revision, revision)
            known.size_bytes = size_bytes
        else:
            known = self._stores[store] = _Behind(since, revision, size_bytes)
        known.urgent |= urgent
        self._count(known, 1)

    def published(self, store: StoreId, revision: int, time: int, now_revision: int) -> None:
        """Note that the bucket has a store up to `revision`, a change of `time`, while the store
        has reached `now_revision`."""
        known = self._stores.get(store)
        if known is None:
            return
        if revision >= max(known.revision, now_revision):
            self.forget(store)
            return
        # What the snapshot lacks came after its last change, and after it was asked for.
        known.since = max(known.since, time, known.asked or 0)
        known.revision = max(known.revision, now_revision)
        known.asked, known.urgent = None, False

    def forget(self, store: StoreId) -> None:
        """Note that a store has nothing that this server could put into the bucket."""
        known = self._stores.pop(store, None)
        if known is not None:
            self._count(known, -1)

    def due(self, now: int) -> list[StoreId]:
        """Return the stores to snapshot now, the oldest first. Each is returned once, until it is
        published or half of the bound has passed."""
        bounds = {is_large: self._bound(is_large=is_large) for is_large in (False, True)}
        along: list[tuple[int, StoreId, _Behind]] = []
        is_due = False
        for store, one in self._stores.items():
            bound = bounds[one.is_large]
            if one.asked is not None and now - one.asked < bound * _ASK_AGAIN_SHARE:
                continue
            age = now - one.since
            if one.urgent or age >= bound * _ALONG_SHARE:
                along.append((one.since, store, one))
                is_due |= one.urgent or age >= bound * _DUE_SHARE
        if not is_due:
            return []
        along.sort(key=lambda each: each[0])
        for _, _, one in along:
            one.asked = now
        return [store for _, store, _ in along]

    def _bound(self, *, is_large: bool) -> float:
        bound = self._bound_ms
        if is_large:
            needed_seconds = max(
                self._large_count / _LARGE_PER_SECOND, self._large_bytes / _LARGE_BYTES_PER_SECOND
            )
            bound = max(bound, needed_seconds * 1000 / _DUE_SHARE)
        return bound * self.stretch

    def _count(self, one: _Behind, sign: int) -> None:
        if one.is_large:
            self._large_count += sign
            self._large_bytes += sign * one.size_bytes
