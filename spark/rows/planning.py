"""Plans a run of the export: makes tasks of manifests, logs and watermarks. Pure.

A bucket may have millions of stores, so a run has as many plans, one after the other, as keep each
of them small: nothing of a store is kept from one to the next, but for what log objects have.

The table has all changes of a store up to its watermark. The changes after it are read from the log
in the bucket if possible, because it has every change, including overwritten values. Otherwise they
are read from the newest snapshot, and what follows that from the log. Invariants:

- The tasks of a store read ranges of revisions that follow the watermark without gap or overlap.
- A record of the log counts only up to where the next epoch begins; later changes in it were
  never acknowledged.
- Tasks that read log objects read nothing else, and each part of a large store has a task of its
  own. So their files can be left out if an object that they needed was removed in the meantime.
- All parts of a store are in one plan, and all tasks that read log objects in the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import BY_TENANT, TableLayout
from holdfast.shared_fs.snapshots.store_entry import (
    SnapshotVersion,
    StoreEntry,
    Tombstone,
    version_values,
)
from holdfast.spark.tables.watermarks import Watermark

#: The stores of one plan. The driver has some 2 kB of each, and Spark takes a second to begin a
#: plan, which is little beside reading so many stores.
PLAN_STORES: Final = 50_000
#: The value bytes that one task reads: at least so many that starting a task costs little, some
#: 0.03 s of processor time beside 0.12 s, at most so many that it takes minutes.
MIN_TASK_BYTES: Final = 48 * MIB
MAX_TASK_BYTES: Final = 1024 * MIB
#: Tasks for each core: enough that no core is idle for long at the end.
_TASKS_PER_CORE: Final = 3
#: Compressed bytes of log objects that a task holds in memory together.
LOG_TASK_BYTES: Final = 16 * MIB
#: The fixed cost of reading a store: so many bytes of a large store take as long, some 0.1 ms.
_STORE_BYTES: Final = 16 * KIB


#: At most this share of a snapshot is little.
LITTLE_SHARE: Final = 0.25


class Coverage(NamedTuple):
    """A log object's part of a store: the changes after `previous_revision` up to `revision`."""

    key: str
    size_bytes: int
    epoch: int
    previous_revision: int
    revision: int


class LogRange(NamedTuple):
    """The changes of one epoch that a task takes from a log object."""

    epoch: int
    after: int
    upto: int
    #: The chain of hashes before them, if the table knows it.
    chain: bytes = b""
    #: Whether the table may lack a part of the chain before them. Then the next snapshot of the
    #: store is read from its beginning.
    lacks_chain: bool = False


class ImageWork(Protocol):
    """What somebody reads of a snapshot."""

    @property
    def store(self) -> StoreId: ...
    @property
    def version(self) -> SnapshotVersion: ...
    @property
    def since(self) -> Watermark | None:
        """Of a reader who wants the changes after a watermark."""
        ...

    @property
    def parts(self) -> int:
        """How many tasks read a part of it."""
        ...

    @property
    def is_little(self) -> bool:
        """Whether it probably is a small part of the snapshot."""
        ...

    @property
    def is_rest(self) -> bool:
        """Whether it is all that there is after `since`."""
        ...


class SnapshotWork(NamedTuple):
    """The `part`-th of `parts` equal parts of a snapshot's changes after a watermark."""

    store: StoreId
    version: SnapshotVersion
    since: Watermark | None
    part: int = 0
    parts: int = 1

    @property
    def is_little(self) -> bool:
        if self.since is None or self.since.revision == 0:
            return False
        new = self.version.revision - self.since.revision
        return 0 <= new <= LITTLE_SHARE * self.version.count

    @property
    def is_rest(self) -> bool:
        return self.parts == 1


@dataclass(frozen=True, slots=True)
class DropWork:
    """A deleted store, which the table has up to `since`."""

    store: StoreId
    tombstone: Tombstone
    since: Watermark


