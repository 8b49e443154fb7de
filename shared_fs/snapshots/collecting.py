"""The collector: removes objects from the bucket that nothing names and nobody needs any more.

    snapshots, packs    never published, dropped from a manifest, or of a deleted store; none that a
                        fork holds (`references.py`)
    log slots           of a fenced incarnation; every store in them has a later snapshot
    pins                expired long ago

It works in two phases. A pass marks what it finds (`garbage.py`). A later pass removes what has
been marked for the minimum age, if it is still garbage. Any number of collectors may run at any
time. Invariants, none of which depends on a clock:

1. An object is removed only after its shards have promised that nothing as old as it will ever be
   published (`Manifests.collect_before`) and did not name it at that time. A publisher that put the
   object and then slept for a week is refused, and takes its snapshot again.
2. Pins are read after that; see `pins.py`.
3. Slots are removed only from logs that end with a fence, oldest first. Fences and marks of logs
   are never removed: a zombie finds its next slot taken, whenever it wakes.
4. What cannot be understood is left alone, and counted. So is a tenant's own bucket that is away:
   the pass goes on with the others.

The minimum age gives readers without a pin, which read for seconds, the time to finish. Blocking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import ListedObject
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketError,
    ObjectConflictError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
)
from holdfast.shared_fs.bucket_log.bucket_log import (
    ListedLog,
    fence_slot,
    list_logs,
    read_coverage,
    slot_key,
)
from holdfast.shared_fs.bucket_log.log_object import Covered
from holdfast.shared_fs.snapshots.garbage import (
    MAX_MARKS,
    Incarnation,
    LogMark,
    Marks,
    read_marks,
    write_marks,
)
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX, is_pack, read_index, time_of_pack
from holdfast.shared_fs.snapshots.pins import PIN_PREFIX, expiry_of, live_pins
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.references import release
from holdfast.shared_fs.snapshots.repacking import repack
from holdfast.shared_fs.snapshots.shard import Shard, shard_of
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX, version_of_object
from holdfast.shared_fs.snapshots.store_entry import StoreEntry

#: How long something must have been marked before it is removed.
MIN_AGE_SECONDS: Final = 24 * 3600.0
#: Packs with a smaller share of live bytes than this are rewritten, up to MAX_REPACKED in one pass.
LIVE_RATIO: Final = 0.5
MAX_REPACKED: Final = 16


@dataclass(slots=True)
class Collected:
    """What a pass did, or would have done. `marked` counts all that waits, including new marks."""

    marked: int = 0
    marked_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    #: Due, but pinned by a reader.
    pinned: int = 0
    slots_marked: int = 0
    slots_removed: int = 0
    repacked: int = 0
    #: Foreign or damaged: left alone.
    strangers: int = 0
    #: Buckets of tenants that did not answer: left alone.
    places_away: int = 0
    #: Another collector was at work, or the caller gave up: the pass ended early.
    cut_short: bool = False
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Due:
    """A marked object whose time has come, and the stores that it may be published for."""

    key: str
    size_bytes: int
    stores: tuple[StoreId, ...]
    #: No snapshot in it was taken at or after this time.
    before: int


class Collector:
    """Collects garbage in one bucket. It has no state: make one for each pass or keep it."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        clock_ms: Callable[[], int],
        min_age_seconds: float = MIN_AGE_SECONDS,
        give_up: Callable[[], bool] = lambda: False,
        thorough: bool = False,
        epoch: int = 0,
    ) -> None:
        """`give_up` is called between requests. A `thorough` collector reads the index of each
        pack, and rewrites those in which a deleted store has anything left. A collector with an
        `epoch` does nothing once one of a higher epoch has begun; one without minds none."""
        self._bucket = bucket
        self._clock_ms = clock_ms
        self._min_age_ms = int(min_age_seconds * 1000)
        self._give_up = give_up
        self._thorough = thorough
        self._epoch = epoch
        self._manifests = open_manifests(bucket)
        #: Found in this pass.
        self._places_away: set[str] = set()

    def run_pass(self, *, dry_run: bool = False) -> Collected:
        """Mark garbage, and remove what was marked long ago. With `dry_run` nothing is written.

        Raises BucketError, ObjectDamagedError for a shard or marks that cannot be read.
        """
        now = self._clock_ms()
        done = Collected()
        self._places_away.clear()
        marks, version = read_marks(self._bucket)
        if 0 < self._epoch < marks.epoch:
            done.cut_short = True
            return done
        logs = self._fenced_logs()
        wanted = {each.store for slots in logs.values() for _, found in slots for each in found}
        named = _Named(self._manifests, wanted)
        if self._give_up():
            done.cut_short = True
            return done
        garbage = self._garbage(named, done)
        objects = {each.key: marks.objects.get(each.key, now) for each in garbage}
        log_marks = self._log_marks(marks.logs, logs, named, now)
        done.marked = len(objects)
        done.marked_bytes = sum(each.size_bytes for each in garbage)
        done.slots_marked = sum(
            sum(1 for slot, _ in logs[name] if slot < mark.below)
            for name, mark in log_marks.items()
        )
        done.keys = sorted(objects)
        newer = Marks(marks.generation + 1, objects, log_marks, max(self._epoch, marks.epoch))
        if not dry_run and replace(newer, generation=marks.generation) != marks:
            try:
                write_marks(self._bucket, newer, version)
            except (ObjectConflictError, ObjectExistsError):
                done.cut_short = True
                return done
        # Only what an earlier pass has marked.
        old = [
            each
            for each in garbage
            if each.key in marks.objects and objects[each.key] + self._min_age_ms <= now
        ]
        self._remove_objects(old, now, done, dry_run=dry_run)
        due_logs = {
            name: mark.below
            for name, mark in marks.logs.items()
            if name in log_marks and mark.marked + self._min_age_ms <= now
        }
        self._remove_slots(due_logs, logs, now, done, dry_run=dry_run)
        if not dry_run:
            self._remove_pins(now)
            self._repack(named, now, done)
            self._release(named, now)
        done.places_away = len(self._places_away)
        return done

    # What is garbage
    def _garbage(self, named: _Named, done: Collected) -> list[ListedObject]:
        found: list[ListedObject] = []
        for place in ("", *self._bucket.places()):
            for prefix in (SNAPSHOT_PREFIX, PACK_PREFIX):
                with self._of_place(place):
                    for listed in self._bucket.list(place + prefix):
                        if len(found) == MAX_MARKS or self._give_up():
                            return found
                        if prefix == PACK_PREFIX:
                            named.saw_pack(listed)
                        if listed.key not in named:
                            found.append(listed)
        return found

    @contextmanager
    def _of_place(self, place: str) -> Iterator[None]:
        """Do something in a tenant's own bucket; if it fails, leave the place alone."""
        try:
            yield
        except (ObjectMissingError, ObjectDamagedError):
            raise
        except BucketError:
            if not place:
                raise
            self._places_away.add(place)

    def _due(self, listed: ListedObject) -> _Due | None:
        """Return what must be known of a marked object before it is
        removed; None if that is impossible."""
        if is_pack(listed.key):
            try:
                made = time_of_pack(listed.key)
                packed = read_index(self._bucket, listed.key)
            except (ObjectDamagedError, NewerFormatError, ValueError):
                return None
            before = max([made, *(version.taken for _, version in packed)]) + 1
            stores = tuple(store for store, _ in packed)
            return _Due(listed.key, listed.size_bytes, stores, before)
        found = version_of_object(listed.key, self._bucket.head(listed.key))
        if found is None:
            return None
        store, version = found
        return _Due(listed.key, listed.size_bytes, (store,), version.taken + 1)

    def _remove_objects(
        self, old: Iterable[ListedObject], now: int, done: Collected, *, dry_run: bool
    ) -> None:
        due: list[_Due] = []
        for listed in old:
            if self._give_up():
                done.cut_short = True
                return
            place = place_prefix(listed.key)
            found = None
            try:
                with self._of_place(place):
                    found = self._due(listed)
            except ObjectMissingError:
                continue
            if place in self._places_away:
                continue
            if found is None:
                done.strangers += 1
            else:
                due.append(found)
        if not due:
            return
        shards = self._closed_shards(due, dry_run=dry_run)
        pins = live_pins(self._bucket, now)
        everything = any(pin.everything for pin in pins)
        keys = {key for pin in pins for key in pin.keys}
        for each in due:
            entries = (shards[shard_of(store)].get(store) for store in each.stores)
            if any(entry is not None and entry.names(each.key) for entry in entries):
                continue
            if everything or each.key in keys:
                done.pinned += 1
                continue
            if self._give_up():
                done.cut_short = True
                return
            with self._of_place(place_prefix(each.key)):
                if not dry_run:
                    self._bucket.delete(each.key)
                done.removed += 1
                done.removed_bytes += each.size_bytes

    def _closed_shards(self, due: Iterable[_Due], *, dry_run: bool) -> dict[int, Shard]:
        """Close the shards to anything as old as what is due, and return them as they are then."""
        before: dict[int, int] = {}
        for each in due:
            for store in each.stores:
                number = shard_of(store)
                before[number] = max(before.get(number, 0), each.before)
        if dry_run:
            return {number: self._manifests.read(number) for number in before}
        return {
            number: self._manifests.collect_before(number, time) for number, time in before.items()
        }

    # Logs
    def _fenced_logs(self) -> dict[Incarnation, list[tuple[int, list[Covered]]]]:
        """Return what the slots of each fenced log cover, up to the fence, in order."""
        found = {}
        for log in list_logs(self._bucket):
            fence = fence_slot(self._bucket, log) if log.marked and len(log.slots) > 1 else None
            if fence is not None:
                slots = [slot for slot in log.slots if slot < fence]
                found[log.server, log.incarnation] = list(self._coverage(log, slots))
        return found

    def _coverage(self, log: ListedLog, slots: list[int]) -> Iterator[tuple[int, list[Covered]]]:
        for slot in slots:
            try:
                covered = read_coverage(self._bucket, log.server, log.incarnation, slot)
            except ObjectMissingError:
                continue
            except ObjectDamagedError:
                # Nobody can tell what it contains, so it stays, and so do the slots after it.
                return
            yield slot, covered

    def _log_marks(
        self,
        before: Mapping[Incarnation, LogMark],
        logs: Mapping[Incarnation, list[tuple[int, list[Covered]]]],
        named: _Named,
        now: int,
    ) -> dict[Incarnation, LogMark]:
        marks = {}
        for name, slots in logs.items():
            below = 0
            for slot, covered in slots:
                if not all(named.is_beyond(each) for each in covered):
                    break
                below = slot + 1
            first = slots[0][0] if slots else below
            known = before.get(name)
            if (
                known is not None
                and first < known.below <= below
                and now < known.marked + self._min_age_ms
            ):
                # Its time is running. Further needless slots get their own mark afterwards.
                marks[name] = known
            elif below > first:
                marks[name] = LogMark(below, now)
        return marks

    def _remove_slots(
        self,
        due: Mapping[Incarnation, int],
        logs: Mapping[Incarnation, list[tuple[int, list[Covered]]]],
        now: int,
        done: Collected,
        *,
        dry_run: bool,
    ) -> None:
        if not due:
            return
        # A restore reads logs as a whole.
        if any(pin.logs or pin.everything for pin in live_pins(self._bucket, now)):
            done.pinned += len(due)
            return
        for (server, incarnation), below in due.items():
            for slot, _ in logs[server, incarnation]:
                if slot >= below:
                    break
                if self._give_up():
                    done.cut_short = True
                    return
                if not dry_run:
                    self._bucket.delete(slot_key(server, incarnation, slot))
                done.slots_removed += 1

    # The rest
    def _remove_pins(self, now: int) -> None:
        for listed in self._bucket.list(PIN_PREFIX):
            expires = expiry_of(listed.key)
            if expires is None or expires + self._min_age_ms > now or self._give_up():
                return
            self._bucket.delete(listed.key)

    def _repack(self, named: _Named, now: int, done: Collected) -> None:
        """Rewrite packs that are mostly garbage; the next passes remove the old ones."""
        sparse = named.sparse_packs()[:MAX_REPACKED]
        for key in named.live_packs() if self._thorough else sparse:
            if self._give_up():
                return
            try:
                with self._of_place(place_prefix(key)):
                    if key in sparse or self._has_deleted(key):
                        done.repacked += repack(self._manifests, key, now)
            except (ObjectDamagedError, ObjectMissingError, NewerFormatError):
                done.strangers += 1

    def _release(self, named: _Named, now: int) -> None:
        """Drop what is recorded of forks that hold nothing any more; the next passes remove it."""
        for store in named.forked:
            if self._give_up():
                return
            release(self._manifests, store, before=now - self._min_age_ms, forget=True)

    def _has_deleted(self, key: str) -> bool:
        """Tell whether a pack has an old snapshot of a store that was deleted since."""
        for store, version in read_index(self._bucket, key):
            entry = self._manifests.find(store)
            if (
                entry is not None
                and entry.deleted is not None
                and version.epoch <= entry.deleted.epoch
            ):
                return True
        return False


