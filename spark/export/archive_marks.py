"""Records in the manifests which messages the table has, so that servers can archive them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.shard import Shard
from holdfast.shared_fs.snapshots.store_entry import ArchiveMark, StoreEntry
from holdfast.spark.tables.watermarks import Watermark, WatermarkFile


def mark_archived(
    manifests: Manifests, shards: Collection[int], marks: WatermarkFile, table: str
) -> int:
    """Record in some shards of the manifests up to which seq and revision each stream is in the
    table. Return the number of streams recorded."""
    count = 0
    for number, frame in marks.shards():
        if number not in shards:
            continue
        known = marks.marks(frame)
        changed: dict[StoreId, StoreEntry | None] = {}

        def change(
            shard: Shard,
            known: Mapping[StoreId, Watermark] = known,
            changed: dict[StoreId, StoreEntry | None] = changed,
        ) -> Mapping[StoreId, StoreEntry | None]:
            changed.clear()
            for store, mark in known.items():
                entry = shard.get(store) if store.kind == StoreKind.STREAM else None
                if (
                    entry is not None
                    and not mark.dropped
                    and entry.deleted is None
                    and is_news(entry, mark, table)
                    and _is_of(entry, mark)
                ):
                    seq = max(entry.archived_seq, mark.last_seq)
                    where = ArchiveMark(mark.epoch, mark.revision, table)
                    changed[store] = replace(entry, archived_seq=seq, archive=where)
            return changed

        manifests.update(number, change)
        count += len(changed)
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
