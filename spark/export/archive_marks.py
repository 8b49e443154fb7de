"""Records in the manifests which messages the table has, so that servers can archive them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.shard import Shard, shard_of
from holdfast.shared_fs.snapshots.store_entry import ArchiveMark, StoreEntry
from holdfast.spark.tables.watermarks import Watermark, Watermarks


def mark_archived(
    manifests: Manifests,
    entries: Mapping[StoreId, StoreEntry],
    marks: Watermarks,
    table: str,
) -> int:
    """Record in the manifests up to which seq and revision each stream is in the table. Return the
    number of streams recorded."""
    by_shard: dict[int, dict[StoreId, Watermark]] = {}
    for store, entry in entries.items():
        mark = marks.get(store)
        if (
            store.kind == StoreKind.STREAM
            and mark is not None
            and not mark.dropped
            and entry.deleted is None
            and is_news(entry, mark, table)
            and _is_of(entry, mark)
        ):
            by_shard.setdefault(shard_of(store), {})[store] = mark
    count = 0
    for number, wanted in sorted(by_shard.items()):

        def change(
            shard: Shard, wanted: Mapping[StoreId, Watermark] = wanted
        ) -> Mapping[StoreId, StoreEntry | None]:
            changed: dict[StoreId, StoreEntry | None] = {}
            for store, mark in wanted.items():
                entry = shard.get(store)
                if entry is not None and entry.deleted is None and _is_of(entry, mark):
                    seq = max(entry.archived_seq, mark.last_seq)
                    where = ArchiveMark(mark.epoch, mark.revision, table)
                    changed[store] = replace(entry, archived_seq=seq, archive=where)
            return changed

        manifests.update(number, change)
        count += len(wanted)
    return count


def is_news(entry: StoreEntry, mark: Watermark, table: str) -> bool:
    known = entry.archive
    return mark.last_seq > 0 and (
        mark.last_seq > entry.archived_seq
        or known is None
        or known.table != table
        or known.epoch != mark.epoch
    )


def _is_of(entry: StoreEntry, mark: Watermark) -> bool:
    """Return whether an entry is certainly of the same life of the store as the table's rows. After
    a change of owner, that is known only after the next export."""
    return entry.newest is not None and entry.newest.epoch == mark.epoch