class _Named:
    """What the manifests name, in little memory: a digest of eight bytes for each key.

    At worst, two keys with the same digest keep each other alive.
    """

    def __init__(self, manifests: Manifests, wanted: set[StoreId]) -> None:
        self._keys: set[int] = set()
        self._live_bytes: dict[str, int] = {}
        self._pack_bytes: dict[str, int] = {}
        self._entries: dict[StoreId, StoreEntry] = {}
        #: The stores of which something is recorded about forks.
        self.forked: list[StoreId] = []
        for store, entry in manifests.entries():
            for version in entry.versions:
                self._keys.add(_digest(version.key))
                if is_pack(version.key):
                    live_bytes = self._live_bytes.get(version.key, 0)
                    self._live_bytes[version.key] = live_bytes + version.length
            if entry.forks:
                self.forked.append(store)
                self._keys.update(_digest(fork.key) for fork in entry.forks if fork.holds)
            if store in wanted:
                self._entries[store] = entry

    def __contains__(self, key: str) -> bool:
        return _digest(key) in self._keys

    def is_beyond(self, covered: Covered) -> bool:
        """Tell whether a store was deleted, or has a snapshot that
        includes what a slot has of it."""
        entry = self._entries.get(covered.store)
        if entry is None:
            return False
        if entry.deleted is not None and covered.epoch <= entry.deleted.epoch:
            return True
        newest = entry.newest
        return newest is not None and newest.order >= (covered.epoch, covered.revision)

    def saw_pack(self, listed: ListedObject) -> None:
        self._pack_bytes[listed.key] = listed.size_bytes

    def live_packs(self) -> list[str]:
        """Return the packs in which something is named."""
        return list(self._live_bytes)

    def sparse_packs(self) -> list[str]:
        """Return the packs that are worth rewriting."""
        return [
            key
            for key, live_bytes in self._live_bytes.items()
            if live_bytes < LIVE_RATIO * self._pack_bytes.get(key, 0)
        ]


def _digest(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