@dataclass(frozen=True, slots=True)
class LogWork:
    """The ranges to read from one log object."""

    key: str
    size_bytes: int
    ranges: Mapping[StoreId, Sequence[LogRange]]


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads, in this order."""

    stores: tuple[SnapshotWork | DropWork, ...] = ()
    logs: tuple[LogWork, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        # An export sends millions of stores to its tasks: as rows in a third of the time.
        return _task_of, ([_row_of(work) for work in self.stores], self.logs)

    @property
    def is_part(self) -> bool:
        """Whether it reads only a part of one large store."""
        first = self.stores[0] if self.stores else None
        return isinstance(first, SnapshotWork) and first.parts > 1


def _row_of(work: SnapshotWork | DropWork) -> tuple[Any, ...] | DropWork:
    if isinstance(work, DropWork):
        return work
    store, version, since, part, parts = work
    return *store, version_values(version), since and (*since,), part, parts


def _task_of(rows: Sequence[tuple[Any, ...] | DropWork], logs: tuple[LogWork, ...]) -> Task:
    return Task(tuple(map(_work_of, rows)), logs)


def _work_of(row: tuple[Any, ...] | DropWork) -> SnapshotWork | DropWork:
    if isinstance(row, DropWork):
        return row
    tenant, kind, name, version, since, part, parts = row
    store = StoreId(tenant, kind, name)
    mark = since and Watermark(*since)
    return SnapshotWork(store, SnapshotVersion(*version), mark, part, parts)


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """A plan of a run."""

    tasks: tuple[Task, ...]
    #: Whether no other plan of the run follows.
    is_last: bool = True
    #: Stores whose log ranges follow a snapshot that is read in the same run. In the last plan.
    stacked: frozenset[StoreId] = frozenset()


class StoreGroup(NamedTuple):
    """Some stores of a bucket: what the manifests have of them, what the log has, and how far the
    table goes."""

    entries: Iterable[tuple[StoreId, StoreEntry]]
    coverage: Mapping[StoreId, Sequence[Coverage]]
    watermarks: Mapping[StoreId, Watermark]


@dataclass(slots=True)
class _Gathered:
    works: list[SnapshotWork | DropWork] = field(default_factory=list)
    logs: dict[str, tuple[int, dict[StoreId, list[LogRange]]]] = field(default_factory=dict)
    stacked: set[StoreId] = field(default_factory=set)

    def store_tasks(self, cores: int, layout: TableLayout) -> list[Task]:
        works, self.works = self.works, []
        tenants = {work.store.tenant for work in works}
        places = {tenant: layout.order(tenant) for tenant in tenants}
        works.sort(key=lambda work: _order(work.store, places[work.store.tenant]))
        return list(_store_tasks(works, cores))


def plans(
    groups: Iterable[StoreGroup],
    cores: int,
    most_stores: int | None,
    layout: TableLayout = BY_TENANT,
) -> Iterator[ExportPlan]:
    """Yield everything that is new, spread over tasks, with at most so many stores in a plan; None
    for one plan. Each store is in one group. A task has neighbours of the table's layout, so few
    tasks write to the same partition."""
    gathered = _Gathered()
    for group in groups:
        # Nothing is kept of a store that has nothing new: there may be millions.
        only_in_log = dict(group.coverage)
        for store, entry in group.entries:
            only_in_log.pop(store, None)
            since = group.watermarks.get(store)
            _plan_store(store, entry, group.coverage.get(store, ()), since, gathered)
            if len(gathered.works) == most_stores:
                yield ExportPlan(tuple(gathered.store_tasks(cores, layout)), is_last=False)
        for store, covered in only_in_log.items():
            _plan_store(store, StoreEntry(), covered, group.watermarks.get(store), gathered)
    tasks = [*gathered.store_tasks(cores, layout), *_log_tasks(gathered)]
    yield ExportPlan(tuple(tasks), stacked=frozenset(gathered.stacked))


def plan(
    entries: Iterable[tuple[StoreId, StoreEntry]],
    coverage: Mapping[StoreId, Sequence[Coverage]],
    watermarks: Mapping[StoreId, Watermark],
    cores: int,
) -> ExportPlan:
    """Return everything that is new as one plan."""
    [found] = plans([StoreGroup(entries, coverage, watermarks)], cores, None)
    return found


def order_of(store: StoreId, layout: TableLayout) -> tuple[int, str, str, str]:
    """Return the sort key of a store's rows, before their revision."""
    return _order(store, layout.order(store.tenant))


_WORDS: Final = {int(kind): kind.word for kind in StoreKind}


def _order(store: StoreId, place: tuple[int, str]) -> tuple[int, str, str, str]:
    return *place, _WORDS[store.kind], store.name


