"""Objects that forks share with the stores that they were forked from, as an erasure sees them.

Such an object has the values of all of them, and is named after one. So an erasure of a fork also
looks among the objects of other stores, and an erasure of a store leaves what its forks hold.
Blocking.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.forks.fork import ForkReference
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.references import release
from holdfast.shared_fs.snapshots.store_entry import StoreEntry


def let_go(manifests: Manifests, sought: Sought) -> list[str]:
    """Let go of what forks hold no more, and return the objects of other stores that had what is
    sought. Raises BucketError."""
    keys = []
    for parent, entry in _forked(manifests, sought):
        mine = list(shared_with(parent, entry, sought))
        if mine or sought.has_store(parent):
            release(manifests, parent)
        keys += [fork.key for fork in mine]
    return keys


def left_elsewhere(manifests: Manifests, sought: Sought) -> Iterator[str]:
    """Yield the objects of other stores that had what is sought, and that nothing names. Raises
    BucketError."""
    for parent, entry in _forked(manifests, sought):
        for fork in shared_with(parent, entry, sought):
            if not entry.names(fork.key):
                yield fork.key


def held_by_forks(manifests: Manifests, sought: Sought) -> set[str]:
    """Return the objects of what is sought that stay for nothing but forks. Raises BucketError."""
    return {
        fork.key
        for parent, entry in _forked(manifests, sought)
        for fork in entry.forks
        if fork.holds and all(version.key != fork.key for version in entry.versions)
    }


def shared_with(parent: StoreId, entry: StoreEntry, sought: Sought) -> Iterator[ForkReference]:
    """Yield the forks of a store that are sought and shared an object with it."""
    for fork in entry.forks:
        if fork.key and sought.has(fork.store(parent), fork.epoch):
            yield fork


def _forked(manifests: Manifests, sought: Sought) -> Iterator[tuple[StoreId, StoreEntry]]:
    for store, entry in manifests.entries():
        if store.tenant == sought.tenant and entry.forks:
            yield store, entry