def _plan_store(
    store: StoreId,
    entry: StoreEntry,
    covered: Sequence[Coverage],
    since: Watermark | None,
    gathered: _Gathered,
) -> None:
    if entry.deleted is not None:
        if since is not None and not since.dropped:
            gathered.works.append(DropWork(store, entry.deleted, since))
        return
    had, start = since, (0, 0) if since is None else (since.epoch, since.revision)
    if since is not None and since.dropped:
        # A new store of the same name, whose revisions continue those of the deleted one.
        covered = [one for one in covered if one.epoch > since.epoch]
        since = None
    newest = entry.newest
    if not covered:
        # As nearly everywhere.
        if newest is not None and newest.order > start:
            gathered.works.append(SnapshotWork(store, newest, since))
        return
    chain = _chain(covered, start)
    if newest is not None and newest.order > start and _end(chain, start) < newest.order:
        gathered.works.append(SnapshotWork(store, newest, since))
        chain = _chain(covered, newest.order)
        if chain:
            gathered.stacked.add(store)
    lacks = had is not None and not had.chain and store not in gathered.stacked
    for key, size_bytes, found in chain:
        at_mark = since is not None and found.after == since.revision
        known = since.chain if since is not None and at_mark else b""
        found = found._replace(chain=known, lacks_chain=lacks)
        _, ranges = gathered.logs.setdefault(key, (size_bytes, {}))
        ranges.setdefault(store, []).append(found)


def _chain(covered: Sequence[Coverage], start: tuple[int, int]) -> list[tuple[str, int, LogRange]]:
    """Return the ranges that follow `start`, an epoch and a revision, without a gap."""
    by_epoch: dict[int, list[Coverage]] = {}
    for one in covered:
        by_epoch.setdefault(one.epoch, []).append(one)
    epochs = sorted(epoch for epoch in by_epoch if epoch >= start[0])
    begins = {epoch: min(one.previous_revision for one in by_epoch[epoch]) for epoch in epochs}
    position = start[1]
    found: list[tuple[str, int, LogRange]] = []
    for index, epoch in enumerate(epochs):
        if epoch > start[0] and begins[epoch] < position:
            # This epoch began below the position, so only a snapshot can tell which changes are
            # valid.
            return found
        ends_at = min((begins[later] for later in epochs[index + 1 :]), default=None)
        for one in sorted(by_epoch[epoch], key=lambda each: each.previous_revision):
            if one.previous_revision > position:
                return found
            upto = one.revision if ends_at is None else min(one.revision, ends_at)
            if upto > position:
                found.append((one.key, one.size_bytes, LogRange(epoch, position, upto)))
                position = upto
    return found


def _end(chain: Sequence[tuple[str, int, LogRange]], start: tuple[int, int]) -> tuple[int, int]:
    return (chain[-1][2].epoch, chain[-1][2].upto) if chain else start


def _store_tasks(works: Sequence[SnapshotWork | DropWork], cores: int) -> Iterator[Task]:
    sizes = list(map(_size_of, works))
    total = sum(sizes)
    target = max(MIN_TASK_BYTES, min(MAX_TASK_BYTES, total // (cores * _TASKS_PER_CORE)))
    count = max(1, total // target)
    if count > cores:
        # Otherwise some cores would be idle at the end.
        count -= count % cores
    # Rounded up: a rest would be a task of its own.
    target = min(MAX_TASK_BYTES, -(-total // count))
    group: list[SnapshotWork | DropWork] = []
    group_bytes = 0
    for work, size_bytes in zip(works, sizes, strict=True):
        if isinstance(work, SnapshotWork) and 2 * size_bytes > 3 * target:
            parts = -(-size_bytes // target)
            for part in range(parts):
                part_work = SnapshotWork(work.store, work.version, work.since, part, parts)
                yield Task((part_work,))
            continue
        if group and group_bytes + size_bytes // 2 >= target:
            yield Task(tuple(group))
            # The next one has so much less, or more, and the last one is not a small rest.
            group, group_bytes = [], group_bytes - target
        group.append(work)
        group_bytes += size_bytes
    if group:
        yield Task(tuple(group))


def _size_of(work: SnapshotWork | DropWork) -> int:
    if isinstance(work, DropWork):
        return KIB
    version = work.version
    new = version.revision if work.since is None else version.revision - work.since.revision
    share = min(1.0, new / max(1, version.revision)) if new > 0 else 1.0
    # Every row takes some time, however short its value is.
    return _STORE_BYTES + int((version.bytes + 64 * version.count) * share)


def _log_tasks(gathered: _Gathered) -> Iterator[Task]:
    group: list[LogWork] = []
    group_bytes = 0
    for key, (size_bytes, ranges) in sorted(gathered.logs.items()):
        if group and group_bytes + size_bytes > LOG_TASK_BYTES:
            yield Task(logs=tuple(group))
            group, group_bytes = [], 0
        group.append(LogWork(key, size_bytes, ranges))
        group_bytes += size_bytes
    if group:
        yield Task(logs=tuple(group))
